"""Interference on programs small enough to work out by hand."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest
from support.programs import program_of

from foretrain.engine import Program, Run, native_available, simulate
from foretrain.errors import Bug

needs_native = pytest.mark.skipif(not native_available(), reason="compiled engine not installed")
Runner = Callable[[Program], Run]

COMPUTE, TALK, COPY = 1, 2, 3


@pytest.fixture(params=["reference", pytest.param("native", marks=needs_native)])
def run(request: pytest.FixtureRequest) -> Runner:
    return lambda program: simulate(program, request.param)


def slowdown(**pairs: float) -> list[list[float]]:
    """`compute_by_talk=2.0`: computing takes twice as long while something talks."""
    number = {"compute": COMPUTE, "talk": TALK, "copy": COPY}
    table = np.ones((4, 4))
    for pair, factor in pairs.items():
        slowed, other = pair.split("_by_")
        table[number[slowed], number[other]] = factor
    return table.tolist()


def side_by_side(durations: list[float], activities: list[int], **rest: object) -> Program:
    """Each task on a stream of its own, all on one place."""
    options: dict[str, object] = {
        "streams": [[i] for i in range(len(durations))],
        "stream_place": [0] * len(durations),
        "activity": activities,
    }
    return program_of(durations, **options | rest)  # type: ignore[arg-type]


@pytest.mark.parametrize("factor", [1.25, 2.0, 4.0])
def test_compute_under_a_communication_loses_the_time_that_passed_slowly(
    run: Runner, factor: float
) -> None:
    """Work W under factor c for its first t seconds ends at W + t (1 - 1 / c)."""
    table = slowdown(compute_by_talk=factor)
    result = run(side_by_side([10.0, 4.0], [COMPUTE, TALK], slowdown=table))
    assert result.end.tolist() == [10.0 + 4.0 * (1 - 1 / factor), 4.0]


def test_two_that_slow_each_other_both_run_slower_until_the_first_is_done(run: Runner) -> None:
    """Talk at 2/3 takes 6 instead of 4; until then compute at 1/2 did 3 of 10, so it ends at 13."""
    table = slowdown(compute_by_talk=2.0, talk_by_compute=1.5)
    result = run(side_by_side([10.0, 4.0], [COMPUTE, TALK], slowdown=table))
    assert result.end.tolist() == [13.0, 6.0]


def test_what_does_not_overlap_changes_nothing(run: Runner) -> None:
    table = slowdown(compute_by_talk=2.0, talk_by_compute=2.0)
    program = side_by_side([0.1, 0.2, 0.7], [COMPUTE, TALK, COMPUTE], slowdown=table)
    plain = program_of([0.1, 0.2, 0.7], streams=[[0], [1], [2]], edges=[(0, 1), (1, 2)])
    program = dataclasses.replace(program, succ=plain.succ, succ_ptr=plain.succ_ptr)
    assert run(program).end.tolist() == run(plain).end.tolist()


def test_a_communication_in_the_middle_slows_only_the_middle(run: Runner) -> None:
    """Compute: 2 alone, then 3 seconds at half speed, then the rest of 10 - 2 - 1.5."""
    table = slowdown(compute_by_talk=2.0)
    program = program_of(
        [10.0, 2.0, 3.0],
        streams=[[0], [1], [1]],
        stream_place=[0, 0],
        activity=[COMPUTE, 0, TALK],
        slowdown=table,
    )
    assert run(program).end.tolist() == [11.5, 2.0, 5.0]


def test_a_row_of_equal_tasks_slows_like_one_long_task(run: Runner) -> None:
    """Four tasks behind each other, each freed by the end of the one before: no gap between them."""
    table = slowdown(compute_by_talk=1.3)
    row = program_of(
        [10.0, 1.0, 1.0, 1.0, 1.0],
        streams=[[0], [1], [1], [1], [1]],
        stream_place=[0, 0],
        activity=[COMPUTE, TALK, TALK, TALK, TALK],
        slowdown=table,
    )
    one = side_by_side([10.0, 4.0], [COMPUTE, TALK], slowdown=table)
    assert run(row).end[0] == run(one).end[0]


def test_different_activities_multiply_and_each_counts_once(run: Runner) -> None:
    table = slowdown(compute_by_talk=2.0, compute_by_copy=1.5)
    both = side_by_side([1.0, 9.0, 9.0], [COMPUTE, TALK, COPY], slowdown=table)
    assert run(both).end[0] == 3.0
    twice = side_by_side([1.0, 9.0, 9.0], [COMPUTE, TALK, TALK], slowdown=table)
    assert run(twice).end[0] == 2.0


def test_a_task_does_not_slow_itself_but_others_of_its_activity_may(run: Runner) -> None:
    table = slowdown(copy_by_copy=2.0)
    assert run(side_by_side([1.0], [COPY], slowdown=table)).end.tolist() == [1.0]
    assert run(side_by_side([1.0, 1.0], [COPY, COPY], slowdown=table)).end.tolist() == [2.0, 2.0]


def test_only_the_sensitive_share_is_slowed(run: Runner) -> None:
    """Factor 1 + 0.5 (3 - 1) = 2 for half of it, 1 for none."""
    table = slowdown(compute_by_talk=3.0)
    for share, end in ((0.5, 2.0), (0.0, 1.0), (1.0, 3.0)):
        program = side_by_side(
            [1.0, 9.0], [COMPUTE, TALK], slowdown=table, sensitivity=[share, 1.0]
        )
        assert run(program).end[0] == end


def test_other_places_and_streams_without_a_place_are_not_touched(run: Runner) -> None:
    table = slowdown(compute_by_talk=2.0, talk_by_compute=2.0)
    for places in ([0, 1], [-1, 0], [0, -1], [-1, -1]):
        program = side_by_side([1.0, 1.0], [COMPUTE, TALK], slowdown=table, stream_place=places)
        assert run(program).end.tolist() == [1.0, 1.0]


def test_a_task_on_several_places_goes_as_fast_as_on_the_slowest(run: Runner) -> None:
    """A collective of three devices: alone on one, beside a copy on another, beside both on the third."""
    table = slowdown(talk_by_compute=2.0, talk_by_copy=1.5, compute_by_talk=1.25)
    program = program_of(
        [1.0, 9.0, 9.0, 9.0],
        streams=[[0, 1, 2], [3], [4], [5]],
        stream_place=[0, 1, 2, 1, 2, 2],
        activity=[TALK, COPY, COPY, COMPUTE],
        slowdown=table,
    )
    result = run(program)
    assert result.end[0] == 3.0
    assert result.end[3] == 9.0 + 3.0 * (1 - 1 / 1.25)


def test_a_flow_interferes_while_its_data_moves_and_not_during_its_latency(run: Runner) -> None:
    """Latency 2, then 4 units at rate 1 and half speed: 8 seconds, in which compute does 8 / 1.6 = 5.

    Compute began at 0 and had done 2 of 7, so both end at 10."""
    table = slowdown(compute_by_talk=1.6, talk_by_compute=2.0)
    program = side_by_side(
        [7.0, 2.0],
        [COMPUTE, TALK],
        slowdown=table,
        volume=[0.0, 4.0],
        route=[-1, 0],
        routes=[[(0, 1.0)]],
        capacity=[1.0],
    )
    assert run(program).end.tolist() == [10.0, 10.0]


def test_a_slowed_flow_keeps_its_share_of_the_link(run: Runner) -> None:
    """Both flows have rate 1 of 2. The slowed one moves at half of it; the other gains nothing by that.

    After 2 seconds the free one is done, the slowed one has moved 1 of 2 and has rate 2, speed 1."""
    table = slowdown(talk_by_compute=2.0)
    program = side_by_side(
        [9.0, 0.0, 0.0],
        [COMPUTE, TALK, TALK],
        slowdown=table,
        stream_place=[0, 0, 1],
        volume=[0.0, 2.0, 2.0],
        route=[-1, 0, 0],
        routes=[[(0, 1.0)]],
        capacity=[2.0],
    )
    assert run(program).end.tolist() == [9.0, 3.0, 2.0]


def test_slowdown_one_is_no_interference_bit_for_bit(run: Runner) -> None:
    rng = np.random.default_rng(3)
    durations = rng.random(60).tolist()
    streams = [[int(s)] for s in rng.integers(0, 6, 60)]
    plain = program_of(durations, streams=streams)
    calm = program_of(
        durations,
        streams=streams,
        stream_place=[0, 0, 0, 1, 1, 1],
        activity=[int(a) for a in rng.integers(0, 4, 60)],
        slowdown=slowdown(),
    )
    assert run(calm).end.tobytes() == run(plain).end.tobytes()


GOOD = side_by_side([1.0, 1.0], [COMPUTE, TALK], slowdown=slowdown(compute_by_talk=2.0))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"stream_place": None}, "needs program.stream_place"),
        ({"slowdown": None}, "and program.slowdown"),
        ({"slowdown": np.full((4, 4), 0.5)}, "slowdown holds 0.5"),
        ({"slowdown": np.full((4, 4), np.nan)}, "slowdown holds nan"),
        ({"slowdown": np.ones((4, 3))}, r"shape \(4, 3\)"),
        ({"slowdown": np.ones((40, 40))}, "at most 32"),
        ({"slowdown": np.ones(4)}, "square array"),
        ({"activity": np.array([1, 4], dtype=np.int8)}, r"activity\[1\] = 4"),
        ({"activity": np.array([1, 2], dtype=np.int32)}, "flat array of int8"),
        ({"activity": np.array([1], dtype=np.int8)}, "activity has 1 entries"),
        ({"stream_place": np.array([0], dtype=np.int32)}, "stream_place has 1 entries"),
        ({"stream_place": np.array([0, -2], dtype=np.int32)}, r"stream_place\[1\] = -2"),
        ({"sensitivity": np.array([0.5, 1.5])}, "sensitivity holds 1.5"),
        ({"sensitivity": np.array([0.5])}, "sensitivity has 1 entries"),
    ],
)
def test_malformed_interference_is_named(changes: dict[str, object], words: str) -> None:
    with pytest.raises(Bug, match=words):
        dataclasses.replace(GOOD, **changes).check()  # type: ignore[arg-type]
