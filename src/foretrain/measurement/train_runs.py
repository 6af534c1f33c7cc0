"""One run of the stall protocol, from what its launches told: seconds of a step, how sure, and its parts.

A loader with several workers hands out batches in bursts, so single steps say little: steps are averaged in blocks,
the median of the blocks of all launches is the run's step, and blocks (within launches) are drawn anew to see how far
that could have come out otherwise (bootstrap; Efron 1979).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from foretrain.arrays import Bools, Floats
from foretrain.errors import InputError
from foretrain.measurement.machine import Machine
from foretrain.measurement.records import Measurement, median_and_spread, now
from foretrain.measurement.step_events import PARTS
from foretrain.measurement.store import Store

DRAWS = 400
SEED = 20_231_001
LEVEL = 0.95
BLOCKS = 5  # of a sitting


@dataclass(frozen=True, slots=True)
class TrainRun:
    """A run (T0 …) over all its launches."""

    name: str
    step_seconds: float
    interval: tuple[float, float]
    parts: Mapping[
        str, float
    ]  # seconds of PARTS and `imbalance` (within wait); PARTS sum to the step
    draws: tuple[float, ...] = field(repr=False)  # the step as it could have come out
    steps: int = 0
    sittings: tuple[float, ...] = ()  # the step in each launch and round, in their order
    spread: float = 0.0  # relative, one standard deviation of a block, robustly
    facts: Mapping[str, Any] = field(default_factory=dict)  # world, hosts, workers, batch, cores …

    def to_dict(self) -> dict[str, Any]:
        return {
            "step_seconds": self.step_seconds,
            "interval": list(self.interval),
            "spread": self.spread,
            "steps": self.steps,
            "sittings": list(self.sittings),
            "parts": dict(self.parts),
            **dict(self.facts),
        }


def train_run(name: str, launches: Sequence[Mapping[str, Any]]) -> TrainRun:
    """A run from the documents that its launches wrote."""
    if not launches:
        raise InputError(f"{name}: no launch of this run reported results.")
    tables = [_steps(launch) for launch in launches]
    width = max(1, int(launches[0].get("workers") or 0))
    blocks = [_blocks(table.sum(axis=2).mean(axis=0), width) for table in tables]
    step = float(np.median(np.concatenate(blocks)))
    draws = _resampled(blocks, name)
    return TrainRun(
        name,
        step,
        interval(draws, step),
        _parts(tables, step),
        tuple(draws.tolist()),
        steps=sum(table.shape[1] for table in tables),
        sittings=tuple(float(np.median(one)) for one in blocks),
        spread=median_and_spread(np.concatenate(blocks).tolist())[1],
        facts=_facts(launches),
    )


def interval(draws: Floats, value: float) -> tuple[float, float]:
    """Where `LEVEL` of the draws lie, and the value itself."""
    low, high = np.quantile(draws, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(min(low, value)), float(max(high, value))


def _steps(launch: Mapping[str, Any]) -> Floats:
    """[rank, step, part]: passes up to and with an update are one step; without any, each pass is."""
    ranks = launch["ranks"]
    ends = np.asarray(ranks[0]["updates"], dtype=bool)
    tables = [np.asarray(rank["passes"], dtype=np.float64) for rank in ranks]
    passes = min(len(table) for table in tables)
    if passes == 0:
        raise InputError(f"{launch.get('run')}: no step was timed; the run was too short.")
    if not ends[:passes].any():
        ends = np.ones(passes, dtype=bool)
    owner = np.concatenate([[0], np.cumsum(ends[: passes - 1])])
    # the first pass that counts may be in the midst of a step, and the last may not be its end
    whole = int(ends[:passes].sum())
    skip = _cut_short(ends[:passes])
    out = np.zeros((len(tables), whole, len(PARTS)))
    for rank, table in enumerate(tables):
        for at in range(passes):
            if owner[at] < whole:
                out[rank, owner[at]] += table[at]
    return out[:, skip:] if whole > skip else out


def _cut_short(ends: Bools) -> int:
    """1 where the first step has fewer passes than the next ones."""
    at = np.flatnonzero(ends)
    return int(len(at) > 1 and at[0] + 1 < at[1] - at[0])


def _blocks(steps: Floats, width: int) -> Floats:
    """Means of equally long blocks, each a multiple of `width` steps where there are enough of them.

    As long as leaves `BLOCKS` of them: storage, too, gives in bursts, and a short block sees one or none.
    """
    size = min(width * max(1, len(steps) // (BLOCKS * width)), len(steps))
    count = len(steps) // size
    return np.asarray(steps[: count * size].reshape(count, size).mean(axis=1))


def _resampled(blocks: Sequence[Floats], name: str) -> Floats:
    """Medians of blocks drawn anew within launches, launches drawn anew among themselves."""
    rng = np.random.default_rng([SEED, *name.encode()])
    out = np.empty(DRAWS)
    for at in range(DRAWS):
        chosen = rng.integers(0, len(blocks), len(blocks))
        taken = [rng.choice(blocks[c], len(blocks[c])) for c in chosen]
        out[at] = np.median(np.concatenate(taken))
    return out


def _parts(tables: Sequence[Floats], step: float) -> dict[str, float]:
    """Means over ranks and steps, brought to the step that is reported; what ranks wait for each other apart."""
    every = np.concatenate([table.mean(axis=0) for table in tables])
    mean = every.mean(axis=0)
    scale = step / float(mean.sum()) if mean.sum() > 0 else 1.0
    parts = {part: float(value * scale) for part, value in zip(PARTS, mean, strict=True)}
    wait = PARTS.index("wait")
    # The rank that comes last waits for the exchange alone; what others wait longer is for it.
    late = [table[:, :, wait] - table[:, :, wait].min(axis=0) for table in tables]
    parts["imbalance"] = float(np.concatenate([x.mean(axis=0) for x in late]).mean() * scale)
    return parts


def _facts(launches: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    first = launches[0]
    names = ("world", "hosts", "device", "workers", "batch", "cores", "data_bytes", "data_files", "samples")  # fmt: skip
    facts: dict[str, Any] = {name: first.get(name) for name in names}
    facts["is_cold"] = all(launch.get("is_cold") for launch in launches)
    facts["is_warm"] = all(launch.get("is_warm", True) for launch in launches)
    for name in ("cpu_seconds", "taking_seconds", "worker_cpu_seconds"):
        every = [rank.get(name) for launch in launches for rank in launch["ranks"]]
        known = [value for value in every if value is not None]
        facts[name] = float(np.median(known)) if known else None
    reduced = [launch["communication"] for launch in launches if launch.get("communication")]
    if reduced:
        seconds = float(np.median([one["seconds"] for one in reduced]))
        facts["communication"] = {**reduced[0], "seconds": seconds}
    return facts


def keep_runs(document: Mapping[str, Any], path: str | Path | None = None) -> int:
    """Keep every run of a `measure train` document, all or none; how many."""
    here, at = Machine.here(), now()
    rows = [
        Measurement(
            "train",
            {"command": document["command"], "run": name},
            float(run["step_seconds"]),
            float(run["spread"]),
            int(run["steps"]),
            here,
            at,
            about={**run, "stalls": document["stalls"], "explained_run": document["explained_run"]},
        )
        for name, run in document["runs"].items()
    ]
    with Store.open(path) as store:
        store.add(*rows)
    return len(rows)
