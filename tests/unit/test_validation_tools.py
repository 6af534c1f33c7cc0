"""Tools that fit: values in files, trials, searches, the record of what was fitted."""

from __future__ import annotations

import importlib
import math
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))

    def load(name: str) -> ModuleType:
        return importlib.import_module(name)

    return load


TEXT = """\
# a remark
devices:
  one: &one {gemm: {bf16: 0.5, other: 6.0e-6}}  # stays
  two: *one
rows: [1, 2.5]
"""


def test_one_number_changes_and_nothing_else(tool: Any) -> None:
    trial = tool("trial")
    changed = trial.edited(TEXT, "devices.one.gemm.other", 7.25e-6)
    assert changed == TEXT.replace("6.0e-6", "7.25e-06")
    assert yaml.safe_load(changed)["devices"]["two"]["gemm"]["other"] == 7.25e-6
    assert trial.value_at(trial.edited(TEXT, "rows.1", 3.0), "rows.1") == 3.0
    as_json = trial.edited('{"a": {"b": 1.5}}', "a.b", 2.0)
    assert as_json == '{"a": {"b": 2}}'
    with pytest.raises(SystemExit, match="no 'ghost'; there are bf16, other"):
        trial.edited(TEXT, "devices.one.gemm.ghost", 1.0)


@pytest.mark.parametrize("value", [1e-6, 3.2e-5, 0.7251, 12.0, 1e9])
def test_numbers_are_numbers_to_yaml(tool: Any, value: float) -> None:
    read = yaml.safe_load(tool("trial").written(value))
    assert isinstance(read, int | float)
    assert read == pytest.approx(value, rel=5e-3)


def _case(group: str, batch: int) -> dict[str, Any]:
    from test_validation import case

    return case(group=group, id=f"{group}/{batch}", batch={"global": batch, "micro": batch})


@pytest.fixture
def cases(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    monkeypatch.syspath_prepend(str(ROOT / "tests" / "unit"))
    return [_case(group, 4 * n) for group in ("a", "b") for n in range(1, 9)]


def test_a_trial_changes_predictions_and_a_fit_finds_the_value(
    tool: Any, cases: list[dict[str, Any]]
) -> None:
    """Runs measured with a host of 20 us per kernel: the fit finds it, with one group left out as well."""
    trial, fit_runs = tool("trial"), tool("fit_runs")
    host = fit_runs.Scalar(
        "host", "runtime/fitted.yaml", "presets.megatron.host.host_seconds_per_kernel.value", 3e-6, 6e-5, 5e-6, ("a", "b")
    )  # fmt: skip
    rows = range(len(cases))
    with trial.Trials(cases, 1) as trials:
        as_is = trials.errors([host.change(host.now)], rows)
        slow = trials.errors([host.change(2e-5)], rows)
        assert len(slow) == len(cases)
        assert all(slow[row] > as_is[row] + 0.1 for row in rows)
        for row, error in slow.items():
            cases[row]["measured"]["step_time_s"] *= math.exp(error)
    with trial.Trials(cases, 1) as trials:
        fit = fit_runs.Fit(trials, [host], {"host": host.now})
        assert fit.run([host])["host"] == pytest.approx(2e-5, rel=0.03)
        fit = fit_runs.Fit(trials, [host], {"host": host.now})
        assert fit.run([host], without="b")["host"] == pytest.approx(2e-5, rel=0.03)
        alone = fit_runs.Scalar(**{**_fields(host), "groups": ("b",)})
        assert fit_runs.Fit(trials, [alone], {"host": 1e-5}).better(alone, without="b") == 5e-6


def _fields(scalar: Any) -> dict[str, Any]:
    return {name: getattr(scalar, name) for name in scalar.__slots__}


def test_scalars_are_where_the_list_says(tool: Any) -> None:
    for scalar in tool("fit_runs").scalars():
        assert scalar.low <= scalar.now <= scalar.high, scalar.name


def test_a_record_replaces_the_row_of_its_parameter(tool: Any, tmp_path: Path) -> None:
    record, path = tool("fit_runs").record, tmp_path / "fitted.yaml"
    record([{"parameter": "a", "value": 1.0}, {"parameter": "b", "value": 2.0}], path)
    record([{"parameter": "a", "value": 3.0}], path)
    rows = yaml.safe_load(path.read_text("utf-8"))["fitted"]
    assert [(row["parameter"], row["value"]) for row in rows] == [("a", 3.0), ("b", 2.0)]


def test_widths_that_are_fitted_cover_four_fifths(tool: Any) -> None:
    """Errors drawn with a known spread: both halves end up near 80 %."""
    widths = tool("fit_uncertainty")
    draw, n = np.random.default_rng(7), 2000
    group = np.repeat(["narrow", "wide"], n // 2)
    sigma = np.where(group == "wide", 0.3, 0.05)
    rows = widths.Rows(
        ids=[str(i) for i in range(n)],
        group=group,
        is_fitted=draw.random(n) < 0.5,
        error=np.abs(draw.normal(0.0, sigma)),
        found=[{"kernels": 0.05, "model": 1.0} for _ in range(n)],
        named=[
            {"runtime": "good" if g == "narrow" else "poor", "architecture": "one"} for g in group
        ],
    )
    names, sizes = widths.fit(rows)
    for _, _, fitted, _, other, _ in widths.coverage(rows, sizes)[:2]:
        assert 0.7 <= fitted <= 0.9
        assert 0.68 <= other <= 0.92
    text = yaml.safe_load(widths.document(names, sizes, rows))
    assert text["runtime"]["poor"] > text["runtime"]["good"]
    assert set(text) == {"source", "parts", "terms", "runtime", "architecture"}
