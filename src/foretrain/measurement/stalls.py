"""Stalls from differences of runs (Sharma et al. ICDCS 2023, Mohan et al. VLDB 2021, with corrected formulas).

    fetch = T2 - T3                real data, cold against warm page cache
    prep = T3 - T1                 real data against one batch replayed (T5 where there are several hosts)
    network = T5 - T1              several hosts against one
    interconnect = T1 - T0         all devices against one, at the same batch per device
    T0 = compute + optimizer + host, by the step's own events

Time that ranks wait for the slowest one is taken out of the communication they would be counted as. What is
published as Stash subtracts the preparation stall from T2, which leaves the computation in the fetch stall, and
relates stalls to different wholes; here every stall is seconds of one step, and they sum to it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from foretrain.analysis.prediction import STALLS
from foretrain.errors import InputError
from foretrain.measurement.train_runs import TrainRun, interval


@dataclass(frozen=True, slots=True)
class Breakdown:
    """One measured step and where it goes; `stalls` has the names of a prediction's and sums to the step."""

    real: str  # the run that is explained: T2, T3, T5, T1 or T0
    step_seconds: float
    interval: tuple[float, float]
    stalls: Mapping[str, float]
    intervals: Mapping[str, tuple[float, float]]
    warnings: tuple[str, ...] = ()

    @property
    def bottleneck(self) -> str:
        return max(self.stalls, key=lambda name: self.stalls[name])


def breakdown(runs: Mapping[str, TrainRun], *, cache: str = "cold") -> Breakdown:
    """The stalls of the most real run there is; `cache="warm"` explains T3 even where there is a T2."""
    real = _real(runs, cache)
    steps = {name: run.step_seconds for name, run in runs.items()}
    stalls = _split(steps, runs, real)
    draws = [
        _split({name: run.draws[at] for name, run in runs.items()}, runs, real)
        for at in range(min(len(run.draws) for run in runs.values()))
    ]
    return Breakdown(
        real,
        runs[real].step_seconds,
        runs[real].interval,
        stalls,
        {name: interval(np.array([draw[name] for draw in draws]), stalls[name]) for name in STALLS},
        tuple(_warnings(runs, real)),
    )


def by_events(run: TrainRun) -> dict[str, float]:
    """The same step as its own events tell it: a check that needs no second run."""
    imbalance = min(run.parts["imbalance"], run.parts["wait"])
    several = (run.facts.get("hosts") or 1) > 1
    stalls = dict.fromkeys(STALLS, 0.0)
    stalls["optimizer"], stalls["host"] = run.parts["optimizer"], run.parts["host"]
    stalls["imbalance"] = imbalance
    if (run.facts.get("world") or 1) > 1:
        stalls["network" if several else "interconnect"] = run.parts["wait"] - imbalance
    stalls["prep"] = run.parts["data"]  # preparation and fetching: events cannot tell them apart
    return _closed(stalls, run.step_seconds)


def _real(runs: Mapping[str, TrainRun], cache: str) -> str:
    order = ("T3", "T5", "T1", "T0") if cache == "warm" else ("T2", "T3", "T5", "T1", "T0")
    for name in order:
        if name in runs:
            return name
    raise InputError("no run has been measured: one of T0, T1, T2, T3 and T5 is needed.")


def _split(steps: Mapping[str, float], runs: Mapping[str, TrainRun], real: str) -> dict[str, float]:
    """Down from the real step: each difference takes what the run below leaves, never less than nothing."""
    stalls = dict.fromkeys(STALLS, 0.0)
    left = steps[real]
    synthetic = "T5" if "T5" in steps else "T1" if "T1" in steps else "T0"
    if real == "T2" and "T3" in steps:
        left = _take(stalls, "fetch", left, steps["T3"])
    if real in ("T2", "T3") and synthetic in steps:
        # without a warm run the two cannot be told apart: all of it is counted as preparation
        left = _take(stalls, "prep", left, steps[synthetic])
    one_host = "T1" if "T1" in steps else "T0"  # with one device on each host they are the same run
    if "T5" in steps and one_host in steps:
        left = _take(stalls, "network", left, steps[one_host])
    if "T1" in steps and "T0" in steps:
        left = _take(stalls, "interconnect", left, steps["T0"])
    base = runs["T0"] if "T0" in runs else runs.get(synthetic, runs[real])
    _own_events(stalls, base, left)
    if synthetic in runs:
        _imbalance(stalls, runs[synthetic].parts["imbalance"])
    return _closed(stalls, steps[real])


def _take(stalls: dict[str, float], name: str, left: float, below: float) -> float:
    stalls[name] = max(0.0, left - below)
    return left - stalls[name]


def _own_events(stalls: dict[str, float], base: TrainRun, left: float) -> None:
    """What remains is split as the events of the lowest run say; without T0 that still holds communication."""
    scale = left / base.step_seconds if base.step_seconds > 0 else 0.0
    stalls["optimizer"] = base.parts["optimizer"] * scale
    stalls["host"] = base.parts["host"] * scale
    if base.name in ("T2", "T3"):
        stalls["prep"] += base.parts["data"] * scale
    else:
        stalls["host"] += base.parts["data"] * scale  # a batch that is at hand: the loop's own cost
    if base.name != "T0" and (base.facts.get("world") or 1) > 1:
        several = (base.facts.get("hosts") or 1) > 1
        stalls["network" if several else "interconnect"] += base.parts["wait"] * scale


def _imbalance(stalls: dict[str, float], seconds: float) -> None:
    """Waiting for the slowest rank looks like communication; it is taken out of that, at most all of it."""
    for name in ("network", "interconnect"):
        part = min(seconds, stalls[name])
        stalls[name] -= part
        stalls["imbalance"] += part
        seconds -= part


def _closed(stalls: dict[str, float], step: float) -> dict[str, float]:
    """What is not a stall is computation, so that all sum to the step."""
    others = math.fsum(value for name, value in stalls.items() if name != "compute")
    stalls["compute"] = max(0.0, step - others)
    return stalls


def _warnings(runs: Mapping[str, TrainRun], real: str) -> list[str]:
    warnings = []
    if real == "T3" and "T2" not in runs:
        warnings.append(
            "No run with a cold cache, so fetch is unknown. Specify the training data with "
            "--data or watch(data=…)."
        )
    if "T3" in runs and not runs["T3"].facts.get("is_warm", True):
        warnings.append("The data does not fit in memory: the warm run was not fully cached.")
    if "T0" not in runs and (runs[real].facts.get("world") or 1) > 1:
        warnings.append(
            "No run on one device: communication is the time ranks waited after their own "
            "backward pass."
        )
    order = [name for name in ("T0", "T1", "T5", "T3", "T2") if name in runs]
    for low, high in itertools.pairwise(order):
        if runs[high].interval[1] < runs[low].interval[0]:
            warnings.append(
                f"{high} was faster than {low}, although it does more work: the machine had "
                "other load. Measure again, or with more --repeats."
            )
    loud = [name for name in order if runs[name].spread > 0.1]
    if loud:
        warnings.append(
            f"Step times of {', '.join(loud)} vary by more than 10 %: the machine had other load."
        )
    return warnings


def document(breakdown: Breakdown, runs: Mapping[str, TrainRun]) -> dict[str, Any]:
    """The part of the `measure train` document that the runs give."""
    return {
        "step_seconds": breakdown.step_seconds,
        "interval": list(breakdown.interval),
        "stalls": dict(breakdown.stalls),
        "stall_intervals": {name: list(ends) for name, ends in breakdown.intervals.items()},
        "bottleneck": breakdown.bottleneck,
        "explained_run": breakdown.real,
        "by_events": by_events(runs[breakdown.real]),
        "runs": {name: run.to_dict() for name, run in runs.items()},
        "warnings": list(breakdown.warnings),
    }
