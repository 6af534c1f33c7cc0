"""Stalls from differences of runs: names, sums, what is taken from what."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from measured_launches import launch, runs

from foretrain.analysis.prediction import STALLS
from foretrain.errors import InputError
from foretrain.measurement.protocol import StallProtocol, document_of
from foretrain.measurement.stalls import breakdown, by_events
from foretrain.measurement.train_runs import TrainRun, train_run
from foretrain.report import render
from foretrain.report.measured_train import train_document


def four() -> dict[str, TrainRun]:
    return runs(
        T0=launch("T0", (0.0, 0.1, 0.7, 0.0, 0.2)),
        T1=launch("T1", (0.0, 0.1, 0.7, 0.5, 0.2), (0.0, 0.1, 0.9, 0.3, 0.2)),
        T3=launch("T3", (0.4, 0.1, 0.7, 0.5, 0.2), (0.4, 0.1, 0.9, 0.3, 0.2)),
        T2=launch("T2", (1.4, 0.1, 0.7, 0.5, 0.2), (1.4, 0.1, 0.9, 0.3, 0.2)),
    )


def test_every_difference_has_its_name() -> None:
    found = breakdown(four())
    assert found.real == "T2"
    assert found.step_seconds == pytest.approx(2.9)
    expected = {"fetch": 1.0, "prep": 0.4, "optimizer": 0.2, "host": 0.1, "compute": 0.7}
    for name, seconds in expected.items():
        assert found.stalls[name] == pytest.approx(seconds), name
    # one rank waits 0.5, the other, which comes last, 0.3: 0.2 / 2 of the 0.5 are for the slower one
    assert found.stalls["imbalance"] == pytest.approx(0.1)
    assert found.stalls["interconnect"] == pytest.approx(0.4)
    assert set(found.stalls) == set(STALLS)
    assert math.fsum(found.stalls.values()) == pytest.approx(2.9, rel=1e-15)
    assert found.bottleneck == "fetch"


def test_fetch_holds_no_computation() -> None:
    """What is published as Stash takes the preparation stall from T2, so that its fetch stall holds T1."""
    without = breakdown(
        {**four(), "T2": train_run("T2", [launch("T2", (0.4, 0.1, 0.7, 0.5, 0.2))])}
    )
    assert without.stalls["fetch"] == pytest.approx(0.0, abs=1e-12)


def test_a_warm_step_can_be_asked_for() -> None:
    found = breakdown(four(), cache="warm")
    assert found.real == "T3"
    assert found.stalls["fetch"] == 0.0
    assert math.fsum(found.stalls.values()) == pytest.approx(1.9, rel=1e-15)


def test_several_hosts_are_network() -> None:
    measured = {**four(), "T5": train_run("T5", [launch("T5", (0.0, 0.1, 0.7, 1.0, 0.2), (0.0, 0.1, 0.7, 1.0, 0.2), hosts=2)])}  # fmt: skip
    del measured["T2"], measured["T3"]
    found = breakdown(measured)
    assert found.real == "T5"
    assert found.stalls["network"] == pytest.approx(0.5)
    assert found.stalls["interconnect"] == pytest.approx(0.5)


def test_one_device_on_each_host_is_network_too() -> None:
    measured = runs(
        T0=launch("T0", (0.0, 0.1, 0.7, 0.0, 0.2)),
        T5=launch("T5", (0.0, 0.1, 0.7, 1.0, 0.2), (0.0, 0.1, 0.7, 1.0, 0.2), hosts=2),
    )
    found = breakdown(measured)
    assert found.stalls["network"] == pytest.approx(1.0)
    assert found.bottleneck == "network"


def test_without_one_device_events_tell_communication() -> None:
    measured = {name: run for name, run in four().items() if name != "T0"}
    found = breakdown(measured)
    assert found.stalls["interconnect"] + found.stalls["imbalance"] == pytest.approx(0.4)
    assert any("No run on one device" in line for line in found.warnings)


def test_a_faster_run_above_is_no_negative_stall_and_is_told() -> None:
    measured = {**four(), "T1": train_run("T1", [launch("T1", (0.0, 0.1, 0.3, 0.1, 0.2))])}
    found = breakdown(measured)
    assert min(found.stalls.values()) >= 0.0
    assert math.fsum(found.stalls.values()) == pytest.approx(2.9, rel=1e-15)
    assert any("T1 was faster than T0" in line for line in found.warnings)


@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(["T0", "T1", "T2", "T3", "T5"]),
        st.lists(
            st.tuples(*[st.floats(0.0, 10.0, allow_subnormal=False)] * 5), min_size=1, max_size=3
        ),
        min_size=1,
    ),
    st.sampled_from(["cold", "warm"]),
)
def test_stalls_sum_to_the_step_whatever_was_measured(
    parts: dict[str, list[tuple[float, float, float, float, float]]], cache: str
) -> None:
    measured = {
        name: train_run(name, [launch(name, *ranks, steps=6)]) for name, ranks in parts.items()
    }
    if cache == "warm" and set(measured) == {"T2"}:
        return
    found = breakdown(measured, cache=cache)
    assert min(found.stalls.values()) >= 0.0
    assert math.fsum(found.stalls.values()) == pytest.approx(
        found.step_seconds, rel=1e-12, abs=1e-12
    )
    events = by_events(measured[found.real])
    assert math.fsum(events.values()) == pytest.approx(found.step_seconds, rel=1e-9, abs=1e-12)


def test_passes_between_updates_are_one_step() -> None:
    updates = [False, True] * 10
    run = train_run("T0", [launch("T0", (0.0, 0.1, 0.4, 0.0, 0.1), steps=20, updates=updates)])
    assert run.steps == 10
    assert run.step_seconds == pytest.approx(1.2)


def test_a_step_that_began_before_the_clock_does_not_count() -> None:
    updates = [True, *[False, True] * 5]
    run = train_run("T0", [launch("T0", (0.0, 0.1, 0.4, 0.0, 0.1), steps=11, updates=updates)])
    assert run.steps == 5
    assert run.step_seconds == pytest.approx(1.2)


def test_bursts_of_several_workers_are_averaged() -> None:
    """Two workers that end together give a long wait and then none: the median of single steps would be neither."""
    told = launch("T3", (0.0,) * 5, workers=2)
    told["ranks"][0]["passes"] = [[0.2 * (at % 2), 0.0, 0.01, 0.0, 0.0] for at in range(20)]
    assert train_run("T3", [told]).step_seconds == pytest.approx(0.11)


def test_bursts_of_storage_are_averaged() -> None:
    """A disk that is held to a rate gives several batches at once and then makes one wait."""
    told = launch("T2", (0.0,) * 5, steps=60)
    told["ranks"][0]["passes"] = [[0.17 if at % 12 == 11 else 0.05] + [0.0] * 4 for at in range(60)]
    assert train_run("T2", [told]).step_seconds == pytest.approx(0.06)


def test_an_outlier_moves_the_mean_and_not_the_step() -> None:
    told = launch("T0", (0.0, 0.0, 1.0, 0.0, 0.0), steps=31)
    told["ranks"][0]["passes"][7] = [0.0, 0.0, 50.0, 0.0, 0.0]
    run = train_run("T0", [told])
    assert run.step_seconds == pytest.approx(1.0)
    assert run.interval[0] == pytest.approx(1.0)


def test_nothing_measured_is_said() -> None:
    with pytest.raises(InputError, match="no run has been measured"):
        breakdown({})
    with pytest.raises(InputError, match="no step was timed"):
        train_run("T0", [launch("T0", (0.0,) * 5, steps=0)])


def test_the_protocol_names_all_its_faults() -> None:
    with pytest.raises(InputError) as told:
        StallProtocol(steps=1, repeats=0, runs=("T9",), cache="luke")
    assert len(told.value.faults) == 4


def test_the_page_has_the_names_and_chart_of_a_prediction() -> None:
    predicted = {"step_seconds": 2.0, "stalls": {**dict.fromkeys(STALLS, 0.0), "compute": 2.0}}
    document = document_of(four(), ["torchrun", "x.py"], StallProtocol(), predicted, ["left <out>"])
    assert {"step_seconds", "interval", "stalls", "runs", "prediction"} <= set(document)
    page = train_document(document)
    html = str(render(page, "html"))
    assert "Where the time goes</h2>" in html
    assert "Where the time goes: predicted</h2>" in html
    assert "<out>" not in html
    text = str(render(page, "txt"))
    for name in ("fetch", "prep", "interconnect", "imbalance", "optimizer"):
        assert name in text
    assert "(-31.0 %)" in page.headline
    assert "| fetch |" in str(render(page, "md"))
