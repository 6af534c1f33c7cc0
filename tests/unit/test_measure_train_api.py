"""The two lines in a training script: what they see, hand out and leave alone."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from foretrain.errors import FileError, InputError
from foretrain.measure import watch
from foretrain.measurement import page_cache
from foretrain.measurement.ranks import bucket_sizes
from foretrain.measurement.step_events import (
    PARTS,
    CudaClock,
    HostClock,
    StepEvents,
    clock_of,
)
from foretrain.measurement.train_api import ORDERS, RunSpec, with_workers


class FakeClock:
    """A device that is reached later than the host asks: marks are what the test says the time is."""

    def __init__(self) -> None:
        self.now = 0.0
        self.settled = 0

    def mark(self) -> float:
        return self.now

    def settle(self) -> None:
        self.settled += 1

    def seconds(self, first: float, second: float) -> float:
        return second - first


class Hooks:
    """Takes hooks as torch does, and calls them when told."""

    def __init__(self) -> None:
        self.hooks: list[Callable[..., None]] = []

    def add(self, hook: Callable[..., None]) -> Hooks:
        self.hooks.append(hook)
        self.own = hook
        return self

    def remove(self) -> None:
        self.hooks.clear()

    def call(self, *values: Any) -> None:
        for hook in self.hooks:
            hook(*values)


class FakeParameter(Hooks):
    requires_grad = True
    register_post_accumulate_grad_hook = Hooks.add


class FakeModel(Hooks):
    register_forward_pre_hook = Hooks.add

    def __init__(self) -> None:
        super().__init__()
        self.weights = [FakeParameter(), FakeParameter()]

    def parameters(self) -> list[FakeParameter]:
        return self.weights


class FakeOptimizer:
    def __init__(self) -> None:
        self.before, self.after = Hooks(), Hooks()

    def register_step_pre_hook(self, hook: Callable[..., None]) -> Hooks:
        return self.before.add(hook)

    def register_step_post_hook(self, hook: Callable[..., None]) -> Hooks:
        return self.after.add(hook)


def one_pass(
    clock: FakeClock, events: StepEvents, model: FakeModel, optimizer: FakeOptimizer
) -> None:
    """data 1, host 2 + 64, compute 4 + 8, wait 16, optimizer 32."""
    events.begin()
    clock.now += 1
    events.got()
    clock.now += 2
    model.call(None, None)
    clock.now += 4
    model.weights[1].call(model.weights[1])
    clock.now += 8
    model.weights[0].call(model.weights[0])
    clock.now += 16
    optimizer.before.call()
    clock.now += 32
    optimizer.after.call()
    clock.now += 64


def test_events_split_a_pass_on_the_devices_own_clock() -> None:
    clock, model, optimizer = FakeClock(), FakeModel(), FakeOptimizer()
    events = StepEvents(model, [optimizer], clock)
    one_pass(clock, events, model, optimizer)
    events.keep_last_gradient_only()
    assert not model.weights[1].hooks  # one hook is enough once the order is known
    assert model.weights[0].hooks
    one_pass(clock, events, model, optimizer)
    events.begin()
    expected = dict(zip(PARTS, (1.0, 66.0, 12.0, 16.0, 32.0), strict=True))
    assert [dict(zip(PARTS, parts, strict=True)) for parts in events.parts()] == [expected] * 2
    assert events.updates() == [True, True]
    assert clock.settled
    events.remove()
    assert [model.hooks, model.weights[0].hooks, optimizer.before.hooks] == [[], [], []]


def test_the_clock_is_that_of_the_models_device() -> None:
    device = type("Device", (), {"type": "cuda"})()
    weight = type("Weight", (), {"device": device})()
    model = type("Model", (), {"parameters": lambda self: iter([weight])})()
    clock, kind = clock_of(model)
    assert (type(clock), kind) == (CudaClock, "cuda")
    clock, kind = clock_of(None)
    assert (type(clock), kind) == (HostClock, "cpu")


def test_a_watched_loader_is_a_loader(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ordered(monkeypatch, tmp_path, "T0")
    watched: Any = watch(Loader(3))
    assert len(watched) == 3
    assert watched.batch_size == 2
    with pytest.raises(AttributeError):
        copy.copy(watched).nothing  # noqa: B018


def test_a_pass_without_an_update_waits_for_nothing() -> None:
    clock, model = FakeClock(), FakeModel()
    events = StepEvents(model, [FakeOptimizer()], clock)
    events.begin()
    events.got()
    model.call(None, None)
    clock.now += 4
    model.weights[0].call(model.weights[0])
    clock.now += 2
    events.begin()
    assert events.parts() == [(0.0, 2.0, 4.0, 0.0, 0.0)]
    assert events.updates() == [False]


def test_a_script_by_itself_keeps_its_loader(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ORDERS, raising=False)
    loader = [1, 2, 3]
    assert watch(loader, object(), object()) is loader


def ordered(monkeypatch: pytest.MonkeyPatch, folder: Path, *runs: str, **more: Any) -> Path:
    orders = RunSpec(runs, str(folder), **{"steps": 4, "warmup": 2, **more})
    monkeypatch.setenv(ORDERS, orders.to_environment())
    return folder / "report.json"


class Loader:
    """Numbers its batches, and counts how often it was started."""

    batch_size = 2

    def __init__(self, count: int) -> None:
        self.count, self.started = count, 0

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[int]:
        self.started += 1
        return iter(range(self.count))


def seen(loader: Any, **more: Any) -> list[Any]:
    batches: list[Any] = []
    with pytest.raises(SystemExit) as ended:
        batches.extend(watch(loader, **more))
    assert ended.value.code == 0
    return batches


def test_synthetic_runs_see_the_first_batch_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    target = ordered(monkeypatch, tmp_path, "T0")
    assert seen(Loader(3)) == [0] * 6
    (told,) = json.loads(target.read_text("utf-8"))
    assert told["run"] == "T0"
    assert len(told["ranks"][0]["passes"]) == 4


def test_real_runs_go_on_in_a_new_epoch_whose_start_does_not_count(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    target = ordered(monkeypatch, tmp_path, "T3")
    loader = Loader(4)
    assert seen(loader) == [0, 1, 2, 3, 0, 1, 2, 3]  # two of each epoch count
    assert loader.started == 2
    (told,) = json.loads(target.read_text("utf-8"))
    assert len(told["ranks"][0]["passes"]) == 4


def test_a_loader_alone_hands_nothing_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    target = ordered(monkeypatch, tmp_path, "P")
    assert seen(Loader(50)) == []
    (told,) = json.loads(target.read_text("utf-8"))
    assert len(told["ranks"][0]["passes"]) == 4


def test_the_loader_alone_runs_with_twice_its_workers(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    loader = torch.utils.data.DataLoader(range(40), 2, num_workers=1)
    target = ordered(monkeypatch, tmp_path, "P", "P2")
    assert seen(loader) == []
    once, twice = json.loads(target.read_text("utf-8"))
    assert [(one["run"], one["workers"]) for one in (once, twice)] == [("P", 1), ("P2", 2)]
    assert len(twice["ranks"][0]["passes"]) == 4
    assert twice["ranks"][0]["taking_seconds"] > 0
    assert loader.num_workers == 1  # the script's own loader is as it was


def test_persistent_workers_stay_with_the_loader_they_are_of() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    loader = torch.utils.data.DataLoader(range(6), 2, num_workers=1, persistent_workers=True)
    assert len(list(loader)) == 3
    more = with_workers(loader, 2)
    assert more is not None
    assert sorted(batch.tolist() for batch in more) == [[0, 1], [2, 3], [4, 5]]
    assert len(more._iterator._workers) == 2
    assert len(loader._iterator._workers) == 1
    for one in (loader, more):
        one._iterator._shutdown_workers()


@pytest.mark.parametrize("workers", [0, 3])
def test_a_loader_of_another_make_is_not_given_workers(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, workers: int
) -> None:
    loader = Loader(50)
    monkeypatch.setattr(loader, "num_workers", workers, raising=False)
    target = ordered(monkeypatch, tmp_path, "P", "P2")
    seen(loader)
    assert [told["run"] for told in json.loads(target.read_text("utf-8"))] == ["P"]


def test_a_loader_without_workers_does_not_need_torch(tmp_path: Path) -> None:
    script = """
import sys
sys.modules["torch"] = None  # as if it were not installed
from foretrain.measure import watch
for number in watch([1, 2, 3] * 9):
    pass
"""
    orders = RunSpec(("T0", "T3", "P", "P2"), str(tmp_path), steps=4, warmup=2)
    environment = {**os.environ, ORDERS: orders.to_environment()}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    told = json.loads((tmp_path / "report.json").read_text("utf-8"))
    assert [one["run"] for one in told] == ["T0", "T3", "P"]


def test_cold_runs_need_data_and_rounds_repeat_the_rest(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    target = ordered(monkeypatch, tmp_path, "T3", "T2", rounds=2)
    seen(Loader(50))
    assert [told["run"] for told in json.loads(target.read_text("utf-8"))] == ["T3", "T3"]


def test_the_cache_is_made_cold_and_warm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "a.bin").write_bytes(os.urandom(4096))
    done: list[str] = []
    monkeypatch.setattr(page_cache, "drop", lambda files: done.append(f"drop {files[0].name}"))
    monkeypatch.setattr(page_cache, "fill", lambda files: done.append(f"fill {files[0].name}"))
    target = ordered(monkeypatch, tmp_path, "T2", "T3")
    seen(Loader(50), data=data)
    assert done == ["drop a.bin", "fill a.bin"]
    cold, warm = json.loads(target.read_text("utf-8"))
    assert (cold["is_cold"], warm["is_cold"], cold["data_bytes"]) == (True, False, 4096)


def test_steps_are_cut_down_to_the_time_there_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ordered(monkeypatch, tmp_path, "T0", steps=1000, seconds=1e-9)
    assert len(seen(Loader(3))) == 2 + 4  # never fewer than four


def test_short_steps_are_as_many_as_an_epoch_has(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    loader = Loader(500)
    ordered(monkeypatch, tmp_path, "T3", least_seconds=60.0)
    assert len(seen(loader)) == 500
    assert loader.started == 1
    ordered(monkeypatch, tmp_path, "T3", least_seconds=60.0, seconds=1e-9)
    assert len(seen(loader)) == 2 + 4  # the most that is allowed counts more


def test_an_empty_loader_and_wrong_orders_are_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for run in ("T0", "T3", "P"):
        ordered(monkeypatch, tmp_path, run)
        with pytest.raises(InputError, match="no batch"):
            list(watch([]))
    ordered(monkeypatch, tmp_path, "T9")
    with pytest.raises(InputError, match="unknown run 'T9'"):
        watch([1])
    ordered(monkeypatch, tmp_path, "T0")
    with pytest.raises(FileError, match="no such training data file or directory"):
        watch([1], data=tmp_path / "nowhere")


def test_the_page_cache_by_file(tmp_path: Path) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    (inner / "b").write_bytes(bytes(10))
    (tmp_path / "a").write_bytes(bytes(5))
    files = page_cache.data_files([tmp_path, tmp_path / "a"])
    assert [path.name for path in files] == ["a", "b"]
    assert page_cache.total_bytes(files) == 15
    if page_cache.can_drop():
        page_cache.drop(files)
    assert page_cache.fill(files)


def test_more_data_than_memory_are_not_warm(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "a").write_bytes(bytes(100))
    monkeypatch.setattr(page_cache, "available_bytes", lambda: 50.0)
    assert not page_cache.fill([tmp_path / "a"])


def test_buckets_are_those_of_ddp() -> None:
    mebi = 2**20
    assert bucket_sizes([4 * mebi, 20 * mebi, 10 * mebi, mebi // 2, mebi // 2]) == [mebi, 30 * mebi, 4 * mebi]  # fmt: skip
    assert bucket_sizes([]) == []
