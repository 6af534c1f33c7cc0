"""Scaling efficiency of families of runs, predicted against measured."""

from __future__ import annotations

from typing import Any

import pytest
from scaling_efficiency import scaling

from foretrain.validation.figures import Scored


def run(devices: int, measured: float, predicted: float, **more: Any) -> Scored:
    case = {
        "group": "g", "model": {"zoo": "resnet50"}, "devices": devices, "cluster": {"device": "v100"},
        "plan": {"dp": devices}, "batch": {"global": 32 * devices}, "measured": {"step_time_s": measured},
        **more,
    }  # fmt: skip
    return Scored(case, {"step_seconds": predicted, "interval": [0.0, 1.0]})


def test_points_are_against_the_smallest_run() -> None:
    (found,) = scaling([run(8, 1.25, 1.0), run(1, 1.0, 1.0), run(2, 1.0, 1.0)])
    assert (found.families, found.runs) == (1, 2)
    assert found.largest == pytest.approx(100 * (1.0 - 0.8))  # 80 % measured, all of it predicted
    assert found.mean == pytest.approx(found.largest / 2)


def test_another_precision_is_another_family() -> None:
    rows = [run(1, 1.0, 1.0), run(8, 2.0, 1.0, precision="fp16")]
    assert scaling(rows) == ()


def test_a_wrong_pace_that_scales_right_is_no_error_here() -> None:
    (found,) = scaling([run(1, 1.0, 2.0), run(4, 1.5, 3.0)])
    assert found.largest == pytest.approx(0.0)
