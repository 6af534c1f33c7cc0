"""Measured curves of collectives: what they say at, between and beyond what was measured."""

from __future__ import annotations

import json
import time
from importlib.resources import files

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foretrain.cluster.catalog import devices, links, nodes
from foretrain.cluster.cluster import Cluster
from foretrain.cost import curves
from foretrain.cost.curves import MeasuredCurve, MeasuredSeconds, share
from foretrain.cost.joints import Joint, Joints
from foretrain.errors import Bug

FILE = files("foretrain.cost.calibration").joinpath("curves").joinpath("curves.json")
ALL = [
    (via, key)
    for via in (curves.DEVICE_TIME, curves.CALL_TIME)
    for key in curves.shipped(via).curves
]
MB = 2**20

# Published readings, each with the relative error allowed: the file is distilled from medians over library
# versions, so the first group may not be off by much; the second is of other machines.
CITED = [
    # aiconfigurator-core, systems/data: h100_sxm and a100_sxm comm/nccl/2.27.3, half
    ("h100-sxm5-80gb", 8, "all_reduce", 1 * MB, 25.4e-6, 0.05),
    ("h100-sxm5-80gb", 8, "all_reduce", 16 * MB, 122.08e-6, 0.05),
    ("h100-sxm5-80gb", 8, "all_reduce", 512 * MB, 2.11202e-3, 0.05),
    ("h100-sxm5-80gb", 8, "all_to_all", 512 * MB, 1.48022e-3, 0.05),
    ("a100-sxm4-80gb", 2, "all_gather", 4096, 9.37e-6, 0.05),
    # NVIDIA/dgxc-benchmarking@841f546 nccl/README.md, DGX H100
    ("h100-sxm5-80gb", 8, "all_reduce", 32 * MB, 199.3e-6, 0.10),
    ("h100-sxm5-80gb", 8, "all_reduce", 16 * 1024 * MB, 62.648e-3, 0.10),
    # stas00/ml-engineering@744d01e network/README.md, 8 x A100 with nccl-tests; nccl-tests on 8 x A100 and V100
    ("a100-sxm4-80gb", 8, "all_reduce", 201326592, 1.6102e-3, 0.10),
    ("v100-sxm2-16gb", 8, "all_reduce", 512 * MB, 7.0044e-3, 0.02),
    # coreweave/nccl-tests@cb86553 README.md, one GB200 NVL72 rack: far beyond the 4 ranks measured
    ("gb200-nvl72", 72, "all_reduce", 1024 * MB, 3.1088e-3, 0.30),
]


@pytest.mark.parametrize(("device", "ranks", "collective", "size", "published", "off"), CITED)
def test_published_readings(device, ranks, collective, size, published, off):
    assert curves.shipped().seconds(device, ranks, collective, size) == pytest.approx(
        published, rel=off
    )


def test_calls_of_a_framework_are_kept_apart():
    """PARAM on 4 V100 (Lin et al., comm_bench.ipynb): the host's 80 us are in there, in device times not."""
    called = curves.shipped(curves.CALL_TIME)
    assert called.seconds("v100-sxm2-32gb", 4, "all_reduce", 16 * MB) == pytest.approx(423.7e-6, rel=0.03)  # fmt: skip
    assert called.seconds("v100-sxm2-32gb", 4, "all_to_all", 2**31) == pytest.approx(28.21e-3, rel=0.03)  # fmt: skip
    assert curves.shipped().seconds("v100-sxm2-32gb", 4, "all_reduce", 16 * MB) < 400e-6
    assert curves.shipped().seconds("v100-sxm2-32gb", 4, "all_to_all", 16 * MB) is None


# --- the file -----------------------------------------------------------------------------------


def test_the_file_is_small_and_quick():
    assert len(FILE.read_bytes()) < 300_000
    took = []
    for _ in range(7):
        curves.shipped.cache_clear()
        curves.shipped.cache_clear()
        start = time.perf_counter()
        curves.shipped()
        took.append(time.perf_counter() - start)
    assert min(took) < 0.05  # 2 to 4 ms on an idle machine


def test_every_curve_has_few_knots_and_a_source():
    data = json.loads(FILE.read_text("utf-8"))
    assert {row["source"] for row in data["curves"]} == set(data["sources"])
    keys = [(r["via"], r["device"], r["ranks"], r["collective"]) for r in data["curves"]]
    assert len(set(keys)) == len(keys) == len(ALL)
    assert all(2 <= len(row["bytes"]) == len(row["us"]) <= 16 for row in data["curves"])


def test_four_collectives_of_every_device_of_the_tables():
    for device in ("a100-sxm4-80gb", "h100-sxm5-80gb", "h200-sxm5-141gb", "b200-sxm", "b300-sxm", "gb200-nvl72", "gb300-nvl72", "l40s", "rtx-pro-6000"):  # fmt: skip
        for collective in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all"):
            assert curves.shipped().seconds(device, 4, collective, MB) is not None


def test_devices_and_interconnects_are_those_of_the_catalogue():
    data = json.loads(FILE.read_text("utf-8"))
    known = devices()
    for name, row in data["devices"].items():
        device = known[name]
        rate = device.link_bandwidth if device.link else device.pcie_bandwidth
        assert row["bandwidth"] == rate  # what is not changed is not scaled
        assert row["latency"] == links()[row["interconnect"].split("-")[0]].latency
        kinds = {n.interconnect.kind for n in nodes().values() if n.devices[0].name == name}
        assert row["interconnect"] in kinds
    for name, other in data["like"].items():
        assert other in data["devices"]
        assert (known[name].link, known[name].link_bandwidth) == (known[other].link, known[other].link_bandwidth)  # fmt: skip


# --- one curve ----------------------------------------------------------------------------------


def line(alpha: float = 1e-5, rate: float = 1e11) -> MeasuredCurve:
    sizes = 2.0 ** np.arange(9, 30)
    return MeasuredCurve(sizes, alpha + sizes / rate)


def test_a_curve_goes_through_its_knots_and_straight_between_them():
    curve = MeasuredCurve([1e3, 1e5], [1e-5, 1e-3])
    assert curve.at([1e3, 1e4, 1e5]) == pytest.approx([1e-5, 1e-4, 1e-3])


def test_outside_a_line_stays_the_line():
    """Latency + bytes / bandwidth goes on as such on both sides."""
    curve = line()
    assert curve.floor == pytest.approx(1e-5)
    assert curve.bandwidth == pytest.approx(1e11)
    assert curve.at([0, 1, 2**34]) == pytest.approx([1e-5, 1e-5, 1e-5 + 2**34 / 1e11], rel=1e-3)


def test_a_curve_that_starts_on_the_slope_keeps_a_floor():
    curve = MeasuredCurve([1e6, 2e6], [1e-4, 2e-4])
    assert curve.at(0) == pytest.approx(0.5e-4)
    assert curve.at(1e6) == pytest.approx(1e-4)


def test_noise_in_the_last_knots_is_no_bandwidth():
    flat = MeasuredCurve([1e6, 1e8, 2e8], [1e-4, 1e-3, 1e-3])
    assert flat.bandwidth == pytest.approx(2e8 / 1e-3 / 0.7)
    steep = MeasuredCurve([1e6, 1e8, 2e8], [1e-5, 1e-4, 1e-3])
    assert steep.bandwidth == pytest.approx(2e8 / 1e-3)


@pytest.mark.parametrize(
    ("sizes", "seconds"),
    [
        ([1.0], [1.0]),
        ([1.0, 2.0], [1.0]),
        ([2.0, 1.0], [1.0, 2.0]),
        ([0.0, 1.0], [1.0, 2.0]),
        ([1.0, 2.0], [2.0, 1.0]),
        ([1.0, 2.0], [0.0, 1.0]),
        ([1.0, np.inf], [1.0, 2.0]),
    ],
)
def test_what_is_no_curve_is_refused(sizes, seconds):
    with pytest.raises(ValueError):
        MeasuredCurve(sizes, seconds)


@pytest.mark.parametrize("size", [-1.0, float("nan"), float("inf")])
def test_sizes_that_are_none(size):
    with pytest.raises(Bug):
        line().at(size)


# --- the table ----------------------------------------------------------------------------------


@given(
    st.sampled_from(sorted({(d, c) for d, _, c in curves.shipped().curves})),
    st.integers(1, 100),
    st.floats(0, 1e11),
    st.floats(0, 1e11),
)
def test_more_bytes_never_take_less_time(curve, ranks, one, other):
    device, collective = curve
    few, many = sorted((one, other))
    found = curves.shipped().seconds_of(device, ranks, collective, [few, many])
    assert found is None or 0.0 <= found[0] <= found[1] * (1 + 1e-12)


@pytest.mark.parametrize(("via", "key"), ALL, ids=lambda value: str(value))
def test_bandwidth_never_exceeds_the_links(via, key):
    """Long messages: more than the rated links carry would be a wrong unit. NVLS sums in the switch, where
    an all-reduce moves little more than half of what a ring moves."""
    device, ranks, collective = key
    size = 2.0**32
    seconds = curves.shipped(via).seconds(device, ranks, collective, size)
    rated = curves.shipped().interconnects[device].bandwidth
    assert size * share(collective, ranks) / seconds < rated * (2 if collective == "all_reduce" else 1)  # fmt: skip
    assert 1e-6 < curves.shipped(via).seconds(device, ranks, collective, 1) < 300e-6


def test_ranks_between_measured_ones_lie_between():
    four, six, eight = (curves.shipped().seconds("h100-sxm5-80gb", n, "all_gather", 2**28) / share("all_gather", n) for n in (4, 6, 8))  # fmt: skip
    assert min(four, eight) <= six <= max(four, eight)


def test_ranks_beyond_the_largest_count():
    """Long messages grow with the share that crosses a port, short ones by steps: per rank in a ring, per
    doubling in an all-reduce."""
    table = curves.shipped()
    ratio = table.seconds("b200-sxm", 16, "all_gather", 2**36) / table.seconds("b200-sxm", 8, "all_gather", 2**36)  # fmt: skip
    assert ratio == pytest.approx((15 / 16) / (7 / 8), rel=0.01)
    for collective, steps in (("all_gather", 3.0), ("all_reduce", 2.0)):
        four, eight, sixteen = (table.seconds("b200-sxm", n, collective, 0) for n in (4, 8, 16))
        assert (sixteen - four) == pytest.approx(steps * (eight - four))


def test_one_rank_costs_nothing_and_what_is_not_measured_is_not_answered():
    assert curves.shipped().seconds("h100-sxm5-80gb", 1, "all_reduce", MB) == 0.0
    assert curves.shipped().seconds("mi300x", 8, "all_reduce", MB) is None
    assert curves.shipped().seconds("h100-sxm5-80gb", 8, "exchange", MB) is None
    assert curves.shipped(curves.CALL_TIME).seconds("v100-sxm2-32gb", 2, "all_to_all", MB) is None
    with pytest.raises(Bug):
        curves.shipped().seconds("h100-sxm5-80gb", 0, "all_reduce", MB)


def test_what_is_not_measured_follows_from_its_other_half():
    """An all-reduce over rings is a reduce-scatter and an all-gather: V100 has the one, L4 the other."""
    whole = curves.shipped().seconds("v100-sxm2-16gb", 8, "all_reduce", 512 * MB)
    for half in ("all_gather", "reduce_scatter"):
        assert curves.shipped().seconds("v100-sxm2-16gb", 8, half, 512 * MB) == whole / 2
    half = curves.shipped().seconds("l4", 4, "all_gather", 512 * MB)
    assert half == pytest.approx(90.46e-3, rel=0.02)  # Mist's profile: 5.5 GiB/s through the host
    assert curves.shipped().seconds("l4", 4, "all_reduce", 512 * MB) == 2 * half
    assert curves.shipped().seconds("l4", 4, "all_to_all", 512 * MB) is None


def test_one_size_or_many_are_the_same():
    sizes = np.geomspace(100, 1e10, 50)
    many = curves.shipped().seconds_of("a100-sxm4-80gb", 5, "reduce_scatter", sizes)
    assert many.tolist() == [curves.shipped().seconds("a100-sxm4-80gb", 5, "reduce_scatter", s) for s in sizes]  # fmt: skip


def joint(device: str, interconnect: str, count: int = 8, **changes: object) -> Joint:
    own = {"mine": {"like": device, **changes}}
    node = {"name": "box", "devices": [{"device": "mine", "count": count}], "interconnect": interconnect}  # fmt: skip
    return Joints(Cluster.of({"devices": own, "nodes": [node]})).of(np.arange(count))


def test_alone_is_for_the_links_that_were_measured():
    asked = (8, "all_reduce", 2**26)
    alone = curves.shipped().alone
    seconds = curves.shipped().seconds("a100-sxm4-80gb", *asked)
    for device in ("a100-sxm4-80gb", "a100-sxm4-40gb"):
        assert alone(joint(device, "nvlink3-nvswitch"), *asked) == MeasuredSeconds(seconds)
    faster = alone(joint("a100-sxm4-80gb", "nvlink3-nvswitch", link_bandwidth="600GB/s"), *asked)
    assert seconds / 2 < faster.seconds < seconds
    elsewhere = alone(joint("a100-sxm4-80gb", "pcie4"), *asked)
    assert elsewhere.seconds is None
    assert "nvlink3-nvswitch" in elsewhere.left
    assert alone(joint("a100-pcie-80gb", "pcie4"), *asked) == MeasuredSeconds()
