"""Offers: which machines, how many of them, and what the job takes and costs there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from foretrain.analysis.goodput import HOUR, Interruptions, Risk
from foretrain.cluster.cluster import Cluster
from foretrain.cluster.node import Node
from foretrain.model.ops import training_flops
from foretrain.model.precision import precision as precision_of
from foretrain.recommendation.data import DataLoading, Epochs, epochs, feeding, with_loading
from foretrain.recommendation.job import Job
from foretrain.recommendation.market import billed_hours, startup_seconds
from foretrain.recommendation.prices import Quota, Tariff, matches
from foretrain.resolving.defaults import precision_for
from foretrain.units import rounded_seconds


@dataclass(frozen=True)
class Candidate:
    """So many machines of a kind, bought in one way."""

    instance: str
    node: Node
    count: int
    usd_per_hour: float  # of all machines
    price_date: str
    is_spot: bool = False

    def __repr__(self) -> str:
        return f"<Candidate {self.count} x {self.instance}: ${self.usd_per_hour:,.2f} per hour>"

    @property
    def devices(self) -> int:
        return self.node.device_count * self.count

    @property
    def cluster(self) -> Cluster:
        return Cluster.of(f"{self.count} x {self.instance}")

    @property
    def hardware(self) -> tuple[Any, ...]:
        """What a plan's time depends on, samples apart: equal for machines that differ in hosts or price alone."""
        outside = self.node.nics if self.count > 1 else None
        memory = self.node.host.memory_bandwidth
        return self.node.devices, self.node.interconnect, outside, memory


@dataclass(frozen=True)
class Terms:
    """How machines are bought and how many may be had."""

    buying: str = "on-demand"
    quotas: tuple[Quota, ...] = ()
    most_devices: int = 512
    most_machines: int = 64  # where no quota says otherwise
    storage: float | None = None
    risk: Risk = field(default_factory=Risk)
    startup: float | None = None  # seconds from the order to the first step; None: as published
    discount: float = 0.0  # off the catalog's prices

    @property
    def startup_hours(self) -> float:
        return startup_seconds(self.startup) / HOUR

    def most(self, instance: str, tariff: Tariff) -> int | None:
        """Machines the user may have; None where nothing is said of it."""
        limits = [q.most for q in self.quotas if matches(instance, q.pattern)]
        limits += [] if tariff.quota is None else [tariff.quota]
        return min(limits) if limits else None

    def has_quota(self, instance: str) -> bool:
        return any(matches(instance, quota.pattern) for quota in self.quotas)

    def counts(self, instance: str, node: Node, tariff: Tariff) -> Iterator[int]:
        """1, 2, 4 … as far as quota and network go; a quota that is none of them is the last."""
        quota = self.most(instance, tariff)
        most = self.most_devices // node.device_count
        most = min(most, self.most_machines if quota is None else quota)
        if node.nics is None:
            most = min(most, 1)
        count = 1
        while count <= most:
            yield count
            if count < most < 2 * count and most == quota:
                yield most
            count *= 2


@dataclass(frozen=True)
class Offer:
    """What the job takes on a candidate, start-up included. `stalls`: seconds of a step on average over the job."""

    candidate: Candidate
    plan: str
    steps: int
    step_seconds: float
    hours: float
    interval_hours: tuple[float, float]
    startup_hours: float
    billed_hours: float
    usd: float
    stalls: Mapping[str, float]
    peak_bytes: float
    usable_bytes: float
    is_simulated: bool
    goodput: float
    interruptions: Interruptions
    passed: Epochs
    feed: DataLoading
    why: str = ""
    is_best: bool = False  # nothing is both faster and cheaper
    alike: str = ""  # the offer that it is folded into: as many of the same devices in the same cloud, no better
    batch_factor: float = 1.0
    """Samples over those that far smaller batches need, where a critical batch was specified."""

    def __repr__(self) -> str:
        takes = f"{rounded_seconds(HOUR * self.hours)}, ${self.usd:,.2f}"
        return f"<Offer {self.name}: {takes}, {self.plan}>"

    @property
    def name(self) -> str:
        return f"{self.candidate.count} x {self.candidate.instance}"

    @property
    def energy_kwh(self) -> float | None:
        """Of devices that draw their TDP all the time; None where a data sheet does not tell."""
        watts = [device.tdp_watts for device in self.candidate.node.devices]
        known = [each for each in watts if each is not None]
        if len(known) < len(watts):
            return None
        return sum(known) * self.candidate.count * self.hours / 1000.0

    def to_dict(self) -> dict[str, Any]:
        useful = self.passed.seconds
        return {
            "instance": self.candidate.instance,
            "count": self.candidate.count,
            "devices": self.candidate.devices,
            "device": self.candidate.node.devices[0].name,
            "plan": self.plan,
            "hours": self.hours,
            "interval_hours": list(self.interval_hours),
            "startup_hours": self.startup_hours,
            "billed_hours": self.billed_hours,
            "usd": self.usd,
            "usd_per_hour": self.candidate.usd_per_hour,
            "price_date": self.candidate.price_date,
            "steps": self.steps,
            "step_seconds": self.step_seconds,
            "stalls": dict(self.stalls),
            "why": self.why,
            "pareto": self.is_best,
            "simulated": self.is_simulated,
            "alike": self.alike or None,
            "batch_factor": self.batch_factor,
            "energy_kwh": self.energy_kwh,
            "memory": {"peak_bytes": self.peak_bytes, "usable_bytes": self.usable_bytes},
            "data": {
                "cold_steps": self.passed.cold_steps,
                "cold_step_seconds": self.passed.cold_seconds,
                "warm_step_seconds": self.passed.warm_seconds,
                "cached": self.feed.is_cached,
            },
            "goodput": {
                "share": self.goodput,
                "mtbf_hours": self.interruptions.any_mtbf / HOUR,
                "checkpoint_seconds": self.interruptions.checkpoint,
                "checkpoint_every_seconds": self.interruptions.interval(useful),
                "restart_seconds": self.interruptions.restart,
            },
        }


@dataclass(frozen=True)
class TimedOffer:
    """A plan's step, without loading: estimated or simulated."""

    plan: str
    step_seconds: float
    interval: tuple[float, float]
    stalls: Mapping[str, float]
    peak_bytes: float
    usable_bytes: float
    is_simulated: bool


def offer(job: Job, candidate: Candidate, timed: TimedOffer, terms: Terms) -> Offer:
    """Start-up, steps, epochs, interruptions and rent of a plan."""
    devices, node, count = candidate.devices, candidate.node, candidate.count
    steps = job.steps_on(devices)
    feed = feeding(job.data, node, count, job.batch_on(devices), terms.storage)
    per_epoch = job.steps_per_epoch(devices)
    risk = terms.risk.interruptions(job.state_bytes, [(node, count)], is_spot=candidate.is_spot)

    def hours(step: float) -> float:
        moved = feed.scaled(step / timed.step_seconds)
        run = risk.expected(epochs(moved, step, steps, per_epoch).seconds) / HOUR
        return terms.startup_hours + run

    passed = epochs(feed, timed.step_seconds, steps, per_epoch)
    taken = hours(timed.step_seconds)
    billed = billed_hours(node, taken)
    low, high = timed.interval
    return Offer(
        candidate=candidate,
        plan=timed.plan,
        steps=steps,
        step_seconds=passed.step_seconds,
        hours=taken,
        interval_hours=(hours(low), hours(high)),
        startup_hours=terms.startup_hours,
        billed_hours=billed,
        usd=billed * candidate.usd_per_hour,
        stalls=with_loading(timed.stalls, feed, passed, timed.step_seconds),
        peak_bytes=timed.peak_bytes,
        usable_bytes=timed.usable_bytes,
        is_simulated=timed.is_simulated,
        goodput=risk.goodput(passed.seconds),
        interruptions=risk,
        passed=passed,
        feed=feed,
        batch_factor=job.batch_factor(devices),
    )


def least_hours(job: Job, candidate: Candidate) -> float:
    """Hours at the peak rates of the data sheets: what no plan can beat."""
    matmul = precision_of(job.precision or precision_for(candidate.node.devices)).matmul
    formats = (matmul, "tf32", "fp32") if matmul == "fp32" else (matmul, "fp32")
    rates = [
        max((device.peak(name) or 0.0) for name in formats) for device in candidate.node.devices
    ]
    if not all(rates):
        return 0.0
    work = flops(job) * job.batch_factor(candidate.devices)
    return work / (sum(rates) * candidate.count) / HOUR


def flops(job: Job) -> float:
    """Of the whole job, forward and backward."""
    return training_flops(job.model) * job.samples
