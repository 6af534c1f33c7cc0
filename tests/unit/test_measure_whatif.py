"""What-if from measurements: the model of a loader that feeds training, and where it is bound."""

from __future__ import annotations

from dataclasses import replace

import pytest
from measured_launches import launch, runs

from foretrain.errors import InputError
from foretrain.measurement.feeding import Feeding, feeding
from foretrain.measurement.train_runs import TrainRun
from foretrain.measurement.whatif import changed, feeding_of, whatif_document

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


def test_a_slow_step_alone_is_no_sign_of_a_slow_loader() -> None:
    """Real data slow the step by more than a tenth, while the loader alone is ten times as fast as training."""
    measured = runs(
        T0=launch("T0", (0.0, 0.0, 0.1, 0.0, 0.0), cores=64),
        T3=launch("T3", (0.0, 0.0, 0.13, 0.0, 0.0)),
        P=launch("P", (0.01, 0.0, 0.0, 0.0, 0.0), cores=64),
        P2=launch("P2", (0.01, 0.0, 0.0, 0.0, 0.0), cores=64),
    )
    found = feeding(measured)
    assert found is not None
    assert found.fixed == pytest.approx(0.01)
    assert not found.has_data_stall()


def test_without_workers_the_training_process_prepares() -> None:
    told = {
        "T0": launch("T0", (0.0, 0.0, 0.1, 0.0, 0.0), workers=0),
        "T3": launch("T3", (0.3, 0.0, 0.1, 0.0, 0.0), workers=0),
        "P": launch("P", (0.3, 0.0, 0.0, 0.0, 0.0), workers=0),
    }
    told["T3"]["ranks"][0]["cpu_seconds"] = 0.4
    found = feeding(runs(**told))
    assert found is not None
    assert found.step_seconds == pytest.approx(0.4)
    # four cores: what is prepared by workers is not counted once more as training
    assert found.with_(workers=4).step_seconds == pytest.approx(0.1)
    assert found.with_(workers=4, cores=1.0).step_seconds == pytest.approx(0.4)


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


def fed_by(workers: int = 1, **seconds: float) -> Feeding:
    """A loader that sets the step, warm and cold (P, F), and with twice the workers (P2, F2); 64 cores."""
    steps = {"T0": 0.01, "T3": seconds["P"], "T2": seconds["F"], **seconds}
    told = {
        name: launch(
            name,
            (0.0 if name == "T0" else step, 0.0, step if name == "T0" else 0.0, 0.0, 0.0),
            workers=workers * (2 if name in ("P2", "F2") else 1),
            cores=64,
        )
        for name, step in steps.items()
    }
    found = feeding(runs(**told))
    assert found is not None
    return found


def test_what_twice_the_workers_do_not_gain_is_what_no_worker_shortens() -> None:
    found = fed_by(P=0.4, P2=0.25, F=0.4, F2=0.25)
    assert found.fixed == pytest.approx(0.1)
    assert found.warm == pytest.approx(0.3)
    assert found.with_(workers=1).step_seconds == pytest.approx(0.4)
    assert found.with_(workers=2).step_seconds == pytest.approx(0.25)
    assert found.with_(workers=4).step_seconds == pytest.approx(0.1 + 0.3 / 4)
    assert found.with_(cached=1.0).fewest_workers() is None  # 0.01 of training is less than 0.1
    assert fed_by(P=0.4, P2=0.2, F=0.4, F2=0.2).fixed == pytest.approx(0.0, abs=1e-12)
    assert fed_by(workers=2, P=0.4, P2=0.25, F=0.4, F2=0.25).with_(
        workers=4
    ).step_seconds == pytest.approx(0.25)


def test_storage_gives_many_readers_no_more_than_it_has() -> None:
    found = fed_by(P=0.1, P2=0.05, F=0.4, F2=0.3)
    assert found.fixed == pytest.approx(0.0, abs=1e-12)
    assert found.storage == pytest.approx(0.3)
    assert found.step_seconds == pytest.approx(0.4)
    for workers in (2, 4, 16):
        assert found.with_(workers=workers).step_seconds == pytest.approx(0.3)
    assert found.with_(workers=16, disk=2.0).step_seconds == pytest.approx(0.15)
    assert found.with_(workers=16, cached=0.5).step_seconds == pytest.approx(0.15)
    assert found.with_(workers=2, cached=1.0).step_seconds == pytest.approx(0.05)
    assert found.with_(workers=2).point().bottleneck == "fetch"
    assert found.fewest_workers() is None
    assert fed_by(P=0.1, P2=0.05, F=0.4, F2=0.205).storage == 0.0  # it bears two readers


def test_workers_of_a_saturated_disk_wait_for_it_alone() -> None:
    """A held disk lets a worker read ahead of its rate while it prepares, so the two do not add up."""
    found = fed_by(P=0.1, P2=0.05, F=0.4, F2=0.404)
    assert found.step_seconds == pytest.approx(0.4)
    assert found.with_(workers=2).step_seconds == pytest.approx(0.4)  # never slower
    assert found.with_(cached=0.5).step_seconds == pytest.approx(0.2)
    assert found.with_(cached=0.9).step_seconds == pytest.approx(0.1)


def crowded(**cpu: float) -> dict[str, TrainRun]:
    """Two cores, one worker of 0.4 s of CPU a batch; twice the workers take 0.22 s where halves would be 0.2."""
    steps = {"T0": 0.01, "T3": 0.4, "T2": 0.4, "P": 0.4, "F": 0.4, "P2": 0.22, "F2": 0.24}
    told = {}
    for name, step in steps.items():
        told[name] = launch(name, (step, 0.0, 0.0, 0.0, 0.0), cores=2)
        told[name]["ranks"][0].update(cpu_seconds=0.0, worker_cpu_seconds=cpu.get(name))
    return runs(**told)


def test_what_cores_were_lacking_for_more_cores_would_shorten() -> None:
    found = feeding(crowded(P=0.4, F=0.4, P2=0.42, F2=0.46))
    assert found is not None
    assert (found.fixed, found.storage) == (0.0, 0.0)  # it was neither a lock nor the disk
    assert found.prep_cpu == pytest.approx(0.44)  # 0.02 of it lost where processes took turns
    assert found.fetch_cpu == pytest.approx(0.04)
    assert found.with_(workers=2, cached=1.0).step_seconds == pytest.approx(0.22)
    assert found.with_(workers=8, cached=1.0).step_seconds == pytest.approx(0.22)
    assert found.with_(workers=8).step_seconds == pytest.approx(0.24)
    assert found.with_(workers=8, cores=8.0, cached=1.0).step_seconds == pytest.approx(0.22 / 4)
    idle = feeding(crowded(P=0.1, F=0.1, P2=0.1, F2=0.1))
    assert idle is not None
    assert idle.fixed == pytest.approx(0.04)
    assert idle.prep_cpu == pytest.approx(0.1)


def test_taking_a_batch_from_the_queue_is_part_of_every_step() -> None:
    told = {
        "T0": launch("T0", (0.0, 0.0, 0.1, 0.0, 0.0)),
        "T3": launch("T3", (0.02, 0.0, 0.1, 0.0, 0.0)),
        "P": launch("P", (0.05, 0.0, 0.0, 0.0, 0.0)),
    }
    told["P"]["ranks"][0]["taking_seconds"] = 0.015
    found = feeding(runs(**told))
    assert found is not None
    assert found.with_(workers=8).step_seconds == pytest.approx(0.115)
    assert not found.with_(workers=8).has_data_stall()
    told["P"]["ranks"][0]["taking_seconds"] = 0.05  # more than real data cost: part of it is hidden
    found = feeding(runs(**told))
    assert found is not None
    assert found.with_(workers=8).step_seconds == pytest.approx(0.12)
