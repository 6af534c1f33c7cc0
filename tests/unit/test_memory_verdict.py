"""Does it fit: what is usable of a device, how sure the peak is, and that headroom is kept by every question."""

from __future__ import annotations

import importlib
import json
import shlex
from dataclasses import replace
from math import exp
from pathlib import Path
from typing import Any

import pytest

from foretrain import fit, predict, recommend, search
from foretrain.analysis.prediction import Z80, Memory
from foretrain.analysis.uncertainty import memory_spread
from foretrain.cli import run
from foretrain.cluster.catalog import devices
from foretrain.cluster.headroom import fill, headroom_share, usable_bytes
from foretrain.errors import InputError
from foretrain.report import words

GIB = 2.0**30
NODE = "1 x dgx-a100-80gb"
ASKED: dict[str, Any] = {"on": NODE, "plan": "dp8 zero3", "batch": 8, "seq": 4096}
H100, T4 = devices()["h100-sxm5-80gb"], devices()["t4"]


def held(peak: float, *, headroom: float = 0.0, spread: float = 0.1) -> Memory:
    """On a device of 80 GiB with 1.5 GiB of driver."""
    return Memory(
        peak * GIB, 80 * GIB, {"weights": peak * GIB}, (), 0, "update",
        context_bytes=1.5 * GIB, headroom=headroom, spread=spread,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("given", "share"),
    [(0.05, 0.05), ("5%", 0.05), ("0.05", 0.05), (" 12.5 % ", 0.125), (0, 0.0), ("0%", 0.0),
     ("4GiB", 4 * GIB / H100.memory_bytes), ("4 GB", 4e9 / H100.memory_bytes)],
)  # fmt: skip
def test_headroom_is_a_share_or_a_size(given: float | str, share: float) -> None:
    assert headroom_share(given, [H100]) == pytest.approx(share)


@pytest.mark.parametrize(
    "given", ["5", "95%", "-1%", "-1GiB", "100GiB", "much", "", "nan", "5%%", float("nan"), -0.1, 1]
)
def test_headroom_that_cannot_be_is_explained(given: float | str) -> None:
    with pytest.raises(
        InputError, match=r"headroom: .*Write a percentage such as 5% or a size such as 4GiB"
    ):
        headroom_share(given, [H100])


def test_a_size_is_free_on_the_smallest_device() -> None:
    assert headroom_share("4GiB", [H100, T4]) == headroom_share("4GiB", [T4])


def test_usable_is_the_device_less_driver_and_headroom_and_never_negative() -> None:
    assert usable_bytes(100.0, 10.0, 0.2) == 70.0
    assert usable_bytes(100.0, 10.0, 0.95) == 0.0
    assert fill(50.0, 70.0) < 1.0 < fill(71.0, 70.0)
    assert fill(50.0, 0.0) > 1.0


def test_a_peak_between_usable_and_capacity_does_not_fit() -> None:
    between = held(79.0)
    assert between.usable_bytes < between.peak_bytes < between.capacity_bytes
    assert not between.fits
    assert held(78.4).fits
    assert not held(78.4, headroom=0.01).fits


def test_a_prediction_between_usable_and_capacity_says_what_is_usable() -> None:
    lean = predict("llama3-8b", **ASKED).memory
    context = lean.capacity_bytes - lean.peak_bytes + 1e8
    full = predict("llama3-8b", **ASKED, runtime_options={"context_bytes": context})
    assert full.memory.peak_bytes < full.memory.capacity_bytes
    assert not full.fits
    said = words.verdict(full)
    assert said.startswith("does not fit: needs ")
    assert "usable (79.2 GiB minus" in said
    assert "DOES NOT FIT" in words.headline(full)


def test_the_verdict_is_one_line() -> None:
    told = replace(predict("llama3-8b", **ASKED), memory=held(30.1))
    assert words.verdict(told) == (
        "fits: 30.1 GiB (26.5–34.2) of 78.5 GiB usable (80.0 GiB minus 1.5 GiB driver and libraries), "
        "probability > 99 %"
    )
    told = replace(told, memory=held(98.1, headroom=0.05))
    assert words.verdict(told) == (
        "does not fit: needs 98.1 GiB (86.3–111.5), 74.5 GiB usable (80.0 GiB minus 1.5 GiB driver and libraries "
        "and 4.0 GiB headroom), probability < 1 %"
    )


def test_the_probability_falls_as_the_peak_rises_and_is_one_half_where_it_just_fits() -> None:
    found = [held(peak).fits_probability for peak in (1, 40, 60, 70, 75, 78.5, 80, 90, 120, 1000)]
    assert found == sorted(found, reverse=True)
    assert all(0.0 <= one <= 1.0 for one in found)
    assert held(78.5).fits_probability == pytest.approx(0.5)
    assert held(78.5 / exp(Z80 * 0.1)).fits_probability == pytest.approx(0.9)
    assert [one >= 0.5 for one in found] == [held(p).fits for p in (1, 40, 60, 70, 75, 78.5, 80, 90, 120, 1000)]  # fmt: skip


def test_headroom_lowers_the_probability_and_a_certain_peak_is_certain() -> None:
    found = [held(60, headroom=free).fits_probability for free in (0.0, 0.05, 0.1, 0.2, 0.3)]
    assert found == sorted(found, reverse=True)
    assert len(set(found)) == 5
    assert held(60, spread=0.0).fits_probability == 1.0
    assert held(90, spread=0.0).fits_probability == 0.0
    assert held(1, headroom=0.9999).fits_probability == 0.0  # nothing is usable


def test_the_interval_lies_around_the_peak_as_wide_as_the_spread() -> None:
    low, high = held(60).interval
    assert low < 60 * GIB < high
    assert high / (60 * GIB) == pytest.approx(exp(Z80 * 0.1))
    assert low * high == pytest.approx((60 * GIB) ** 2)


def test_stacks_with_runs_of_their_own_have_their_own_spread() -> None:
    assert memory_spread("nanotron") != memory_spread("other")
    assert memory_spread("never-heard-of") == memory_spread("other")
    assert memory_spread("nanotron", is_runtime_known=False) == memory_spread("other")
    assert predict("llama3-8b", **ASKED, runtime="nanotron").memory.spread == memory_spread(
        "nanotron"
    )


def test_the_default_is_the_stack_s_own_and_stands_among_the_assumptions() -> None:
    usual = predict("llama3-8b", **ASKED)
    assert usual.memory.headroom == 0.0
    assert [line for line in usual.assumptions if line.startswith("headroom 0 %: ")]
    pool = predict("llama3-8b", **ASKED, runtime="alpa")
    assert pool.memory.headroom == 0.02
    assert any("headroom 2 %: XLA" in line and "--headroom" in line for line in pool.assumptions)
    given = predict("llama3-8b", **ASKED, headroom="8%")
    assert not any("headroom" in line for line in given.assumptions)
    assert given.memory.headroom == 0.08
    assert given.interval == usual.interval  # what is kept free makes no step less sure


def test_documents_of_another_headroom_are_of_another_question() -> None:
    one, other = predict("llama3-8b", **ASKED), predict("llama3-8b", **ASKED, headroom=0.2)
    assert one.provenance["inputs_sha256"] != other.provenance["inputs_sha256"]
    document = other.to_dict()["memory"]
    parts = document["capacity_bytes"] - document["context_bytes"] - document["headroom_bytes"]
    assert document["usable_bytes"] == pytest.approx(parts)


def test_fit_tries_changes_under_the_same_headroom() -> None:
    peak = predict("llama3-8b", **ASKED).memory
    free = 1.0 - (0.95 * peak.peak_bytes + peak.context_bytes) / peak.capacity_bytes
    found = fit("llama3-8b", **ASKED, headroom=free)
    assert not found.fits
    room = found.prediction.memory.usable_bytes
    assert found.changes
    here = [change for change in found.changes if change.kind != "machine"]
    assert any(change.fits for change in here)
    assert all(change.fits == (change.peak_bytes <= room) for change in here)
    for there in (change for change in found.changes if change.kind == "machine"):
        on = shlex.split(there.paste)[1]
        other = predict("llama3-8b", **{**ASKED, "on": on}, headroom=free).memory
        assert other.usable_bytes > room  # the same share of more memory
        assert there.fits == (there.peak_bytes <= other.usable_bytes)


@pytest.mark.parametrize("more", [{}, {"objective": "pareto"}, {"per_layer": True}])
def test_search_returns_no_plan_above_the_headroom(more: dict[str, Any]) -> None:
    asked: dict[str, Any] = {"on": NODE, "batch": 16, "seq": 2048, "top": 4, **more}
    asked["where"] = "tp<=4, pp<=2, no offload, vpp=1, schedule=1f1b, order=default"
    free = search("llama3-8b", **asked)
    most = max(row.prediction.memory.peak_bytes for row in free.best)
    memory = free.best[0].prediction.memory
    share = 1.0 - (0.8 * most + memory.context_bytes) / memory.capacity_bytes
    kept = search("llama3-8b", **asked, headroom=share)
    assert kept.best
    for row in kept.best:
        assert row.prediction.memory.peak_bytes <= 0.8 * most * (1 + 1e-9)
    for seen in kept.pareto:
        assert seen.memory <= seen.usable == pytest.approx(0.8 * most)
    assert kept.plans_fitting < free.plans_fitting
    assert kept.to_dict()["question"]["headroom"] == pytest.approx(share)


def test_recommend_offers_no_plan_above_the_headroom() -> None:
    asked: dict[str, Any] = {
        "tokens": 1e9, "instances": ("aws:g5.*", "aws:p4d*"), "quota": ("2",), "simulated": 2,
    }  # fmt: skip
    free, kept = recommend("llama3-8b", **asked), recommend("llama3-8b", **asked, headroom="8GiB")
    assert kept.offers
    for one in kept.offers:
        device = one.candidate.node.devices[0]
        assert one.peak_bytes <= one.usable_bytes <= device.memory_bytes - 8 * GIB
    filled = [
        o.peak_bytes > o.candidate.node.devices[0].memory_bytes - 8 * GIB for o in free.offers
    ]
    assert any(filled)  # else nothing was left out
    assert any("headroom 0 %" in line for line in free.notes)
    assert not any("headroom" in line for line in kept.notes)


def test_recommend_passes_over_devices_that_cannot_keep_so_much_free() -> None:
    asked: dict[str, Any] = {"tokens": 1e9, "instances": ("aws:g5.12*", "aws:p5.*"), "quota": ("1",), "simulated": 0}  # fmt: skip
    found = recommend("llama3-8b", **asked, headroom="30GiB")
    assert {one.candidate.instance for one in found.offers} == {"aws:p5.48xlarge"}
    assert "headroom: '30GiB'" in found.infeasible[0].why
    with pytest.raises(InputError, match="headroom"):
        recommend("llama3-8b", **asked, headroom="300GiB")


def test_the_command_line_takes_headroom(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["predict", "llama3-8b", "--on", NODE, "--plan", "dp8 zero3", "--batch", "8"]
    assert run([*words, "--json", "--headroom", "4GiB"]) == 0
    memory = json.loads(capsys.readouterr().out)["memory"]
    assert memory["headroom_bytes"] == pytest.approx(4 * GIB)
    assert run([*words, "--headroom", "95%"]) == 2
    assert "headroom: '95%' must be between 0 and 90 % of device memory" in capsys.readouterr().err


def tool(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[2] / "tools"))
    return importlib.import_module("fit_memory_spread")


def test_the_spread_of_a_runtime_leans_on_that_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    spread = tool(monkeypatch)
    runs = [spread.Run("a", "sure", "fit", 0.01) for _ in range(10)]
    runs += [spread.Run("b", "unsure", "fit", 0.3) for _ in range(5)]
    sizes = spread.spreads(runs)
    assert sizes["other"] == pytest.approx(0.3 / Z80)  # groups count the same
    assert "unsure" not in sizes  # too few runs
    expected = ((10 * (0.01 / Z80) ** 2 + 4 * sizes["other"] ** 2) / 14) ** 0.5
    assert sizes["sure"] == pytest.approx(expected)
    assert spread.held(runs, {"other": 0.31 / Z80}) == 1.0
    assert spread.held(runs, {"other": 0.02 / Z80}) == pytest.approx(10 / 15)


def test_either_fit_leaves_what_the_other_wrote(monkeypatch: pytest.MonkeyPatch) -> None:
    spread = tool(monkeypatch)
    whole = importlib.import_module("fit_uncertainty")
    text = spread.TARGET.read_text(encoding="utf-8")
    section = whole.memory_section(text)
    assert section.startswith("memory:\n  source: ")
    assert whole.with_memory(text, section) == text
    other = whole.with_memory(text, "memory:\n  spread: {other: 1.0}\n")
    assert other.endswith("\nmemory:\n  spread: {other: 1.0}\n")
    assert whole.memory_section(other) == "memory:\n  spread: {other: 1.0}\n"
