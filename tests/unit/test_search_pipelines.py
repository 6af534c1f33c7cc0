"""Closed forms of pipelines against running every step in order."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from foretrain.arrays import Floats
from foretrain.plan.schedules import BACKWARD, FORWARD, SCHEDULES
from foretrain.plan.schedules.closed_form import Pipelines


def run_in_order(
    kind: str, stages: int, durations: tuple[Floats, Floats, Floats], send: float, count: int
) -> float:
    """Longest path through the steps, each stage in the order its schedule gives."""
    parts = len(durations[0])
    orders = [
        SCHEDULES[kind].order(s, stages, count, parts // stages).tolist() for s in range(stages)
    ]
    pieces = SCHEDULES[kind].pieces(stages, parts // stages)
    stage_of = pieces.stage_of.tolist()
    done: dict[tuple[int, int, int], float] = {}
    clock, at = [0.0] * stages, [0] * stages
    while any(at[s] < len(orders[s]) for s in range(stages)):
        before = list(at)
        for s, order in enumerate(orders):
            while at[s] < len(order):
                phase, chunk, micro = order[at[s]]
                part = int(pieces.of[chunk, s])
                needed = _needed(phase, part, micro, parts)
                if needed is not None and needed not in done:
                    break
                arrival = 0.0
                if needed is not None:
                    arrival = done[needed] + (send if stage_of[needed[1]] != s else 0.0)
                clock[s] = max(clock[s], arrival) + float(durations[phase][part])
                done[phase, part, micro] = clock[s]
                at[s] += 1
        assert at != before, "the schedule cannot run"
    return max(clock)


def _needed(phase: int, part: int, micro: int, parts: int) -> tuple[int, int, int] | None:
    if phase == FORWARD:
        return None if part == 0 else (FORWARD, part - 1, micro)
    if phase == BACKWARD:
        return (FORWARD, part, micro) if part == parts - 1 else (BACKWARD, part + 1, micro)
    return BACKWARD, part, micro


def closed_form(
    kind: str, stages: int, durations: tuple[Floats, Floats, Floats], send: float, count: int
) -> float:
    forward, backward, weight = (column[None, :] for column in durations)
    sends = np.full((1, len(durations[0]) - 1), send)
    columns = Pipelines(stages, forward, backward, weight, sends, np.array([float(count)]), sends)
    return float(SCHEDULES[kind].seconds(columns)[0])


@pytest.mark.parametrize("kind", ["gpipe", "1f1b", "interleaved", "zb-h1"])
@pytest.mark.parametrize(("stages", "count"), list(product((2, 4, 8), (1, 8, 32))))
def test_equal_stages_take_the_textbook_time(kind: str, stages: int, count: int) -> None:
    chunks = 2 if kind == "interleaved" else 1
    if count % stages and kind == "interleaved":
        pytest.skip("interleaved needs groups of micro-batches")
    one = np.ones(stages * chunks)
    durations = (one, one, one * (kind == "zb-h1"))
    found = closed_form(kind, stages, durations, 0.0, count)
    assert found == pytest.approx(run_in_order(kind, stages, durations, 0.0, count), rel=1e-9)


LIMITS = {
    "gpipe": (0.02, 0.10),
    "1f1b": (0.002, 0.03),
    "interleaved": (0.02, 0.13),
    "zb-h1": (0.01, 0.07),
}


@pytest.mark.parametrize("kind", list(LIMITS))
def test_uneven_stages_are_close(kind: str) -> None:
    rng = np.random.default_rng(7)
    errors = []
    for _ in range(150):
        stages = int(rng.choice([2, 4, 8, 16] if kind != "interleaved" else [2, 4, 8]))
        chunks = int(rng.choice([2, 3, 4])) if kind == "interleaved" else 1
        count = (
            stages * int(rng.choice([1, 2, 4, 8]))
            if chunks > 1
            else int(rng.choice([1, 4, 16, 64]))
        )
        forward = np.ones(stages * chunks)
        forward[0] *= rng.uniform(1.0, 1.3)
        forward[-1] *= rng.uniform(1.0, 1.6)
        if rng.random() < 0.3:
            forward *= rng.uniform(0.8, 1.25, len(forward))
        weight = forward * rng.uniform(0.7, 1.0) if kind == "zb-h1" else np.zeros_like(forward)
        backward = forward * rng.uniform(0.9, 1.4) if kind == "zb-h1" else 2.0 * forward
        durations = (forward, backward, weight)
        send = float(rng.choice([0.0, 0.02, 0.1]))
        real = run_in_order(kind, stages, durations, send, count)
        errors.append(abs(closed_form(kind, stages, durations, send, count) / real - 1.0))
    mean, largest = LIMITS[kind]
    assert np.mean(errors) < mean
    assert np.max(errors) < largest


def test_sends_that_take_longer_than_work_set_the_pace_of_gpipe() -> None:
    one = np.ones(4)
    quick, slow = (closed_form("gpipe", 4, (one, one, 0.0 * one), send, 16) for send in (0.5, 3.0))
    ways = 2.0 * 4 + 2.0 * 3 * 3.0
    assert slow == pytest.approx(ways + 15 * (3.0 + 3.0))
    assert quick == pytest.approx(2.0 * 4 + 2.0 * 3 * 0.5 + 15 * 2.0)


def test_sends_that_meet_others_make_a_loop_longer_but_not_its_filling() -> None:
    one, none, count = np.ones((1, 4)), np.zeros((1, 4)), np.array([64.0])
    send = np.full((1, 3), 1.5)
    alone, met = (
        float(SCHEDULES["1f1b"].seconds(Pipelines(4, one, one, none, send, count, sends))[0])
        for sends in (send, 2.0 * send)
    )
    loop = (
        2.0 * 3 * 1.5 / 4.0
    )  # of every turn, a quarter of the way of four micro-batches in flight
    assert 0.0 < met - alone <= 64 * loop
    few = np.array([1.0])
    assert SCHEDULES["1f1b"].seconds(
        Pipelines(4, one, one, none, send, few, 2.0 * send)
    ) == pytest.approx(SCHEDULES["1f1b"].seconds(Pipelines(4, one, one, none, send, few, send)))
