"""The engine on programs small enough to work out by hand."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import numpy as np
import pytest
from support.programs import program_of

from foretrain import engine
from foretrain.engine import Program, Run, max_min, native_available, simulate
from foretrain.errors import Bug, InputError

needs_native = pytest.mark.skipif(not native_available(), reason="compiled engine not installed")


@pytest.fixture(params=["reference", pytest.param("native", marks=needs_native)])
def run(request: pytest.FixtureRequest) -> Callable[[Program], Run]:
    return lambda program: simulate(program, request.param)


Runner = Callable[[Program], Run]
ONE_LINK = [[(0, 1.0)]]


def flows(volume: list[float], route: list[int], **rest: object) -> Program:
    return program_of([0.0] * len(volume), volume=volume, route=route, **rest)  # type: ignore[arg-type]


def test_tasks_of_one_stream_run_one_after_another_in_index_order(run: Runner) -> None:
    result = run(program_of([1.0, 2.0, 3.0], streams=[[0], [0], [0]]))
    assert result.start.tolist() == [0.0, 1.0, 3.0]
    assert result.end.tolist() == [1.0, 3.0, 6.0]
    assert result.waited_for.tolist() == [-1, 0, 1]
    assert result.makespan == 6.0


def test_a_stream_waits_for_its_head_even_if_a_later_task_is_ready(run: Runner) -> None:
    """Task 1 is first on stream 0 but waits for task 0 on stream 1; task 2 behind it is ready at 0."""
    result = run(program_of([5.0, 1.0, 1.0], streams=[[1], [0], [0]], edges=[(0, 1)]))
    assert result.start.tolist() == [0.0, 5.0, 6.0]


def test_tasks_without_a_stream_run_as_soon_as_their_predecessors_allow(run: Runner) -> None:
    result = run(program_of([1.0, 2.0, 4.0, 0.5], edges=[(0, 3), (1, 3)]))
    assert result.start.tolist() == [0.0, 0.0, 0.0, 2.0]
    assert result.waited_for.tolist() == [-1, -1, -1, 1]


def test_a_task_on_several_streams_waits_for_all_and_holds_all(run: Runner) -> None:
    result = run(program_of([1.0, 3.0, 2.0, 1.0, 1.0], streams=[[0], [1], [0, 1], [0], [1]]))
    assert result.start.tolist() == [0.0, 0.0, 3.0, 5.0, 5.0]
    assert result.waited_for.tolist() == [-1, -1, 1, 2, 2]


def test_of_equal_ends_the_smallest_index_is_the_one_waited_for(run: Runner) -> None:
    result = run(program_of([1.0, 1.0, 1.0, 1.0], edges=[(2, 3), (1, 3)]))
    assert result.waited_for.tolist() == [-1, -1, -1, 1]


def test_a_predecessor_that_ends_at_zero_counts_as_waited_for(run: Runner) -> None:
    result = run(program_of([0.0, 0.0, 1.0], edges=[(0, 2), (1, 2)]))
    assert result.start.tolist() == [0.0, 0.0, 0.0]
    assert result.waited_for.tolist() == [-1, -1, 0]


def test_an_empty_program_ends_at_zero(run: Runner) -> None:
    result = run(program_of([]))
    assert len(result.start) == 0
    assert result.makespan == 0.0


def test_a_lone_flow_takes_its_latency_plus_volume_over_capacity(run: Runner) -> None:
    result = run(program_of([0.5], volume=[8.0], route=[0], routes=ONE_LINK, capacity=[4.0]))
    assert result.end.tolist() == [2.5]


def test_two_equal_flows_take_twice_as_long_as_one(run: Runner) -> None:
    result = run(flows([4.0, 4.0], [0, 0], routes=ONE_LINK, capacity=[4.0]))
    assert result.end.tolist() == [2.0, 2.0]


def test_when_the_shorter_flow_ends_the_longer_one_gets_the_whole_link(run: Runner) -> None:
    """Both at 1 until t = 2; 4 of 6 are left for the longer, at rate 2 until t = 4."""
    result = run(flows([2.0, 6.0], [0, 0], routes=ONE_LINK, capacity=[2.0]))
    assert result.end.tolist() == [2.0, 4.0]


def test_a_flow_that_joins_later_slows_the_first_only_from_then_on(run: Runner) -> None:
    """Alone at 2 until t = 1 (2 of 4 moved), then both at 1: the first ends at 3 (2 more), the second
    has moved 2 of 3 by then and moves the rest at 2 until 3.5."""
    program = program_of(
        [0.0, 1.0], volume=[4.0, 3.0], route=[0, 0], routes=ONE_LINK, capacity=[2.0]
    )
    assert run(program).end.tolist() == [3.0, 3.5]


def test_twice_the_weight_loads_a_link_twice_but_rates_stay_equal() -> None:
    """w1 r + w2 r = capacity: weights 1 and 2 on a link of 6 give both a rate of 2."""
    assert max_min([[(0, 1.0)], [(0, 2.0)]], [math.inf, math.inf], [6.0]) == [2.0, 2.0]


def test_a_flow_of_weight_two_alone_gets_half_the_rate() -> None:
    assert max_min([[(0, 2.0)]], [math.inf], [6.0]) == [3.0]


def test_what_a_capped_flow_leaves_goes_to_the_others() -> None:
    routes = [[(0, 1.0)], [(0, 1.0)], [(0, 1.0)]]
    assert max_min(routes, [1.0, math.inf, math.inf], [9.0]) == [1.0, 4.0, 4.0]


def test_what_a_flow_held_up_elsewhere_leaves_goes_to_the_others() -> None:
    """The parking lot: a long flow over links of 2 and 10 shares the first with a short one."""
    routes = [[(0, 1.0), (1, 1.0)], [(0, 1.0)], [(1, 1.0)]]
    assert max_min(routes, [math.inf] * 3, [2.0, 10.0]) == [1.0, 1.0, 9.0]


def test_a_route_without_links_runs_at_its_cap(run: Runner) -> None:
    result = run(flows([3.0, 3.0], [0, 0], routes=[[]], route_cap=[1.5]))
    assert result.end.tolist() == [2.0, 2.0]


def test_flows_that_share_no_link_do_not_disturb_each_other(run: Runner) -> None:
    result = run(flows([4.0, 4.0], [0, 1], routes=[[(0, 1.0)], [(1, 1.0)]], capacity=[4.0, 1.0]))
    assert result.end.tolist() == [1.0, 4.0]


def test_a_flow_occupies_its_stream_until_its_data_has_moved(run: Runner) -> None:
    program = program_of(
        [0.0, 1.0], streams=[[0], [0]], volume=[4.0, 0.0], route=[0, -1], routes=ONE_LINK,
        capacity=[2.0],
    )  # fmt: skip
    assert run(program).start.tolist() == [0.0, 2.0]


def test_a_flow_freed_by_a_flow_joins_at_that_very_moment(run: Runner) -> None:
    """0 and 1 share until t = 2, when 0 ends and 2 takes its place at once: no gap, no free ride."""
    program = flows([2.0, 4.0, 2.0], [0, 0, 0], edges=[(0, 2)], routes=ONE_LINK, capacity=[2.0])
    assert run(program).end.tolist() == [2.0, 4.0, 4.0]


def test_a_volume_too_small_to_move_the_clock_still_ends(run: Runner) -> None:
    program = program_of(
        [1e9, 0.0],
        volume=[1e-12, 1.0],
        route=[0, 0],
        edges=[(0, 1)],
        routes=ONE_LINK,
        capacity=[1.0],
    )
    assert run(program).end.tolist() == [1e9, 1e9 + 1.0]


def test_a_circle_of_predecessors_is_named(run: Runner) -> None:
    with pytest.raises(Bug) as caught:
        run(program_of([1.0] * 4, edges=[(0, 1), (1, 2), (2, 1), (2, 3)]))
    message = str(caught.value)
    assert "3 of 4 tasks can never start" in message
    assert "task 1 waits for 2 (its predecessor)" in message
    assert "dependency cycle: 1 -> 2 -> 1" in message


def test_a_stream_order_that_contradicts_the_edges_is_named(run: Runner) -> None:
    with pytest.raises(Bug, match=r"task 1 waits for 0 \(ahead of it on stream 0\)"):
        run(program_of([1.0, 1.0], streams=[[0], [0]], edges=[(1, 0)]))


def test_a_long_circle_is_shortened_in_the_message(run: Runner) -> None:
    with pytest.raises(Bug) as caught:
        run(program_of([1.0] * 500, streams=[[0]] * 500, edges=[(499, 0)]))
    assert "and 495 more" in str(caught.value)
    assert len(str(caught.value)) < 1000


GOOD = program_of(
    [1.0, 1.0], streams=[[0], [1]], edges=[(0, 1)], volume=[0.0, 1.0], route=[-1, 0],
    routes=ONE_LINK, capacity=[1.0],
)  # fmt: skip


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"duration": np.array([1.0, -1.0])}, r"duration\[1\] = -1.0 must be finite and not neg"),
        ({"duration": np.array([np.nan, 1.0])}, r"duration\[0\] = nan"),
        ({"duration": np.array([1, 1])}, "duration must be a flat array of float64"),
        ({"duration": np.zeros(4)[::2]}, "duration must be contiguous"),
        ({"volume": np.zeros(3)}, "volume has 3 entries, expected 2"),
        ({"volume": np.array([0.0, np.inf])}, r"volume\[1\] = inf"),
        ({"route": np.array([-1, 1], np.int32)}, r"route\[1\] = 1 is outside -1 to 0"),
        ({"route": np.array([-1, -1], np.int32)}, "task 1 has no route"),
        ({"succ": np.array([2], np.int32)}, r"succ\[0\] = 2 is outside 0 to 1"),
        ({"succ_ptr": np.array([0, 2, 1], np.int32)}, "succ_ptr falls after row 1"),
        ({"succ_ptr": np.array([0, 1, 2], np.int32)}, "succ_ptr runs from 0 to 2, expected 0 to 1"),
        ({"stream_ids": np.array([0, 2], np.int32)}, r"stream_ids\[1\] = 2 is outside 0 to 1"),
        ({"streams": -1}, "streams must not be negative"),
        ({"capacity": np.array([0.0])}, r"capacity\[0\] = 0.0 must be finite and above zero"),
        ({"route_weight": np.array([0.0])}, r"route_weight\[0\]"),
        ({"route_cap": np.array([0.0])}, r"route_cap\[0\] = 0.0 must be above zero"),
        ({"route_link": np.array([1], np.int32)}, r"route_link\[0\] = 1 is outside 0 to 0"),
        (
            {
                "route_ptr": np.zeros(2, np.int32),
                "route_link": np.zeros(0, np.int32),
                "route_weight": np.zeros(0),
            },
            "task 1 flows over route 0, which crosses no link",
        ),
        (
            {
                "route_ptr": np.array([0, 2], np.int32),
                "route_link": np.zeros(2, np.int32),
                "route_weight": np.ones(2),
            },
            "names a link twice",
        ),
        (
            {
                "route_ptr": np.array([0, 2], np.int32),
                "route_link": np.array([0, 1], np.int32),
                "route_weight": np.array([1.0, 1e-10]),
                "capacity": np.ones(2),
            },
            "cannot be summed without loss",
        ),
    ],
)
def test_a_malformed_program_is_refused_with_the_place_and_the_value(
    run: Runner, change: dict[str, object], message: str
) -> None:
    GOOD.check()
    with pytest.raises(Bug, match=message):
        run(dataclasses.replace(GOOD, **change))  # type: ignore[arg-type]


def test_the_environment_can_force_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORETRAIN_ENGINE", "reference")
    assert engine.engine_name() == "reference"
    monkeypatch.setenv("FORETRAIN_ENGINE", "")
    assert engine.engine_name() == ("native" if native_available() else "reference")


def test_an_unknown_engine_is_an_input_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORETRAIN_ENGINE", "natve")
    with pytest.raises(InputError, match="Did you mean 'native'"):
        simulate(GOOD)


def test_asking_for_an_absent_native_engine_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(engine, "_HAS_NATIVE", False)
    monkeypatch.delenv("FORETRAIN_ENGINE", raising=False)
    assert engine.engine_name() == "reference"
    with pytest.raises(InputError, match="C\\+\\+17"):
        simulate(GOOD, "native")


@needs_native
def test_the_compiled_engine_keeps_nothing_from_one_program_to_the_next() -> None:
    """Its scratch memory is used again: a large program between two small ones must not show."""
    small = program_of([1.0, 2.0], streams=[[0], [0]])
    large = program_of([0.5] * 5000, streams=[[i % 7] for i in range(5000)])
    before = simulate(small, "native")
    simulate(large, "native")
    after = simulate(small, "native")
    assert before.end.tolist() == after.end.tolist() == [1.0, 3.0]
