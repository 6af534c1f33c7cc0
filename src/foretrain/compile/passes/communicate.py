"""Communicate: walk a block's ops, compare how tensors lie with how they are needed, insert collectives.

Forward: each input is brought from its producer's layout to the one the consumer's cuts ask for. Backward:
each input's gradient comes out cut like the consumer and partial over the consumer's other axes, and goes
back to the producer's layout. Weight gradients are partial over every axis that cuts the op's output but not
the weight; those wait for the bucket pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod

from foretrain.compile.exchanges import Tokens, Vectors
from foretrain.compile.execution import (
    Communication,
    Communicator,
    Compute,
    Item,
)
from foretrain.compile.layout import TensorLayout, overlap_bytes, transition
from foretrain.compile.passes import differentiate
from foretrain.compile.passes.partition import LocalOp
from foretrain.model.graph import Block, Op, Tensor
from foretrain.model.ops import FAMILIES, amount, family
from foretrain.model.ops.base import KernelChoices, saved_bytes
from foretrain.model.ops.embedding import parts
from foretrain.model.ops.family import OpFamily
from foretrain.model.precision import Precision
from foretrain.runtime import Runtime

# What a collective serves, by the spoken name its axes belong to; of several the first.
PURPOSES = (("ep", "expert"), ("tp", "tensor"), ("cp", "context"))


@dataclass(frozen=True, slots=True)
class WeightShard:
    """One weight as a rank holds it before any state sharding."""

    path: str
    elements: float
    reduce_axes: tuple[str, ...]  # ranks along these hold copies whose gradients are added
    state: tuple[tuple[str, tuple[str, ...]], ...]  # role → axes it is further split over
    touched: float | None = None  # elements an update reaches, where that is not all of them
    sent: float = 1.0  # share of its bytes that gathering it moves
    is_table: bool = False  # whose rows are stepped as they are met
    reduced: float | None = None  # elements whose gradients are added up, where that is not all
    is_frozen: bool = False  # not trained: no gradient, no states


@dataclass(frozen=True, slots=True)
class OpProgram:
    """One op with the communication it needs, per direction."""

    path: str
    kind: str
    forward: tuple[Item, ...]
    backward: tuple[Item, ...]  # input gradients
    backward_weight: tuple[Item, ...]
    saved: tuple[tuple[str, float], ...]  # tensors kept for backward
    inputs: tuple[tuple[str, float], ...]  # local bytes of what it reads
    outputs: tuple[tuple[str, float], ...]
    weights: tuple[WeightShard, ...]

    @property
    def family(self) -> OpFamily:
        return FAMILIES[self.kind]


@dataclass(frozen=True, slots=True)
class BlockProgram:
    """A block's ops in forward order and the layouts of what it hands on."""

    name: str
    ops: tuple[OpProgram, ...]
    outgoing: tuple[TensorLayout, ...]
    boundary_bytes: float  # carried tensors as one rank holds them


@dataclass(frozen=True, slots=True)
class Setting:
    """What the walk needs to know besides the ops."""

    sizes: Mapping[str, int]  # atomic axis → size
    spoken: Mapping[str, str]  # atomic axis → purpose
    precision: Precision
    choices: KernelChoices
    runtime: Runtime


def communicate(
    block: Block, ops: tuple[LocalOp, ...], incoming: tuple[TensorLayout, ...], setting: Setting
) -> BlockProgram:
    walk = _Walk(setting, _read(block, ops))
    for tensor, layout in zip(block.inputs, incoming, strict=True):
        walk.layouts[tensor.name] = layout
    programs = tuple(walk.visit(local) for local in ops)
    outgoing = tuple(walk.layouts[t.name] for t in block.outputs)
    boundary = sum(walk.boundary_bytes(block, ops, t) for t in block.outputs)
    return BlockProgram(block.name, programs, outgoing, boundary)


def _read(block: Block, ops: tuple[LocalOp, ...]) -> frozenset[str]:
    """Tensors that some op or the next block reads."""
    inside = (tensor.name for local in ops for tensor in local.op.inputs)
    return frozenset((*inside, *(tensor.name for tensor in block.outputs)))


class _Walk:
    """State of one forward walk: how every tensor lies now, and which converted copies exist."""

    def __init__(self, setting: Setting, read: frozenset[str]) -> None:
        self.setting, self.read = setting, read
        self.layouts: dict[str, TensorLayout] = {}
        self.copies: set[tuple[str, TensorLayout]] = set()
        self.returned: set[tuple[str, TensorLayout]] = set()
        self.makers: dict[str, Op] = {}

    def visit(self, local: LocalOp) -> OpProgram:
        s = self.setting
        before: list[Communication] = []
        beside: list[Communication] = []
        returns: list[Communication] = []
        regather: list[Communication] = []
        shrink: dict[str, float] = {}
        for tensor in local.op.inputs:
            have = self.layouts.get(tensor.name)
            if have is None or tensor.element == "index":
                continue
            want = TensorLayout(tuple(local.leaf.axes_of(dim) for dim in tensor.dims))
            steps = self.incoming(local, tensor, have, want)
            ring = local.leaf.exchange == "ring" and family(local.op).goes_round
            (beside if ring else before).extend(steps)
            if not have.is_constant:
                returns += self.returning(local, tensor, have, want)
            gathers = [c for c in steps if c.collective == "all_gather"]
            # a ring never holds the whole; what a dispatcher gathered stays; frozen weights need no input again
            again = s.runtime.tensor_parallel.regathers_sequence
            again = again and not family(local.op).is_dispatched
            again = again and not local.op.is_frozen
            if gathers and (ring or again):
                shrink[tensor.name] = prod(self._ranks(c) for c in gathers)
                regather += gathers
        self.place_outputs(local)
        return self.program(local, before, beside, returns, regather, shrink)

    def _ranks(self, communication: Communication) -> int:
        return prod(self.setting.sizes[axis] for axis in communication.group.axes)

    def _full_bytes(self, local: LocalOp, tensor: Tensor, want: TensorLayout) -> float:
        """The whole tensor, copies of heads that are fewer than ranks and rounding of uneven parts included."""
        return self.input_bytes(local.op, tensor) * prod(
            self.setting.sizes[a] for a in want.cutting
        )

    def purpose(self, axes: tuple[str, ...]) -> str:
        words = {self.setting.spoken.get(axis, "reshard") for axis in axes}
        for _, word in PURPOSES:
            if word in words:
                return word
        return "reshard"

    def incoming(
        self, local: LocalOp, tensor: Tensor, have: TensorLayout, want: TensorLayout
    ) -> list[Communication]:
        steps: list[Communication] = []
        if (tensor.name, want) not in self.copies:
            self.copies.add((tensor.name, want))
            full = self._full_bytes(local, tensor, want)
            found = transition(have, want, full, self.setting.sizes, "reshard")
            steps += self._quantised(self._once(local, tensor, found), local.op)
        return steps + self.halo(local, tensor, want)

    def returning(
        self, local: LocalOp, tensor: Tensor, have: TensorLayout, want: TensorLayout
    ) -> list[Communication]:
        """Collectives of the input's gradient on its way back to the producer.

        Gradients that lie alike are added up before they travel, so only the first reader sends them: it is
        the last one in backward.
        """
        partial = (
            tuple(a for a in local.spread if want.position_of(a) is None)
            if local.op.reduces
            else ()
        )
        got = TensorLayout(want.axes, partial)
        steps: list[Communication] = []
        if (tensor.name, got) not in self.returned:
            self.returned.add((tensor.name, got))
            full = self._full_bytes(local, tensor, want)
            back = transition(got, have.settled, full, self.setting.sizes, "reshard")
            found = self._once(local, tensor, back)
            steps += self._quantised(found, self.makers.get(tensor.name))
        return steps + self.halo(local, tensor, want)

    def _once(
        self, local: LocalOp, tensor: Tensor, steps: Iterable[Communication]
    ) -> Iterator[Communication]:
        """Named; tokens for several experts at one place are sent there once, and of tables split by rows the
        vectors that have something in them, where the stack does so."""
        maker = self.makers.get(tensor.name, local.op)
        bags, exchange = family(maker).pooled(maker), self.setting.runtime.embedding_exchange
        if bags and exchange is not None and exchange.sends_looked_up:
            yield from map(self._vectors(maker, bags), map(self._named, steps))
            return
        copies = int(local.op.attr.get("top_k", maker.attr.get("top_k", 1)))
        once = self.setting.runtime.expert_parallel.sends_tokens_once and copies > 1
        for step in map(self._named, steps):
            fields = (step.collective, step.bytes, step.group, step.purpose)
            yield Tokens(*fields, copies) if once and step.collective == "all_to_all" else step

    def _vectors(
        self, maker: Op, bags: tuple[int, ...]
    ) -> Callable[[Communication], Communication]:
        replicated = self._replicated(maker, 1)
        here = replicated[1] if replicated else 0.0

        def sent(step: Communication) -> Communication:
            if step.collective not in ("reduce_scatter", "all_gather"):
                return step
            ranks = self._ranks(step)
            # one of every sample, as a rank sends it
            each = step.bytes * (1.0 - here) / (len(bags) * ranks)
            size = each * sum(parts(bags, ranks))
            return Vectors("all_to_all", size, step.group, step.purpose, each, bags)

        return sent

    def _quantised(self, steps: Iterable[Communication], op: Op | None) -> Iterator[Communication]:
        """What a low-precision product reads is gathered as it reads it, where the stack casts first."""
        s = self.setting
        narrows = (
            s.choices.keeps_quantised
            and op is not None
            and not family(op).is_dispatched
            and family(op).is_quantised(op, s.precision)
        )
        share = s.precision.gemm_input_bytes / s.precision.activation_bytes
        for step in steps:
            is_cast = narrows and step.collective == "all_gather" and step.purpose == "tensor"
            yield replace(step, bytes=step.bytes * share) if is_cast else step

    def _named(self, communication: Communication) -> Communication:
        return replace(communication, purpose=self.purpose(communication.group.axes))

    def halo(self, local: LocalOp, tensor: Tensor, want: TensorLayout) -> list[Communication]:
        """Rows of neighbours that a spatially split convolution or pooling needs."""
        sends = []
        for position, dim in enumerate(tensor.dims):
            axes = tuple(a for a in want.axes[position] if self.setting.sizes[a] > 1)
            rows = (
                float(local.op.attr.get(f"halo_{dim[0]}", 0)) if dim in ("height", "width") else 0.0
            )
            if not axes or rows <= 0:
                continue
            parts = prod(self.setting.sizes[a] for a in axes)
            # sizes are the output's; a strided op has so many more rows of input
            extent = local.whole.size[dim] * int(local.op.attr.get("stride", 1))
            row = self.input_bytes(local.op, tensor) * parts / extent
            both = overlap_bytes(parts, parts, rows, extent, row)
            size = both / min(2, parts - 1)  # to each neighbour; only inner parts have two
            sends.append(Communication("exchange", size, Communicator(axes), "halo"))
        return sends

    def place_outputs(self, local: LocalOp) -> None:
        for out in local.op.outputs:
            axes = tuple(local.leaf.axes_of(dim) for dim in out.dims)
            cutting = {axis for cut in axes for axis in cut}
            partial = tuple(a for a in local.used if a not in cutting) if local.op.reduces else ()
            self.layouts[out.name] = TensorLayout(axes, partial, self.is_constant(local.op))
            self.makers[out.name] = local.op
            self.copies = {c for c in self.copies if c[0] != out.name}
            self.copies.add((out.name, self.layouts[out.name]))

    def has_constant_inputs(self, op: Op) -> bool:
        """Whether no gradient is asked of its inputs; data that no op makes counts as its family says."""

        def is_constant(tensor: Tensor) -> bool:
            layout = self.layouts.get(tensor.name)
            return tensor.element == "index" or (layout is not None and layout.is_constant)

        return all(map(is_constant, op.inputs))

    def is_constant(self, op: Op) -> bool:
        """Whether its results change with nothing that is trained."""
        return self.has_constant_inputs(op) and (op.is_frozen or not op.weights)

    def program(
        self,
        local: LocalOp,
        before: list[Communication],
        beside: list[Communication],
        returns: list[Communication],
        regather: list[Communication],
        shrink: Mapping[str, float],
    ) -> OpProgram:
        s = self.setting
        forward = differentiate.forward(local, s.precision, s.choices)
        inputs, weights = differentiate.backward(local, s.precision, s.choices)
        if self.has_constant_inputs(local.op):
            inputs = ()
        reduction = s.runtime.gradients
        if reduction.wgrad_accumulation_fusion:
            weights = differentiate.added(weights, s.precision, reduction.gradient_bytes)
        is_dispatched = family(local.op).is_dispatched
        gathers = () if is_dispatched else before  # cast by experts once they have it
        gathered = prod(self._ranks(c) for c in gathers if c.collective == "all_gather")
        cast, cast_back = (
            ((), ())
            if s.runtime.special_fusions is not None and s.runtime.special_fusions.fuses_casts
            else differentiate.quantisation(local, s.precision, gathered)
        )
        if not local.op.is_frozen:
            weights += cast_back
        elif inputs:
            inputs = (*cast_back, *inputs)
        if reduction.adds_gradients:
            weights += differentiate.accumulation(local, s.precision, reduction.gradient_bytes)
        overlaps = s.runtime.tensor_parallel.tp_dgrad_overlap and not is_dispatched
        ring = bool(beside)
        backward, backward_weight = _backward_items(
            inputs, weights, [] if ring else returns, [] if ring else regather, overlaps
        )
        if ring:  # keys and values go round once more, with their gradients behind them
            backward = _beside(inputs, _together([*beside, *returns]))
        return OpProgram(
            path=local.path,
            kind=local.op.kind,
            forward=(
                *(Item(c) for c in cast),
                *(Item(c) for c in before),
                *_beside(forward, _merged(beside)),
                *(Item(c) for c in self.settling(local)),
            ),
            backward=backward,
            backward_weight=backward_weight,
            saved=self.saved(local, shrink),
            inputs=tuple((t.name, self.input_bytes(local.op, t)) for t in local.op.inputs),
            outputs=tuple((t.name, self.bytes(local.op, t)) for t in local.op.outputs),
            weights=tuple(self.weight(local, w) for w in local.op.weights),
        )

    def settling(self, local: LocalOp) -> list[Communication]:
        """Partial results that nobody reads, such as the loss, are added up where they are made."""
        found: list[Communication] = []
        times = family(local.op).settled_values
        for out in local.op.outputs:
            layout = self.layouts[out.name]
            if out.name in self.read or not layout.partial:
                continue
            full = self.bytes(local.op, out) * prod(self.setting.sizes[a] for a in layout.cutting)
            steps = transition(layout, layout.settled, full, self.setting.sizes, "reshard")
            found += [self._named(c) for c in steps] * times
        return found

    def input_bytes(self, op: Op, tensor: Tensor) -> float:
        return op.input_elements(tensor) * self.setting.precision.element_bytes(tensor.element)

    def bytes(self, op: Op, tensor: Tensor) -> float:
        return op.elements(tensor) * self.setting.precision.element_bytes(tensor.element)

    def saved(self, local: LocalOp, shrink: Mapping[str, float]) -> tuple[tuple[str, float], ...]:
        s = self.setting
        if self.is_constant(local.op):
            return ()
        kept = family(local.op).saved(local.op, s.precision, s.choices)
        sizes = saved_bytes(local.op, kept, s.precision)
        return tuple((name, size / shrink.get(name, 1.0)) for name, size in sizes)

    def weight(self, local: LocalOp, weight: Tensor) -> WeightShard:
        cut = {axis for dim in weight.dims for axis in local.leaf.axes_of(dim)}
        axes = tuple(a for a in local.spread if a not in cut and self.setting.sizes[a] > 1)
        path = f"{local.path}.{weight.name}"
        elements = float(local.op.elements(weight))
        reached = family(local.op).touched(local.op)
        touched = None if reached is None else min(elements, amount(local.op, "touched()", reached))
        if local.op.is_frozen:
            touched = 0.0
        return WeightShard(
            path,
            elements,
            axes,
            local.leaf.state,
            touched,
            self._sent(local.op),
            touched is not None and not local.op.is_frozen,
            self._reduced(local.op, prod(self.setting.sizes[a] for a in axes)),
            local.op.is_frozen,
        )

    def _reduced(self, op: Op, ranks: int) -> float | None:
        """Of replicated tables the rows that are drawn often, where the others are looked up elsewhere."""
        is_sparse = ranks > 1 and family(op).touched(op) is not None
        replicated = self._replicated(op, ranks) if is_sparse else None
        return replicated[0] if replicated else None

    def _replicated(self, op: Op, ranks: int) -> tuple[float, float] | None:
        """What the stack keeps of an op's weights on all of so many ranks, where that is a part of them."""
        exchange = self.setting.runtime.embedding_exchange
        least = exchange.hot_row_threshold if exchange else 0.0
        return family(op).replicated(op, op.size["batch"] * ranks, least) if least else None

    def _sent(self, op: Op) -> float:
        """Weights whose working copy is what products read are gathered as that."""
        precision = self.setting.precision
        if op.is_frozen:
            return family(op).stored_bytes(op, precision) / precision.weight_bytes
        is_narrow = precision.name in self.setting.runtime.sharding.gathers_quantised
        if not (is_narrow and family(op).is_quantised(op, precision)):
            return 1.0
        return precision.gemm_input_bytes / precision.weight_bytes

    def boundary_bytes(self, block: Block, ops: tuple[LocalOp, ...], tensor: Tensor) -> float:
        """Bytes of a carried tensor as one rank holds it."""
        for local in reversed(ops):
            for out in local.op.outputs:
                if out.name == tensor.name:
                    return self.bytes(local.op, out)
        for local in ops:  # carried through untouched, such as an encoder's memory
            for used in local.op.inputs:
                if used.name == tensor.name:
                    return self.bytes(local.op, used)
        return 0.0


def _backward_items(
    inputs: tuple[Compute, ...],
    weights: tuple[Compute, ...],
    returns: list[Communication],
    regather: list[Communication],
    overlaps: bool,
) -> tuple[tuple[Item, ...], tuple[Item, ...]]:
    """Input-gradient and weight-gradient items; with overlap, the gather of the saved input runs beside the
    former and the reduction of the input gradient beside the latter (as Megatron-LM does)."""
    merged_regather, merged_returns = _merged(regather), _merged(returns)
    if overlaps and weights and len(regather) <= 1 and len(returns) <= 1:
        first = _beside(inputs, merged_regather)
        second = _beside(weights, merged_returns)
        return first, second
    chain = (*(Item(c) for c in regather), *(Item(w) for w in inputs), *(Item(c) for c in returns))
    return chain, tuple(Item(w) for w in weights)


def _merged(communications: list[Communication]) -> tuple[Communication, ...]:
    """Messages of one kind over one group travel together."""
    sums: dict[tuple[str, Communicator, str], float] = {}
    for c in communications:
        key = (c.collective, c.group, c.purpose)
        sums[key] = sums.get(key, 0.0) + c.bytes
    return tuple(Communication(k[0], size, k[1], k[2]) for k, size in sums.items())


def _together(communications: list[Communication]) -> tuple[Communication, ...]:
    """Passes round one ring as one message: gathering and scattering move equal shares of their bytes."""
    ways = {"reduce_scatter": "all_gather"}
    return _merged([
        replace(c, collective=ways.get(c.collective, c.collective)) for c in communications
    ])  # fmt: skip


def _beside(
    works: tuple[Compute, ...], communications: tuple[Communication, ...]
) -> tuple[Item, ...]:
    """The longest kernel hides one communication; further ones stand in the chain."""
    if not communications:
        return tuple(Item(work) for work in works)
    if not works:
        return tuple(Item(c) for c in communications)
    host = max(range(len(works)), key=lambda i: works[i].kernel.flops)
    items = [Item(w, communications[0] if i == host else None) for i, w in enumerate(works)]
    return (*items, *(Item(c) for c in communications[1:]))
