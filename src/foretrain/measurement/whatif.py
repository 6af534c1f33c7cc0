"""What would change the speed of a measured run: cache, workers and cores, disk, network (after DS-Analyzer, VLDB'21).

DS-Analyzer takes speed = min(fetch rate, preparation rate, ingestion rate), which holds for loaders that read
and prepare in stages of their own. A worker of a PyTorch loader does one after the other, so its time for a batch is

    worker(x) = warm + (1 - x) * (cold - warm) / disk        x: cached fraction of the data

and a step takes the longest of
    training    T0 + exposed communication                    (T1 or T5 as measured)
    loading     worker(x) / workers
    cores       (CPU time of training + of preparing a batch) * ranks of a host / cores of it

or, without workers, training + worker(x). `warm` and `cold` come from the runs that wait for the loader (T3, T2), else
from the loader alone (P, F), times its workers; CPU time is what the system charged to training and workers. Communication of c seconds alone, of which h are hidden behind computation, exposes c/k - h on a network k times
as fast. The operating system keeps what was used last, and epochs are read in random order, so it hits less often
than x once x < 1; a cache that does not evict hits exactly x.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from foretrain.errors import InputError, did_you_mean
from foretrain.measurement.train_runs import TrainRun

__all__ = ["Feeding", "Point", "changed", "feeding", "feeding_of", "whatif_document"]

ENOUGH = 1.01
"""A step that takes no more than this many times the training alone has no data stall."""
WAITS = 1.1
"""From this ratio of a step on real data to one on a replayed batch on, the loader is what sets it."""
FRACTIONS = (0.0, 0.25, 0.5, 0.75, 0.9, 1.0)
FACTORS = (2.0, 4.0, 10.0)


@dataclass(frozen=True, slots=True)
class Point:
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
    warm: float  # one worker, one batch, data in memory
    cold: float  # the same, data on the disk
    workers: int
    cores: float  # of the host, for one rank
    training_cpu: float  # CPU seconds of the training process
    prep_cpu: float  # CPU seconds of preparing one batch
    cached: float = 0.0

    @property
    def training(self) -> float:
        return self.alone + max(0.0, self.communication - self.hidden)

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
            communication=self.communication / network,
        )

    @property
    def step_seconds(self) -> float:
        if self.workers == 0:
            return self.training + self.worker
        cores = (self.training_cpu + self.prep_cpu) / self.cores
        return max(self.training, self.worker / self.workers, cores)

    def point(self) -> Point:
        """The step, and what takes most of it: stalls as the protocol tells them apart."""
        step, warm = self.step_seconds, replace(self, cached=1.0).step_seconds
        parts = {
            "compute": self.alone,
            "network" if self.several_hosts else "interconnect": self.training - self.alone,
            "prep": warm - self.training,
            "fetch": step - warm,
        }
        return Point(step, max(parts, key=lambda name: parts[name]))

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
        """The fewest workers (and cores for them beside training) without a data stall."""
        enough = self.training * ENOUGH
        return max(1, math.ceil(self.worker / enough)) if enough > 0 else None

    def cores_needed(self) -> float | None:
        """Cores for one rank so that preparing never waits for one: its workers' busy share and training's own."""
        if self.training <= 0:
            return None
        return (self.training_cpu + self.prep_cpu) / self.training


def feeding(runs: Mapping[str, TrainRun]) -> Feeding | None:
    """What the runs say; None without a run on synthetic data and one of the loader (P, or T3)."""
    trained = runs.get("T5") or runs.get("T1") or runs.get("T0")
    loader = runs.get("P") or runs.get("T3")
    if trained is None or loader is None:
        return None
    alone = runs.get("T0", trained)
    whole = trained.step_seconds
    exposed = max(0.0, whole - alone.step_seconds)
    told = trained.facts.get("communication") or {}
    communication = max(float(told.get("seconds", 0.0)), exposed)
    workers = int(loader.facts.get("workers") or 0)
    warm = _worker_seconds(runs, "P", "T3", workers, whole) or 0.0
    cold = _worker_seconds(runs, "F", "T2", workers, whole) or 0.0
    prep_cpu = loader.facts.get("worker_cpu_seconds")
    world, hosts = int(trained.facts.get("world") or 1), int(trained.facts.get("hosts") or 1)
    return Feeding(
        alone=whole - exposed,
        communication=communication,
        hidden=communication - exposed,
        several_hosts=hosts > 1,
        warm=warm,
        cold=max(cold, warm),
        workers=workers,
        cores=float(trained.facts.get("cores") or 1) / max(1, world // hosts),
        training_cpu=float(trained.facts.get("cpu_seconds") or 0.0),
        prep_cpu=warm if prep_cpu is None else float(prep_cpu),
    )


def _worker_seconds(
    runs: Mapping[str, TrainRun], alone: str, training: str, workers: int, step: float
) -> float | None:
    """One worker's seconds for a batch: from training that waits for it, else from the loader alone."""
    seconds = runs[training].step_seconds if training in runs else 0.0
    if workers == 0 and training in runs:
        return max(0.0, seconds - step)
    if seconds > WAITS * step or (seconds > 0 and alone not in runs):
        return seconds * workers
    return runs[alone].step_seconds * max(1, workers) if alone in runs else None


def whatif_document(runs: Mapping[str, TrainRun]) -> dict[str, Any] | None:
    """Speed and bottleneck over cached fraction, workers, disk and network; what removes the data stall."""
    found = feeding(runs)
    if found is None:
        return None
    counts = sorted({1, 2, 4, 8, max(1, found.workers), 2 * max(1, found.workers)})
    return {
        "now": _row(found),
        "cached_fraction": [{"cached": x, **_row(found.with_(cached=x))} for x in FRACTIONS],
        "workers": [{"workers": n, **_row(found.with_(workers=n))} for n in counts],
        "workers_warm": [
            {"workers": n, **_row(found.with_(workers=n, cached=1.0))} for n in counts
        ],
        "cores": [
            {"cores": found.cores * k, **_row(found.with_(cores=found.cores * k, cached=1.0))}
            for k in (1.0, *FACTORS)
        ],
        "disk": [{"factor": k, **_row(found.with_(disk=k))} for k in FACTORS],
        "network": [{"factor": k, **_row(found.with_(network=k))} for k in FACTORS],
        "smallest_cached_fraction": found.smallest_cache(),
        "smallest_cache_bytes": _cache_bytes(found, runs),
        "fewest_workers_cold": found.with_(cached=0.0).fewest_workers(),
        "fewest_workers_warm": found.with_(cached=1.0).fewest_workers(),
        "cores_per_rank": found.cores_needed(),
        "worker_seconds_warm": found.warm,
        "worker_seconds_cold": found.cold,
        "communication_seconds_alone": found.communication,
        "feeding": asdict(found),
    }


def feeding_of(document: Any, name: str = "the document") -> Feeding:
    """What a `measure train` document says."""
    told = document.get("what_if") if isinstance(document, Mapping) else None
    told = told.get("feeding") if isinstance(told, Mapping) else None
    if not isinstance(told, Mapping):
        raise InputError(f"{name} is not what `measure train` wrote, or has no run of the loader.")
    faults = [
        f"what_if.feeding.{field.name}: {told.get(field.name)!r} is not a number, zero or more."
        for field in fields(Feeding)
        if not _is_amount(told.get(field.name))
    ]
    if faults:
        raise InputError(f"{name} cannot be used:", faults=faults)
    return Feeding(**{field.name: told[field.name] for field in fields(Feeding)})


CHANGES = ("cached", "workers", "cores", "disk", "network")


def changed(found: Feeding, changes: Mapping[str, Any]) -> Feeding:
    """`{"workers": 8, "disk": "2x"}` applied; every wrong one is named."""
    faults, wanted = [], {}
    for name, value in changes.items():
        if name not in CHANGES:
            known = ", ".join(CHANGES)
            faults.append(f"{name}: unknown.{did_you_mean(name, CHANGES)} Known: {known}.")
            continue
        number = _amount(value)
        if (
            number is None
            or (name == "cached" and number > 1)
            or (name != "cached" and number == 0)
        ):
            faults.append(f"{name}: {value!r} is not usable; write for example {_EXAMPLE[name]}.")
        elif name == "workers" and not number.is_integer():
            faults.append(f"workers: {value!r} is not a whole number.")
        else:
            wanted[name] = number
    if faults:
        raise InputError("this change is not understood:", faults=faults)
    workers = wanted.pop("workers", None)
    return found.with_(**wanted, workers=None if workers is None else int(workers))


_EXAMPLE = {
    "cached": "cached=0.5",
    "workers": "workers=8",
    "cores": "cores=4",
    "disk": "disk=2x",
    "network": "network=2x",
}


def _amount(value: Any) -> float | None:
    if isinstance(value, str):
        try:
            value = float(value.removesuffix("x"))
        except ValueError:
            return None
    return float(value) if _is_amount(value) else None


def _is_amount(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value) and value >= 0


def _row(found: Feeding) -> dict[str, Any]:
    point = found.point()
    return {"step_seconds": point.step_seconds, "bottleneck": point.bottleneck}


def _cache_bytes(found: Feeding, runs: Mapping[str, TrainRun]) -> float | None:
    share = found.smallest_cache()
    sizes = [float(run.facts.get("data_bytes") or 0.0) for run in runs.values()]
    return None if share is None or not any(sizes) else share * max(sizes)
