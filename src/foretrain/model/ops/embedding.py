"""Table look-ups: token embeddings, learned positions, and pooled look-ups of recommendation models."""

from __future__ import annotations

from functools import cache

from foretrain.model.graph import Op, Tensor
from foretrain.model.ops.base import (
    FORWARD,
    INPUT_GRADIENT,
    WEIGHT_GRADIENT,
    Kernel,
    KernelChoices,
    largest,
    memory,
    output_bytes,
    tensor_bytes,
)
from foretrain.model.ops.family import OpFamily
from foretrain.model.ops.skew import often, seen
from foretrain.model.precision import Precision

TABLE_BYTES = 4.0  # of a value: tables stay in fp32 under mixed precision (HugeCTR, FBGEMM)


def _lookup(op: Op, phase: str, moved: float, lookups: int, width: int) -> Kernel:
    rows = op.size[op.weights[0].dims[0]]
    return Kernel("embedding", phase, 0.0, moved, "fp32", (rows, width, lookups))


class Embedding(OpFamily):
    """ids `(batch, seq)`, weight `(vocab, hidden)` → `(batch, seq, hidden)`; the vocabulary is contracted."""

    name = "embedding"
    is_outer = True
    # as the input of what runs again (Megatron Core, multi_token_prediction.py)
    is_looked_up = True

    def divides(self, op: Op, dims: tuple[str, ...]) -> bool:
        return dims == ("batch",)

    def _counts(self, op: Op) -> tuple[int, int]:
        return op.elements(op.inputs[0]), op.size[op.weights[0].dims[1]]

    def forward(self, op: Op, precision: Precision, choices: KernelChoices) -> tuple[Kernel, ...]:
        lookups, width = self._counts(op)
        moved = lookups * (8.0 + width * precision.weight_bytes) + output_bytes(op, precision)
        return (_lookup(op, FORWARD, moved, lookups, width),)

    def backward(self, op: Op, precision: Precision, choices: KernelChoices) -> tuple[Kernel, ...]:
        # the gradient rows are read and written back by a scatter-add
        lookups, width = self._counts(op)
        moved = lookups * (8.0 + 2 * width * precision.gradient_bytes)
        moved += output_bytes(op, precision)
        return (_lookup(op, WEIGHT_GRADIENT, moved, lookups, width),)

    def saved(self, op: Op, precision: Precision, choices: KernelChoices) -> tuple[Tensor, ...]:
        return () if op.is_frozen else op.inputs


class EmbeddingBag(Embedding):
    """Pooled look-ups of a group of tables in one kernel.

    indices `(batch, bag)` with `bag` look-ups per sample over all tables of the group, weight `(rows, hidden)`
    with the rows of all tables → `(batch, table, hidden)`. Table-wise sharding splits `table`, `bag` and
    `rows` together; row-wise sharding splits `rows` alone and leaves partial sums: a rank then looks up what its
    rows are asked for, a share of all look-ups. Attribute `tables` lists rows x look-ups of each table, `skew` how
    unevenly rows are drawn; backward applies the gradient to the rows (`sparse`).
    """

    name = "embedding_bag"
    makes = "recommender"
    is_outer = False
    is_looked_up = False

    def touched(self, op: Op) -> float | None:
        """A sparse update reaches the rows that were looked up and no others."""
        return rows_met(op)[0] * op.size["hidden"] if op.attr.get("sparse") else None

    def replicated(self, op: Op, samples: int, least: float) -> tuple[float, float] | None:
        """Single rows can be kept on all ranks: HugeCTR's hybrid embedding takes one look-up per table."""
        if any(bag != 1 for _, bag in listed(op)):
            return None
        rows, share = popular(op, samples, least)
        return rows * op.size["hidden"], share

    def trait(self, op: Op) -> str:
        return "embedding tables"

    def pooled(self, op: Op) -> tuple[int, ...]:
        return tuple(bag for _, bag in listed(op))

    def _counts(self, op: Op) -> tuple[int, int]:
        lookups, width = super()._counts(op)
        return max(1, round(lookups * held_share(op))), width

    def _kernel(self, op: Op, phase: str, passes: int, value_bytes: float) -> Kernel:
        lookups, width = self._counts(op)
        moved = lookups * (8.0 + passes * width * TABLE_BYTES)
        moved += vectors(op) * width * value_bytes
        rows = op.size[op.weights[0].dims[0]]
        met = tuple(max(1, round(number)) for number in rows_met(op))
        return Kernel("embedding", phase, 0.0, moved, "fp32", (rows, width, lookups, *met))

    def forward(self, op: Op, precision: Precision, choices: KernelChoices) -> tuple[Kernel, ...]:
        return (self._kernel(op, FORWARD, 1, precision.activation_bytes),)

    def backward(self, op: Op, precision: Precision, choices: KernelChoices) -> tuple[Kernel, ...]:
        # rows are read and written back, as often as they were looked up; most of that meets the cache
        return (self._kernel(op, WEIGHT_GRADIENT, 2, precision.activation_bytes),)


@cache
def _listed(text: str) -> tuple[tuple[int, int], ...]:
    pairs = (word.partition("x") for word in text.split(","))
    return tuple((int(rows), int(bag)) for rows, _, bag in pairs)


def listed(op: Op) -> tuple[tuple[int, int], ...]:
    """Rows and look-ups per sample of every table of the whole group."""
    text = op.attr.get("tables")
    return _listed(str(text)) if text else ((op.size["rows"], op.size["bag"]),)


def held_share(op: Op) -> float:
    """Of the look-ups that an op's samples make in its tables, those that its own rows answer."""
    tables = listed(op)
    kept = op.size["rows"] / sum(rows for rows, _ in tables)
    return min(1.0, kept * len(tables) / op.size.get("table", len(tables)))


def parts(bags: tuple[int, ...], places: int) -> tuple[float, ...]:
    """Vectors a sample receives of every table, all of them spread over so many places.

    Tables are placed whole, or in as many parts as even out the look-ups, so that one with many of them answers
    with several partial sums (HugeCTR's plan generator: rows split until the busiest place is no longer so).
    """
    total = sum(bags)
    return tuple(min(bag, max(1.0, bag * places / total)) for bag in bags)


def vectors(op: Op) -> float:
    """Pooled rows that an op makes: one per sample and table, and of rows held in part those with something in them."""
    share = held_share(op)
    if share == 1.0:
        return float(op.elements(op.outputs[0]) // op.size["hidden"])
    bags = tuple(bag for _, bag in listed(op))
    return op.size["batch"] * sum(parts(bags, round(1.0 / share))) * share


def rows_met(op: Op) -> tuple[float, float]:
    """Rows that an op's samples look up, and those of them that a cache should hold for the next time.

    Skewed, these are the rows looked up more than once, and look-ups of one bag hang together: who draws a sample's
    first row draws the others with it (MLPerf's multi-hot data gives every value of Criteo's a fixed bag). Drawn evenly
    and each for itself, no row is more likely to come back than another.
    """
    tables, skew = listed(op), float(op.attr.get("skew", 0.0))
    met = again = 0.0
    for rows, bag in tables:
        if skew:
            one, more = (bag * number for number in seen(rows, op.size["batch"], skew))
        else:
            one = more = seen(rows, op.size["batch"] * bag, skew)[0]
        met += min(float(rows), one)
        again += min(float(rows), more)
    # of tables that are cut away nothing is met
    share = held_share(op) * op.size.get("table", len(tables)) / len(tables)
    return met * share, again * share


def popular(op: Op, samples: int, least: float) -> tuple[float, float]:
    """Rows of all tables drawn at least so often by the samples of a step, and the share of look-ups they answer."""
    skew = float(op.attr.get("skew", 0.0))
    tables = [often(rows, samples, skew, least) for rows, _ in listed(op)]
    return sum(rows for rows, _ in tables), sum(share for _, share in tables) / len(tables)


class Position(OpFamily):
    """Learned positions added to `x`: weight `(position, hidden)`, and a class token where there is one."""

    name = "position"
    shares_bytes = True

    def divides(self, op: Op, dims: tuple[str, ...]) -> bool:
        return dims in (("batch",), ("hidden",))

    def forward(self, op: Op, precision: Precision, choices: KernelChoices) -> tuple[Kernel, ...]:
        moved = tensor_bytes(op, (*op.inputs, *op.outputs), precision)
        return (memory(FORWARD, moved + _rows(op) * precision.weight_bytes, largest(op)),)

    def backward(self, op: Op, precision: Precision, choices: KernelChoices) -> tuple[Kernel, ...]:
        moved = output_bytes(op, precision) + _rows(op) * precision.gradient_bytes
        return (memory(WEIGHT_GRADIENT, moved, largest(op)),)


def _rows(op: Op) -> int:
    """Weight elements touched: one row per position of the sequence."""
    return op.elements(op.outputs[0]) // op.size["batch"]


class Interaction(OpFamily):
    """DLRM's dot interaction: all pairwise products of the dense vector and the pooled embeddings.

    dense `(batch, hidden)` and embeddings `(batch, table…, hidden)` → `(batch, feature)` (Naumov et al. 2019,
    arXiv 1906.00091). Libraries compute the full square of the vectors and pick one triangle.
    """

    name = "interaction"
    shares_bytes = True

    def divides(self, op: Op, dims: tuple[str, ...]) -> bool:
        return dims in (("batch",), ("hidden",))

    def _vectors(self, op: Op) -> int:
        return sum(op.extent(d for d in t.dims if d not in ("batch", "hidden")) for t in op.inputs)

    def flops(self, op: Op) -> float:
        return 2.0 * op.size["batch"] * self._vectors(op) ** 2 * op.size["hidden"]

    def _kernels(self, op: Op, precision: Precision, phase: str, n: int) -> tuple[Kernel, ...]:
        batch, vectors, width = op.size["batch"], self._vectors(op), op.size["hidden"]
        moved = batch * (2 * vectors * width + vectors**2) * precision.activation_bytes
        product = Kernel(
            "gemm", phase, self.flops(op), moved, precision.attention,
            (batch, vectors, vectors, width),
        )  # fmt: skip
        # vectors are joined before the product and the triangle after it; going back the two gradients of the square
        # are added up and taken apart again
        passes = 2 if phase == FORWARD else 5
        vector_bytes = batch * vectors * width * precision.activation_bytes
        joined = passes * vector_bytes + 2 * output_bytes(op, precision)
        return (*(product,) * n, memory(phase, joined, largest(op)))

    def forward(self, op: Op, precision: Precision, choices: KernelChoices) -> tuple[Kernel, ...]:
        if choices.fuses_epilogues:
            return (memory(FORWARD, self._read(op, precision, 1), largest(op)),)
        return self._kernels(op, precision, FORWARD, 1)

    def backward(self, op: Op, precision: Precision, choices: KernelChoices) -> tuple[Kernel, ...]:
        if choices.fuses_epilogues:
            return (memory(INPUT_GRADIENT, self._read(op, precision, 2), largest(op)),)
        return self._kernels(op, precision, INPUT_GRADIENT, 2)

    def _read(self, op: Op, precision: Precision, times: int) -> float:
        """Joined, multiplied and picked on chip: vectors pass once, and once more as gradients."""
        vectors = tensor_bytes(op, op.inputs, precision)
        return times * vectors + output_bytes(op, precision)

    def saved(self, op: Op, precision: Precision, choices: KernelChoices) -> tuple[Tensor, ...]:
        return op.inputs
