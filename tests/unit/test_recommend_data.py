"""Samples: cold and warm epochs, memory, and agreement with the simulator."""

from __future__ import annotations

from dataclasses import replace

import pytest

from foretrain import DataSource, predict
from foretrain.cluster.catalog import find_node
from foretrain.errors import InputError
from foretrain.recommendation.data import epochs, feeding, fits_in_memory, with_loading
from foretrain.recommendation.job import Dataset, dataset, job
from foretrain.resolving import ask

NODE = find_node("aws:g5.12xlarge")  # 24 cores, 192 GiB, 16 Gb/s of storage, 4 devices
ASK = {"on": "aws:g5.12xlarge", "plan": "dp4", "batch": 256, "micro_batch": 64}


@pytest.mark.parametrize(("size", "prep"), [(110e3, 0.0), (110e3, 0.02), (20e6, 0.0), (20e6, 0.02)])
def test_steps_agree_with_the_simulator(size: float, prep: float) -> None:
    """A loader that works ahead: the slowest of computing, preparing and fetching."""
    bare = predict("resnet50", **ASK, runtime="ddp", precision="fp16", optimizer="sgd")  # type: ignore[arg-type]
    source = DataSource(size, prep, workers=6)
    full = predict("resnet50", **ASK, runtime="ddp", precision="fp16", optimizer="sgd", data=source)  # type: ignore[arg-type]
    feed = feeding(Dataset(size, 1e6, prep, workers=6), NODE, 1, 256)
    assert feed.seconds(bare.step_seconds, is_cold=True) == pytest.approx(
        full.step_seconds, rel=0.02
    )


def test_the_first_epoch_is_cold_and_the_others_warm() -> None:
    feed = feeding(Dataset(1e6, 50e3), NODE, 1, 256)
    assert feed.is_cached
    passed = epochs(feed, 0.01, steps=1000, per_epoch=200)
    assert (passed.cold_steps, passed.warm_steps) == (200, 800)
    assert passed.cold_seconds == pytest.approx(256e6 / 2e9)
    assert passed.warm_seconds == 0.01
    assert passed.seconds == pytest.approx(200 * 0.128 + 800 * 0.01)


def test_data_that_memory_does_not_hold_is_always_cold() -> None:
    data = Dataset(1e6, 1e6)
    assert not fits_in_memory(data, NODE, 1)
    assert not fits_in_memory(data, NODE, 8), "every machine reads everything"
    assert fits_in_memory(replace(data, is_sharded=True), NODE, 8)
    passed = epochs(feeding(data, NODE, 1, 256), 0.01, steps=1000, per_epoch=200)
    assert passed.cold_steps == 1000


def test_data_that_is_read_once_is_cold() -> None:
    passed = epochs(feeding(Dataset(1e3, 1e6), NODE, 1, 256), 0.01, steps=100, per_epoch=None)
    assert passed.cold_steps == 100


def test_stalls_add_up_to_the_mean_step() -> None:
    feed = feeding(Dataset(1e6, 50e3, 1e-3), NODE, 1, 256)
    passed = epochs(feed, 0.005, steps=1000, per_epoch=200)
    stalls = with_loading({"compute": 0.004, "network": 0.001}, feed, passed, 0.005)
    assert sum(stalls.values()) == pytest.approx(passed.step_seconds)
    assert stalls["prep"] > 0
    assert stalls["fetch"] > 0


def test_more_machines_read_faster() -> None:
    one, two = (feeding(Dataset(1e6, 50e3, 1e-3), NODE, count, 256) for count in (1, 2))
    assert two.fetch == pytest.approx(one.fetch / 2)
    assert two.prep == pytest.approx(one.prep / 2)
    faster = feeding(Dataset(1e6, 50e3), NODE, 1, 256, storage=4e9)
    assert faster.fetch == pytest.approx(one.fetch / 2)


def test_datasets_by_name_and_by_description() -> None:
    known = dataset("imagenet-1k")
    assert known is not None
    assert known.samples == 1_281_167
    assert known.bytes == pytest.approx(146e9, rel=0.01)
    told = dataset("size=146GB, samples=1.28M, prep=5ms, workers=8, sharded")
    assert told is not None
    assert told.bytes_per_sample == pytest.approx(146e9 / 1.28e6)
    assert (told.prep_seconds, told.workers, told.is_sharded) == (0.005, 8, True)
    other = dataset("size=1GB,sample=1kB")
    assert other is not None
    assert other.samples == 1e6


def test_bad_descriptions_name_every_fault() -> None:
    with pytest.raises(InputError, match="imagenet-1k"):
        dataset("imagenet-1")
    with pytest.raises(InputError) as caught:
        dataset("sampel=3kB,prop=4ms")
    assert len(caught.value.faults) == 2
    assert "did you mean" in str(caught.value).lower()
    with pytest.raises(InputError, match="bytes_per_sample"):
        dataset("samples=100")


def test_a_job_says_everything_that_is_wrong_with_it() -> None:
    with pytest.raises(InputError) as caught:
        job("resnet50", tokens=1e9, epochs=3, deadline="-1d", batch=0, budget_usd=-1)
    assert len(caught.value.faults) == 4
    for wrong in (
        {"tokens": 1e9},  # images have no tokens
        {"epochs": 3},  # of what
        {"steps": 10, "batch_per_device": 32},  # other work on every cluster
        {},
    ):
        with pytest.raises(InputError):
            job("resnet50", **wrong)  # type: ignore[arg-type]


def test_lengths_of_jobs() -> None:
    by_tokens = job("llama3-8b", tokens="1e12", seq=8192)
    assert by_tokens.batch == 512
    assert by_tokens.assumptions
    assert by_tokens.steps_on(8) == pytest.approx(1e12 / (512 * 8192), abs=1)
    by_epochs = job("resnet50", epochs=90, data="imagenet-1k", batch_per_device=32)
    assert by_epochs.batch_on(8) == 256
    assert by_epochs.steps_on(8) == pytest.approx(90 * 1_281_167 / 256, abs=1)
    assert by_epochs.steps_per_epoch(8) == pytest.approx(1_281_167 / 256)
    assert job("resnet50", steps=100, batch=64).samples == 6400


def test_a_batch_in_tokens_is_read_as_predict_reads_it() -> None:
    found = job("llama3-8b", steps=10, batch="4Mtok", seq=8192)
    assert (
        found.batch
        == ask("llama3-8b", on="2 x dgx-h100", batch="4Mtok", seq=8192).workload.global_batch
        == 512
    )
    assert found.samples == 5120
    assert found.assumptions == ("batch 4Mtok = 4,194,304 tokens: a multiple of 8,192 (--batch)",)
    (rounded,) = job("llama3-8b", steps=10, batch="100001 tokens", seq=8192).assumptions
    assert "rounded to 12 samples" in rounded


@pytest.mark.parametrize(
    ("model", "batch", "reason"),
    [
        ("resnet50", "4Mtok", "has no tokens"),
        ("llama3-8b", "many", "not a"),
        ("llama3-8b", "4M", "4Mtok"),
    ],
)
def test_a_batch_that_cannot_be_read_is_the_one_fault(model: str, batch: str, reason: str) -> None:
    with pytest.raises(InputError, match=reason) as told:
        job(model, steps=10, batch=batch)
    assert len(told.value.faults) == 1
