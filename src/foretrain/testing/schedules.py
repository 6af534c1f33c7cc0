"""Conformance kit for pipeline schedules: `check_schedule(kind)` raises `AssertionError` on a broken one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from foretrain.errors import PlanError
from foretrain.plan.schedules import (
    BACKWARD,
    BACKWARD_WEIGHT,
    FORWARD,
    PipelineSchedule,
    Steps,
    schedule,
)
from foretrain.plan.schedules.closed_form import Pipelines
from foretrain.plan.schedules.legal import order_faults

Key = tuple[int, int, int]  # phase, piece of the model, micro-batch
SIZES = tuple((p, m, v) for p in (1, 2, 3, 4, 8) for m in (1, 2, 4, 8, 24) for v in (1, 2, 3))
UNIFORM: Mapping[int, float] = {FORWARD: 1.0, BACKWARD: 2.0, BACKWARD_WEIGHT: 0.0}
SPLIT: Mapping[int, float] = {FORWARD: 1.0, BACKWARD: 1.0, BACKWARD_WEIGHT: 1.0}


def check_schedule(
    kind: PipelineSchedule | str,
    sizes: Sequence[tuple[int, int, int]] = SIZES,
    bubble: bool = True,
) -> int:
    """Run every check over (stages, micro-batches, chunks) of a schedule, itself or by its name; the number of sizes it
    could run."""
    subject = schedule(kind) if isinstance(kind, str) else kind
    ran = 0
    for stages, micro_batches, chunks in sizes:
        refusal = _refusal(subject, stages, micro_batches, chunks)
        if refusal:
            assert str(stages) in refusal or str(chunks) in refusal, f"names no number: {refusal}"
            continue
        ran += 1
        check_orders(subject, stages, micro_batches, chunks)
        if bubble:
            check_bubble(subject, stages, micro_batches, chunks)
    assert ran, f"{subject.name} refused every size"
    return ran


def _refusal(subject: PipelineSchedule, stages: int, micro_batches: int, chunks: int) -> str:
    try:
        subject.check(stages, micro_batches, chunks)
    except PlanError as error:
        return str(error)
    return ""


def check_orders(subject: PipelineSchedule, stages: int, micro_batches: int, chunks: int) -> None:
    """Completeness, order inside a stage, where pieces lie, in-flight activations, and no deadlock between stages."""
    check_pieces(subject, stages, chunks)
    for stage in range(stages):
        faults = order_faults(subject, stage, stages, micro_batches, chunks)
        assert not faults, (
            f"{subject.name} stage {stage} of {stages}, m={micro_batches}, v={chunks}: {'; '.join(faults)}"
        )
    orders = [subject.order(s, stages, micro_batches, chunks) for s in range(stages)]
    held = subject.moments(stages, chunks, micro_batches).held
    for stage, steps in enumerate(orders):
        where = f"{subject.name} stage {stage} of {stages}, m={micro_batches}, v={chunks}"
        peak = peak_in_flight(steps, subject.splits_backward)
        closed = subject.in_flight(stage, stages, micro_batches, chunks)
        assert peak == closed, f"{where}: holds {peak} activations, closed form says {closed}"
        several = held[stage].sum(axis=1).max()
        assert peak == several, f"{where}: holds {peak} activations, the search says {several}"
    makespan(subject, orders, durations(subject, chunks))


def check_pieces(subject: PipelineSchedule, stages: int, chunks: int) -> None:
    """Every piece of the model once, each on the stage of the one before it or on a neighbour of that."""
    pieces = subject.pieces(stages, chunks)
    where = f"{subject.name} p={stages} v={chunks}"
    assert pieces.of.shape == (chunks, stages), f"{where}: pieces have the shape {pieces.of.shape}"
    every = sorted(pieces.of.reshape(-1).tolist())
    assert every == list(range(stages * chunks)), f"{where}: pieces are {every}"
    hops = np.abs(pieces.hops)
    assert hops.max(initial=0) <= 1, f"{where}: pieces lie {hops.max()} stages apart"


def peak_in_flight(steps: Steps, splits_backward: bool) -> int:
    last = BACKWARD_WEIGHT if splits_backward else BACKWARD
    change = np.where(steps[:, 0] == FORWARD, 1, np.where(steps[:, 0] == last, -1, 0))
    return int(change.cumsum().max())


def durations(subject: PipelineSchedule, chunks: int) -> dict[int, float]:
    """Seconds of a step: a whole stage takes 1 forward and 2 backward (1 + 1 where split)."""
    times = SPLIT if subject.splits_backward else UNIFORM
    return {phase: seconds / chunks for phase, seconds in times.items()}


def check_bubble(subject: PipelineSchedule, stages: int, micro_batches: int, chunks: int) -> None:
    """Equal stages take as long as the closed form says."""
    orders = [subject.order(s, stages, micro_batches, chunks) for s in range(stages)]
    times = durations(subject, chunks)
    span = makespan(subject, orders, times)
    forward, backward, weight = (np.full((1, stages * chunks), times[phase]) for phase in times)
    none = np.zeros((1, stages * chunks - 1))
    count = np.array([float(micro_batches)])
    columns = Pipelines(stages, forward, backward, weight, none, count, none)
    closed = float(subject.seconds(columns)[0])
    where = f"{subject.name} p={stages} m={micro_batches} v={chunks}: {span} s"
    assert np.isclose(span, closed), f"{where}, closed form {closed}"


def idle(subject: PipelineSchedule, stages: int, micro_batches: int, chunks: int) -> float:
    """Seconds in which a stage has nothing to do; a stage's work on a micro-batch takes 3."""
    orders = [subject.order(s, stages, micro_batches, chunks) for s in range(stages)]
    return makespan(subject, orders, durations(subject, chunks)) - 3.0 * micro_batches


def makespan(
    subject: PipelineSchedule, orders: Sequence[Steps], seconds: Mapping[int, float]
) -> float:
    """Run the orders with free communication; `AssertionError` if the stages wait for each other in a ring."""
    queues = [[(int(f), int(c), int(m)) for f, c, m in steps] for steps in orders]
    chunks = 1 + max(c for queue in queues for _, c, _ in queue)
    table = subject.pieces(len(queues), chunks).of.tolist()
    done: dict[Key, float] = {}
    clock = [0.0] * len(queues)
    head = [0] * len(queues)
    while any(head[s] < len(queue) for s, queue in enumerate(queues)):
        moved = False
        for stage, queue in enumerate(queues):
            while head[stage] < len(queue):
                phase, chunk, micro = queue[head[stage]]
                piece = table[chunk][stage]
                needs = list(_needs(phase, piece, micro, len(queues) * chunks))
                if any(need not in done for need in needs):
                    break
                start = max([clock[stage], *(done[need] for need in needs)])
                clock[stage] = start + seconds[phase]
                done[phase, piece, micro] = clock[stage]
                is_next = queue[head[stage] - 1] == (BACKWARD, chunk, micro)
                if subject.joins_gradients and phase == BACKWARD_WEIGHT and is_next:
                    done[BACKWARD, piece, micro] = clock[stage]
                head[stage] += 1
                moved = True
        assert moved, (
            f"deadlock: stages wait at {[q[h : h + 1] for q, h in zip(queues, head, strict=True)]}"
        )
    return max(clock)


def _needs(phase: int, piece: int, micro: int, count: int) -> Iterator[Key]:
    """The steps of this and the neighbouring pieces that a step waits for."""
    if phase == FORWARD and piece > 0:
        yield FORWARD, piece - 1, micro
    if phase == BACKWARD:
        yield FORWARD, piece, micro
        if piece < count - 1:
            yield BACKWARD, piece + 1, micro
    if phase == BACKWARD_WEIGHT:
        yield BACKWARD, piece, micro
