"""The catalog: every row is usable and says where it comes from."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from foretrain.cluster import Cluster, catalog
from foretrain.cluster.catalog.checking import check_catalogue_file
from foretrain.errors import ClusterError, FileError
from foretrain.loading import load_yaml
from foretrain.testing.topology import check_topology

FOLDER = Path(catalog.__file__).parent
CASE_DEVICES = [
    "a100-sxm4-80gb",
    "a100-sxm4-40gb",
    "a100-pcie-80gb",
    "h100-sxm5-80gb",
    "h100-sxm5-96gb",
    "h100-pcie-80gb",
    "h200-sxm5-141gb",
    "h800-sxm5-80gb",
    "b200-sxm",
    "b300",
    "gb200-nvl72",
    "gb300-nvl72",
    "v100-sxm2-16gb",
    "v100-sxm2-32gb",
    "v100-sxm3-32gb",
    "v100-pcie-16gb",
    "v100-pcie-32gb",
    "t4",
    "l4",
    "l40s",
    "a10",
    "a10g",
    "k80",
    "p100-sxm2-16gb",
    "p100-pcie-16gb",
    "titan-xp",
    "mi100",
    "mi210",
    "mi250",
    "mi250x",
    "mi300x",
    "mi325x",
    "cpu",
]


@pytest.mark.parametrize("name", ["devices", "links", "nodes"])
def test_our_own_files_pass_the_check_for_strangers(name):
    path = FOLDER / f"{name}.yaml"
    check_catalogue_file(name, load_yaml(path, "catalog"), str(path))


@pytest.mark.parametrize("name", list(catalog.devices()))
def test_every_device_is_usable_and_has_a_source(name):
    device = catalog.devices()[name]
    assert len(device.source) > 10
    assert device.peak("fp32") is not None
    # plausible by orders of magnitude: catches a slip of a unit
    assert 2**30 < device.memory_bytes < 2**39
    assert 50e9 < device.memory_bandwidth < 25e12
    assert 1e12 < max(device.peaks.values()) < 1e17
    assert 10e9 < device.pcie_bandwidth < 1e12
    if device.link is not None:
        assert device.link_bandwidth > 0
        assert device.link in catalog.links()
    node = catalog.standard_node(device)
    assert device in node.devices


@pytest.mark.parametrize("name", list(catalog.nodes()))
def test_every_node_is_usable_has_a_source_and_routes(name):
    node = catalog.nodes()[name]
    assert len(node.source) > 10
    if node.price is not None:
        assert len(node.price.source) > 10
        assert node.price.date[:2] == "20"
        assert 0.1 < node.price.usd_per_hour < 1000
    if node.cloud is not None:
        assert node.cloud == name
    check_topology(Cluster.of(f"1 x {name}").topology)
    if node.nics is not None:
        assert 0.1e9 < node.nics.bandwidth <= 100e9
        check_topology(Cluster.of(f"3 x {name}").topology)


@pytest.mark.parametrize("name", list(catalog.links()))
def test_every_link_has_a_source(name):
    link = catalog.links()[name]
    assert len(link.source) > 10
    assert 0 < link.latency < 1e-3


@pytest.mark.parametrize("name", list(catalog.meshes()))
def test_meshes_are_symmetric_and_use_every_link_of_a_device(name):
    lanes = catalog.meshes()[name]
    assert all(lanes[a][b] == lanes[b][a] for a in range(len(lanes)) for b in range(len(lanes)))
    assert len({sum(row) for row in lanes}) == 1


def test_dense_peaks_of_well_known_devices():
    assert catalog.find_device("a100").peak("bf16") == 312e12
    assert catalog.find_device("h100").peak("bf16") == pytest.approx(989.4e12)
    assert catalog.find_device("h100").peak("fp8") == pytest.approx(1978.9e12)
    assert catalog.find_device("v100").peak("fp16") == 125e12
    assert catalog.find_device("b200").peak("nvfp4") == 9000e12


def test_a_missing_dtype_is_none_or_a_clear_error():
    v100 = catalog.find_device("v100-sxm2-16gb")
    assert v100.peak("bf16") is None
    assert v100.peak("tf32") is None
    with pytest.raises(ClusterError, match="does not support bf16; supported: fp32, fp16"):
        v100.required_peak("bf16")
    assert v100.required_peak("fp16") == 125e12


@pytest.mark.parametrize("name", CASE_DEVICES)
def test_names_used_in_cases_are_known(name):
    assert catalog.find_device(name)


@pytest.mark.parametrize(
    ("word", "name"),
    [
        ("H100", "h100-sxm5-80gb"),
        ("A100 80GB", "a100-sxm4-80gb"),
        ("NVIDIA A100-SXM4-80GB", "a100-sxm4-80gb"),
        ("Tesla_T4", "t4"),
        ("AMD Instinct MI300X", "mi300x"),
    ],
)
def test_devices_are_found_by_other_names(word, name):
    assert catalog.find_device(word).name == name


def test_unknown_names_get_a_hint_and_the_list():
    with pytest.raises(ClusterError) as refused:
        catalog.find_device("h10O")
    assert "Did you mean 'h100'" in str(refused.value)
    assert "'foretrain catalog list devices' lists all" in str(refused.value)
    assert len(str(refused.value)) < 160
    with pytest.raises(ClusterError, match="Did you mean"):
        catalog.find_node("dgx-a10")


def test_names_and_aliases_are_unambiguous():
    for shelf, file in ((catalog.devices(), "devices"), (catalog.nodes(), "nodes")):
        rows = load_yaml(FOLDER / f"{file}.yaml")
        rows = rows if file == "devices" else rows["nodes"]
        words = [word for name, row in rows.items() for word in (name, *row.get("aliases", ()))]
        assert len(set(words)) == len(words)
        assert set(rows) <= set(shelf)


def test_cloud_instances_have_what_the_vendor_says():
    node = catalog.find_node("p4d.24xlarge")
    assert node is catalog.find_node("aws:p4d.24xlarge")
    assert node.device_count == 8
    assert node.nics is not None
    assert node.nics.total_bandwidth == pytest.approx(50e9)
    assert node.host.cpu_cores == 48
    assert node.price is not None
    assert node.price.usd_per_hour == pytest.approx(21.957642)
    assert node.price.date == "2026-08-22"


def test_loading_the_whole_catalogue_is_quick():
    best = min(_load_seconds() for _ in range(3))
    # 30 ms on one core of a small machine; the bound leaves room for a busy one
    assert best < 0.25


def _load_seconds() -> float:
    catalog._read.cache_clear()
    start = time.perf_counter()
    catalog.devices()
    return time.perf_counter() - start


def test_naming_a_cluster_needs_no_pydantic():
    code = (
        "import sys; from foretrain.cluster import Cluster; Cluster.of('2 x dgx-h100').topology; "
    )
    code += "sys.exit('pydantic' in sys.modules or 'scipy' in sys.modules)"
    done = subprocess.run(
        [sys.executable, *(["-S"] if sys.flags.no_site else []), "-c", code], env=dict(os.environ)
    )
    assert done.returncode == 0


# --- the user's own catalog -----------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("FORETRAIN_CATALOG", str(tmp_path))
    return tmp_path


def test_own_rows_are_merged_over_ours(folder):
    (folder / "devices.yaml").write_text(
        "t4: {memory_bandwidth: 300GB/s}\n"
        "npu: {memory_bytes: 64GB, memory_bandwidth: 1TB/s, peak_flops: {bf16: 400TFLOPS}, pcie_bandwidth: 32GB/s}\n"
    )
    (folder / "nodes.yaml").write_text(
        "nodes:\n"
        "  dgx-h100: {price: {usd_per_hour: 20, date: 2026-01-01}}\n"
        "  npu-box: {devices: {device: npu, count: 4}, interconnect: pcie4, nics: {bandwidth: 25Gb/s}}\n"
        "offers:\n"
        "  - {cloud: mine, status: current, source: my contract of 2026, columns: [instance, device, count,"
        " interconnect, network, cards, gbps, vcpus, memory_gib, disk_mbps], rows: [[n4, npu, 4, pcie4, roce, 2,"
        " 100, 64, 256, null]]}\n"
    )
    assert catalog.find_device("t4").memory_bandwidth == 300e9
    assert catalog.find_device("t4").peak("fp16") == 65e12
    assert Cluster.of("2 x dgx-h100").usd_per_hour == 40
    assert Cluster.of("2 x npu-box").device_count == 8
    assert Cluster.of("2 x mine:n4").node(0).nics.total_bandwidth == pytest.approx(25e9)
    assert Cluster.of("4 x aws:p5.48xlarge").device_count == 32


def test_faults_of_an_own_catalogue_come_together(folder):
    (folder / "devices.yaml").write_text("t4: {memory_bandwith: 300GB/s, memory_bytes: -1}\nx: 3\n")
    with pytest.raises(ClusterError) as refused:
        catalog.devices()
    text = str(refused.value)
    assert "t4.memory_bandwith: unknown key. Did you mean 'memory_bandwidth'" in text
    assert "t4.memory_bytes: -1 must be positive" in text
    assert "x" in text
    (folder / "devices.yaml").unlink()
    (folder / "nodes.yaml").write_text("nodse: {}\noffers: [{cloud: a}, 3]\n")
    with pytest.raises(ClusterError) as refused:
        catalog.nodes()
    text = str(refused.value)
    assert "nodse: unknown key. Did you mean 'nodes'" in text
    assert "offers[0].rows: missing" in text
    assert "offers[1]" in text


def test_a_catalogue_folder_must_exist(monkeypatch):
    monkeypatch.setenv("FORETRAIN_CATALOG", "/nowhere/at/all")
    with pytest.raises(FileError, match="FORETRAIN_CATALOG"):
        catalog.devices()
