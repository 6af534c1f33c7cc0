"""What-if from measurements: the model of a loader that feeds training, and where it is bound."""

from __future__ import annotations

from dataclasses import replace

import pytest
from measured_launches import launch, runs

from foretrain.errors import InputError
from foretrain.measurement.whatif import (
    Feeding,
    changed,
    feeding,
    feeding_of,
    whatif_document,
)

FED = Feeding(
    alone=0.1,
    communication=0.08,
    hidden=0.05,
    several_hosts=False,
    warm=0.2,
    cold=0.6,
    workers=2,
    cores=8.0,
    training_cpu=0.1,
    prep_cpu=0.2,
)


def test_a_step_takes_the_longest_of_training_loading_and_cores() -> None:
    assert FED.training == pytest.approx(0.13)
    assert FED.point().step_seconds == pytest.approx(0.3)  # 0.6 of a cold batch, two workers
    assert FED.point().bottleneck == "fetch"  # 0.17 of it, before 0.1 of computation
    assert FED.with_(cached=1.0).point().step_seconds == pytest.approx(0.13)
    assert FED.with_(cached=1.0).point().bottleneck == "compute"
    crowded = FED.with_(cached=1.0, cores=1.0).point()
    assert crowded.step_seconds == pytest.approx(0.3)
    assert crowded.bottleneck == "prep"


def test_without_workers_nothing_overlaps() -> None:
    alone = replace(FED, workers=0)
    assert alone.point().step_seconds == pytest.approx(0.13 + 0.6)
    assert alone.with_(cached=1.0).point().step_seconds == pytest.approx(0.13 + 0.2)


def test_twice_the_workers_halve_a_step_that_waits_for_them() -> None:
    assert FED.with_(workers=4).point().step_seconds == pytest.approx(0.15)


def test_the_smallest_cache_is_where_the_stall_ends() -> None:
    share = FED.smallest_cache()
    assert share is not None
    # worker(x) = 0.2 + (1 - x) 0.4 must come down to 2 * 0.13 (within a percent)
    assert share == pytest.approx(1 - (2 * 0.13 * 1.01 - 0.2) / 0.4, abs=1e-3)
    assert not FED.with_(cached=share).has_data_stall()
    assert FED.with_(cached=share - 0.01).has_data_stall()
    assert replace(FED, warm=0.5).smallest_cache() is None
    assert replace(FED, cold=0.2).smallest_cache() == 0.0


def test_the_fewest_workers() -> None:
    assert FED.with_(cached=0.0).fewest_workers() == 5  # 0.6 / 5 = 0.12
    assert FED.with_(cached=1.0).fewest_workers() == 2


def test_a_faster_network_exposes_what_is_not_hidden() -> None:
    fed = replace(FED, warm=0.0, cold=0.0)
    assert fed.point().step_seconds == pytest.approx(0.13)
    assert fed.with_(network=1.25).point().step_seconds == pytest.approx(0.114)
    assert fed.with_(network=2.0).point().step_seconds == pytest.approx(0.1)


def test_runs_that_wait_for_the_loader_are_what_is_scaled() -> None:
    measured = runs(
        T0=launch("T0", (0.0, 0.0, 0.1, 0.0, 0.0)),
        T3=launch("T3", (0.2, 0.0, 0.1, 0.0, 0.0), workers=2),
        T2=launch("T2", (0.9, 0.0, 0.1, 0.0, 0.0), workers=2),
        P=launch("P", (0.25, 0.0, 0.0, 0.0, 0.0), workers=2),
    )
    found = feeding(measured)
    assert found is not None
    assert found.warm == pytest.approx(0.6)
    assert found.cold == pytest.approx(2.0)
    document = whatif_document(measured)
    assert document is not None
    assert document["now"]["step_seconds"] == pytest.approx(1.0)
    assert feeding_of({"what_if": document}) == found


def test_a_loader_that_keeps_up_is_known_from_its_own_run() -> None:
    measured = runs(
        T0=launch("T0", (0.0, 0.0, 0.1, 0.0, 0.0)),
        T3=launch("T3", (0.0, 0.0, 0.1, 0.0, 0.0)),
        P=launch("P", (0.03, 0.0, 0.0, 0.0, 0.0)),
    )
    found = feeding(measured)
    assert found is not None
    assert found.warm == pytest.approx(0.03)
    assert found.fewest_workers() == 1


def test_without_a_loader_there_is_no_what_if() -> None:
    assert whatif_document(runs(T0=launch("T0", (0.0, 0.0, 0.1, 0.0, 0.0)))) is None


def test_changes_and_their_faults() -> None:
    assert changed(FED, {"workers": 4, "disk": "2x"}).cold == pytest.approx(0.4)
    with pytest.raises(InputError) as told:
        changed(FED, {"worker": 4, "cached": 2, "disk": "fast", "workers": 0})
    assert len(told.value.faults) == 4
    with pytest.raises(InputError, match="measure train"):
        feeding_of({"what_if": None})
    with pytest.raises(InputError, match=r"feeding\.warm"):
        feeding_of({"what_if": {"feeding": {"alone": 1.0}}})
