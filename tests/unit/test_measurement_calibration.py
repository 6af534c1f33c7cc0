"""From measurements to what kernels and collectives cost, and to predictions of the machine they are of."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import measured_machine as known
import numpy as np
import pytest

import foretrain
from foretrain.cluster import catalog
from foretrain.cost.compute import Calibrated
from foretrain.cost.curves import MeasuredCurve
from foretrain.errors import FileError, InputError
from foretrain.measurement.calibration import Calibration
from foretrain.measurement.fitting import calibrate, calibration_of
from foretrain.measurement.link_curves import isotonic, wire
from foretrain.measurement.local import local_cluster, local_processes, measured_device
from foretrain.measurement.records import Measurement, link_key, op_key
from foretrain.measurement.store import Store
from foretrain.measurement.tables import LOCAL
from foretrain.model.ops.base import Kernel
from foretrain.testing.cost import (
    check_alone_as_in_company,
    check_columns,
    check_never_above_peak,
    sample_kernels,
)


@pytest.fixture(scope="module")
def calibration() -> Calibration:
    return calibration_of(known.measurements())


# --- making one -------------------------------------------------------------------------------------


def test_a_store_gives_the_calibration_of_its_newest_measurements(tmp_path: Path) -> None:
    with Store.open(tmp_path / "s.sqlite") as store:
        rows = known.measurements()
        old = replace(rows[0], at="2020-01-01T00:00:00.000000+00:00", seconds=99.0)
        store.add(*rows, old)
        assert calibrate(store, known.MACHINE) == calibration_of(rows)
        assert calibrate(store, known.MACHINE.id).digest == calibration_of(rows[::-1]).digest


def test_the_roofline_finds_the_law(calibration: Calibration) -> None:
    fitted = calibration.roofline
    assert fitted is not None
    assert fitted.bandwidth == pytest.approx(known.BANDWIDTH, rel=0.05)
    assert fitted.start_seconds == pytest.approx(known.START, rel=0.3)
    peaks = {peak.kernel: peak.flops for peak in fitted.peaks}
    assert 0.75 * known.PEAKS["gemm"] < peaks["gemm"] < known.PEAKS["gemm"]
    assert fitted.best_flops["fp32"] <= known.PEAKS["gemm"] * 1.05


def test_data_and_host_are_rates(calibration: Calibration) -> None:
    data = calibration.data
    assert (data.fetch_cold, data.fetch_warm, data.host_to_device) == (2e8, 2e9, None)
    assert data.prep_seconds_per_sample == pytest.approx(0.01)  # half a second on two workers
    assert calibration.host_seconds_per_kernel == 7e-6


def test_a_machine_nobody_measured_is_refused_with_those_that_were(tmp_path: Path) -> None:
    with Store.open(tmp_path / "s.sqlite") as store:
        with pytest.raises(InputError, match="measure ops"):
            calibrate(store, known.MACHINE)
        store.add(*known.measurements()[:3])
        with pytest.raises(InputError, match=known.MACHINE.id):
            calibrate(store, "somewhere else")


def test_two_machines_are_not_mixed() -> None:
    rows = known.measurements()
    other = replace(rows[0], machine=replace(known.MACHINE, cores=64))
    with pytest.raises(InputError, match="2 machines"):
        calibration_of([*rows, other])


def test_kernels_of_one_thread_count_are_taken() -> None:
    one = known.measurements(threads=1)
    two = [
        Measurement.of("op", op_key(known.gemm(64, 64, 64), threads=2), [1e-3], known.MACHINE)
    ]  # fmt: skip
    assert calibration_of([*one, *two]).threads == 1
    few = calibration_of([*one, *two], threads=2)
    assert [op.seconds for op in few.ops] == [1e-3]
    with pytest.raises(InputError, match="available: 1, 2"):
        calibration_of([*one, *two], threads=8)


def test_kernels_timed_by_as_many_processes_are_taken() -> None:
    alone = known.measurements()
    key = op_key(known.gemm(64, 64, 64), threads=1, processes=2)
    both = [Measurement.of("op", key, [1e-3], known.MACHINE)]
    assert calibration_of([*alone, *both]) == replace(
        calibration_of(alone), provenance=calibration_of([*alone, *both]).provenance
    )
    two = calibration_of([*alone, *both], processes=2)
    assert ([op.seconds for op in two.ops], two.processes) == ([1e-3], 2)
    assert calibration_of([*alone, *both], processes=4).processes == 2
    assert calibration_of(alone, processes=2).processes == 1


def test_processes_that_were_timed_together_are_not_slowed_down_again(
    calibration: Calibration,
) -> None:
    crowded = replace(calibration, processes=8)  # on four cores
    full = measured_device(calibration).memory_bandwidth
    assert local_cluster(calibration, 8).devices[0].memory_bandwidth == full / 2
    assert local_cluster(crowded, 8).devices[0].memory_bandwidth == full
    assert local_cluster(crowded, 1).devices[0].memory_bandwidth == 2 * full


def test_a_gpu_goes_by_the_name_of_the_catalogue() -> None:
    kernel = known.gemm(512, 512, 512)
    rows = [
        Measurement.of("op", op_key(kernel, device="NVIDIA A100-SXM4-80GB"), [1e-4], known.MACHINE)
    ]
    found = calibration_of(rows)
    assert found.device == "a100-sxm4-80gb"
    assert found.compute.seconds([kernel], catalog.find_device("a100")).seconds[0] == 1e-4
    strange = [Measurement.of("op", op_key(kernel, device="Quantum 3000"), [1e-4], known.MACHINE)]
    with pytest.raises(InputError, match="--device"):
        calibration_of(strange)
    assert calibration_of(strange, device="h100").device.startswith("h100")


def test_measurements_of_other_forms_are_left_out(calibration: Calibration) -> None:
    odd = [
        Measurement.of("op", {"name": "aten::mm"}, [1.0], known.MACHINE, at=known.AT),
        Measurement.of(
            "link", {"collective": "x", "device": "cpu"}, [1.0], known.MACHINE, at=known.AT
        ),
        Measurement.of("train", {"run": "T0"}, [1.0], known.MACHINE, at=known.AT),
    ]
    found = calibration_of([*known.measurements(), *odd])
    assert (found.ops, found.links) == (calibration.ops, calibration.links)


# --- kernels ----------------------------------------------------------------------------------------


def test_a_timed_kernel_takes_the_time_it_took(calibration: Calibration) -> None:
    device = measured_device(calibration)
    row = known.measurements()[5]
    costs = calibration.compute.seconds([known.kernels()[5]], device)
    assert costs.seconds[0] == row.seconds
    assert costs.spread[0] == pytest.approx(max(row.spread, 0.01))
    assert costs.measured[0]
    assert "measured on" in costs.source[0]


def test_kernels_between_are_interpolated(calibration: Calibration) -> None:
    draw = np.random.default_rng(1)
    asked = [known.gemm(*draw.integers(48, 1500, 3).tolist()) for _ in range(100)]
    asked += [known.streaming(int(n)) for n in draw.integers(2_000, 5_000_000, 50)]
    costs = calibration.compute.seconds(asked, measured_device(calibration))
    off = np.abs(np.log(costs.seconds / [known.true_seconds(kernel) for kernel in asked]))
    assert off.mean() < 0.02
    assert off.max() < 0.2
    assert (off < 3 * costs.spread).mean() > 0.95  # and it knows how sure it is
    assert costs.measured.mean() > 0.9


def test_far_from_all_kernels_it_is_the_roofline_and_says_so(calibration: Calibration) -> None:
    far = known.gemm(60_000, 60_000, 60_000)
    near = known.gemm(500, 250, 1000)
    costs = calibration.compute.seconds([far, near], measured_device(calibration))
    assert costs.seconds[0] == pytest.approx(known.true_seconds(far), rel=0.25)
    assert costs.spread[0] > 2 * costs.spread[1]
    assert costs.measured.tolist() == [False, True]


def test_kinds_and_devices_nobody_timed_go_to_others(calibration: Calibration) -> None:
    conv = Kernel("conv", "forward", 1e9, 1e6, "fp32", (8, 64, 64, 28, 28, 3, 3, 1, 1))
    costs = calibration.compute.seconds([conv], measured_device(calibration))
    assert "roofline fitted" in costs.source[0]
    assert costs.spread[0] > 0.3
    a100 = catalog.find_device("a100")
    kernel = known.gemm(512, 512, 512)
    elsewhere = calibration.compute.seconds([kernel], a100)
    assert elsewhere.seconds[0] == Calibrated().seconds([kernel], a100).seconds[0]
    with pytest.raises(InputError, match="does not support int4"):  # as the models that ship do
        calibration.compute.seconds([replace(kernel, dtype="int4")], measured_device(calibration))


def test_another_phase_stands_in(calibration: Calibration) -> None:
    forward = replace(calibration, ops=tuple(o for o in calibration.ops if o.phase == "forward"))
    kernel = known.gemm(500, 250, 900, "backward_input")
    costs = forward.compute.seconds([kernel], measured_device(calibration))
    assert costs.seconds[0] == pytest.approx(known.true_seconds(kernel), rel=0.1)
    assert not costs.measured[0]


def test_it_keeps_the_contract_of_compute_models(calibration: Calibration) -> None:
    """All but monotony in nominal FLOPs and bytes: measured kernels are as long as they are."""
    device, kernels = measured_device(calibration), sample_kernels("fp32")
    costs = calibration.compute.seconds(kernels, device)
    check_columns(costs, len(kernels), device)
    check_never_above_peak(costs, kernels, device)
    check_alone_as_in_company(calibration.compute, kernels, device)


def test_what_if_the_device_were_faster(calibration: Calibration) -> None:
    device = measured_device(calibration)
    product, stream = known.gemm(2048, 1024, 1024), known.streaming(10**7)
    base = calibration.compute.seconds([product, stream], device).seconds
    quick = calibration.compute.seconds([product, stream], device.scaled(compute=2.0)).seconds
    wide = calibration.compute.seconds([product, stream], device.scaled(memory_bandwidth=2)).seconds
    assert (base / quick).tolist() == pytest.approx([2.0, 1.0])
    assert (base / wide).tolist() == pytest.approx([1.0, 2.0])


# --- links ------------------------------------------------------------------------------------------


def test_times_that_fall_with_size_are_pooled() -> None:
    assert isotonic([1.0, 2.0, 3.0]) == pytest.approx((1.0, 2.0, 3.0))
    assert isotonic([1.0, 8.0, 2.0, 16.0]) == pytest.approx((1.0, 4.0, 4.0, 16.0))
    assert isotonic([3.0, 2.0, 1.0]) == pytest.approx((6 ** (1 / 3),) * 3)


def test_links_are_curves_through_what_was_measured(calibration: Calibration) -> None:
    assert [(link.collective, link.ranks) for link in calibration.links] == [
        ("all_reduce", 2), ("all_reduce", 4)
    ]  # fmt: skip
    found = calibration.links[1]
    curve = MeasuredCurve(np.array(found.bytes), np.array(found.seconds))
    assert float(curve.at(2.0**18)) == pytest.approx(known.link_seconds(4, 2**18))
    latency, bandwidth = wire(calibration.links, 1) or (0.0, 0.0)
    assert latency == pytest.approx(60e-6, rel=0.1)
    assert bandwidth == pytest.approx(1.5e9, rel=0.05)
    assert wire((), 1) is None


def test_a_collective_takes_the_time_that_was_measured(calibration: Calibration) -> None:
    asked = {
        "model": "gpt2", "plan": "dp4", "batch": 4, "seq": 64, "precision": "fp32", "runtime": "cpu-gloo",
        "runtime_options": {"overlaps_gradients": False, "bucket_bytes": 1e12, "first_bucket_bytes": 1e12},
    }  # fmt: skip
    model = asked.pop("model")
    cluster = local_cluster(calibration, 4)
    measured = foretrain.predict(model, on=cluster, **asked, measured=calibration)
    gradients = 4 * measured.question["parameters"]
    wanted = known.link_seconds(4, gradients)
    assert measured.stalls["interconnect"] == pytest.approx(wanted, rel=0.02)
    slow = tuple(replace(c, seconds=tuple(3 * s for s in c.seconds)) for c in calibration.links)
    thrice = foretrain.predict(
        model, on=cluster, **asked, measured=replace(calibration, links=slow)
    )
    assert thrice.stalls["interconnect"] == pytest.approx(3 * wanted, rel=0.02)


def test_curves_of_another_library_are_not_used(calibration: Calibration) -> None:
    assert calibration.curves is not None
    assert calibration.curves.of("gloo", 1) is not None
    assert calibration.curves.of("nccl", 1) is None
    assert calibration.curves.of("gloo", 2) is None
    pods = [Measurement.of("link", link_key("send", 2, 2**n, nodes=2, backend="nccl"), [1e-3 * n], known.MACHINE) for n in (1, 2)]  # fmt: skip
    curves = calibration_of(pods).curves
    assert curves is not None
    assert curves.of("nccl-pods", 2) is not None


# --- this machine -----------------------------------------------------------------------------------


def test_processes_share_the_cores(calibration: Calibration) -> None:
    def step(processes: int) -> float:
        found = foretrain.predict(
            "gpt2", on=local_cluster(calibration, processes), plan=f"dp{processes}", batch=2 * processes,
            micro_batch=2, seq=64, precision="fp32", runtime="cpu-gloo", measured=calibration,
        )  # fmt: skip
        assert found.question["calibration"] == calibration.name
        assert "measured on" in found.provenance["calibration"]
        return found.stalls["compute"]

    alone = step(1)
    assert step(4) == pytest.approx(alone)  # four cores, one thread each
    assert step(8) == pytest.approx(2 * alone)


def test_memory_is_shared_out(calibration: Calibration) -> None:
    assert local_cluster(calibration, 4).devices[0].memory_bytes == 4 * 2**30
    assert local_cluster(calibration).node(0).host.storage_bandwidth == 2e8
    for count in (0, 10**6):
        with pytest.raises(InputError, match="processes"):
            local_cluster(calibration, count)


def test_without_kernels_the_machine_has_no_speed(calibration: Calibration) -> None:
    with pytest.raises(InputError, match="measure ops"):
        local_cluster(replace(calibration, ops=(), roofline=None))


@pytest.mark.parametrize(
    ("text", "count"),
    [("local", 1), (" local ", 1), ("2 x local", 2), ("16xlocal", 16), ("2 × local", 2),
     ("locals", None), ("my/local", None), ("2 x local + 1 x local", None), ({}, None)],
)  # fmt: skip
def test_what_means_this_machine(text: object, count: int | None) -> None:
    assert local_processes(text) == count


# --- files ------------------------------------------------------------------------------------------


def test_a_file_says_the_same(calibration: Calibration, tmp_path: Path) -> None:
    calibration.save(tmp_path / "c.json")
    assert Calibration.load(tmp_path / "c.json") == calibration
    assert [path.name for path in tmp_path.iterdir()] == ["c.json"]
    with pytest.raises(FileError, match="cannot write"):
        calibration.save(tmp_path / "no" / "c.json")


@pytest.mark.parametrize(
    ("path", "value", "told"),
    [
        (("schema_version",), 99, "reads 1"),
        (("ops", 0, "seconds"), 0, "ops[0]"),
        (("ops", 0, "shape"), "wide", "ops[0].shape"),
        (("ops", 0, "shape"), [-1], "ops[0]"),
        (("links", 0, "seconds"), [3.0, 2.0], "links[0]"),
        (("links", 0, "ranks"), 1, "links[0]"),
        (("roofline", "bandwidth"), -5, "roofline"),
        (("machine",), {"cpu": 5}, "machine"),
        (("data", "fetch_cold"), 0, "data"),
        (("mystery",), 1, "mystery: unknown key"),
        (("host_seconds_per_kernel",), -1, "host_seconds_per_kernel"),
    ],
)
def test_files_with_faults_say_where(
    calibration: Calibration, path: tuple[str | int, ...], value: object, told: str
) -> None:
    document = json.loads(calibration.dumps())
    place = document
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    with pytest.raises(FileError) as caught:
        Calibration.from_dict(document)
    assert told in "\n".join((str(caught.value), *caught.value.faults))


@pytest.mark.parametrize("text", ["", "[]", "{}", "null", '{"schema_version": 1}', "[" * 100_000])
def test_other_files_are_no_calibrations(tmp_path: Path, text: str) -> None:
    (tmp_path / "c.json").write_text(text)
    with pytest.raises(FileError):
        Calibration.load(tmp_path / "c.json")


def test_the_device_of_this_machine_is_called_local(calibration: Calibration) -> None:
    assert calibration.device == LOCAL == local_cluster(calibration).devices[0].name
