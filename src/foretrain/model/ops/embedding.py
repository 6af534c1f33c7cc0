"""Table look-ups: token embeddings, learned positions, and pooled look-ups of recommendation models."""

from __future__ import annotations

from foretrain.model.graph import Op, Tensor
from foretrain.model.ops.base import (
    FORWARD,
    INPUT_GRADIENT,
    WEIGHT_GRADIENT,
    Choices,
    Kernel,
    largest,
    memory,
    output_bytes,
    tensor_bytes,
)
from foretrain.model.precision import Precision


def _lookup(op: Op, phase: str, moved: float, lookups: int, width: int) -> Kernel:
    rows = op.size[op.weights[0].dims[0]]
    return Kernel("embedding", phase, 0.0, moved, "fp32", (rows, width, lookups))


class Embedding:
    """ids `(batch, seq)`, weight `(vocab, hidden)` → `(batch, seq, hidden)`; the vocabulary is contracted."""

    name = "embedding"

    def flops(self, op: Op) -> float:
        return 0.0  # a look-up multiplies nothing

    def _counts(self, op: Op) -> tuple[int, int]:
        return op.elements(op.inputs[0]), op.size[op.weights[0].dims[1]]

    def forward(self, op: Op, precision: Precision, choices: Choices) -> tuple[Kernel, ...]:
        lookups, width = self._counts(op)
        moved = lookups * (8.0 + width * precision.weight_bytes) + output_bytes(op, precision)
        return (_lookup(op, FORWARD, moved, lookups, width),)

    def backward(self, op: Op, precision: Precision, choices: Choices) -> tuple[Kernel, ...]:
        # the gradient rows are read and written back by a scatter-add
        lookups, width = self._counts(op)
        moved = lookups * (8.0 + 2 * width * precision.gradient_bytes)
        moved += output_bytes(op, precision)
        return (_lookup(op, WEIGHT_GRADIENT, moved, lookups, width),)

    def saved(self, op: Op, precision: Precision, choices: Choices) -> tuple[Tensor, ...]:
        return op.inputs


class EmbeddingBag(Embedding):
    """Pooled look-ups of a group of tables in one kernel.

    indices `(batch, bag)` with `bag` look-ups per sample over all tables of the group, weight `(rows, hidden)`
    with the rows of all tables → `(batch, table, hidden)`. Table-wise sharding splits `table`, `bag` and
    `rows` together; row-wise sharding splits `rows` alone and leaves partial sums.
    """

    name = "embedding_bag"


class Position:
    """Learned positions added to `x`: weight `(position, hidden)`, and a class token where there is one."""

    name = "position"

    def flops(self, op: Op) -> float:
        return 0.0

    def forward(self, op: Op, precision: Precision, choices: Choices) -> tuple[Kernel, ...]:
        moved = tensor_bytes(op, (*op.inputs, *op.outputs), precision)
        return (memory(FORWARD, moved + _rows(op) * precision.weight_bytes, largest(op)),)

    def backward(self, op: Op, precision: Precision, choices: Choices) -> tuple[Kernel, ...]:
        moved = output_bytes(op, precision) + _rows(op) * precision.gradient_bytes
        return (memory(WEIGHT_GRADIENT, moved, largest(op)),)

    def saved(self, op: Op, precision: Precision, choices: Choices) -> tuple[Tensor, ...]:
        return ()


def _rows(op: Op) -> int:
    """Weight elements touched: one row per position of the sequence."""
    return op.elements(op.outputs[0]) // op.size["batch"]


class Interaction:
    """DLRM's dot interaction: all pairwise products of the dense vector and the pooled embeddings.

    dense `(batch, hidden)` and embeddings `(batch, table…, hidden)` → `(batch, feature)` (Naumov et al. 2019,
    arXiv 1906.00091). Libraries compute the full square of the vectors and pick one triangle.
    """

    name = "interaction"

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
        joined = tensor_bytes(op, (*op.inputs, *op.outputs), precision)
        return (*(product,) * n, memory(phase, joined, largest(op)))

    def forward(self, op: Op, precision: Precision, choices: Choices) -> tuple[Kernel, ...]:
        return self._kernels(op, precision, FORWARD, 1)

    def backward(self, op: Op, precision: Precision, choices: Choices) -> tuple[Kernel, ...]:
        return self._kernels(op, precision, INPUT_GRADIENT, 2)

    def saved(self, op: Op, precision: Precision, choices: Choices) -> tuple[Tensor, ...]:
        return op.inputs
