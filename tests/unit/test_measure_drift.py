"""Processes that drift apart: measured, fitted, and waited for."""

from __future__ import annotations

import json
from dataclasses import replace
from math import sqrt
from pathlib import Path
from typing import Any

import measured_machine as known
import pytest

from foretrain.cost.compute.base import latest
from foretrain.measurement.calibration import Calibration
from foretrain.measurement.fitting import calibration_of
from foretrain.measurement.links import WORKS, drift_of, measure_drift
from foretrain.measurement.local import local_cluster
from foretrain.measurement.store import Store
from foretrain.resolving import ask
from foretrain.scenario import Scenario
from foretrain.simulate import answer

DRIFT = 4e-3
PIECE = 1e-4


class Walkers:
    """Two ranks; this one is always the later, by what the square-root law says."""

    world, per_node, device = 2, 2, "cpu"

    def __init__(self) -> None:
        self.worked = 0

    def work(self, calls: int) -> float:
        self.worked += 1
        return calls * PIECE

    def mean(self, value: float) -> float:
        return value

    def largest(self, value: float) -> float:
        if value in (0.0, 1.0):  # whether anyone knows it
            return value
        return value + DRIFT * latest(2) * sqrt(value)


@pytest.fixture(scope="module")
def calibration() -> Calibration:
    return calibration_of(known.measurements())


def question(
    calibration: Calibration, processes: int = 2, on: Any = None, micro_batches: int = 1
) -> Scenario:
    cluster = on or local_cluster(calibration, processes)
    batch = processes * micro_batches
    return ask(
        "gpt2", on=cluster, plan=f"dp{processes}", batch=batch, micro_batch=1, seq=64,
        precision="fp32", runtime="cpu-eager", measured=calibration,
    )  # fmt: skip


def test_the_law_is_found_again_and_known_then(tmp_path: Path) -> None:
    with Store.open(tmp_path / "store") as store:
        measure_drift(Walkers(), store, known.MACHINE)
        again = Walkers()
        measure_drift(again, store, known.MACHINE)
        rows = store.rows("host")
    assert len(rows) == len(WORKS)
    assert again.worked == 0
    assert drift_of(rows) == pytest.approx(DRIFT)


def test_nothing_measured_is_no_drift(calibration: Calibration) -> None:
    assert drift_of(known.measurements()) == calibration.drift == 0.0


def test_collectives_wait_for_the_root_of_the_time_since_the_last(calibration: Calibration) -> None:
    drifting = replace(calibration, drift=DRIFT)
    plain, waiting = answer(question(calibration)), answer(question(drifting))
    longer = waiting.step_seconds - plain.step_seconds
    most = DRIFT * latest(2) * sqrt(plain.stalls["compute"])
    assert 0.7 * most < longer <= most * 1.001
    assert waiting.stalls["interconnect"] > plain.stalls["interconnect"]


def test_like_tasks_wait_for_what_came_before_each(calibration: Calibration) -> None:
    """Micro-batches are tasks that cost the same; the wait is that of the whole step."""
    drifting = replace(calibration, drift=DRIFT)
    plain = answer(question(calibration, micro_batches=4))
    waiting = answer(question(drifting, micro_batches=4))
    most = DRIFT * latest(2) * sqrt(plain.stalls["compute"])
    assert 0.7 * most < waiting.step_seconds - plain.step_seconds <= most * 1.001
    assert sum(waiting.stalls.values()) == pytest.approx(waiting.step_seconds)


def test_one_process_waits_for_nobody(calibration: Calibration) -> None:
    drifting = replace(calibration, drift=DRIFT)
    alone = answer(question(drifting, 1)).step_seconds
    assert alone == answer(question(calibration, 1)).step_seconds


def test_devices_nobody_measured_do_not_drift(calibration: Calibration) -> None:
    drifting = replace(calibration, drift=DRIFT)
    there = answer(question(drifting, 8, on="1 x dgx-a100-80gb")).step_seconds
    assert there == answer(question(calibration, 8, on="1 x dgx-a100-80gb")).step_seconds


def test_files_of_before_have_no_drift(calibration: Calibration) -> None:
    document = json.loads(calibration.dumps())
    del document["drift"], document["processes"]
    assert Calibration.from_dict(document) == calibration
