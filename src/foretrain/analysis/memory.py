"""Memory: what a device of each stage holds over the step, and at which moment it holds most.

The peak is what the framework's allocator holds at its fullest: all that is allocated, and the share of what
comes and goes that stays with the allocator in pieces nobody fits into. Weights, gradients and optimizer states
are allocated once and leave none. The device holds the driver's context and its libraries besides.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from foretrain.analysis.prediction import MEMORY_KINDS, Memory, StageMemory
from foretrain.analysis.stalls import chains
from foretrain.compile.execution import PHASE_NAMES, Communication, ExecutionGraph
from foretrain.runtime import Runtime

Ints = NDArray[np.int64]


def memory(graph: ExecutionGraph, runtime: Runtime, capacities: NDArray[np.float64]) -> Memory:
    """`capacities`: bytes of the device of each rank class."""
    task, owner = chains(graph)
    loose = _lost_share(graph, runtime)
    stages = []
    for stage in range(len(graph.stages)):
        rank_class = int(np.flatnonzero(graph.fold.stage_of == stage)[0])
        stages.append(_stage(graph, loose, stage, task[owner == rank_class]))
    # with devices of several sizes the stage to worry about is the one with the least room
    room = [float(capacities[graph.fold.stage_of == s.stage].min()) for s in stages]
    fullest = max(stages, key=lambda s: (s.peak_bytes / room[s.stage], s.peak_bytes))
    return Memory(
        peak_bytes=fullest.peak_bytes,
        capacity_bytes=room[fullest.stage],
        by_kind=fullest.by_kind,
        by_stage=tuple(stages),
        peak_stage=fullest.stage,
        moment=fullest.moment,
        allocated_bytes=fullest.allocated_bytes,
        context_bytes=runtime.context_bytes,
    )


def _lost_share(graph: ExecutionGraph, runtime: Runtime) -> float:
    """Blocks that a second stream uses come back late, so exchanges beside kernels cost the allocator more."""
    exchanges = any(
        isinstance(work, Communication) and work.purpose == "tensor"
        for item in graph.items
        for work in (item.work, item.beside)
    )
    return runtime.fragmentation + (runtime.exchange_fragmentation if exchanges else 0.0)


def _stage(graph: ExecutionGraph, loose: float, stage: int, tasks: Ints) -> StageMemory:
    change = graph.task_memory[tasks]
    held = np.cumsum(change) - change
    alive = held + np.maximum(change, 0.0) + graph.task_workspace[tasks]
    worst = int(np.argmax(alive)) if len(alive) else -1
    activations = float(alive[worst]) if worst >= 0 else 0.0
    static = graph.stages[stage]
    slack = loose * activations
    sizes = (
        static.weights,
        static.gradients,
        static.optimizer,
        activations,
        static.buffers + slack,
    )
    kinds = dict(zip(MEMORY_KINDS, sizes, strict=True))
    peak = sum(sizes)
    return StageMemory(stage, peak, kinds, _moment(graph, tasks, worst), peak - slack)


def _moment(graph: ExecutionGraph, tasks: Ints, worst: int) -> str:
    if worst < 0:
        return "update"
    task = int(tasks[worst])
    phase = PHASE_NAMES[int(graph.task_phase[task])]
    micro = int(graph.task_micro[task])
    return phase if micro < 0 else f"{phase} of micro-batch {micro}"
