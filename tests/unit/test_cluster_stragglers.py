"""Slow devices: the others wait, and the wait has a name."""

from __future__ import annotations

import math

import pytest

from foretrain import predict
from foretrain.cluster import Cluster
from foretrain.cluster.stragglers import Spread, with_stragglers
from foretrain.errors import ClusterError

ASK = {
    "plan": "dp8",
    "batch": 1024,
    "micro_batch": 128,
    "precision": "fp16",
    "optimizer": "sgd",
    "runtime": "ddp",
}
NODE = "1 x dgx-a100-80gb"


def test_one_slow_rank_holds_up_all_and_the_rest_wait_for_it() -> None:
    even = predict("resnet50", on=NODE, **ASK)  # type: ignore[arg-type]
    slow = predict("resnet50", on=NODE, stragglers={3: 2.0}, **ASK)  # type: ignore[arg-type]
    assert even.stalls["imbalance"] == pytest.approx(0.0, abs=1e-12)
    assert slow.step_seconds > 1.5 * even.step_seconds
    waiting = slow.stalls["imbalance"] + slow.stalls["interconnect"]
    assert waiting > 0.3 * slow.step_seconds, "seven of eight ranks wait most of the extra time"
    assert math.isclose(sum(slow.stalls.values()), slow.step_seconds, rel_tol=1e-12)


def test_a_factor_of_one_changes_nothing() -> None:
    cluster = Cluster.of(NODE)
    assert with_stragglers(cluster, {3: 1.0}) == cluster


def test_a_spread_is_drawn_from_its_seed() -> None:
    cluster = Cluster.of("2 x dgx-a100-80gb")
    assert with_stragglers(cluster, Spread(0.05, 1)) == with_stragglers(
        cluster, "sigma=0.05,seed=1"
    )
    assert with_stragglers(cluster, Spread(0.05, 1)) != with_stragglers(cluster, Spread(0.05, 2))
    assert with_stragglers(cluster, Spread(0.05, 1)).device_count == 16


def test_only_the_nodes_with_slow_devices_change() -> None:
    cluster = with_stragglers(Cluster.of("4 x dgx-a100-80gb"), "9:1.2")
    assert [run.count for run in cluster.runs] == [1, 1, 2]


@pytest.mark.parametrize(
    "text",
    ["x", "3", "3:fast", "sigma=", "99:2", "1:0", "sigma=5", "", "3:2,3:4", "3:2,sigma=0.1",
     "sigma=0.1,sigma=0.2", "sigma=0.1,sede=1", "sigma=0.1,seed=-1", "sigma=0.1,seed=1.5"],
)  # fmt: skip
def test_nonsense_is_explained(text: str) -> None:
    with pytest.raises(ClusterError, match=r"stragglers|rank|sigma"):
        with_stragglers(Cluster.of(NODE), text)
