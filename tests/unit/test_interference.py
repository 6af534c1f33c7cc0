"""Interference factors: the table that ships, its closed form beside the engine, and the fit."""

from __future__ import annotations

import csv
import dataclasses
import importlib.util
import itertools
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from support.programs import program_of

from foretrain.cluster.device import Device
from foretrain.cost.interference import (
    ACTIVITIES,
    COLLECTIVE,
    COMPUTE,
    COPY_IN,
    COPY_OUT,
    NOTHING,
    SPANNING,
    entry,
    factors,
    matrix,
    pair,
    read_factors,
    slowdown,
    together,
)
from foretrain.engine import simulate

ROOT = Path(__file__).resolve().parents[2]
MEASURED = ("a100-sxm4-40gb", "a10g", "l4", "v100-sxm2-16gb", "v100-sxm2-32gb")


def device(name: str, architecture: str = "ampere", link: float = 0.0, kind: str = "gpu") -> Device:
    return Device(
        name=name,
        title=name,
        vendor="any",
        kind=kind,  # type: ignore[arg-type]
        architecture=architecture,
        memory_bytes=1e10,
        memory_bandwidth=1e12,
        peak_flops=(("fp32", 1e13),),
        pcie_bandwidth=1e10,
        source="made up",
        link_bandwidth=link,
    )


def engine_end(seconds: list[float], table: np.ndarray) -> float:
    """When the engine is done with activities that start together on one place."""
    present = [activity for activity, value in enumerate(seconds) if value > 0]
    program = program_of(
        [seconds[activity] for activity in present],
        streams=[[stream] for stream in range(len(present))],
        stream_place=[0] * len(present),
        activity=present,
        slowdown=table.tolist(),
    )
    return simulate(program).makespan


@pytest.mark.parametrize("name", MEASURED)
@pytest.mark.parametrize("spans_nodes", [False, True])
def test_measured_tables_slow_and_never_speed_up(name: str, spans_nodes: bool) -> None:
    table = factors(device(name), spans_nodes)
    assert table.shape == (5, 5)
    assert (table >= 1.0).all()
    assert (table <= 8.0).all()
    assert (np.diag(table) == 1.0).all()
    assert (table[NOTHING] == 1.0).all()
    assert (table[:, NOTHING] == 1.0).all()
    assert not table.flags.writeable


def test_a_collective_inside_a_node_slows_computing_more_than_one_between_nodes() -> None:
    """What the A100 data show at first sight: 1.2 of the longest part inside, 1.03 between."""
    a100 = device("a100-sxm4-40gb", link=3e11)
    inside = factors(a100, spans_nodes=False)[COMPUTE, COLLECTIVE]
    between = factors(a100, spans_nodes=True)[COMPUTE, COLLECTIVE]
    assert inside > 1.5 > 1.2 > between > 1.0


@pytest.mark.parametrize(
    ("given", "like", "measured"),
    [
        (device("a100-sxm4-40gb", link=3e11), "a100-sxm4-40gb", True),
        (device("l4", "ada"), "l4", True),
        (device("h100-sxm5-80gb", "hopper", link=4.5e11), "a100-sxm4-40gb", False),
        (device("mi300x", "cdna3", link=4.5e11), "a100-sxm4-40gb", False),
        (device("v100-sxm3-32gb", "volta", link=1.5e11), "v100-sxm2-32gb", False),
        (device("v100-pcie-16gb", "volta"), "a10g", False),
        (device("l40s", "ada"), "a10g", False),
        (device("some-cpu", "x86", kind="cpu"), "none", False),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_devices_without_data_take_those_of_a_relative(
    given: Device, like: str, measured: bool
) -> None:
    found, is_measured = entry(given)
    assert (found.name, is_measured) == (like, measured)
    assert found.source
    assert factors(given, spans_nodes=True) is found.between


def test_one_activity_under_another_for_a_while() -> None:
    """W + t (1 - 1 / c), and the longest where nothing interferes."""
    table = matrix({"compute": {"collective": 2.0}})
    seconds = np.array([[0.0, 10.0, 4.0, 0.0, 0.0], [0.0, 1.0, 0.0, 3.0, 2.0]])
    assert together(seconds, table).tolist() == pytest.approx([12.0, 3.0])


@pytest.mark.parametrize("name", MEASURED)
def test_closed_form_and_engine_agree_on_any_set_of_activities(name: str) -> None:
    rng = np.random.default_rng(5)
    table = read_factors(name, spans_nodes=True)
    seconds = rng.choice([0.0, 1.0, 2.0], (60, 5)) * rng.choice([1.0, 0.3, 0.777], (60, 5))
    seconds[:, NOTHING] = 0.0
    expected = [engine_end(row, table) if any(row) else 0.0 for row in seconds.tolist()]
    assert together(seconds, table).tolist() == pytest.approx(expected, rel=1e-9)


def test_the_closed_form_of_two_is_that_of_many() -> None:
    table = read_factors("a100-sxm4-40gb", spans_nodes=False)
    slowed = table[COMPUTE, COLLECTIVE], table[COLLECTIVE, COMPUTE]
    for kernel, moving in ((1.0, 0.2), (0.2, 1.0), (0.0, 1.0), (1.0, 0.0), (1.0, 1.9)):
        many = together(np.array([[0.0, kernel, moving, 0.0, 0.0]]), table)[0]
        assert pair(kernel, moving, *slowed) == pytest.approx(many, rel=1e-12)


def test_one_table_for_several_devices_keeps_them_apart() -> None:
    a100, l4 = device("a100-sxm4-40gb", link=3e11), device("l4", "ada")
    both = slowdown([a100, l4, a100])
    table, activity_on = both.table, both.number
    assert table.shape == (11, 11)
    assert activity_on(2, COPY_IN) == activity_on(0, COPY_IN)
    for kind, one in enumerate((a100, l4)):
        inside, between = factors(one, spans_nodes=False), factors(one, spans_nodes=True)
        for a, b in itertools.product((COMPUTE, COLLECTIVE, COPY_IN, COPY_OUT), repeat=2):
            assert table[activity_on(kind, a), activity_on(kind, b)] == inside[a, b]
        across = activity_on(kind, SPANNING)
        for a in (COMPUTE, COPY_IN, COPY_OUT):
            assert table[activity_on(kind, a), across] == between[a, COLLECTIVE]
            assert table[across, activity_on(kind, a)] == between[COLLECTIVE, a]
        assert table[across, activity_on(kind, COLLECTIVE)] == 1.0
    assert (table[1:6, 6:] == 1.0).all()
    assert (table[6:, 1:6] == 1.0).all()
    assert activity_on(1, NOTHING) == 0


def test_the_engine_takes_the_table_of_six_kinds_of_devices() -> None:
    kinds = [device(name) for name in MEASURED] + [device("other")]
    all_kinds = slowdown(kinds)
    last = int(all_kinds.number(5, SPANNING))
    compute = int(all_kinds.number(5, COMPUTE))
    program = program_of(
        [2.0, 1.0],
        streams=[[0], [1]],
        stream_place=[0, 0],
        activity=[compute, last],
        slowdown=all_kinds.table.tolist(),
    )
    assert simulate(program).makespan > 2.0


# --- the fit --------------------------------------------------------------------------------------


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    return script("fit_interference")


TRUE = matrix(
    {
        "compute": {"collective": 1.4},
        "collective": {"compute": 1.1, "copy_out": 1.7},
        "copy_in": {"copy_out": 1.3},
        "copy_out": {"collective": 1.2},
    }
)


@pytest.fixture(scope="module")
def measurements(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of a made-up device whose factors are known, one in fifty of them five times too long."""
    path = tmp_path_factory.mktemp("interference") / "runs.csv"
    rng = np.random.default_rng(11)
    rate = np.array([1.0, 2.0, 0.7, 0.9])
    sizes = [(0.0, 4.0, 7.0, 10.0), (0.0, 3.0, 9.0, 20.0), (0.0, 2.0, 5.0), (0.0, 3.0, 6.0)]
    names = ("gemm_n", "g2g_allgather_out_MB", "c2g_MB", "g2c_MB")
    with path.open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["device", "intra", "inter", *names, "latency_ms", "std_ms"])
        for run in itertools.product(*sizes):
            if any(run):
                seconds = np.array([[0.0, *(np.array(run) / rate)]])
                took = float(together(seconds, TRUE)[0]) * rng.uniform(0.995, 1.005)
                took *= 5.0 if np.count_nonzero(run) > 2 and rng.random() < 0.02 else 1.0
                writer.writerow(["made-up", 8, 1, *run, 1e3 * took, took])
    return path


def test_the_fit_finds_the_factors_that_made_the_data(tool: ModuleType, measurements: Path) -> None:
    groups = tool.read(measurements)
    assert [(g.device, g.spans_nodes, g.is_repeatable) for g in groups] == [
        ("made-up", False, True)
    ]
    found = tool.fit(groups)
    alone, measured = tool.half(groups, fitted=False)
    errors = np.abs(together(alone, found) / measured - 1.0)
    assert np.median(errors) < 0.005
    for both in ((COMPUTE, COLLECTIVE), (COLLECTIVE, COPY_OUT), (COPY_IN, COPY_OUT)):
        assert found[both] == pytest.approx(TRUE[both], abs=0.05)


def test_the_halves_are_disjoint_and_together_all(tool: ModuleType, measurements: Path) -> None:
    (group,) = tool.read(measurements)
    fitted, scored = (len(tool.half([group], fitted=flag)[1]) for flag in (True, False))
    assert fitted + scored == len(group.measured) == 4 * 4 * 3 * 3 - 1 - 3 - 3 - 2 - 2
    assert 0.4 < fitted / (fitted + scored) < 0.6


def test_runs_that_do_not_repeat_are_not_fitted(tool: ModuleType, measurements: Path) -> None:
    (group,) = tool.read(measurements)
    wild = dataclasses.replace(group, noise=0.5)
    assert "made-up" in tool.document([group])
    assert "made-up" not in tool.document([wild])


def test_the_file_written_is_the_file_read(tool: ModuleType, measurements: Path) -> None:
    import yaml

    groups = tool.read(measurements)
    data = yaml.safe_load(tool.document(groups))
    assert matrix(data["devices"]["made-up"]["inside"]).tolist() == tool.fit(groups).tolist()
    assert set(data["devices"]["made-up"]["inside"]) <= set(ACTIVITIES)
