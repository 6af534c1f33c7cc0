"""Clusters: what users may write, what they get, and what they are told when it cannot be."""

from __future__ import annotations

import numpy as np
import pytest

from foretrain.cluster import Cluster, Device, Host, Interconnect, Nics, Node, NodeRun, catalog
from foretrain.errors import ClusterError, FileError, InputError

YAML = """
name: mixed
network: {kind: infiniband, bandwidth: 100Gb/s, cards: 2, latency: 3us}
devices:
  fat-a100: {like: a100-sxm4-80gb, memory_bytes: 96GB}
  npu:
    memory_bytes: 64GB
    memory_bandwidth: 1.2TB/s
    peak_flops: {fp32: 20TFLOPS, bf16: 400TFLOPS}
    pcie_bandwidth: 32GB/s
nodes:
  - 2 x dgx-a100-80gb
  - {node: dgx-a100-80gb, count: 1, used: 4}
  - name: box
    count: 3
    devices: [fat-a100, {device: npu, count: 2}, t4]
    interconnect: {kind: pcie4, latency: 2us, socket_devices: 2}
    host: {cpu_cores: 64, memory_bytes: 512GiB, storage_bandwidth: 3GB/s}
    price: {usd_per_hour: 12.5, date: 2026-01-01}
"""


@pytest.mark.parametrize(
    ("spec", "devices", "nodes", "device"),
    [
        ("16 x dgx-a100-80gb", 128, 16, "a100-sxm4-80gb"),
        ("16x dgx-a100-80gb", 128, 16, "a100-sxm4-80gb"),
        ("16*DGX-A100", 128, 16, "a100-sxm4-80gb"),
        ("1,024 × dgx-h100", 8192, 1024, "h100-sxm5-80gb"),
        ("4 x aws:p4d.24xlarge", 32, 4, "a100-sxm4-40gb"),
        ("p4d.24xlarge", 8, 1, "a100-sxm4-40gb"),
        ("8xH100", 8, 1, "h100-sxm5-80gb"),
        ("h100", 1, 1, "h100-sxm5-80gb"),
        ("4 x h100", 4, 1, "h100-sxm5-80gb"),
        ("20 x h100", 20, 3, "h100-sxm5-80gb"),
        ("16 x t4", 16, 4, "t4"),
        ("72 x gb200-nvl72", 72, 18, "gb200-nvl72"),
        ("2 x cpu", 2, 2, "generic-cpu"),
    ],
)
def test_short_forms(spec, devices, nodes, device):
    cluster = Cluster.of(spec)
    assert cluster.device_count == devices
    assert cluster.node_count == nodes
    assert [one.name for one in cluster.devices] == [device]
    assert len(cluster.node_of) == devices
    assert Cluster.of(cluster) is cluster


def test_devices_fill_node_after_node():
    cluster = Cluster.of("20 x h100")
    assert np.bincount(cluster.node_of).tolist() == [8, 8, 4]
    assert cluster.local_index[-4:].tolist() == [0, 1, 2, 3]


def test_unlike_machines_are_joined_with_plus():
    cluster = Cluster.of("2 x dgx-a100-80gb + 1 x dgx-h100")
    assert [device.name for device in cluster.devices] == ["a100-sxm4-80gb", "h100-sxm5-80gb"]
    assert cluster.device_kind.tolist() == [0] * 16 + [1] * 8
    assert cluster.device(20).name == "h100-sxm5-80gb"
    assert not cluster.is_uniform
    assert cluster.node(2).name == "dgx-h100"
    with pytest.raises(ClusterError, match="no node 3"):
        cluster.node(3)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("16 x dgx-a100-90gb", ["Unknown node or device", "dgx-a100-80gb", "YAML file"]),
        ("8 x h1000", ["Did you mean"]),
        ("", ["empty"]),
        ("   ", ["empty"]),
        ("0 x dgx-h100", ["count: 0"]),
        ("0 x h100", ["used: 0"]),
        ("9999999999 x dgx-h100", ["too many"]),
        ("999999999 x dgx-h100", ["7,999,999,992 devices"]),
        ("2 x dgx-h100 + ", ["is not a cluster"]),
    ],
)
def test_what_cannot_be_understood_is_explained(spec, words):
    with pytest.raises(ClusterError) as refused:
        Cluster.of(spec)
    for word in words:
        assert word in str(refused.value)


def test_a_yaml_file_describes_unlike_nodes(tmp_path):
    path = tmp_path / "mixed.yaml"
    path.write_text(YAML)
    cluster = Cluster.of(str(path))
    assert cluster == Cluster.of(path)
    assert cluster.name == "mixed"
    assert cluster.device_count == 16 + 4 + 12
    assert cluster.node_count == 6
    names = [device.name for device in cluster.devices]
    assert names == ["a100-sxm4-80gb", "fat-a100", "npu", "t4"]
    box = cluster.node(5)
    assert [device.name for device in box.devices] == ["fat-a100", "npu", "npu", "t4"]
    assert box.devices[0].memory_bytes == 96e9
    assert box.devices[0].peak("bf16") == 312e12
    assert box.interconnect.latency == 2e-6
    assert box.nics == Nics("infiniband", 2, 12.5e9, 3e-6)
    assert cluster.node(0).nics == box.nics
    assert cluster.usd_per_hour is None
    assert cluster.network.kind == "infiniband"


def test_changes_to_a_catalogue_machine_keep_the_rest():
    data = {
        "nodes": [{"node": "dgx-h100", "count": 2, "nics": {"count": 4}, "host": {"cpu_cores": 96}}]
    }
    cluster = Cluster.of(data)
    node, known = cluster.node(0), catalog.find_node("dgx-h100")
    assert node.nics == Nics("infiniband", 4, 50e9, known.nics.latency)
    assert node.host == Host(96, known.host.memory_bytes, known.host.memory_bandwidth)
    assert node.interconnect == known.interconnect
    assert node.devices == known.devices
    slower = Cluster.of({"nodes": "2 x dgx-h100", "network": {"kind": "ethernet"}})
    assert slower.network.kind == "ethernet"
    assert slower.node(0).nics.latency == catalog.links()["ethernet"].latency
    assert slower.node(0).nics.bandwidth == 50e9


@pytest.mark.parametrize(
    "spec", ["16 x dgx-a100-80gb", "20 x h100", "2 x dgx-1 + 1 x g5.48xlarge", "100 x gb200"]
)
def test_to_dict_and_back(spec):
    cluster = Cluster.of(spec)
    again = Cluster.from_dict(cluster.to_dict())
    assert again == cluster
    assert hash(again) == hash(cluster)
    scaled = cluster.scaled(compute=1.3, network=0.7, interconnect=1.1)
    assert Cluster.from_dict(scaled.to_dict()) == scaled


def test_to_dict_survives_yaml(tmp_path):
    import yaml

    (tmp_path / "mixed.yaml").write_text(YAML)
    cluster = Cluster.of(tmp_path / "mixed.yaml")
    (tmp_path / "again.yaml").write_text(yaml.safe_dump(cluster.to_dict()))
    assert Cluster.of(tmp_path / "again.yaml") == cluster


def test_all_faults_of_a_file_come_together(tmp_path):
    path = tmp_path / "bad.yaml"
    path.write_text(
        """
nme: x
network: {kind: infiniband, bandwidth: -3, latency: .nan}
devices:
  npu: {memory_bytes: 0, memory_bandwith: 1GB/s, peak_flops: {bf16: fast}}
nodes:
  - {node: dgx-h100, count: 0}
  - {devices: [{device: t4, count: two}], interconect: pcie3}
"""
    )
    with pytest.raises(ClusterError) as refused:
        Cluster.of(path)
    text = str(refused.value)
    assert str(path) in text
    for words in (
        "nme: unknown key. Did you mean 'name'",
        "network.bandwidth: -3 must be positive",
        "network.latency: nan is not",
        "devices.npu.memory_bytes: 0 must be positive",
        "devices.npu.memory_bandwith: unknown key. Did you mean 'memory_bandwidth'",
        "devices.npu.peak_flops.bf16: 'fast' is not a rate",
        "nodes[0].count: 0 must be positive",
        "nodes[1].devices[0].count: 'two' is not a count",
        "nodes[1].interconect: unknown key. Did you mean 'interconnect'",
    ):
        assert words in text


def test_faults_of_meaning_come_together_too():
    data = {
        "network": {"kind": "infinband"},
        "devices": {"npu": {"memory_bytes": "64GB"}, "x": {"like": "h10O"}},
        "nodes": [
            {"node": "dgx-h10"},
            {"devices": ["t4", "t4"]},
            {"devices": ["t4"], "interconnect": "nvlink9"},
            {"node": "dgx-h100", "used": 9},
            {"count": 2},
            {"devices": ["t4", "t4"], "interconnect": "pcie3-ring"},
            {"devices": ["t4"], "nics": {"kind": "infiniband"}},
        ],
    }
    with pytest.raises(ClusterError) as refused:
        Cluster.of(data)
    text = str(refused.value)
    for words in (
        "devices.npu.memory_bandwidth: missing",
        "devices.npu.peak_flops: missing",
        "devices.x: Unknown device 'h10O'",
        "nodes[0]: Unknown node 'dgx-h10'",
        "nodes[1]: interconnect: missing",
        "nodes[2]: Unknown interconnect 'nvlink9'",
        "nodes[3].used: 9 must be from 1 to 8",
        "nodes[4]: specify `node`",
        "nodes[5]: Interconnect 'pcie3-ring': 'ring' is not understood",
        "nodes[6]: nics.bandwidth: missing",
    ):
        assert words in text


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"nodes": []},
        {"nodes": None},
        {"nodes": 3},
        {"nodes": [3]},
        {"nodes": [[]]},
        {"nodes": ["dgx-h100"], "network": 3},
        {"nodes": ["dgx-h100"], "network": {"kind": "morse"}},
        {"nodes": ["dgx-h100"], "network": {"topology": "moebius"}},
        {"nodes": [{"node": 3}]},
        {"nodes": [{"devices": {"t4": 2}}]},
        {"nodes": ["dgx-h100"], "devices": []},
        {"nodes": ["99999999999999 x dgx-h100"]},
    ],
)
def test_odd_documents_are_refused_not_crashed_on(data):
    with pytest.raises(InputError):
        Cluster.of(data)


def test_files_that_are_no_clusters(tmp_path):
    with pytest.raises(FileError, match="does not exist"):
        Cluster.of(str(tmp_path / "none.yaml"))
    listed = tmp_path / "list.yaml"
    listed.write_text("- 1\n")
    with pytest.raises(ClusterError, match="is not a mapping"):
        Cluster.of(listed)


def test_a_file_without_a_name_is_called_by_its_own(tmp_path):
    path = tmp_path / "lab.yaml"
    path.write_text("nodes: 2 x dgx-h100\n")
    assert Cluster.of(path).name == "lab"
    bare = tmp_path / "lab2"
    bare.write_text("nodes: 2 x dgx-h100\n")
    assert Cluster.of(str(bare)).name == "lab2"
    with pytest.raises(ClusterError, match="Unknown node or device"):
        Cluster.of("a/b\x00")


def test_bad_numbers_in_python_are_refused_too():
    good = catalog.find_device("t4")
    wiring = Interconnect("pcie3", "pcie_tree", 1e-6)
    for make in (
        lambda: Nics("ethernet", 0, 1e9, 0.0),
        lambda: Nics("ethernet", 1, float("nan"), 0.0),
        lambda: Nics("ethernet", 1, 1e9, -1.0),
        lambda: Interconnect("x", "nvswitch", 0.0, bandwidth=-1.0),
        lambda: Interconnect("x", "nvlink_mesh", 0.0, lanes=((0, 1), (1,))),
        lambda: Interconnect("x", "nvlink_mesh", 0.0, lanes=((0, 1), (2, 0))),
        lambda: Interconnect("x", "nvlink_mesh", 0.0, lanes=((0, 10**30), (10**30, 0))),
        lambda: Host(cpu_cores=0),
        lambda: Node("n", "n", (), wiring, None, Host(), "test"),
        lambda: NodeRun(catalog.find_node("dgx-h100"), 1, 9),
        lambda: Cluster.of("dgx-h100").scaled(network=0.0),
        lambda: Cluster.of("dgx-h100").scaled(compute=float("inf")),
        lambda: good.scaled(compute=-1.0),
    ):
        with pytest.raises(ClusterError):
            make()
    with pytest.raises(ClusterError) as refused:
        Device("d", "d", "v", "gpu", "a", -1.0, 0.0, (("fp32", float("nan")),), 1e9, "test")
    assert len(refused.value.faults) == 3


def test_the_first_devices_and_uneven_placements():
    cluster = Cluster.of("4 x g4dn.12xlarge")
    assert cluster.first(16) == cluster
    assert np.bincount(cluster.first(6).node_of).tolist() == [4, 2]
    uneven = cluster.placed([1, 3, 4])
    assert np.bincount(uneven.node_of).tolist() == [1, 3, 4]
    assert uneven.usd_per_hour == pytest.approx(3 * 3.912)
    assert [run.count for run in cluster.placed([2, 2, 2]).runs] == [3]
    for bad in (0, 17):
        with pytest.raises(ClusterError):
            cluster.first(bad)
    for wrong in ([], [5], [1] * 5, [0]):
        with pytest.raises(ClusterError):
            cluster.placed(wrong)


def test_prices_add_up_and_stay_unknown_where_unknown():
    assert Cluster.of("4 x p4d.24xlarge").usd_per_hour == pytest.approx(4 * 21.957642)
    assert Cluster.of("4 x p4d.24xlarge").price_date == "2026-08-22"
    assert Cluster.of("p4d.24xlarge + dgx-a100-80gb").usd_per_hour is None
    assert Cluster.of("p4d.24xlarge + dgx-a100-80gb").price_date is None


def test_scaling_changes_what_it_names_and_nothing_else():
    base = Cluster.of("2 x dgx-1 + 2 x g5.48xlarge")
    before, after = base.topology, base.scaled(network=2.0, interconnect=3.0).topology
    factor = np.where(before.tier == 1, 2.0, 3.0)
    assert after.capacity == pytest.approx(before.capacity * factor)
    assert after.latency == pytest.approx(before.latency)
    fast = base.scaled(compute=2.0, memory_bandwidth=4.0)
    assert fast.devices[0].peak("fp16") == 2 * base.devices[0].peak("fp16")
    assert fast.devices[0].memory_bandwidth == 4 * base.devices[0].memory_bandwidth
    assert fast.devices[0].memory_bytes == base.devices[0].memory_bytes
    assert base.scaled() == base
    late = base.scaled(network_latency=5.0).topology
    assert late.latency[before.tier == 1] == pytest.approx(5 * before.latency[before.tier == 1])
    assert late.latency[before.tier == 0] == pytest.approx(before.latency[before.tier == 0])


def test_describe_says_what_matters():
    text = Cluster.of("4 x p4d.24xlarge").describe()
    for words in (
        "32 devices in 4 nodes",
        "A100 SXM4 40 GB",
        "nvlink3-nvswitch",
        "4 x 100 Gb/s efa",
    ):
        assert words in text
    assert "$87.83 per hour (2026-08-22)" in text
    assert "5 of 8 devices used" in Cluster.of("5 x h100").describe()


def test_clusters_are_values():
    assert Cluster.of("2 x dgx-h100") == Cluster.of("2 x dgx-h100")
    assert hash(Cluster.of("2 x dgx-h100")) == hash(Cluster.of("2 x dgx-h100"))
    assert Cluster.of("2 x dgx-h100") != Cluster.of("3 x dgx-h100")
    cluster = Cluster.of("2 x dgx-h100")
    assert cluster.topology is cluster.topology
