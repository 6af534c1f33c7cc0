"""Every model of the zoo, with a plan that fits, predicts; and every prediction keeps its promises."""

from __future__ import annotations

import math

import pytest

from foretrain import Prediction, predict
from foretrain.analysis.prediction import STALLS
from foretrain.errors import InputError
from foretrain.model import zoo

# From the smallest machine and the plainest plan upwards; the first that fits is taken.
LADDER = (
    ("1 x dgx-h100", ""),
    ("1 x dgx-h100", "zero3 recompute=full"),
    ("1 x dgx-h100", "tp8 sp recompute=full"),
    ("1 x dgx-h100", "tables=rows"),
    ("4 x dgx-h100", "tables=rows"),
    ("8 x dgx-h100", "tp8 pp8 sp recompute=full"),
    ("64 x dgx-h100", "tp8 pp8 sp zero1 recompute=full"),
    ("64 x dgx-h100", "tp8 pp16 sp zero1 recompute=full"),
)


def fitting(name: str) -> Prediction:
    last = "nothing tried"
    for on, plan in LADDER:
        try:
            found = predict(name, on=on, plan=plan, micro_batch=1)
        except InputError as error:
            last = f"{on}, {plan}: {error}"
            continue
        if found.fits:
            return found
        last = f"{on}, {plan}: {found.memory.peak_bytes / 2**30:.0f} GiB"
    pytest.fail(f"no plan of the ladder fits {name}; last {last}")


@pytest.mark.parametrize("name", zoo.names())
def test_every_model_predicts_with_a_plan_that_fits(name: str) -> None:
    found = fitting(name)
    assert math.isfinite(found.step_seconds)
    assert found.step_seconds > 0
    assert tuple(found.stalls) == STALLS
    assert math.isclose(sum(found.stalls.values()), found.step_seconds, rel_tol=1e-12)
    assert all(value >= -1e-12 * found.step_seconds for value in found.stalls.values())
    assert math.isclose(sum(found.memory.by_kind.values()), found.memory.peak_bytes, rel_tol=1e-12)
    assert found.interval[0] < found.step_seconds < found.interval[1]
