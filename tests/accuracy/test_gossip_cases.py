"""ResNet-50 under Horovod and BlueFog (published runs, see `bench/gossip.py`): size, order and decline.

The runs are not part of the project; without them this is skipped.
"""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

BENCH = runpy.run_path(str(Path(__file__).resolve().parents[2] / "bench" / "gossip.py"))

pytestmark = pytest.mark.skipif(
    not BENCH["FILE"].is_file(), reason=f"no {BENCH['FILE']} (set FORETRAIN_CASES)"
)


@pytest.fixture(scope="module")
def rows():
    found = BENCH["read"]()
    print("\n".join([*BENCH["table"](found), *BENCH["verdicts"](found)]))
    return found


def test_step_times(rows):
    assert BENCH["mean_error"](rows, "medium") <= BENCH["MEAN_TARGET"]


def test_the_order_of_methods_wherever_the_figure_tells_them_apart(rows):
    told = BENCH["orders"](rows)
    assert len(told) == 10
    assert [row for row in told if not row[-1]] == []


def test_horovod_declines_and_gossip_does_not(rows):
    horovod = [said for _, _, said in BENCH["decline"](rows, "Horovod")]
    assert horovod == sorted(horovod, reverse=True)
    (_, seen, said), *_ = BENCH["decline"](rows, "Horovod")[-1:]
    assert 1 - said > 0.5 * (1 - seen)
    for method in ("BlueFog neighbours", "BlueFog hierarchical"):
        assert BENCH["decline"](rows, method)[-1][2] > 0.93
