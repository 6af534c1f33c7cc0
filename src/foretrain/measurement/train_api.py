"""Two lines in a training script, and `foretrain measure train` can find its stalls.

    from foretrain.measure import watch

    for batch in watch(loader, model, optimizer):
        …

Run by itself the script is as it was: `watch` gives the loader back. Run by `foretrain measure train`, the orders in
the environment say which run this is: the loop then sees the first batch again and again (synthetic) or
the loader's own batches with a cold or a warm page cache, and the script ends when enough steps were timed.
"""

from __future__ import annotations

import copy
import json
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from foretrain.errors import InputError
from foretrain.measurement import page_cache
from foretrain.measurement.ranks import Ranks
from foretrain.measurement.step_events import HostClock, StepEvents, clock_of

ORDERS = "FORETRAIN_MEASURE"
SYNTHETIC = ("T0", "T1", "T5")
REAL = ("T2", "T3")
DOUBLED = ("P2", "F2")
"""The loader alone with twice its workers: what that does not gain is what no worker shortens."""
LOADER_ONLY = ("P", "F", *DOUBLED)
COLD = ("T2", "F", "F2")
RUNS = (*SYNTHETIC, *REAL, *LOADER_ONLY)
FEWEST_STEPS = 4


@dataclass(frozen=True, slots=True)
class RunSpec:
    """What one launch of the script is to do."""

    runs: tuple[str, ...]  # of RUNS, one after the other
    out: str  # folder that the results go to
    steps: int = 30
    warmup: int = 5
    rounds: int = 1  # all runs, then all again: what slows the machine for a while slows all alike
    seconds: float = 60.0  # steps of a run are cut down so that they take no longer
    # there are more of them until they take as long, as far as an epoch goes
    least_seconds: float = 0.0
    data: tuple[str, ...] = ()  # files or folders of training data

    @classmethod
    def from_environment(cls) -> RunSpec | None:
        text = os.environ.get(ORDERS)
        if not text:
            return None
        fields = json.loads(text)
        orders = cls(**{**fields, "runs": tuple(fields["runs"]), "data": tuple(fields["data"])})
        for name in orders.runs:
            if name not in RUNS:
                raise InputError(f"{ORDERS}: unknown run {name!r}. Known: {', '.join(RUNS)}.")
        return orders

    def to_environment(self) -> str:
        return json.dumps(asdict(self))


def watch(
    loader: Iterable[Any],
    model: Any = None,
    optimizer: Any = None,
    *,
    data: str | Path | Sequence[str | Path] = (),
) -> Iterable[Any]:
    """The loader to loop over. `data` names files or folders of training data, for a cold and a warm cache.

    `optimizer` may be several. Unless `foretrain measure train` runs the script, this is the loader itself.
    """
    orders = RunSpec.from_environment()
    if orders is None:
        return loader
    places = [data] if isinstance(data, str | Path) else list(data)
    optimizers = () if optimizer is None else optimizer
    if not isinstance(optimizers, list | tuple):
        optimizers = (optimizers,)
    files = page_cache.data_files([*orders.data, *places])
    return Watched(TrainJob(loader, model, tuple(optimizers), orders, files, Ranks.here()))


@dataclass(frozen=True)
class TrainJob:
    """What the script trains with, and its orders."""

    loader: Iterable[Any]
    model: Any
    optimizers: tuple[Any, ...]
    orders: RunSpec
    files: tuple[Path, ...]
    ranks: Ranks

    def loader_of(self, run: str) -> Any | None:
        """The loader that a run draws from; None where there is no such loader."""
        if run in DOUBLED:
            return with_workers(self.loader, 2 * workers_of(self.loader))
        return self.loader

    def warmup(self, run: str, loader: Any) -> int:
        """Passes that do not count: those that a full queue of prepared batches would flatter, too."""
        if run in SYNTHETIC:
            return self.orders.warmup
        wanted = max(self.orders.warmup, prefetched_by(loader) + workers_of(loader))
        whole = batches_of(loader)
        return wanted if whole is None else max(1, min(wanted, whole // 2))


class Watched:
    """The loader of a job under orders: its batches, run by run; it ends the script when it has seen enough."""

    def __init__(self, job: TrainJob) -> None:
        self.job = job

    def __len__(self) -> int:
        return len(self.job.loader)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        if name == "job":  # a copy that is not filled yet
            raise AttributeError(name)
        return getattr(self.job.loader, name)

    def __iter__(self) -> Iterator[Any]:
        reports = []
        for name in self.job.orders.runs * self.job.orders.rounds:
            if name in COLD and not self.job.files:
                continue  # nothing can be made cold
            loader = self.job.loader_of(name)
            if loader is None:
                continue
            run = TimedRun(name, self.job, loader)
            if name in LOADER_ONLY:
                for _ in run.batches():
                    pass
            else:
                yield from run.batches()
            reports.append(run.report())
        # On every host: the first reads what was told, the others see by it that all went well.
        if self.job.ranks.is_first_on_host:
            _write_whole(Path(self.job.orders.out), reports)
        self.job.ranks.leave()
        raise SystemExit(0)  # what follows the loop is not to be measured


class TimedRun:
    """One run: which batches it hands out, and the passes of the loop that it times."""

    def __init__(self, name: str, job: TrainJob, loader: Any) -> None:
        self.name, self.job, self._loader = name, job, loader
        self._warmup = job.warmup(name, loader)
        clock, self._device = clock_of(job.model)
        if name in LOADER_ONLY:
            self._events = StepEvents(None, (), HostClock())
        else:
            self._events = StepEvents(job.model, job.optimizers, clock)
        self._segments: list[int] = []  # passes in which the loader was started anew
        self._is_warm = True
        self._settled: tuple[float, int] | None = None  # CPU seconds and passes after warm-up
        self._taking = 0.0  # CPU seconds that this thread spent on asking for batches
        self._taking_at_start = 0.0
        self._worker_cpu_at_start: dict[int, float] = {}
        self._worker_cpu: float | None = None

    def batches(self) -> Iterator[Any]:
        """Until enough passes count. All ranks stop at the same one: they agree on their number once."""
        events, counted, wanted = self._events, 0, self.job.orders.steps
        source = self._replayed() if self.name in SYNTHETIC else self._loaded()
        while True:
            events.begin()
            if counted >= wanted:
                self._worker_cpu = _cpu_between(self._worker_cpu_at_start, worker_cpu_seconds())
                source.close()
                return
            before = time.thread_time()
            batch = next(source)
            self._taking += time.thread_time() - before
            events.got()
            yield batch
            done = len(events.passes) - self._segments[-1]
            if done == self._warmup and self._settled is None:
                wanted = self._agreed_steps()
                events.keep_last_gradient_only()
                self._settled = (time.process_time(), len(events.passes))
                self._taking_at_start = self._taking
                self._worker_cpu_at_start = worker_cpu_seconds()
            counted += done > self._warmup

    def report(self) -> dict[str, Any]:
        """What was seen, on all ranks."""
        job, own = self.job, self._own()
        self._events.remove()
        report = {
            "run": self.name,
            "world": job.ranks.world,
            "hosts": job.ranks.hosts,
            "device": self._device,
            "workers": workers_of(self._loader),
            "batch": getattr(self._loader, "batch_size", None),
            "cores": _cores(),
            "data_bytes": page_cache.total_bytes(job.files),
            "data_files": len(job.files),
            "samples": samples_of(self._loader),
            "is_cold": self.name in COLD,
            "is_warm": self._is_warm,
        }
        if self.name in SYNTHETIC and job.model is not None:
            report["communication"] = job.ranks.reduce_alone(job.model)
        report["ranks"] = job.ranks.gathered(own)
        return report

    def _loaded(self) -> Generator[Any, None, None]:
        """The loader's own batches, epoch after epoch, each with a cold or a warm cache."""
        while True:
            first = len(self._events.passes) - 1  # the pass that asks for a batch has begun
            self._prepare_cache()
            self._segments.append(first)
            yield from self._loader
            if len(self._events.passes) - 1 == first:
                raise InputError("the loader returned no batch: nothing to measure.")

    def _replayed(self) -> Generator[Any, None, None]:
        """The first batch for ever. The loader's workers are gone by then: synthetic data cost nothing."""
        self._segments.append(0)
        batches = iter(self._loader)
        try:
            batch = next(batches)
        except StopIteration:
            raise InputError("the loader returned no batch: nothing to measure.") from None
        del batches
        while True:
            yield _again(batch)

    def _prepare_cache(self) -> None:
        if self.job.files and self.job.ranks.is_first_on_host:
            if self.name in COLD:
                page_cache.drop(self.job.files)
            else:
                self._is_warm = page_cache.fill(self.job.files)
        self.job.ranks.wait()

    def _agreed_steps(self) -> int:
        """As many as were ordered, or as the time asks for and allows; the slowest rank decides."""
        parts = self._events.parts()[-3:]
        orders = self.job.orders
        slowest = self.job.ranks.largest(sum(map(sum, parts)) / max(1, len(parts)))
        if slowest <= 0:
            return max(FEWEST_STEPS, orders.steps)
        wanted = max(orders.steps, min(int(orders.least_seconds / slowest), self._left_of_epoch()))
        return max(FEWEST_STEPS, min(wanted, int(orders.seconds / slowest)))

    def _left_of_epoch(self) -> int:
        """Steps that can be had without starting the loader anew; a replayed batch never ends."""
        whole = None if self.name in SYNTHETIC else batches_of(self._loader)
        return sys.maxsize if whole is None else whole - self._warmup

    def _own(self) -> dict[str, Any]:
        """Passes that count: past the warm-up of their segment."""
        parts, updates = self._events.parts(), self._events.updates()
        ends = [*self._segments[1:], len(parts)]
        kept = [
            at
            for start, end in zip(self._segments, ends, strict=True)
            for at in range(start + self._warmup, end)
        ]
        cpu, since = self._settled or (0.0, 0)
        passes = len(self._events.passes) - since
        return {
            "passes": [parts[at] for at in kept],
            "updates": [updates[at] for at in kept],
            "cpu_seconds": (time.process_time() - cpu) / max(1, passes),
            "taking_seconds": (self._taking - self._taking_at_start) / max(1, passes),
            "worker_cpu_seconds": None
            if self._worker_cpu is None
            else self._worker_cpu / max(1, passes),
        }


def worker_cpu_seconds() -> dict[int, float]:
    """CPU seconds that each child process (a loader's worker) has used so far, where the system tells."""
    seconds = {}
    for child in multiprocessing.active_children():
        try:
            with open(f"/proc/{child.pid}/stat", encoding="ascii", errors="replace") as stream:
                words = stream.read().rpartition(")")[2].split()
            ticks = int(words[11]) + int(words[12])  # utime and stime, see proc(5)
            seconds[int(child.pid or 0)] = ticks / os.sysconf("SC_CLK_TCK")
        except (OSError, ValueError, IndexError):
            continue
    return seconds


def _cpu_between(before: dict[int, float], after: dict[int, float]) -> float | None:
    """None where the workers are not the same ones any more."""
    if not before or before.keys() != after.keys():
        return None
    return sum(after.values()) - sum(before.values())


def _again(batch: Any) -> Any:
    """The same tensors in fresh containers: a script may take a batch apart."""
    if isinstance(batch, dict):
        return type(batch)(batch)
    if isinstance(batch, list):
        return list(batch)
    return batch


def _cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _write_whole(folder: Path, reports: list[dict[str, Any]]) -> None:
    handle, name = tempfile.mkstemp(prefix=".", suffix=".part", dir=folder)
    with os.fdopen(handle, "w", encoding="utf-8") as stream:
        json.dump(reports, stream)
    os.replace(name, folder / "report.json")


# --- what a loader tells of itself, and the same with more workers; nothing here loads torch ---------------


def workers_of(loader: Any) -> int:
    """Processes that prepare batches; none where the loader prepares them when it is asked."""
    return int(getattr(loader, "num_workers", 0) or 0)


def prefetched_by(loader: Any) -> int:
    """Batches that its workers prepare ahead."""
    return workers_of(loader) * int(getattr(loader, "prefetch_factor", None) or 0)


def with_workers(loader: Any, count: int) -> Any | None:
    """The same data, sampler and batches from so many workers; the loader itself stays as it is.

    None unless it is a loader of PyTorch that has workers: only of those is it known that the number takes effect.
    """
    torch = sys.modules.get("torch")  # a script that did not load it has no loader of its
    if torch is None or workers_of(loader) == 0:
        return None
    if not isinstance(loader, torch.utils.data.DataLoader):
        return None
    changed = copy.copy(loader)
    changed.num_workers = count
    changed._iterator = None  # workers that persist are those of the loader it was copied from
    return changed


def batches_of(loader: Any) -> int | None:
    """Batches of an epoch, where the loader knows."""
    try:
        return len(loader)
    except TypeError:
        return None


def samples_of(loader: Any) -> int | None:
    """Samples of an epoch, where the loader knows."""
    try:
        return len(loader.dataset)
    except (AttributeError, TypeError):
        return None
