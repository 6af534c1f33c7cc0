"""Needs: which kernels a training step runs, and which op of the framework runs them.

Kernels of one op that the framework runs in one call are timed together and share the time by the bytes they move.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from foretrain.compile.blocks import choices_of
from foretrain.compile.execution import CHAIN, Compute, ExecutionGraph
from foretrain.model.graph import Model, Op
from foretrain.model.ops import family
from foretrain.model.ops.base import FORWARD, LAUNCHES, WEIGHT_GRADIENT, Kernel, kernel_family
from foretrain.runtime.features.per_tensor_update import PerTensorUpdate
from foretrain.scenario import Scenario
from foretrain.simulate import compile_scenario

ACCUMULATE, UPDATE, STREAM = "accumulate", "update", "stream"
CONTEXT = 8
"""Calls of the step that run before the one that is timed: what they leave in caches and in the allocator is what it
meets in training. A kernel repeated on its own is about a tenth too fast."""
ALONE = ("gemm", "grouped_gemm", "conv", "embedding", "attention")
"""Kinds of kernels whose shape says all there is to know."""


@dataclass(frozen=True, slots=True)
class Need:
    """One call to time. `what` is the op's kind (`linear`, `norm` …), or a word for what is none."""

    what: str
    phase: str
    kernels: tuple[Kernel, ...]
    op: Op | None = None  # as one rank has it
    tensors: tuple[int, ...] = ()  # elements of the weights that are updated or added to
    optimizer: str = ""
    launches: float = 0.0  # kernels of an update that the host issues one by one
    footprint: float = field(default=0.0, compare=False)  # bytes that a step goes through
    before: tuple[Need, ...] = field(default=(), compare=False)  # the calls that come before it

    @property
    def bytes(self) -> float:
        return sum(kernel.bytes for kernel in self.kernels)

    @property
    def flops(self) -> float:
        return sum(kernel.flops for kernel in self.kernels)

    def shares(self) -> tuple[float, ...]:
        """Of the call's time, what each kernel is given."""
        if not self.bytes:
            return (1.0 / len(self.kernels),) * len(self.kernels)
        return tuple(kernel.bytes / self.bytes for kernel in self.kernels)

    @property
    def title(self) -> str:
        """`linear forward 1x128x512x512`."""
        shape = "x".join(str(n) for n in self.kernels[0].shape)
        return f"{self.what} {self.phase} {shape}".strip()


def needs(questions: Iterable[Scenario]) -> tuple[Need, ...]:
    """Everything these questions ask of a device, each once."""
    by_kernels: dict[tuple[Kernel, ...], Need] = {}
    for question in questions:
        for need in _of(question):
            by_kernels.setdefault(need.kernels, need)
    return tuple(sorted(by_kernels.values(), key=lambda need: need.flops + 10 * need.bytes))


def _of(question: Scenario) -> list[Need]:
    """Each need of one question, in the place where it runs."""
    calls = _calls(question)
    places: dict[tuple[Kernel, ...], list[int]] = {}
    for place, need in enumerate(calls):
        places.setdefault(need.kernels, []).append(place)
    out = []
    for alike in places.values():
        place = alike[len(alike) // 2]  # amid its like, not at the seams of a model
        before = tuple(calls[place - back] for back in range(min(CONTEXT, len(calls) - 1), 0, -1))
        out.append(replace(calls[place], before=before))
    return out


def _calls(question: Scenario) -> list[Need]:
    """What the framework calls in a step, in order; before the first comes the last of the step before."""
    graph = compile_scenario(question)
    ops = {f"{block.name}.{op.name}": op for block, op in question.workload.model.ops()}
    footprint = _footprint(question)
    works = _in_order(graph)
    launched = {work.kernel for work in works if work.kernel.kind == LAUNCHES}
    tensors = sum(kernel.shape[0] for kernel in launched)
    update = question.runtime.per_tensor_update or PerTensorUpdate()
    issued = tensors * update.kernels_per_tensor
    known: dict[Compute, Need] = {}
    out: list[Need] = []
    left = 0  # kernels of the last call that are still to come
    for work in works:
        if work.kernel.kind == LAUNCHES:
            continue
        if work not in known:
            need = _need(work, ops, question)
            launches = issued if need.what == UPDATE else 0.0
            known[work] = replace(need, launches=launches, footprint=footprint)
        need = known[work]
        if left and out[-1].kernels == need.kernels:
            left -= 1
            continue
        out.append(need)
        left = len(need.kernels) - 1
    return out


def _in_order(graph: ExecutionGraph) -> list[Compute]:
    """Kernels in the order in which they run, one kind of rank after the other."""
    numbered: list[tuple[int, Compute]] = []
    for task in np.flatnonzero(graph.task_kind == CHAIN).tolist():
        works = [item.work for item in graph.shape(int(graph.task_shape[task]))]
        rank_class = int(graph.task_class[task])
        numbered.extend((rank_class, work) for work in works if isinstance(work, Compute))
    return [work for _, work in sorted(numbered, key=lambda one: one[0])]


def _need(work: Compute, ops: Mapping[str, Op], question: Scenario) -> Need:
    kernel = work.kernel
    if kernel.phase == "update":
        return _update(work, question)
    if work.op not in ops:
        return Need(STREAM, kernel.phase, (kernel,))
    op = ops[work.op].local({}, question.plan.schedule.micro_batch)
    if kernel_family(kernel.kind) in ALONE:
        return Need(op.kind, kernel.phase, (kernel,), op)
    own = _siblings(op, kernel, question)
    if kernel in own:
        phase = FORWARD if kernel.phase == FORWARD else own[0].phase
        return Need(op.kind, phase, own, op)
    if kernel.phase == WEIGHT_GRADIENT and kernel.flops == sum(op.elements(w) for w in op.weights):
        return Need(
            ACCUMULATE, kernel.phase, (kernel,), op, tuple(op.elements(w) for w in op.weights)
        )
    return Need(STREAM, kernel.phase, (kernel,), op)


def _siblings(op: Op, kernel: Kernel, question: Scenario) -> tuple[Kernel, ...]:
    """The op's kernels that one call of the framework runs together with this one."""
    precision, how = question.workload.precision, choices_of(question.runtime)
    formula = family(op)
    if kernel.phase == FORWARD:
        kernels = formula.forward(op, precision, how)
    else:
        kernels = formula.backward(op, precision, how)
    if formula.is_called_apart:
        return (kernel,) if kernel in kernels else ()
    return tuple(k for k in kernels if kernel_family(k.kind) not in ALONE)


def _update(work: Compute, question: Scenario) -> Need:
    """The optimizer's step over the weights a rank holds; where they are split, over equal parts of them."""
    tensors = weight_sizes(question.workload.model)
    per = question.workload.optimizer.flops_per_parameter
    owned = work.kernel.flops / per if per else float(sum(tensors))
    share = min(1.0, owned / sum(tensors)) if tensors else 0.0
    sizes = tuple(max(1, round(size * share)) for size in tensors)
    name = question.workload.optimizer.name
    return Need(UPDATE, "update", (work.kernel,), None, sizes, name)


def weight_sizes(model: Model) -> tuple[int, ...]:
    """Elements of every weight tensor, blocks repeated."""
    return tuple(
        op.elements(weight)
        for block in model.blocks
        for _ in range(block.repeat)
        for op in block.ops
        for weight in op.weights
        if f"{block.name}.{op.name}.{weight.name}" not in model.origins
    )


def _footprint(question: Scenario) -> float:
    """Bytes a step goes through from one use of a tensor to the next: weights, gradients, states, activations."""
    workload = question.workload
    precision, how = workload.precision, choices_of(question.runtime)
    model, micro = workload.model, question.plan.schedule.micro_batch
    state = precision.weight_bytes + precision.gradient_bytes + workload.optimizer.state_bytes
    total = float(model.parameters) * state
    for block, op in model.ops():
        local = op.local({}, micro)
        kept = family(local).saved(local, precision, how)
        names = {t.name for t in (*local.inputs, *local.outputs)}
        total += block.repeat * sum(
            local.elements(t) * precision.element_bytes(t.element) for t in kept if t.name in names
        )
    return total
