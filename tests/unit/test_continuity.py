"""Measurements are found by what devices, links and machines are: names and small changes never lose them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.plans import tiny_model

from foretrain import predict
from foretrain.cluster.catalog import devices, nodes, standard_node
from foretrain.cluster.cluster import Cluster
from foretrain.cost import curves
from foretrain.cost.collectives.selector import spread as communication_spread
from foretrain.cost.curves import CurveTable, MeasuredCurve, OwnCurves, share
from foretrain.cost.joints import Joints
from foretrain.cost.network import network_of
from foretrain.simulate import simulate_scenario
from foretrain.testing.asking import ask, bare
from foretrain.whatifs import whatif

TRANSFORMER = {"model": "gpt3-350m", "batch": 8, "micro_batch": 1, "seq": 512, "runtime": bare()}
MB = 2**20


def box(device: str, count: int = 2, **more):
    """A machine that the user made, of devices by name."""
    usual = standard_node(devices()[device]).interconnect.kind
    joined = "pcie4" if usual == "none" else usual
    return {"name": "box", "devices": [{"device": device, "count": count}], "interconnect": joined, **more}  # fmt: skip


def renamed(spec: dict, **changes):
    """The same machine of devices that the user calls his own."""
    device = spec["devices"][0]["device"]
    own = [{"device": "mine", "count": spec["devices"][0]["count"]}]
    row = {"like": device, **changes}
    return {"devices": {"mine": row}, "nodes": [{**spec, "devices": own}]}


def figures(found):
    """All that a name may not change."""
    return (
        found.step_seconds, found.interval, found.measured_share, found.memory.peak_bytes,
        tuple(found.stalls.items()), [(r.change, r.step_seconds) for r in found.what_would_help if r.kind != "machine"],  # they go by the name
    )  # fmt: skip


def transformer(on, plan="tp2", device="", **more):
    narrow = {"precision": "fp32"} if device and not devices()[device].peak("fp16") else {}
    asked = {**TRANSFORMER, **narrow, **more}
    return predict(asked.pop("model"), on=on, plan=plan, **asked)


def cnn(on, device=""):
    precision = "fp16" if devices()[device].peak("fp16") else "fp32"
    return predict("resnet50", on=on, plan="dp2", batch=64, runtime="ddp", precision=precision)


# --- names --------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", list(devices()))
@pytest.mark.parametrize("job", [transformer, cnn])
def test_another_name_changes_nothing(device, job):
    spec = box(device)
    plain = job({"nodes": [spec]}, device=device)
    assert figures(job(renamed(spec), device=device)) == figures(plain)


@pytest.mark.parametrize("node", ["aws:g5.48xlarge", "dgx-h100", "aws:p3.16xlarge", "aws:g6e.48xlarge"])  # fmt: skip
def test_another_name_of_a_machine_changes_nothing(node):
    own = [{"device": "mine", "count": nodes()[node].device_count}]
    like = {"mine": {"like": nodes()[node].devices[0].name}}
    asked = {"plan": "tp8", "precision": "fp16"}
    plain = transformer(f"1 x {node}", **asked)
    for spec in ({"node": node, "name": "other"}, {"node": node, "devices": own}):
        assert figures(transformer({"devices": like, "nodes": [spec]}, **asked)) == figures(plain)


def test_identities_outlive_names_rates_and_files():
    mine = Cluster.of(renamed(box("a10g"), memory_bandwidth="900GB/s"))
    assert mine.devices[0].name == "mine"
    for cluster in (mine, mine.scaled(compute=2.0, network=3.0, interconnect_latency=0.5)):
        again = Cluster.from_dict(cluster.to_dict())
        assert (again, hash(again)) == (cluster, hash(cluster))
        assert again.devices[0].identity == "a10g"
    whole = Cluster.of({"nodes": [{"node": "dgx-h100", "name": "ours"}]})
    assert Cluster.from_dict(whole.to_dict()).node(0).identity == "dgx-h100"
    slow = ask("gpt2", on="1 x dgx-a100-80gb", plan="dp8", batch=8, stragglers={0: 1.5}).cluster
    assert {device.identity for device in slow.devices} == {"a100-sxm4-80gb"}


def test_a_catalogue_of_the_users_own_may_say_like(tmp_path, monkeypatch):
    (tmp_path / "devices.yaml").write_text("mine: {like: a10g}\nyours: {like: mine}\n")
    monkeypatch.setenv("FORETRAIN_CATALOG", str(tmp_path))
    assert devices()["yours"].identity == "a10g"
    usual = standard_node(devices()["a10g"]).device_count
    plain, own = (transformer(f"{usual} x {name}", f"tp{usual}") for name in ("a10g", "yours"))
    assert figures(own) == figures(plain)


def test_a_device_that_is_like_itself_is_the_users_fault(tmp_path, monkeypatch):
    from foretrain.errors import ClusterError

    (tmp_path / "devices.yaml").write_text("one: {like: other}\nother: {like: one}\n")
    monkeypatch.setenv("FORETRAIN_CATALOG", str(tmp_path))
    with pytest.raises(ClusterError, match=r"one → other → one"):
        devices()["one"]


# --- rates --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("node", "changed", "factors"),
    [
        ("a10g", {"pcie_bandwidth": "63GB/s"}, {"interconnect": 2.0}),
        ("a100-sxm4-80gb", {"link_bandwidth": "600GB/s"}, {"interconnect": 2.0}),
        ("h100-sxm5-80gb", {"memory_bandwidth": 2 * 3.352e12}, {"memory_bandwidth": 2.0}),
    ],
)
def test_other_rates_of_a_like_device_are_those_of_a_what_if(node, changed, factors):
    spec = box(node, 8)
    like = simulate_scenario(ask("gpt3-350m", on=renamed(spec, **changed), plan="tp8", batch=8))
    cluster = Cluster.of({"nodes": [spec]}).scaled(**factors)
    other = simulate_scenario(ask("gpt3-350m", on=cluster, plan="tp8", batch=8))
    assert like.step_seconds == pytest.approx(other.step_seconds, rel=1e-9)
    plain = simulate_scenario(ask("gpt3-350m", on={"nodes": [spec]}, plan="tp8", batch=8))
    assert like.step_seconds < 0.999 * plain.step_seconds


def machines():
    """One of each kind of machine in the catalog."""
    found = {}
    for name, node in nodes().items():
        cards = node.nics and (node.nics.kind, node.nics.count, node.nics.bandwidth)
        found.setdefault((node.devices, node.interconnect, cards), name)
    return list(found.values())


def plans_on(name):
    """Tensor parallelism over a machine, data parallelism over two."""
    node = nodes()[name]
    count = node.device_count
    if 16 % count == 0:
        yield f"1 x {name}", f"tp{count}", 8
    if node.nics is not None:
        yield f"2 x {name}", f"dp{2 * count}", 2 * count


def seconds_of(cluster, plan, batch):
    device = cluster.devices[0].identity
    precision = "bf16" if devices()[device].peak("fp16") else "fp32"
    asked = ask("gpt3-350m", on=cluster, plan=plan, batch=batch, seq=512, precision=precision)
    return simulate_scenario(asked).step_seconds


@pytest.mark.parametrize("name", machines())
def test_twice_a_rate_is_at_most_twice_as_fast(name):
    for on, plan, batch in plans_on(name):
        cluster = Cluster.of(on)
        plain = seconds_of(cluster, plan, batch)
        for rate in ("network", "interconnect", "compute", "memory_bandwidth"):
            faster = plain / seconds_of(cluster.scaled(**{rate: 2.0}), plan, batch)
            assert 1 - 1e-9 <= faster <= 2 + 1e-9, (on, plan, rate)


@pytest.mark.parametrize("name", machines()[::3])
def test_a_straggler_that_is_hardly_slower_changes_hardly_anything(name):
    for on, plan, batch in plans_on(name):
        precision = "bf16" if nodes()[name].devices[0].peak("fp16") else "fp32"
        asked = {"on": on, "plan": plan, "batch": batch, "seq": 512, "precision": precision}
        plain = simulate_scenario(ask("gpt3-350m", **asked)).step_seconds
        slow = simulate_scenario(ask("gpt3-350m", **asked, stragglers={0: 1 + 1e-6})).step_seconds
        assert slow == pytest.approx(plain, rel=1e-4), (on, plan)


def test_a_straggler_slows_no_links():
    asked = {"on": "1 x aws:g5.12xlarge", "plan": "tp4"}
    plain, slow = (transformer(**asked, stragglers=s) for s in (None, {0: 1.0001}))
    assert slow.step_seconds == pytest.approx(plain.step_seconds, rel=1e-3)
    assert slow.measured_share == pytest.approx(plain.measured_share, rel=1e-3)
    assert not any("never measured together" in text for text in slow.warnings)


WHATIFS = [
    ("1 x aws:g5.48xlarge", "tp8", "interconnect"),
    ("1 x dgx-a100-80gb", "tp8", "interconnect"),
    ("1 x aws:p3.16xlarge", "dp8", "interconnect"),
    ("2 x aws:g5.48xlarge", "dp16", "network"),
    ("2 x aws:p3.16xlarge", "tp8 dp2", "network"),
    ("4 x dgx-h100", "tp8 dp4", "network"),
]


@pytest.mark.parametrize(("on", "plan", "links"), WHATIFS)
def test_what_would_help_is_what_a_what_if_says(on, plan, links):
    asked = {"on": on, "plan": plan, "batch": 32, "micro_batch": 1, "seq": 512, "precision": "fp16"}
    helps = {r.change: r.speedup for r in predict("gpt3-350m", **asked).what_would_help}
    found = whatif("gpt3-350m", changes={f"{links}.bandwidth": "2x"}, **asked)
    plain, faster = found.base, found.changed
    gain = plain.step_seconds / faster.step_seconds
    assert 1 < gain <= 2
    assert helps.get(f"twice the {links} bandwidth", 1.0) == pytest.approx(gain, rel=0.006)


def test_latency_that_would_help_is_what_a_what_if_says():
    """A job of small messages between machines: its bottleneck is the network, and not the bandwidth of it."""
    far = Cluster.of("8 x dgx-a100-80gb").placed([1] * 8)
    asked = {"on": far, "plan": "tp8", "batch": 16, "micro_batch": 1}
    model = tiny_model("gpt")
    helps = {r.change: r.speedup for r in predict(model, **asked).what_would_help}
    found = whatif(model, changes={"network.latency": "0.5x"}, **asked)
    plain, quicker = found.base, found.changed
    gain = plain.step_seconds / quicker.step_seconds
    assert gain > 1.05
    assert helps["half the network latency"] == pytest.approx(gain, rel=1e-3)


@pytest.mark.parametrize(
    ("model", "asked"),
    [
        ("neumf", {"on": "1 x aws:g5.xlarge", "plan": "dp1", "batch": 2, "runtime": "adaptdl"}),
        ("resnet18", {"on": "2 x dgx-h100", "plan": "dp16", "batch": 16, "runtime": "horovod"}),
        ("gpt3-350m", {"on": "1 x dgx-h100", "plan": "dp8", "batch": 8, "seq": 128, "runtime": "deepspeed-2021"}),
        ("gpt2", {"on": "1 x dgx-h100", "plan": "tp4 dp2", "batch": 2, "seq": 64}),
    ],
)  # fmt: skip
def test_no_host_overhead_is_what_a_what_if_without_a_host_says(model, asked):
    """Also where hosts take time in updates, gathers and by what is ready when gradients are fused."""
    helps = {r.change: r.speedup for r in predict(model, **asked).what_would_help}
    gain = whatif(model, changes={"host": 0}, **asked).speedup
    assert gain > 1.02
    assert helps["no host overhead (CUDA graphs)"] == pytest.approx(gain, rel=0.006)


def test_links_inside_nodes_count_for_what_crosses_the_network():
    asked = {"on": "4 x dgx-1-v100-32gb", "batch": 128, "seq": 128, "precision": "fp32", "plan": "dp32"}  # fmt: skip
    helps = {r.change: r.speedup for r in predict("bert-base", **asked, runtime="ddp").what_would_help}  # fmt: skip
    changes = {"interconnect.bandwidth": "2x"}
    gain = whatif("bert-base", changes=changes, **asked, runtime="ddp").speedup
    assert gain > 1.01
    assert helps["twice the interconnect bandwidth"] == pytest.approx(gain, rel=0.006)


def test_twice_the_latency_moves_only_what_is_latency():
    asked = {**TRANSFORMER, "on": "1 x aws:g5.48xlarge", "plan": "tp8"}
    for kind, on in (("interconnect", asked["on"]), ("network", "2 x aws:g5.48xlarge")):
        told = {**asked, "on": on, "plan": "tp8" if kind == "interconnect" else "dp16", "batch": 16}
        found = whatif(told.pop("model"), changes={f"{kind}.latency": "2x"}, **told)
        plain, later = found.base, found.changed
        assert plain.step_seconds < later.step_seconds < 1.2 * plain.step_seconds


# --- curves on a joint --------------------------------------------------------------------------


def joint(spec, count=8):
    return Joints(Cluster.of(spec)).of(np.arange(count))


def test_a_curve_is_scaled_part_by_part():
    asked = (8, "all_reduce", 64 * MB)
    table = curves.shipped()
    plain = table.alone(joint("1 x dgx-a100-80gb"), *asked).seconds
    assert plain == curves.shipped().seconds("a100-sxm4-80gb", *asked)
    floor = curves.shipped().seconds("a100-sxm4-80gb", 8, "all_reduce", 0)
    scaled = Cluster.of("1 x dgx-a100-80gb").scaled(interconnect=2.0, interconnect_latency=3.0)
    found = table.alone(joint(scaled), *asked).seconds
    assert found == pytest.approx(3 * floor + (plain - floor) / 2, rel=1e-12)


@pytest.mark.parametrize("word", ["nvlink-nvswitch", "nvlink3-switch", "nvlink3-nvl16"])
def test_links_are_known_by_what_they_are(word):
    """Whatever the user calls a switched NVLink, it is one."""
    asked = (8, "all_gather", 64 * MB)
    found = curves.shipped().alone(joint({"nodes": [box("a100-sxm4-80gb", 8, interconnect=word)]}), *asked)  # fmt: skip
    assert found.seconds == curves.shipped().seconds("a100-sxm4-80gb", *asked)


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        (box("a100-sxm4-80gb", 8, interconnect="pcie4"), "here the devices are on pcie4"),
        (box("a100-sxm4-80gb", 8, interconnect={"kind": "nvlink3", "topology": "nvlink_mesh"}), "nvlink3-nvswitch"),
        (box("l40s", 8), "aiconfigurator-l40s"),
        ({**box("a10g"), "devices": [{"device": "a10g", "count": 4}, {"device": "t4", "count": 4}]}, "a10g and t4"),
    ],
)  # fmt: skip
def test_a_curve_is_left_with_a_warning_and_a_wider_interval(spec, reason):
    found = transformer({"nodes": [spec]}, plan="tp8", precision="fp16")
    assert sum(reason in text and "interval is wider" in text for text in found.warnings) == 1
    low, high = found.interval
    exposed = found.stalls["interconnect"] / found.step_seconds
    assert np.log(high / low) / 2 > 1.28 * 0.6 * exposed > 1.28 * communication_spread() * exposed


def test_what_nobody_measured_was_not_left():
    found = transformer({"nodes": [box("a6000", 8)]}, plan="tp8")
    assert not any("interval is wider" in text for text in found.warnings)


# --- machines slower than their links -----------------------------------------------------------


def test_marked_curves_are_those_far_below_fewer_ranks():
    """The same rule, read off the shipped file: no more and no fewer are marked."""
    table = curves.shipped()
    bandwidth = {
        key: one.sizes[-1] * share(key[2], key[1]) / one.seconds[-1]
        for key, one in table.curves.items()
    }
    for (device, ranks, collective), one in table.curves.items():
        fewer = [rate for (d, n, c), rate in bandwidth.items() if (d, c) == (device, collective) and n < ranks]  # fmt: skip
        is_slow = bandwidth[device, ranks, collective] < max(fewer, default=0.0) / 3
        assert bool(one.only_on) == is_slow, (device, ranks, collective)
    assert {(d, n) for (d, n, _), one in table.curves.items() if one.only_on} == {("l40s", 4), ("l40s", 8)}  # fmt: skip


def test_a_marked_curve_holds_on_its_own_machine():
    asked = (8, "all_gather", 64 * MB)
    own = box("l40s", 8, measured_as="aiconfigurator-l40s")
    table = curves.shipped()
    assert table.alone(joint({"nodes": [own]}), *asked).seconds == curves.shipped().seconds(
        "l40s", *asked
    )
    assert table.alone(joint({"nodes": [box("l40s", 8)]}), *asked).seconds is None
    two = joint("1 x aws:g6e.48xlarge", 2)
    assert table.alone(two, 2, "all_gather", MB).seconds == curves.shipped().seconds("l40s", 2, "all_gather", MB)  # fmt: skip


def test_like_links_make_like_machines():
    """Eight L40S were three times as slow as eight A6000 on the same PCIe."""
    one, other = (transformer({"nodes": [box(name, 8)]}, "tp8") for name in ("l40s", "a6000"))
    assert one.stalls["interconnect"] == pytest.approx(other.stalls["interconnect"], rel=0.2)


def test_bytes_of_a_link_are_those_that_cross_it():
    """A slow curve takes longer, it does not move more; seven eighths of the buffer go round twice."""
    slow, fast = (transformer({"nodes": [box(name, 8)]}, "dp8") for name in ("a10g", "a6000"))
    moved = {link.name: link.bytes for link in fast.links}
    assert {link.name: link.bytes for link in slow.links} == pytest.approx(moved)
    for found in (slow, fast):
        busiest = found.links[0]
        assert busiest.bytes / busiest.bandwidth <= busiest.share * found.step_seconds * (1 + 1e-9)
    assert slow.links[0].share > fast.links[0].share


# --- the user's own measurements ----------------------------------------------------------------


def own(seconds=2e-3, domains=2):
    sizes = np.array([1e3, 1e6, 1e9])
    curve = MeasuredCurve(sizes, 1e-4 + seconds * sizes / 1e6)
    table = CurveTable({("a100-sxm4-80gb", 16, "all_reduce"): curve}, {}, {})
    return OwnCurves({("nccl", domains): table}, "a100-sxm4-80gb"), curve


def test_own_curves_follow_a_what_if():
    from foretrain.cost.collective_costs import contended

    measured, curve = own()
    groups = np.arange(16)[None, :]
    plain = Cluster.of("2 x dgx-a100-80gb")

    def alone(cluster):
        return contended(network_of(cluster, "nccl", (), measured), groups, "all_reduce", "nccl").seconds(1e8)[0]  # fmt: skip

    assert alone(plain) == pytest.approx(float(curve.at(1e8)))
    moved = float(curve.at(1e8)) - curve.floor
    assert alone(plain.scaled(network=2.0)) == pytest.approx(curve.floor + moved / 2)
    assert alone(plain.scaled(network_latency=2.0)) == pytest.approx(2 * curve.floor + moved)
    like = replace(plain.devices[0], name="mine", measured_as="a100-sxm4-80gb")
    node = replace(plain.node(0), devices=(like,) * 8)
    other = replace(plain, runs=(replace(plain.runs[0], node=node),))
    assert alone(other) == alone(plain)
