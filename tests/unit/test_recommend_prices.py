"""Own prices, quotas and which machines are looked at."""

from __future__ import annotations

from pathlib import Path

import pytest

from foretrain.cluster.catalog import find_node
from foretrain.errors import FileError, InputError
from foretrain.recommendation.offers import Terms
from foretrain.recommendation.prices import chosen, quotas, read_prices, tariffs

CSV = """instance,usd_per_hour,spot_usd_per_hour,reserved_usd_per_hour,quota,date,source
aws:p5.48xlarge,40.5,,30,16,2026-11-01,our contract
gcp:a4x-highgpu-4g,50,,,,2026-10-01,
"""
YAML = """prices:
  - {instance: "aws:p4d.24xlarge", reserved_usd_per_hour: 12, date: 2026-11-01}
"""


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_the_catalogue_has_stash_prices() -> None:
    found = tariffs()
    prices = {"aws:p3.2xlarge": 3.06, "aws:p3.8xlarge": 12.24, "aws:p3.16xlarge": 24.48}
    assert {name: found[name].on_demand for name in prices} == prices
    assert found["aws:p3.16xlarge"].date == "2022"
    assert all(t.date for t in found.values() if t.on_demand is not None)


def test_own_prices_go_over_the_catalogue(tmp_path: Path) -> None:
    own = read_prices(write(tmp_path, "own.csv", CSV))
    found, before = tariffs(own), tariffs()
    ours = found["aws:p5.48xlarge"]
    assert (ours.on_demand, ours.reserved, ours.quota, ours.date) == (40.5, 30.0, 16, "2026-11-01")
    assert ours.spot == before["aws:p5.48xlarge"].spot
    assert before["gcp:a4x-highgpu-4g"].on_demand is None
    assert found["gcp:a4x-highgpu-4g"].on_demand == 50.0
    assert found["aws:p4d.24xlarge"] == before["aws:p4d.24xlarge"]
    (row,) = read_prices(write(tmp_path, "own.yaml", YAML))
    assert tariffs([row])["aws:p4d.24xlarge"].usd("reserved") == 12.0


@pytest.mark.parametrize(
    ("name", "text", "faults"),
    [
        (
            "a.csv",
            "instance,usd_per_hour,date\naws:p5.48xlarg,-3,2026\naws:p5.48xlarge,x,soon\n",
            4,
        ),
        ("b.csv", "instance,usd_per_hour,date\naws:p5.48xlarg,3,2026\naws:p5.48xlarge,2,soon\n", 2),
        ("c.csv", "instance,date\naws:p5.48xlarge,2026\naws:p5.48xlarge,2026\n", 3),
        ("d.yaml", 'prices: [{instance: "aws:p5.48xlarge", usd: 3, date: "2026", quota: -1}]', 2),
    ],
)
def test_bad_files_name_every_fault(tmp_path: Path, name: str, text: str, faults: int) -> None:
    with pytest.raises(FileError) as caught:
        read_prices(write(tmp_path, name, text))
    assert len(caught.value.faults) == faults
    assert "prices[" in str(caught.value)


def test_other_files_are_refused(tmp_path: Path) -> None:
    for name, text in (("x.txt", "a"), ("y.yaml", "prices: []"), ("z.csv", "instance,date\n")):
        with pytest.raises(FileError):
            read_prices(write(tmp_path, name, text))
    with pytest.raises(FileError, match="row 2"):
        read_prices(write(tmp_path, "w.csv", "instance,date\naws:p5.48xlarge,2026,extra\n"))
    with pytest.raises(FileError):
        read_prices(tmp_path / "missing.csv")


def test_patterns_and_status() -> None:
    assert "aws:p3.16xlarge" not in chosen()
    assert list(chosen(["aws:p3.16*"])) == ["aws:p3.16xlarge"]
    assert set(chosen(["p4d.24xlarge, GCP:A3-*"])) > {"aws:p4d.24xlarge", "gcp:a3-highgpu-8g"}
    with pytest.raises(InputError, match="p4x"):
        chosen(["aws:p4x*"])
    with pytest.raises(InputError, match="instances: a pattern is empty"):
        chosen([""])  # all that can be rented is no pattern at all


def test_quotas_bound_the_counts() -> None:
    node, tariff = find_node("aws:p4d.24xlarge"), tariffs()["aws:p4d.24xlarge"]
    name = "aws:p4d.24xlarge"

    def counts(*texts: str, most: int = 512) -> list[int]:
        return list(Terms(quotas=quotas(texts), most_devices=most).counts(name, node, tariff))

    assert counts() == [1, 2, 4, 8, 16, 32, 64]
    assert counts("6") == [1, 2, 4, 6]
    assert counts("8", "aws:p4*=2") == [1, 2]
    assert counts("aws:p5*=2") == [1, 2, 4, 8, 16, 32, 64]
    assert counts("0") == []
    assert counts(most=32) == [1, 2, 4]
    with pytest.raises(InputError) as caught:
        quotas(["many", "aws:p4*=x"])
    assert len(caught.value.faults) == 2


def test_machines_without_a_known_network_stay_alone() -> None:
    name = "lambda:gpu_8x_h100_sxm5"
    assert list(Terms().counts(name, find_node(name), tariffs()[name])) == [1]


def test_own_machines_are_offered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(
        tmp_path,
        "nodes.yaml",
        """nodes:
  lab:h100:
    title: Our own box
    devices: {device: h100-sxm5-80gb, count: 8}
    interconnect: nvlink4-nvswitch
    nics: {kind: infiniband, count: 8, bandwidth: 400Gb/s}
    host: {cpu_cores: 112, memory_bytes: 2TiB}
    cloud: lab:h100
    price: {usd_per_hour: 10.0, date: "2026-11-01", region: lab, source: our books}
    source: our books
""",
    )
    monkeypatch.setenv("FORETRAIN_CATALOG", str(tmp_path))
    assert list(chosen(["lab:*"])) == ["lab:h100"]
    assert tariffs()["lab:h100"].on_demand == 10.0
