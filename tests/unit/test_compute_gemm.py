"""Products of matrices from measured tables, and the model that asks them."""

from __future__ import annotations

import importlib.util
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from foretrain.cluster.catalog import devices
from foretrain.cluster.device import Device
from foretrain.cost.compute import gemm as products
from foretrain.cost.compute.base import TABLES, Estimate, kin_of, names, stored
from foretrain.cost.compute.calibrated import Calibrated
from foretrain.cost.compute.roofline import Roofline
from foretrain.model.ops.base import FORWARD, Kernel
from foretrain.testing.cost import check_compute_model, check_monotone, gemm, sample_kernels

ROOT = Path(__file__).resolve().parents[2]
TABLED = names("gemm")
SIZES = (1, 3, 17, 64, 100, 512, 1024, 4096, 11008, 32768, 300_000)


def device(name: str) -> Device:
    return devices()[name]


def seconds(kernel: Kernel, name: str) -> float:
    found = products.estimate([kernel], device(name), kernel.dtype)
    assert found is not None
    return float(found.seconds[0])


# --- the tables ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TABLED)
def test_a_table_says_where_it_comes_from(name: str) -> None:
    data = stored("gemm", name)
    assert name == f"{data['device']}.{data['form']}"
    assert data["source"]
    assert data["method"]
    assert data["readings"] > 100
    assert 0.02 < data["spread"] < 0.4


@pytest.mark.parametrize("name", TABLED)
def test_a_table_never_falls(name: str) -> None:
    table = products.GemmTable.read(stored("gemm", name))
    assert np.isfinite(table.grid).all()
    for axis in range(table.grid.ndim):
        assert (np.diff(table.grid, axis=axis) >= 0).all()
    assert 0.0 <= table.waved <= 0.95 + 1e-9


@pytest.mark.parametrize("name", TABLED)
def test_more_work_is_never_quicker(name: str) -> None:
    """Everywhere, in every dim, inside the table and far outside."""
    table = products.GemmTable.read(stored("gemm", name))
    sizes = np.unique(np.geomspace(1, 400_000, 400).round())
    for other in ((1, 1), (64, 4096), (4096, 64), (4096, 4096), (100_000, 777)):
        for batch in (1.0, 16.0):
            a, b = (np.full(len(sizes), float(x)) for x in other)
            full = np.full(len(sizes), batch)
            for dims in (
                ((a, b, sizes), (sizes, a, b), (a, sizes, b)) if batch == 1 else ((a, b, sizes),)
            ):
                found = table.seconds(full, *dims)
                assert np.isfinite(found).all()
                assert (np.diff(found) >= -1e-12 * found[1:]).all()


@pytest.mark.parametrize("name", TABLED)
def test_a_larger_batch_is_never_quicker(name: str) -> None:
    """Where the batch is an axis of the table, and where it lengthens a side."""
    table = products.GemmTable.read(stored("gemm", name))
    batches = np.unique(np.geomspace(1, 300_000, 300).round())
    for shape in ((1.0, 1.0, 1.0), (64.0, 512.0, 512.0), (2048.0, 2048.0, 96.0)):
        found = table.seconds(batches, *(np.full(len(batches), size) for size in shape))
        assert (np.diff(found) >= -1e-12 * found[1:]).all()


@pytest.mark.parametrize("name", TABLED)
def test_huge_products_run_at_a_saturated_rate(name: str) -> None:
    table = products.GemmTable.read(stored("gemm", name))
    for size in (16384.0, 65536.0, 500_000.0):
        cube = np.full(1, size)
        share = 2 * size**3 / float(table.seconds(np.ones(1), cube, cube, cube)[0]) / table.peak
        assert 0.1 < share < 1.05


@pytest.mark.parametrize("name", TABLED)
def test_tiny_products_take_a_start(name: str) -> None:
    table = products.GemmTable.read(stored("gemm", name))
    one = np.ones(1)
    assert 1e-6 < float(table.seconds(one, one, one, one)[0]) < 3e-5


def test_the_tables_are_small() -> None:
    sizes = [path.stat().st_size for path in (TABLES / "gemm").glob("*.json")]
    assert max(sizes) < 60_000
    assert sum(sizes) < 1_500_000


# --- measured points (quickest reading of aiconfigurator-core 0.12.0, milliseconds) ---------------


@pytest.mark.parametrize(
    ("name", "m", "n", "k", "milliseconds"),
    [
        ("h100-sxm5-80gb", 4096, 4096, 4096, 0.1743),
        ("h100-sxm5-80gb", 32768, 4096, 4096, 1.4271),
        ("h100-sxm5-80gb", 8192, 8192, 8192, 1.4048),
        ("b200-sxm", 8192, 8192, 8192, 0.6997),
        ("b200-sxm", 4096, 16384, 4096, 0.3306),
        ("a100-sxm4-80gb", 16384, 4096, 4096, 2.2105),
    ],
)
def test_measured_points(name: str, m: int, n: int, k: int, milliseconds: float) -> None:
    table, _ = products.table_of(device(name), "bf16") or pytest.fail("no table")
    found = table.seconds(*(np.array([float(x)]) for x in (1, m, n, k)))
    assert float(found[0]) * 1e3 == pytest.approx(milliseconds, rel=0.06)


def test_lower_precision_is_quicker() -> None:
    times = [
        seconds(gemm(8192, 8192, 8192, dtype), "b200-sxm") for dtype in ("fp32", "tf32", "bf16", "fp8", "fp4")
    ]  # fmt: skip
    assert times == sorted(times, reverse=True)


def test_tf32_is_half_of_bf16() -> None:
    whole = seconds(gemm(8192, 8192, 8192, "tf32"), "a100-sxm4-80gb")
    half = seconds(gemm(8192, 8192, 8192, "bf16"), "a100-sxm4-80gb")
    assert whole == pytest.approx(2 * half, rel=0.1)


# --- whose table ---------------------------------------------------------------------------------


def test_boards_of_a_chip_share_a_table() -> None:
    found = products.table_of(device("a100-sxm4-40gb"), "bf16")
    assert found is not None
    assert found[1].nearness == "chip"
    given = products.estimate([gemm(4096, 4096, 4096, "bf16")], device("a100-sxm4-40gb"), "bf16")
    assert given is not None
    assert given.measured.all()
    assert not given.notes


def test_another_generation_is_said_so() -> None:
    given = products.estimate([gemm(4096, 4096, 4096, "fp16")], device("rtx-4090"), "fp16")
    assert given is not None
    assert not given.measured.any()
    assert "GeForce RTX 4090" in given.notes[0]
    own = products.estimate([gemm(4096, 4096, 4096, "fp16")], device("l40s"), "fp16")
    assert own is not None
    assert (given.spread > own.spread).all()


def test_devices_without_kin_have_no_estimate() -> None:
    assert products.estimate([gemm(64, 64, 64, "bf16")], device("mi300x"), "bf16") is None
    assert products.estimate([gemm(64, 64, 64, "fp32")], device("generic-cpu"), "fp32") is None
    assert kin_of(device("generic-cpu"), ("h100-sxm5-80gb",)) is None


def test_a_straggler_is_slower_than_its_kin() -> None:
    healthy = device("h100-sxm5-80gb")
    kernel = gemm(8192, 8192, 8192, "bf16")
    before, after = (
        products.estimate([kernel], one, "bf16") for one in (healthy, healthy.scaled(compute=0.5))
    )
    assert before is not None
    assert after is not None
    assert float(after.seconds[0] / before.seconds[0]) == pytest.approx(2.0, rel=0.05)


# --- long runs -----------------------------------------------------------------------------------


def test_power_slows_busy_kernels_only() -> None:
    ideal = np.array([0.9, 0.5, 0.1])
    slowed = products.sustained_seconds(np.ones(3), ideal, 0.8)
    assert slowed[0] == pytest.approx(1 / 0.8)
    assert 1.0 < slowed[1] < 1 / 0.8
    assert slowed[2] == 1.0


# --- the model that asks the families --------------------------------------------------------------


def test_the_model_conforms() -> None:
    known = {"gemm": products.estimate}
    assert check_compute_model(Calibrated(known)) > 1000


@pytest.mark.parametrize(
    "name", ["v100-pcie-32gb", "t4", "p100-pcie-16gb", "h100-sxm5-80gb", "mi210"]
)
def test_fp32_is_monotone_too(name: str) -> None:
    check_monotone(Calibrated({"gemm": products.estimate}), sample_kernels("fp32"), device(name))


def test_what_no_family_knows_goes_to_the_roofline() -> None:
    kernels = [gemm(512, 512, 512, "bf16"), Kernel("memory", FORWARD, 1e6, 1e8, "fp32", (10**6,))]
    on = device("h100-sxm5-80gb")
    found = Calibrated({"gemm": products.estimate}).seconds(kernels, on)
    assert found.measured.tolist() == [True, False]
    assert found.seconds[1] == Roofline().seconds(kernels, on).seconds[1]
    nothing = Calibrated({}).seconds(kernels, on)
    assert np.array_equal(nothing.seconds, Roofline().seconds(kernels, on).seconds)


def test_no_family_beats_the_data_sheet() -> None:
    def too_quick(kernels: object, device: Device, dtype: str) -> Estimate:
        return Estimate(np.full(1, 1e-9), np.full(1, 0.1), np.ones(1, dtype=np.bool_), "wishes")

    on = device("h100-sxm5-80gb")
    kernel = gemm(4096, 4096, 4096, "bf16")
    found = Calibrated({"gemm": too_quick}).seconds([kernel], on)
    assert found.seconds[0] == pytest.approx(kernel.flops / on.required_peak("bf16"))


def test_a_substitute_format_is_noted() -> None:
    found = Calibrated().seconds([gemm(4096, 4096, 4096, "fp8")], device("a100-sxm4-80gb"))
    assert "no fp8 units" in found.notes[0]
    assert "bf16" in found.source[0]


def test_a_product_without_dims_or_work() -> None:
    on = device("h100-sxm5-80gb")
    plain = replace(gemm(4096, 4096, 4096, "bf16"), shape=())
    found = products.estimate([plain, gemm(0, 64, 64, "bf16")], on, "bf16")
    assert found is not None
    assert found.seconds[0] == pytest.approx(
        seconds(gemm(4096, 4096, 4096, "bf16"), on.name), rel=1e-6
    )
    assert 0 < found.seconds[1] < 1e-5


def test_a_hundred_kernels_take_little_time() -> None:
    kernels = [gemm(1024 + 64 * i, 4096, 4096, "bf16") for i in range(100)]
    on = device("h100-sxm5-80gb")
    model = Calibrated({"gemm": products.estimate})
    model.seconds(kernels, on)
    best = min(_timed(model, kernels, on) for _ in range(5))
    assert best < 3e-3


def _timed(model: Calibrated, kernels: list[Kernel], on: Device) -> float:
    start = time.perf_counter()
    model.seconds(kernels, on)
    return time.perf_counter() - start


# --- scored against the sources, where they are ------------------------------------------------------


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    spec = importlib.util.spec_from_file_location(
        "kernels_gemm", ROOT / "bench" / "kernels_gemm.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "kernels_gemm", module)
    spec.loader.exec_module(module)
    return module


def test_a_grid_is_read_as_it_was_packed(bench: ModuleType) -> None:
    steps = np.cumsum(np.arange(24.0).reshape(2, 3, 4) * 700.0, axis=-1)
    assert np.array_equal(products.risen(bench.distil._packed(steps), steps.shape), steps)


def test_fp32_products_held_apart(bench: ModuleType) -> None:
    if not (bench.readings.FOLDER / "neusight_kernels_linear.csv.gz").is_file():
        pytest.skip("NeuSight's kernel times are not here (FORETRAIN_TRUTH)")
    rows = next(r for r in bench.readings.neusight() if r.device == "a100-pcie-40gb")
    found = bench.score(rows, bench.distil.RECIPES["eager"], {})
    assert found.table[found.large].mean() < 0.06
    assert found.table[found.large].mean() < found.roofline[found.large].mean()


def test_16_bit_products_held_apart(bench: ModuleType) -> None:
    found = next(bench.scores("h100-sxm5-80gb.bf16"), None)
    if found is None:
        pytest.skip(
            "aiconfigurator-core is not here (FORETRAIN_AICONFIGURATOR, with pandas and pyarrow)"
        )
    assert found.table.mean() < 0.06
    assert found.table[found.large].mean() < 0.05


def test_gradients_of_layers(bench: ModuleType) -> None:
    """No table was fitted to them."""
    found = bench.layers()
    if not found:
        pytest.skip("profiles of GPT layers are not here (FORETRAIN_TRUTH)")
    unseen = {key: ratio for key, ratio in found.items() if key[2] == "no"}
    assert {key[0] for key in unseen} == {"v100-sxm2-32gb", "a10g", "l4", "a100-sxm4-40gb"}
    for ratio in unseen.values():
        assert 0.8 < np.median(ratio) < 1.2
