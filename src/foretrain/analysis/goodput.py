"""Interruptions: how much longer a job takes because machines fail or are taken back.

Interruptions come at random, without memory, at a rate that adds up over machines. Work since the last checkpoint
is lost, and a restart may itself be interrupted. Expected time and best interval are those of Daly, "A higher
order estimate of the optimum checkpoint interval for restart dumps", FGCS 22 (2006).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, expm1, inf, isinf, log1p, sqrt
from pathlib import Path

from foretrain.cluster.node import Node
from foretrain.errors import refuse
from foretrain.loading import Figures
from foretrain.model.workload import Workload
from foretrain.units import show_bandwidth

HOUR = 3600.0
_MOST_EXPONENT = 300.0
_MOST_RATIO = 36.0


figure = Figures(Path(__file__).with_name("goodput.yaml"))
"""What is taken where nobody says better, with sources."""


@dataclass(frozen=True, slots=True)
class Preemptions:
    """Machines taken back with a notice that is long enough for a checkpoint: no work is lost, only time.

    A preemption costs a checkpoint and a restart, and a restart may be preempted itself: under a rate of 1/M it takes
    M (exp(R/M) - 1) on average until one of R seconds is through.
    """

    mtbf: float  # of the whole cluster
    restart: float

    def stretch(self, checkpoint: float) -> float:
        """Time over that of the same job without preemptions."""
        power = self.restart / self.mtbf
        return inf if power > _MOST_EXPONENT else checkpoint / self.mtbf + exp(power)


@dataclass(frozen=True, slots=True)
class Interruptions:
    """`mtbf`: mean seconds between interruptions of the whole cluster that lose work; infinite where there are none."""

    mtbf: float
    checkpoint: float  # seconds to write one, while training waits
    restart: float  # seconds until training goes on
    preemptions: Preemptions | None = None

    def __post_init__(self) -> None:
        faults = [
            f"{name}: {value!r} must be {need}."
            for name, value, need in (
                ("mtbf", self.mtbf, "positive"),
                ("checkpoint", self.checkpoint, "zero or more"),
                ("restart", self.restart, "zero or more"),
            )
            if not (value > 0 if need == "positive" else value >= 0)
        ]
        refuse("invalid interruptions:", faults)

    @property
    def any_mtbf(self) -> float:
        """Mean seconds between interruptions of either kind."""
        if self.preemptions is None:
            return self.mtbf
        return 1.0 / (1.0 / self.mtbf + 1.0 / self.preemptions.mtbf)

    def expected(self, useful: float, interval: float | None = None) -> float:
        """Seconds from start to end of a job with `useful` seconds of work, a checkpoint after each `interval`."""
        stretch = 1.0 if self.preemptions is None else self.preemptions.stretch(self.checkpoint)
        return self._unannounced(useful, interval) * stretch

    def _unannounced(self, useful: float, interval: float | None) -> float:
        """Daly's complete model: M exp(R/M) (exp((t + d)/M) - 1) per interval, as many intervals as the work has."""
        every = self.interval(useful) if interval is None else interval
        if useful <= 0.0:
            return 0.0
        count = max(1.0, useful / every)
        piece = useful / count
        if isinf(self.mtbf):
            return useful + count * self.checkpoint
        power = (piece + self.checkpoint) / self.mtbf
        if power + self.restart / self.mtbf > _MOST_EXPONENT:
            return inf
        return count * self.mtbf * exp(self.restart / self.mtbf) * expm1(power)

    def goodput(self, useful: float) -> float:
        """Share of the time that is work that lasts."""
        total = self.expected(useful)
        return useful / total if total > 0 else 1.0

    def interval(self, useful: float = inf) -> float:
        """Seconds of work between checkpoints that make the job shortest; never longer than the job.

        A checkpoint that costs nothing is written all the time: then once a minute is as good.
        """
        if isinf(self.mtbf):
            return useful
        best = max(best_interval(self.mtbf, self.checkpoint), 60.0)
        return min(best, useful) if useful > 0 else best


def young(mtbf: float, checkpoint: float) -> float:
    """Young's first-order interval: the square root of 2 d M (CACM 17, 1974)."""
    return sqrt(2.0 * checkpoint * mtbf)


def daly(mtbf: float, checkpoint: float) -> float:
    """Daly's higher-order interval."""
    if checkpoint >= 2.0 * mtbf:
        return mtbf
    ratio = checkpoint / (2.0 * mtbf)
    return young(mtbf, checkpoint) * (1.0 + sqrt(ratio) / 3.0 + ratio / 9.0) - checkpoint


def best_interval(mtbf: float, checkpoint: float) -> float:
    """The exact minimum of the expected time: exp((t + d)/M) (1 - t/M) = 1, by Newton from Daly's estimate.

    With x = t/M and c = d/M the root of x + c + log(1 - x) lies between 0 and 1.
    """
    c = checkpoint / mtbf
    if c <= 0.0:
        return 0.0
    if c > _MOST_RATIO:  # the root is 1 to the last bit
        return mtbf
    low, high = 0.0, 1.0
    x = min(max(daly(mtbf, checkpoint) / mtbf, 1e-12), 1.0 - 1e-12)
    for _ in range(100):
        value = x + c + log1p(-x)
        if value > 0.0:
            low = x
        else:
            high = x
        step = value * (1.0 - x) / x  # minus value over slope; the slope is -x / (1 - x)
        if abs(step) <= 1e-13 * x:
            break
        x = x + step if low < x + step < high else 0.5 * (low + high)
    return x * mtbf


def checkpoint_bytes(workload: Workload) -> float:
    """Weights, master copies and moments: what a job needs to go on, without weights that never change."""
    parameters = float(workload.model.trained_parameters)
    states = workload.optimizer.memory_bytes(parameters, workload.precision)
    return parameters * workload.precision.weight_bytes + states


def failures_per_hour(node: Node) -> float:
    """Of one machine: one part that every machine has, one that grows with its devices."""
    share = figure("failures", "device_share")
    size = node.device_count / figure("failures", "devices")
    return (1.0 - share + share * size) / (figure("failures", "machine_days") * 24.0)


def cloud_of(node: Node) -> str:
    """Whose spot market a machine is in, as figures are known."""
    name = (node.cloud or "").partition(":")[0]
    return name if f"spot-{name}" in figure.groups else "other"


def spot_per_hour(node: Node) -> float:
    """Rate at which a spot machine is taken back."""
    return figure(f"spot-{cloud_of(node)}", "per_hour")


def _mean(rate: float) -> float:
    """Between events that come at a rate."""
    return 1.0 / rate if rate > 0 else inf


@dataclass(frozen=True, slots=True)
class Risk:
    """What a user knows better than the figures; None: the figures."""

    machine_mtbf_hours: float | None = None
    spot_rate: float | None = None  # of a machine and hour
    checkpoint_rate: float | None = None  # bytes/s of a machine
    restart_seconds: float | None = None

    def interruptions(
        self, state_bytes: float, machines: Sequence[tuple[Node, int]], *, is_spot: bool = False
    ) -> Interruptions:
        """Of so many machines of each kind that train together and write so many bytes at a checkpoint."""
        failing = sum(count * self.failures_per_hour(node) for node, count in machines) / HOUR
        written = sum(count * self.bytes_per_second(node) for node, count in machines)
        checkpoint = state_bytes / written
        wait = self.restart_seconds
        normal = figure("restart", "seconds") if wait is None else wait
        if not is_spot:
            return Interruptions(_mean(failing), checkpoint, normal)
        again = figure("spot", "restart_seconds") if wait is None else wait
        taken = {True: 0.0, False: 0.0}  # by whether the notice is long enough for a checkpoint
        for node, count in machines:
            notice = figure(f"spot-{cloud_of(node)}", "notice_seconds")
            each = spot_per_hour(node) if self.spot_rate is None else self.spot_rate
            taken[checkpoint <= notice] += each * count / HOUR
        lost = failing + taken[False]
        return Interruptions(
            mtbf=_mean(lost),
            checkpoint=checkpoint,
            restart=(failing * normal + taken[False] * again) / lost if lost > 0 else normal,
            preemptions=Preemptions(_mean(taken[True]), again) if taken[True] > 0 else None,
        )

    def assumptions(self, *, is_spot: bool, clouds: Sequence[str] = ()) -> tuple[str, ...]:
        """The figures that are taken, each with the word that changes it. `clouds`: those whose spot machines count."""
        known, lines = figure.groups, []
        if self.machine_mtbf_hours is None:
            days, size = figure("failures", "machine_days"), figure("failures", "devices")
            lines.append(
                f"a failure every {days:g} days of a node with {size:g} devices: "
                f"{known['failures']['source']} (--mtbf)"
            )
        if is_spot and self.spot_rate is None:
            for cloud in clouds:
                spot = known[f"spot-{cloud}"]
                lines.append(
                    f"{cloud}: {100 * spot['per_hour']:.3g} % of spot nodes preempted per hour, "
                    f"{spot['notice_seconds']:g} s notice: {spot['source']} (--spot-rate)"
                )
        if self.restart_seconds is None:
            wait = f"{figure('restart', 'seconds'):g} s"
            if is_spot:
                wait += f", {figure('spot', 'restart_seconds'):g} s after a preemption"
            lines.append(f"restart {wait}: {known['restart']['source']} (--restart)")
        if self.checkpoint_rate is None:
            rate = show_bandwidth(figure("checkpoint", "bytes_per_second"))
            lines.append(
                f"checkpoints at the rate of the node's disk, {rate} if unknown: "
                f"{known['checkpoint']['source']} (--checkpoint-rate)"
            )
        return tuple(lines)

    def failures_per_hour(self, node: Node) -> float:
        if self.machine_mtbf_hours is None:
            return failures_per_hour(node)
        return 1.0 / self.machine_mtbf_hours

    def bytes_per_second(self, node: Node) -> float:
        """What a machine writes of a checkpoint."""
        known = self.checkpoint_rate or node.host.storage_bandwidth
        return known or figure("checkpoint", "bytes_per_second")
