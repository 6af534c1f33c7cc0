"""The job: all the steps of a training run, what they take and what they cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Any

import numpy as np

from foretrain.analysis.goodput import HOUR, Interruptions, Risk, checkpoint_bytes
from foretrain.cluster.cluster import Cluster
from foretrain.cluster.node import Node
from foretrain.errors import InputError, refuse
from foretrain.keywords import JobWords
from foretrain.limits import shown
from foretrain.model.workload import Workload
from foretrain.units import (
    counted,
    parse_amount,
    parse_bandwidth,
    parse_seconds,
    rounded_seconds,
    show_count,
)

AMOUNTS = ("tokens", "samples", "steps", "epochs")
MOST = 1e21
"""of anything that is counted, and of USD: beyond any in use, and no sum of it overflows"""
_NO_PRICE = "job: cost unknown: no catalog price for these machines (--usd-per-hour)"
MOST_PUE = 10.0
"""power of a data centre over that of its computers: beyond any in use"""


@dataclass(frozen=True, slots=True)
class Length:
    """How much is trained: all samples, repetitions counted, and how it was said."""

    samples: float
    asked: str  # "15T tokens"


@dataclass(frozen=True, slots=True)
class JobTerms:
    """What a question says of its job, resolved. Without a length it is the step alone that has a price."""

    length: Length | None = None
    usd_per_device_hour: float | None = None
    pue: float | None = None
    risk: Risk = field(default_factory=Risk)

    def to_dict(self) -> dict[str, Any]:
        """What was said, as part of a question."""
        said = {
            "job": None if self.length is None else self.length.asked,
            "usd_per_device_hour": self.usd_per_device_hour,
            "pue": self.pue,
            "mtbf_hours": self.risk.machine_mtbf_hours,
            "restart_seconds": self.risk.restart_seconds,
            "checkpoint_rate": self.risk.checkpoint_rate,
        }
        return {name: value for name, value in said.items() if value is not None}

    def totals(
        self,
        workload: Workload,
        cluster: Cluster,
        step_seconds: float,
        interval: tuple[float, float],
        usd_per_hour: float | None,
    ) -> JobTotals | None:
        """Of a step that takes so long on a cluster at so much; None where no length is given."""
        if self.length is None:
            return None
        samples, devices = self.length.samples, cluster.device_count
        steps = max(1, ceil(samples / workload.global_batch - 1e-9))
        risk = self.risk.interruptions(checkpoint_bytes(workload), _machines(cluster))
        low, high = (risk.expected(steps * seconds) for seconds in interval)
        watts = _watts(cluster)
        return JobTotals(
            asked=self.length.asked,
            samples=samples,
            tokens=None if workload.seq_len is None else samples * workload.seq_len,
            steps=steps,
            devices=devices,
            compute_seconds=steps * step_seconds,
            expected_seconds=risk.expected(steps * step_seconds),
            interval_seconds=(low, high),
            interruptions=risk,
            usd_per_device_hour=None if usd_per_hour is None else usd_per_hour / devices,
            board_watts=watts,
            pue=self.pue,
            notes=(
                *(f"job: {line}" for line in self.risk.assumptions(is_spot=False)),
                *_energy_notes(watts, self.pue),
                *(() if usd_per_hour is not None else (_NO_PRICE,)),
            ),
        )


def length_of(
    amounts: Mapping[str, float | str | None],
    workload: Workload,
    batch: int | None,
    dataset_samples: float | None,
    faults: list[str],
    remedy: str,
) -> Length | None:
    """From one of `AMOUNTS`; what is wrong is added to `faults`. `remedy` says how to give the size of a dataset."""
    given = {name: amounts[name] for name in AMOUNTS if amounts.get(name) is not None}
    if len(given) != 1:
        faults.append(
            "length: specify one of tokens, samples, steps or epochs "
            f"({', '.join(given) or 'none'} given)."
        )
        return None
    ((name, text),) = given.items()
    value = _positive(name, text, faults)
    if value is None:
        return None
    asked = f"{_said(text)} {name}"
    if name == "samples":
        return Length(value, asked)
    if name == "tokens":
        if workload.seq_len is None:
            faults.append(
                f"tokens: samples of {workload.model.name} are not sequences; specify "
                "samples, steps or epochs."
            )
            return None
        return Length(value / workload.seq_len, asked)
    if name == "steps":
        if not value.is_integer():
            faults.append(f"steps: {_said(text)} is not a whole number.")
            return None
        if batch is None:
            faults.append(
                "steps: with a batch size per device, the work per step depends on the "
                "cluster; specify tokens, samples or epochs."
            )
            return None
        return Length(value * batch, asked)
    if dataset_samples is None:
        faults.append(f"epochs: the dataset size is unknown; {remedy}.")
        return None
    return Length(value * dataset_samples, asked)


def _said(text: float | str | None) -> str:
    if text is None or isinstance(text, str):
        return str(text).strip()
    return f"{text:g}" if text < 1e5 else show_count(text)


def _positive(name: str, given: float | str | None, faults: list[str]) -> float | None:
    """The amount, or None and a fault."""
    if given is None:
        return None
    try:
        value = parse_amount(given)
    except InputError as error:
        faults.append(f"{name}: {error}")
        return None
    if not 0 < value <= MOST:
        faults.append(f"{name}: {given} must be positive and at most {MOST:g}.")
        return None
    return value


def job_terms(words: JobWords, workload: Workload) -> JobTerms:
    """Resolve what is said of a job; everything that is wrong with it is told at once."""
    faults: list[str] = []
    given: Mapping[str, Any] = {name: value for name, value in words.items() if value is not None}
    size = _dataset(given, workload, faults)
    length = None
    if any(name in given for name in AMOUNTS):
        remedy = "specify dataset_samples or dataset_tokens (--dataset-samples, --dataset-tokens)"
        has_size = "dataset_samples" in given or "dataset_tokens" in given
        known = size if size is not None or not has_size else 1.0  # its own fault is told already
        length = length_of(given, workload, workload.global_batch, known, faults, remedy)
        faults += [
            f"{name}: has no effect without epochs (--epochs); the length is in other units."
            for name in ("dataset_samples", "dataset_tokens")
            if name in given and "epochs" not in given
        ]
    else:
        faults += [
            f"{name}: has no effect without a job length; specify tokens, samples, steps or epochs."
            for name in ("dataset_samples", "dataset_tokens", "pue", *_RISKS)
            if name in given
        ]
    price = _price(given.get("usd_per_hour"), faults)
    pue = _positive("pue", given.get("pue"), faults)
    if pue is not None and not 1.0 <= pue <= MOST_PUE:
        faults.append(f"pue: {given['pue']} must be between 1 and {MOST_PUE:g}.")
    risks = {name: _quantity(name, given.get(name), faults) for name in _RISKS}
    refuse("invalid job:", faults)
    mtbf = None if risks["mtbf"] is None else risks["mtbf"] / HOUR
    risk = Risk(mtbf, None, risks["checkpoint_rate"], risks["restart"])
    return JobTerms(length, price, pue, risk)


_RISKS = {"mtbf": parse_seconds, "restart": parse_seconds, "checkpoint_rate": parse_bandwidth}


def _quantity(name: str, given: float | str | None, faults: list[str]) -> float | None:
    """Seconds, or bytes/s, in words or as a number."""
    if given is None:
        return None
    try:
        value = _RISKS[name](given)
    except InputError as error:
        faults.append(f"{name}: {error}")
        return None
    if not 0 < value <= MOST:
        faults.append(f"{name}: {shown(given)} must be positive and at most {MOST:g}.")
        return None
    return value


def _dataset(given: Mapping[str, Any], workload: Workload, faults: list[str]) -> float | None:
    """Samples of a dataset."""
    samples = _positive("dataset_samples", given.get("dataset_samples"), faults)
    tokens = _positive("dataset_tokens", given.get("dataset_tokens"), faults)
    if "dataset_samples" in given and "dataset_tokens" in given:
        faults.append("dataset_samples and dataset_tokens are mutually exclusive.")
    if tokens is None:
        return samples
    if workload.seq_len is None:
        faults.append(
            f"dataset_tokens: samples of {workload.model.name} are not sequences; specify "
            "dataset_samples."
        )
        return None
    return tokens / workload.seq_len


def _price(given: float | str | None, faults: list[str]) -> float | None:
    if given is None:
        return None
    try:
        value = parse_amount(given.strip().removeprefix("$") if isinstance(given, str) else given)
    except InputError:
        value = -1.0
    if not 0 <= value <= MOST:
        faults.append(
            f"usd_per_hour: {shown(given)} is not a price; specify the price per device-hour, "
            "such as 2.50."
        )
        return None
    return value


@dataclass(frozen=True, slots=True)
class JobTotals:
    """What the whole job takes on a cluster. Seconds, USD, kWh; what is paid for is the expected time."""

    asked: str
    samples: float
    tokens: float | None
    steps: int
    devices: int
    compute_seconds: float  # all steps, nothing ever failing
    expected_seconds: float  # with failures, restarts and checkpoints
    interval_seconds: tuple[float, float]  # of the expected time, from that of the step
    interruptions: Interruptions
    usd_per_device_hour: float | None
    board_watts: float | None  # of all devices
    pue: float | None
    notes: tuple[str, ...] = ()  # what the totals rest on besides the step

    def __repr__(self) -> str:
        cost = "" if self.usd is None else f", ${self.usd:,.0f}"
        takes = f"{rounded_seconds(self.expected_seconds)} on {counted(self.devices, 'device')}"
        return f"<JobTotals: {self.asked}, {counted(self.steps, 'step')} in {takes}{cost}>"

    @property
    def goodput(self) -> float:
        """Share of the expected time that is work that lasts."""
        return self.compute_seconds / self.expected_seconds

    @property
    def device_hours(self) -> float:
        return self.devices * self.expected_seconds / HOUR

    @property
    def usd(self) -> float | None:
        price = self.usd_per_device_hour
        return None if price is None else price * self.device_hours

    @property
    def energy_kwh(self) -> float | None:
        """Of boards that draw all they may, with the data centre's part where it is known."""
        if self.board_watts is None:
            return None
        return self.board_watts * (self.pue or 1.0) * self.expected_seconds / HOUR / 1000.0

    def to_dict(self) -> dict[str, Any]:
        risk = self.interruptions
        return {
            "asked": self.asked,
            "samples": self.samples,
            "tokens": self.tokens,
            "steps": self.steps,
            "compute_days": self.compute_seconds / (24.0 * HOUR),
            "expected_days": self.expected_seconds / (24.0 * HOUR),
            "interval_days": [seconds / (24.0 * HOUR) for seconds in self.interval_seconds],
            "device_hours": self.device_hours,
            "usd": self.usd,
            "usd_per_device_hour": self.usd_per_device_hour,
            "energy_kwh": self.energy_kwh,
            "pue": self.pue,
            "goodput": {
                "share": self.goodput,
                "mtbf_hours": risk.mtbf / HOUR,
                "checkpoint_seconds": risk.checkpoint,
                "checkpoint_every_seconds": risk.interval(self.compute_seconds),
                "restart_seconds": risk.restart,
            },
        }


def _machines(cluster: Cluster) -> Sequence[tuple[Node, int]]:
    return [(run.node, run.count) for run in cluster.runs]


def _watts(cluster: Cluster) -> float | None:
    """Board power of all devices; None where a data sheet does not tell."""
    counts = np.bincount(np.asarray(cluster.device_kind), minlength=len(cluster.devices))
    watts = [device.tdp_watts for device in cluster.devices]
    known = [each for each in watts if each is not None]
    if len(known) < len(watts):
        return None
    return float(np.dot(counts, known))


def _energy_notes(watts: float | None, pue: float | None) -> tuple[str, ...]:
    if watts is None:
        return ()
    rest = "hosts, network and cooling are not included" if pue is None else f"times PUE {pue:g}"
    return (f"job: energy assumes that devices draw their TDP all the time; {rest} (--pue)",)
