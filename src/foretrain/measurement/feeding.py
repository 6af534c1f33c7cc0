"""Training and the loader that feeds it, as far as measured runs tell (after DS-Analyzer, VLDB'21).

DS-Analyzer takes speed = min(fetch rate, preparation rate, ingestion rate), which holds for loaders that read
and prepare in stages of their own. A worker of a PyTorch loader does one after the other, so its time for a batch is

    worker(x) = warm + (1 - x) * (cold - warm) / disk        x: cached fraction of the data

and a step takes the longest of
    training    T0 + exposed communication (T1 or T5 as measured) + taking a batch from the queue
    loading     fixed + worker(x) / workers
    storage     (1 - x) * storage / disk
    cores       (CPU time of training, preparing and reading a batch) * ranks of a host / cores of it

or, without workers, training + worker(x). Step and workers' seconds come from the runs that wait for the loader (T3, T2),
else from the loader alone (P, F). What more workers bring is seen by the loader with twice as many (P2, F2): what a
warm one does not gain is `fixed`, no worker shortens it (Amdahl 1967); what a cold one gains less than that, its storage
cannot give faster (`storage`), to however many readers. Where it lacked cores it tells neither, but how much of them a batch
takes, with what is lost where processes take turns. Communication of c seconds alone, of which h are hidden behind
computation, exposes c/k - h on a network k times as fast. The operating system keeps what was used last, and
epochs are read in random order, so it hits less often than x once x < 1; a cache that does not evict hits exactly x.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from foretrain.measurement.train_runs import TrainRun

ENOUGH = 1.01
"""A step that takes no more than this many times the training alone has no data stall."""
CROWDED = 0.9
"""From this share of the cores in use on, cores are what a loader waits for."""
SATURATES = 1.1
"""From this ratio of a cold loader's seconds to what its workers alone would take, storage is what sets them."""
IS_SATURATED = 0.95
"""From this ratio of its seconds with twice the workers to those as it is, storage sets these already."""


@dataclass(frozen=True, slots=True)
class LoaderPoint:
    """One configuration: seconds of a step and what sets them."""

    step_seconds: float
    bottleneck: str  # compute, prep, fetch, interconnect, network


@dataclass(frozen=True, slots=True)
class Feeding:
    """One rank's training and the loader that feeds it; seconds are of one step (one batch of the rank)."""

    alone: float  # T0: training without communication and loading
    communication: float  # seconds alone
    hidden: float  # of these, behind computation
    several_hosts: bool
    warm: float  # one worker, one batch, data in memory: what more workers share
    cold: float  # the same, data on the disk
    workers: int
    cores: float  # of the host, for one rank
    training_cpu: float  # CPU seconds of the training process, on real data
    prep_cpu: float  # CPU seconds of preparing one batch
    fixed: float = 0.0  # of a batch, whatever the workers
    storage: float = 0.0  # of the disk for one batch, however many read
    taking: float = 0.0  # of the training process to take one batch
    fetch_cpu: float = 0.0  # CPU seconds of reading one batch from the disk
    cached: float = 0.0

    @property
    def training(self) -> float:
        """With data that are always there."""
        return self.alone + max(0.0, self.communication - self.hidden) + self.taking

    @property
    def worker(self) -> float:
        return self.warm + (1.0 - self.cached) * max(0.0, self.cold - self.warm)

    def with_(
        self,
        *,
        cached: float | None = None,
        workers: int | None = None,
        cores: float | None = None,
        disk: float = 1.0,
        network: float = 1.0,
    ) -> Feeding:
        """The same with something changed; `disk` and `network` are factors of speed."""
        return replace(
            self,
            cached=self.cached if cached is None else cached,
            workers=self.workers if workers is None else workers,
            cores=self.cores if cores is None else cores,
            cold=self.warm + max(0.0, self.cold - self.warm) / disk,
            storage=self.storage / disk,
            communication=self.communication / network,
        )

    @property
    def step_seconds(self) -> float:
        if self.workers == 0:
            return self.training + self.worker
        storage = (1.0 - self.cached) * self.storage
        cores = self._cpu / self.cores
        return max(self.training, self.fixed + self.worker / self.workers, storage, cores)

    @property
    def _cpu(self) -> float:
        reading = (1.0 - self.cached) * self.fetch_cpu
        return self.training_cpu + self.prep_cpu + reading

    def point(self) -> LoaderPoint:
        """The step, and what takes most of it: stalls as the protocol tells them apart."""
        step, warm = self.step_seconds, replace(self, cached=1.0).step_seconds
        parts = {
            "compute": self.alone,
            "network" if self.several_hosts else "interconnect": self.training
            - self.taking
            - self.alone,
            "prep": warm - self.training + self.taking,
            "fetch": step - warm,
        }
        return LoaderPoint(step, max(parts, key=lambda name: parts[name]))

    def has_data_stall(self) -> bool:
        return self.step_seconds > self.training * ENOUGH

    def smallest_cache(self) -> float | None:
        """The least cached fraction without a data stall, None if even all of it is not enough."""
        if self.with_(cached=1.0).has_data_stall():
            return None
        low, high = 0.0, 1.0
        if not self.with_(cached=0.0).has_data_stall():
            return 0.0
        while high - low > 1e-4:
            middle = (low + high) / 2
            if self.with_(cached=middle).has_data_stall():
                low = middle
            else:
                high = middle
        return high

    def fewest_workers(self) -> int | None:
        """The fewest workers (and cores for them beside training) without a data stall; None: no number of them."""
        enough = self.training * ENOUGH - self.fixed
        if enough <= 0 or (1.0 - self.cached) * self.storage > self.training * ENOUGH:
            return None
        return max(1, math.ceil(self.worker / enough))

    def cores_needed(self) -> float | None:
        """Cores for one rank so that preparing never waits for one: its workers' busy share and training's own."""
        if self.training <= 0:
            return None
        return self._cpu / self.training


def feeding(runs: Mapping[str, TrainRun]) -> Feeding | None:
    """What the runs say; None without a run on synthetic data and one of the loader (P, or T3)."""
    trained = runs.get("T5") or runs.get("T1") or runs.get("T0")
    loader = runs.get("P") or runs.get("T3")
    if trained is None or loader is None:
        return None
    alone = runs.get("T0", trained)
    whole = trained.step_seconds
    exposed = max(0.0, whole - alone.step_seconds)
    reduction = trained.facts.get("communication") or {}
    communication = max(float(reduction.get("seconds", 0.0)), exposed)
    world, hosts = int(trained.facts.get("world") or 1), int(trained.facts.get("hosts") or 1)
    workers = int(loader.facts.get("workers") or 0)
    real = runs.get("T3", trained) if workers else trained  # without workers it prepares, too
    trains = Feeding(
        alone=whole - exposed,
        communication=communication,
        hidden=communication - exposed,
        several_hosts=hosts > 1,
        warm=0.0,
        cold=0.0,
        workers=workers,
        cores=float(trained.facts.get("cores") or 1) / max(1, world // hosts),
        training_cpu=float(real.facts.get("cpu_seconds") or 0.0),
        prep_cpu=0.0,
    )
    return _fed(trains, runs)


def _fed(trains: Feeding, runs: Mapping[str, TrainRun]) -> Feeding:
    """Training, with the loader that the runs tell of."""
    warm = _batch_seconds(trains, runs, "P", "T3") or 0.0
    cold = max(warm, _batch_seconds(trains, runs, "F", "T2") or 0.0)
    if trains.workers == 0:
        return replace(trains, warm=warm, cold=cold, prep_cpu=warm)
    cores = trains.cores
    fixed = warm * _fixed_share(runs, cores)
    fed = replace(
        trains,
        warm=trains.workers * (warm - fixed),
        cold=trains.workers * (cold - fixed),
        fixed=fixed,
        taking=_taking(trains, runs),
        prep_cpu=_core_seconds(runs, cores, "P2", "P", "T3") or warm * trains.workers,
    )
    reading = (_core_seconds(runs, cores, "F2", "F", "T2") or 0.0) - fed.prep_cpu
    return _stored(replace(fed, fetch_cpu=max(0.0, reading)), runs)


def _batch_seconds(
    trains: Feeding, runs: Mapping[str, TrainRun], alone: str, training: str
) -> float | None:
    """Seconds from one batch to the next: of training that waits for them, else of the loader alone."""
    seconds = runs[training].step_seconds if training in runs else 0.0
    if trains.workers == 0 and training in runs:
        return max(0.0, seconds - trains.training)
    loader = runs[alone].step_seconds if alone in runs else math.inf
    if loader > trains.training and seconds > 0:
        return seconds
    return loader if alone in runs else None


def _fixed_share(runs: Mapping[str, TrainRun], cores: float) -> float:
    """Of a warm batch, what twice the workers do not halve; what they lack cores for does not count."""
    if "P" not in runs or "P2" not in runs or _busy(runs["P2"], cores) > CROWDED:
        return 0.0
    once, twice = runs["P"].step_seconds, runs["P2"].step_seconds
    return min(1.0, max(0.0, 2.0 * twice / once - 1.0)) if once > 0 else 0.0


def _stored(fed: Feeding, runs: Mapping[str, TrainRun]) -> Feeding:
    """With the storage that twice the workers ran into.

    Where the loader as it is does so too, what its workers wait for is the storage: of their own they spend CPU time alone.
    """
    if "F" not in runs or "F2" not in runs or _busy(runs["F2"], fed.cores) > CROWDED:
        return fed
    once, twice = (fed.fixed + fed.cold / count for count in (fed.workers, 2 * fed.workers))
    slowdown = (
        runs["F2"].step_seconds / runs["F"].step_seconds if runs["F"].step_seconds > 0 else 0.0
    )
    if slowdown * once <= SATURATES * twice:
        return fed
    if slowdown < IS_SATURATED:
        return replace(fed, storage=slowdown * once)
    return replace(fed, storage=once, cold=min(fed.cold, fed.warm + fed.fetch_cpu))


def _busy(run: TrainRun, cores: float) -> float:
    """Share of the cores that the loader alone kept busy: its workers, and the process that asks."""
    seconds = (run.facts.get("worker_cpu_seconds") or 0.0) + (run.facts.get("cpu_seconds") or 0.0)
    return seconds / (cores * run.step_seconds) if run.step_seconds > 0 else 0.0


def _taking(trains: Feeding, runs: Mapping[str, TrainRun]) -> float:
    """CPU time of the loop for a batch that is there; no more than real data cost a step in all."""
    taken = runs["P"].facts.get("taking_seconds") if "P" in runs else None
    if not taken or "T3" not in runs:
        return 0.0
    return min(float(taken), max(0.0, runs["T3"].step_seconds - trains.training))


def _core_seconds(runs: Mapping[str, TrainRun], cores: float, *names: str) -> float | None:
    """What workers take of the cores for a batch, of the first run that tells: with more of them each may be slower.

    That is their CPU time, or where no core was idle, all that the process which asks did not take.
    """
    for run in (runs[name] for name in names if name in runs):
        seconds = run.facts.get("worker_cpu_seconds")
        if seconds is None:
            continue
        if _busy(run, cores) > CROWDED:
            asking = run.facts.get("cpu_seconds") or 0.0
            return max(float(seconds), cores * run.step_seconds - asking)
        return float(seconds)
    return None
