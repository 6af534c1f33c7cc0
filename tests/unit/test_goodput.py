"""Interruptions: closed forms against the exact minimum and against a simulated machine room."""

from __future__ import annotations

from math import inf, isinf

import numpy as np
import pytest
from scipy.optimize import minimize_scalar

from foretrain.analysis.goodput import (
    Interruptions,
    Preemptions,
    Risk,
    best_interval,
    checkpoint_bytes,
    daly,
    failures_per_hour,
    figure,
    spot_per_hour,
    young,
)
from foretrain.cluster.catalog import find_node
from foretrain.errors import InputError
from foretrain.model.workload import Workload

HOUR = 3600.0
CASES = [(24 * HOUR, 60.0), (3 * HOUR, 120.0), (3 * HOUR, 1800.0), (1e7, 5.0), (600.0, 900.0)]


@pytest.mark.parametrize(("mtbf", "checkpoint"), CASES)
def test_the_interval_is_the_minimum_of_the_expected_time(mtbf: float, checkpoint: float) -> None:
    room = Interruptions(mtbf, checkpoint, 300.0)
    exact = minimize_scalar(
        lambda t: room.expected(1e9, t), bounds=(1e-3 * mtbf, mtbf), method="bounded",
        options={"xatol": 1e-9 * mtbf},
    )  # fmt: skip
    assert best_interval(mtbf, checkpoint) == pytest.approx(exact.x, rel=2e-3)
    assert room.expected(1e9, best_interval(mtbf, checkpoint)) <= exact.fun * (1 + 1e-9)


@pytest.mark.parametrize("ratio", [1.0, 30.0, 36.0, 37.0, 1e4, 1e300])
def test_the_interval_is_found_however_long_a_checkpoint_takes(ratio: float) -> None:
    assert 0.8 < best_interval(1.0, ratio) <= 1.0


def test_young_and_daly_are_near_where_checkpoints_are_short() -> None:
    mtbf = 24 * HOUR
    for checkpoint, off in ((1.0, 0.01), (30.0, 0.03), (600.0, 0.09)):
        exact = best_interval(mtbf, checkpoint)
        assert young(mtbf, checkpoint) == pytest.approx(exact, rel=off)
        assert daly(mtbf, checkpoint) == pytest.approx(exact, rel=off / 20)


def test_daly_costs_next_to_nothing_over_the_minimum() -> None:
    for mtbf, checkpoint in CASES[:4]:
        room = Interruptions(mtbf, checkpoint, 300.0)
        best = room.expected(1e9, best_interval(mtbf, checkpoint))
        assert room.expected(1e9, daly(mtbf, checkpoint)) <= best * 1.001


def simulated(room: Interruptions, useful: float, interval: float, seed: int) -> float:
    """One job, interruption by interruption."""
    rng = np.random.default_rng(seed)
    now, done, next_stop = 0.0, 0.0, rng.exponential(room.mtbf)
    while done < useful:
        piece = min(interval, useful - done) + room.checkpoint
        if now + piece <= next_stop:
            now, done = now + piece, done + piece - room.checkpoint
            continue
        now = next_stop
        next_stop = now + rng.exponential(room.mtbf)
        while now + room.restart > next_stop:  # a restart can be interrupted too
            now = next_stop
            next_stop = now + rng.exponential(room.mtbf)
        now += room.restart
    return now


@pytest.mark.parametrize(
    "room", [Interruptions(5 * HOUR, 120.0, 600.0), Interruptions(HOUR, 300.0, 900.0)]
)
def test_the_closed_form_is_the_mean_of_simulated_jobs(room: Interruptions) -> None:
    interval = room.interval()
    useful = 40 * interval
    times = [simulated(room, useful, interval, seed) for seed in range(800)]
    assert room.expected(useful) == pytest.approx(float(np.mean(times)), rel=0.015)
    assert 0 < room.goodput(useful) < 1


def test_without_interruptions_nothing_is_lost() -> None:
    calm = Interruptions(inf, 0.0, 600.0)
    assert calm.expected(1e6) == 1e6
    assert calm.goodput(1e6) == 1.0


def test_a_hopeless_room_takes_forever() -> None:
    assert isinf(Interruptions(60.0, 30_000.0, 600.0).expected(1e6))


def test_more_machines_more_interruptions() -> None:
    node = find_node("aws:p5.48xlarge")
    one, many = (Risk().interruptions(1e11, [(node, count)]) for count in (1, 64))
    assert many.mtbf == pytest.approx(one.mtbf / 64)
    assert many.checkpoint == pytest.approx(one.checkpoint / 64)
    spot = Risk().interruptions(1e11, [(node, 64)], is_spot=True)
    assert spot.any_mtbf < many.mtbf
    assert spot.mtbf == pytest.approx(many.mtbf), "two minutes are enough to save: no work is lost"
    assert spot.preemptions is not None
    assert spot.preemptions.restart == figure("spot", "restart_seconds")
    short = Risk().interruptions(1e14, [(node, 64)], is_spot=True)
    assert short.checkpoint > figure("spot-aws", "notice_seconds")
    assert short.preemptions is None
    assert short.mtbf == pytest.approx(spot.any_mtbf)
    assert one.restart <= short.restart <= figure("spot", "restart_seconds")


def test_preemptions_with_notice_against_a_simulation() -> None:
    """Time as it passes: work that lasts, a checkpoint at the notice, restarts that may be preempted again."""
    rng = np.random.default_rng(7)
    room = Interruptions(inf, 20.0, 600.0, Preemptions(3000.0, 900.0))
    useful, totals = 50_000.0, []
    for _ in range(400):
        passed = done = 0.0
        while True:
            left = float(rng.exponential(3000.0))
            if left >= useful - done:
                passed += useful - done
                break
            done, passed = done + left, passed + left + 20.0
            while (again := float(rng.exponential(3000.0))) < 900.0:
                passed += again
            passed += 900.0
        totals.append(passed)
    least = room.checkpoint  # the one at the end, which the simulation leaves out
    assert room.expected(useful) == pytest.approx(float(np.mean(totals)) + least, rel=0.02)


def test_what_the_user_knows_goes_first() -> None:
    node = find_node("aws:p5.48xlarge")
    risk = Risk(machine_mtbf_hours=100.0, spot_rate=0.1, checkpoint_rate=1e9, restart_seconds=7.0)
    found = risk.interruptions(4e9, [(node, 2)], is_spot=True)
    assert found.any_mtbf == pytest.approx(HOUR / (2 * 0.11))
    assert found.checkpoint == pytest.approx(2.0)
    assert found.restart == 7.0


def test_the_rates_say_what_their_sources_say() -> None:
    """16,384 GPUs in machines of eight: an interruption every three hours; Google's spot machines: a tenth a day."""
    assert 2048 * failures_per_hour(find_node("dgx-h100")) == pytest.approx(
        419 / (54 * 24), rel=0.01
    )
    assert failures_per_hour(find_node("aws:p5.4xlarge")) < failures_per_hour(find_node("dgx-h100"))
    a_day = 1 - np.exp(-24 * spot_per_hour(find_node("gcp:a3-highgpu-8g")))
    assert a_day == pytest.approx(0.1, abs=0.001)
    for name, group in figure.groups.items():
        if name not in ("batch", "datasets"):
            assert group["source"], name


def test_a_checkpoint_holds_weights_and_optimizer_states() -> None:
    job = Workload.of("llama3-8b", 1)
    assert checkpoint_bytes(job) == pytest.approx(job.model.parameters * 14.0)


def test_faults_are_told_together() -> None:
    with pytest.raises(InputError) as caught:
        Interruptions(0.0, -1.0, -2.0)
    assert len(caught.value.faults) == 3


def test_no_work_takes_no_time_and_a_free_checkpoint_is_written_always() -> None:
    assert Interruptions(HOUR, 60.0, 300.0).expected(0.0) == 0.0
    assert best_interval(HOUR, 0.0) == 0.0
