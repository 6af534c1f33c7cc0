"""Pipeline schedules: exact orders, refusals, speed of construction, and the conformance kit."""

from __future__ import annotations

from time import perf_counter

import numpy as np
import pytest

from foretrain.arrays import Floats
from foretrain.errors import PlanError
from foretrain.plan.schedules import (
    BACKWARD,
    FORWARD,
    SCHEDULES,
    PipelineSchedule,
    Steps,
    register,
    schedule,
)
from foretrain.plan.schedules.closed_form import Pipelines
from foretrain.plan.schedules.interleaved import group
from foretrain.testing import schedules as kit


def words(steps: Steps) -> str:
    """`F0 F1 B0`, with the chunk as a letter when there are several."""
    several = steps[:, 1].max() > 0
    return " ".join(
        f"{'FBW'[phase]}{micro}{'abcdef'[chunk] if several else ''}"
        for phase, chunk, micro in steps
    )


@pytest.mark.parametrize("name", SCHEDULES)
def test_every_schedule_conforms(name: str) -> None:
    assert kit.check_schedule(name) >= 12


PUBLISHED = {
    "gpipe": lambda p, v: 3.0 * (p - 1),
    "1f1b": lambda p, v: 3.0 * (p - 1),
    "interleaved": lambda p, v: 3.0 * (p - 1) / v,
    "zb-h1": lambda p, v: p - 1,  # (p - 1)(f + b - w) with all three 1
    "zb-v": lambda p, v: (p - 1) / v,  # until the last stage begins, then none
}
"""Idle seconds of p stages with v chunks each, forward 1, backward 2, where micro-batches are enough to fill them."""


@pytest.mark.parametrize("name", PUBLISHED)
@pytest.mark.parametrize("stages", [1, 2, 3, 4, 8])
def test_idle_time_is_as_published(name: str, stages: int) -> None:
    subject = SCHEDULES[name]
    chunks = subject.chunks.start
    for micro_batches in (2 * stages, 3 * stages, 7 * stages):
        idle = kit.idle(subject, stages, micro_batches, chunks)
        assert idle == pytest.approx(PUBLISHED[name](stages, chunks))


def test_gpipe_runs_all_forward_steps_first() -> None:
    assert words(schedule("gpipe").order(0, 2, 3, 1)) == "F0 F1 F2 B0 B1 B2"


def test_1f1b_warms_up_by_the_stages_behind() -> None:
    assert words(schedule("1f1b").order(0, 3, 4, 1)) == "F0 F1 F2 B0 F3 B1 B2 B3"
    assert words(schedule("1f1b").order(2, 3, 4, 1)) == "F0 B0 F1 B1 F2 B2 F3 B3"


def test_interleaved_matches_figure_4_of_the_paper() -> None:
    """Two stages, two chunks, four micro-batches: groups of two, warm-up 2(p - s - 1) + (v - 1)p."""
    order = words(schedule("interleaved").order(0, 2, 4, 2))
    assert order == "F0a F1a F0b F1b F2a B0b F3a B1b F2b B0a F3b B1a B2b B3b B2a B3a"


def test_zero_bubble_keeps_weight_steps_for_the_cool_down() -> None:
    assert words(schedule("zb-h1").order(0, 3, 3, 1)) == "F0 F1 F2 B0 W0 B1 W1 B2 W2"
    assert words(schedule("zb-h1").order(2, 3, 3, 1)) == "F0 B0 F1 B1 F2 B2 W0 W1 W2"


def test_interleaved_names_both_numbers_and_a_remedy() -> None:
    with pytest.raises(PlanError, match=r"3 micro-batches, 4 stages\. Use at least 4"):
        schedule("interleaved").order(0, 4, 3, 2)


@pytest.mark.parametrize(
    ("stages", "micro_batches", "size"),
    [(4, 8, 4), (4, 6, 6), (4, 9, 5), (4, 10, 5), (4, 7, 7), (2, 5, 3), (8, 8, 8), (3, 16, 4), (4, 14, 5)],
)  # fmt: skip
def test_groups_leave_none_shorter_than_the_pipeline(
    stages: int, micro_batches: int, size: int
) -> None:
    """Megatron Core's condition on `microbatch_group_size_per_vp_stage`, tried from the smallest on."""
    assert group(stages, micro_batches) == size
    rest = micro_batches % size
    assert stages <= size <= micro_batches
    assert rest == 0 or rest >= stages


def test_interleaved_runs_the_last_group_with_what_is_left() -> None:
    """Two stages, five micro-batches: a group of three and one of two."""
    order = words(schedule("interleaved").order(1, 2, 5, 2))
    forward = [step for step in order.split() if step[0] == "F"]
    assert forward == ["F0a", "F1a", "F2a", "F0b", "F1b", "F2b", "F3a", "F4a", "F3b", "F4b"]


@pytest.mark.parametrize("stages", [2, 3, 4, 5, 8])
def test_interleaved_runs_any_number_of_micro_batches(stages: int) -> None:
    """… without a deadlock, with the bubble of the closed form."""
    sizes = [(stages, m, v) for m in range(stages, 4 * stages + 3) for v in (2, 3)]
    assert kit.check_schedule("interleaved", sizes) == len(sizes)


@pytest.mark.parametrize("stages", [2, 3, 4, 8])
@pytest.mark.parametrize("micro_batches", [4, 6, 8, 10, 12, 24])
def test_interleaved_groups_are_pytorchs_where_it_has_any(stages: int, micro_batches: int) -> None:
    """ScheduleInterleaved1F1B: as many rounds as the pipeline fits in, which must divide the micro-batches."""
    rounds = max(1, micro_batches // stages)
    if micro_batches >= stages and micro_batches % rounds == 0:
        assert group(stages, micro_batches) == micro_batches // rounds


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "zb-h1"])
def test_chunks_need_the_interleaved_schedule(name: str) -> None:
    with pytest.raises(PlanError, match="'interleaved'"):
        schedule(name).order(0, 4, 8, 2)


def test_bad_numbers_and_names_are_plan_errors() -> None:
    with pytest.raises(PlanError, match="Did you mean 'interleaved'"):
        schedule("interleave")
    with pytest.raises(PlanError, match="stage 4 does not exist"):
        schedule("1f1b").order(4, 4, 8, 1)
    with pytest.raises(PlanError, match="micro-batches, got 0"):
        schedule("gpipe").check(2, 0, 1)


@pytest.mark.parametrize("name", SCHEDULES)
def test_large_pipelines_are_quick_and_cannot_be_written_to(name: str) -> None:
    chunks = SCHEDULES[name].chunks.start
    start = perf_counter()
    orders = [SCHEDULES[name].order(stage, 16, 192, chunks) for stage in range(16)]
    assert perf_counter() - start < 0.1  # about 3 ms on an idle core
    with pytest.raises(ValueError, match="read-only"):
        orders[0][0, 0] = 1


class _Broken(PipelineSchedule):
    """1F1B with two steps of stage 0 exchanged."""

    name = "broken"

    def __init__(self, first: int, second: int) -> None:
        self.swap = (first, second)

    def check(self, stages: int, micro_batches: int, chunks: int) -> None:
        SCHEDULES["1f1b"].check(stages, micro_batches, chunks)

    def order(self, stage: int, stages: int, micro_batches: int, chunks: int) -> Steps:
        rows = SCHEDULES["1f1b"].order(stage, stages, micro_batches, chunks).copy()
        if stage == 0:
            rows[list(self.swap)] = rows[list(self.swap[::-1])]
        return rows

    def in_flight(self, stage: int, stages: int, micro_batches: int, chunks: int) -> int:
        return SCHEDULES["1f1b"].in_flight(stage, stages, micro_batches, chunks)

    def seconds(self, p: Pipelines) -> Floats:
        return SCHEDULES["1f1b"].seconds(p)


def test_the_kit_notices_a_broken_schedule() -> None:
    # 4 stages, 4 micro-batches: F0 F1 F2 F3 B0 B1 B2 B3
    late_forward: PipelineSchedule = _Broken(3, 4)
    with pytest.raises(AssertionError, match="holds"):
        kit.check_orders(late_forward, 4, 4, 1)
    backward_first: PipelineSchedule = _Broken(0, 4)
    with pytest.raises(
        AssertionError, match="before its forward: backward of chunk 0, micro-batch 0"
    ):
        kit.check_orders(backward_first, 4, 4, 1)
    slow: PipelineSchedule = _Broken(4, 7)
    with pytest.raises(AssertionError, match="closed form"):
        kit.check_bubble(slow, 4, 4, 1)


class _Half(_Broken):
    """1F1B that leaves out every second micro-batch, or all of them."""

    name = "half"

    def __init__(self, every: int = 2) -> None:
        self.every = every

    def order(self, stage: int, stages: int, micro_batches: int, chunks: int) -> Steps:
        rows = SCHEDULES["1f1b"].order(stage, stages, micro_batches, chunks)
        return rows[rows[:, 2] % self.every == 0] if self.every else rows[:0]


class _Flat(_Broken):
    name = "flat"

    def order(self, stage: int, stages: int, micro_batches: int, chunks: int) -> Steps:
        return SCHEDULES["1f1b"].order(stage, stages, micro_batches, chunks).ravel()


class _Twice(_Broken):
    name = "twice"

    def order(self, stage: int, stages: int, micro_batches: int, chunks: int) -> Steps:
        rows = SCHEDULES["1f1b"].order(stage, stages, micro_batches, chunks)
        return np.concatenate([rows, rows[-1:]])


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        (
            _Half(),
            "stage 0 of 1, 2 micro-batches, 1 chunk: missing: forward of chunk 0, micro-batch 1;",
        ),
        (_Half(0), "1 micro-batch, 1 chunk: missing"),
        (_Flat(0, 0), "an array \\(6,\\), not an array \\(steps, 3\\)"),
        (_Twice(0, 0), "more than once: backward of chunk 0, micro-batch 0"),
        (_Broken(0, -1), "before its forward: backward"),
    ],
    ids=lambda given: given.name if isinstance(given, PipelineSchedule) else "",
)
def test_a_broken_order_is_not_registered(kind: PipelineSchedule, told: str) -> None:
    with pytest.raises(PlanError, match=f"(?s)schedule '{kind.name}'.*{told}"):
        register(kind)
    assert kind.name not in SCHEDULES
    with pytest.raises(AssertionError, match=f"{kind.name} stage [0-9] of"):
        kit.check_schedule(kind)


def test_the_kit_notices_a_deadlock() -> None:
    first = np.array(
        [(FORWARD, 0, 0), (BACKWARD, 0, 0), (FORWARD, 0, 1), (BACKWARD, 0, 1)], np.int32
    )
    second = first[[2, 3, 0, 1]]
    with pytest.raises(AssertionError, match="deadlock"):
        kit.makespan(SCHEDULES["1f1b"], [first, second], kit.UNIFORM)
