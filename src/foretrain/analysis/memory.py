"""Memory: what a device of each stage holds over the step, and at which moment it holds most.

The peak is what the framework's allocator holds at its fullest: all that is allocated, and the share of what
comes and goes that stays with the allocator in pieces nobody fits into. Weights, gradients and optimizer states
are allocated once and leave none. The device holds the driver's context and its libraries besides.
"""

from __future__ import annotations

import numpy as np

from foretrain.analysis.prediction import MEMORY_KINDS, Memory, StageMemory
from foretrain.analysis.uncertainty import memory_spread
from foretrain.arrays import Floats, Ints
from foretrain.cluster.headroom import fill, usable_bytes
from foretrain.compile.execution import PHASE_NAMES, ExecutionGraph
from foretrain.runtime import Runtime


def memory(
    graph: ExecutionGraph,
    runtime: Runtime,
    capacities: Floats,
    headroom: float = 0.0,
    is_runtime_known: bool = True,
) -> Memory:
    """`capacities`: bytes of the device of each rank class; `headroom`: the share of them that is kept free."""
    task, owner = graph.chains
    loose = _lost_share(graph, runtime)
    stages = []
    for stage in range(len(graph.stages)):
        rank_class = int(np.flatnonzero(graph.fold.stage_of == stage)[0])
        mine = task[owner == rank_class]
        stages.append(_stage(graph, loose, stage, mine, runtime.gradients.frees_gradients))
    # with devices of several sizes the stage to worry about is the one with the least room
    sizes = [float(capacities[graph.fold.stage_of == s.stage].min()) for s in stages]
    room = [usable_bytes(size, runtime.memory.context_bytes, headroom) for size in sizes]
    fullest = max(stages, key=lambda s: (fill(s.peak_bytes, room[s.stage]), s.peak_bytes))
    return Memory(
        peak_bytes=fullest.peak_bytes,
        capacity_bytes=sizes[fullest.stage],
        by_kind=fullest.by_kind,
        by_stage=tuple(stages),
        peak_stage=fullest.stage,
        moment=fullest.moment,
        allocated_bytes=fullest.allocated_bytes,
        context_bytes=runtime.memory.context_bytes,
        headroom=headroom,
        spread=memory_spread(runtime.name, is_runtime_known),
    )


NEARLY_FULL = 0.95
"""share of a device from which allocators are known to give back what they hold and ask for it again"""


def notes(memory: Memory) -> tuple[str, ...]:
    """What a step that fits barely may cost besides: measured runs are too few to put a time on it."""
    share = memory.total_bytes / memory.capacity_bytes
    if share <= NEARLY_FULL or not memory.fits:
        return ()
    return (
        f"memory is {100 * share:.0f} % full: an allocator this close to the limit frees "
        "cached blocks and calls the driver again, which synchronizes with the device; the "
        "step time does not include this.",
    )


def headroom_note(runtime: Runtime, headroom: float) -> tuple[str, ...]:
    """What is kept free where it is the stack's own habit: not counted among what makes a time less sure."""
    if headroom != runtime.memory.headroom:
        return ()
    reason = runtime.memory.headroom_reason or "no default is known for this runtime"
    return (f"headroom {100 * headroom:g} %: {reason} (--headroom)",)


def _lost_share(graph: ExecutionGraph, runtime: Runtime) -> float:
    """Of what comes and goes, what the allocator holds on top."""
    moves = (item.communication for item in graph.items)
    return runtime.memory.held_share(any(move and move.purpose == "tensor" for move in moves))


def _stage(
    graph: ExecutionGraph, loose: float, stage: int, tasks: Ints, frees_gradients: bool
) -> StageMemory:
    change = graph.task_memory[tasks]
    held = np.cumsum(change) - change
    alive = held + np.maximum(change, 0.0) + graph.task_workspace[tasks]
    static = graph.stages[stage]
    gradients = np.full(len(tasks), static.gradients)
    if frees_gradients and len(tasks):
        gradients[: _first_release(change) + 1] = 0.0
    worst = int(np.argmax((1.0 + loose) * alive + gradients)) if len(alive) else -1
    activations = float(alive[worst]) if worst >= 0 else 0.0
    reduced = float(gradients[worst]) if worst >= 0 else static.gradients
    # all are made, nothing else is left
    if reduced + (1.0 + loose) * activations < static.gradients:
        activations, reduced = 0.0, static.gradients
    slack = loose * activations
    sizes = (static.weights, reduced, static.optimizer, activations, static.buffers + slack)
    kinds = dict(zip(MEMORY_KINDS, sizes, strict=True))
    peak = sum(sizes)
    return StageMemory(stage, peak, kinds, _moment(graph, tasks, worst), peak - slack)


def _first_release(change: Floats) -> int:
    """The task that gives back the first micro-batch's activations: gradients come as those go."""
    freeing = np.flatnonzero(change < 0.0)
    return int(freeing[0]) if len(freeing) else len(change) - 1


def _moment(graph: ExecutionGraph, tasks: Ints, worst: int) -> str:
    if worst < 0:
        return "update"
    task = int(tasks[worst])
    phase = PHASE_NAMES[int(graph.task_phase[task])]
    micro = int(graph.task_micro[task])
    return phase if micro < 0 else f"{phase} of micro-batch {micro}"
