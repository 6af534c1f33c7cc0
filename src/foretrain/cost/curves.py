"""Curves: measured times of collectives inside one domain, for devices that somebody has measured.

A curve is a few knots (size, seconds) of one collective on one kind of device with one number of ranks.
Between knots it is a straight line in log-log space; outside it keeps to what a transfer does at the ends:
a latency that does not go away, and a bandwidth that does not grow any more.

A curve holds for the device and the links it was measured on, whatever they are called. On links of other rates of
the same form its two parts are scaled: what is above the floor with the bandwidth, the floor with the latency. A
curve far below what fewer ranks of its own device reach says more of its machine than of its links: it is marked
`only_on` and holds for that machine alone.

Sizes follow nccl-tests: the full buffer of all-reduce and all-to-all on a rank, the gathered buffer of
all-gather, the buffer before the scatter of reduce-scatter. How the knots came about and how well they hold
is in docs/communication-accuracy.md; `tools/distil_collectives.py` makes them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from math import log, log2
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from foretrain.arrays import Floats
from foretrain.cluster.device import Device
from foretrain.cost.joints import Joint, is_usual
from foretrain.errors import Bug

Key = tuple[str, int, str]
"""Identity of the device, ranks, collective."""

DEVICE_TIME = "nccl-tests"
"""Collectives back to back on the device: what a cost of a device task needs."""
CALL_TIME = "param"
"""One call of a framework and its end awaited: the host's part is in it."""

MODELLED = "collective times come from the network model, and the interval is wider."

LEAST_FLOOR = 0.5
"""Share of the first knot's time that stays however small the message: a curve whose first knot lies on
the slope would else fall to nothing."""
LEAST_MARGINAL = 0.7
"""The last bytes may be cheaper than the average byte by no more than this: noise in two knots is not a law."""


@dataclass(frozen=True, eq=False)
class MeasuredCurve:
    """Seconds against bytes. Both rise from knot to knot (seconds may stay)."""

    sizes: Floats
    seconds: Floats
    source: str = "measured here"
    only_on: str = ""  # the one machine it holds for

    def __post_init__(self) -> None:
        sizes = np.asarray(self.sizes, dtype=np.float64)
        times = np.asarray(self.seconds, dtype=np.float64)
        if sizes.ndim != 1 or sizes.shape != times.shape or len(sizes) < 2:
            raise ValueError(f"a curve needs two knots or more, got {len(sizes)} and {len(times)}")
        if not (np.isfinite(sizes).all() and np.isfinite(times).all()):
            raise ValueError("sizes and seconds must be finite numbers")
        if sizes[0] <= 0 or (np.diff(sizes) <= 0).any():
            raise ValueError("sizes must be positive and rise from knot to knot")
        if times[0] <= 0 or (np.diff(times) < 0).any():
            raise ValueError("seconds must be positive and must not fall with size")
        object.__setattr__(self, "sizes", sizes)
        object.__setattr__(self, "seconds", times)

    @cached_property
    def _logs(self) -> tuple[Floats, Floats]:
        return np.log(self.sizes), np.log(self.seconds)

    @cached_property
    def floor(self) -> float:
        """Seconds of an empty message: the line through the first two knots, led to zero bytes."""
        return float(max(self.seconds[0] - self._first_slope * self.sizes[0], 0.0))

    @cached_property
    def bandwidth(self) -> float:
        """Bytes/s of what lies beyond the last knot."""
        return 1.0 / self._last_slope

    @cached_property
    def _first_slope(self) -> float:
        rise = (self.seconds[1] - self.seconds[0]) / (self.sizes[1] - self.sizes[0])
        return float(min(rise, (1.0 - LEAST_FLOOR) * self.seconds[0] / self.sizes[0]))

    @cached_property
    def _last_slope(self) -> float:
        average = self.seconds[-1] / self.sizes[-1]
        rise = (self.seconds[-1] - self.seconds[-2]) / (self.sizes[-1] - self.sizes[-2])
        return float(np.clip(rise, LEAST_MARGINAL * average, average))

    def at(self, size: ArrayLike) -> Floats:
        """Seconds for each size."""
        asked = np.asarray(size, dtype=np.float64)
        if (asked < 0).any() or not np.isfinite(asked).all():
            raise Bug("sizes of messages are finite and not negative.")
        log_sizes, log_seconds = self._logs
        inside = np.clip(asked, self.sizes[0], self.sizes[-1])
        times = np.exp(np.interp(np.log(inside), log_sizes, log_seconds))
        below = np.minimum(asked - self.sizes[0], 0.0) * self._first_slope
        above = np.maximum(asked - self.sizes[-1], 0.0) * self._last_slope
        return np.asarray(times + below + above, dtype=np.float64)


@dataclass(frozen=True, slots=True)
class InterconnectCurves:
    """What joined the devices when they were measured: a curve holds for links of this form."""

    kind: str
    bandwidth: float  # bytes/s, one direction of one device
    latency: float


@dataclass(frozen=True, slots=True)
class MeasuredSeconds:
    """What measurements say of a collective on a group alone."""

    seconds: float | None = None  # None: the model has to answer
    left: str = ""  # why curves that there are do not hold here, for people


@dataclass(frozen=True, slots=True)
class _Source:
    """Whose curves answer for a device and collective, and how much of their time it takes."""

    device: str
    collective: str
    times: float
    counts: tuple[int, ...]  # of ranks that were measured

    def used(self, ranks: int) -> tuple[int, ...]:
        """The counts that an answer for so many ranks rests on; none below the smallest."""
        if ranks in self.counts:
            return (ranks,)
        below = tuple(count for count in self.counts if count < ranks)
        above = tuple(count for count in self.counts if count > ranks)
        return (below[-1], above[0]) if below and above else below[-2:]


# Not slotted: cached_property keeps what it found in the instance's __dict__.
@dataclass(frozen=True, eq=False)
class CurveTable:
    """Curves of one way to measure, and the devices they stand for."""

    curves: Mapping[Key, MeasuredCurve]
    like: Mapping[str, str]  # device → the measured device with the same interconnect
    interconnects: Mapping[str, InterconnectCurves]  # of measured devices

    @cached_property
    def _counts(self) -> Mapping[tuple[str, str], tuple[int, ...]]:
        found: dict[tuple[str, str], list[int]] = {}
        for device, ranks, collective in sorted(self.curves):
            found.setdefault((device, collective), []).append(ranks)
        return {key: tuple(counts) for key, counts in found.items()}

    def seconds_of(
        self, device: str, ranks: int, collective: str, sizes: ArrayLike
    ) -> Floats | None:
        """Seconds for each size, or None where nothing was measured.

        Between measured counts of ranks log(seconds / share) is a straight line in log2(ranks), where share
        is the part of the buffer that crosses a port (nccl-tests' bus bandwidth factor). Beyond the largest
        count see `_beyond`. Below the smallest count there is no answer. A gather or scatter that nobody measured
        is half of a measured all-reduce, which is the one after the other over the same rings, and the other way.
        """
        if ranks < 1:
            raise Bug(f"a group of {ranks} ranks.")
        asked = np.asarray(sizes, dtype=np.float64)
        found = self._source(device, collective)
        if found is None:
            return None
        if ranks == 1:
            return np.zeros_like(asked)
        used = found.used(ranks)
        if not used:
            return None
        if used == (ranks,):
            seconds = self.curves[found.device, ranks, found.collective].at(asked)
        elif used[-1] > ranks:
            seconds = self._between(found, ranks, used, asked)
        else:
            seconds = self._beyond(found, ranks, used, asked)
        return seconds * found.times if found.times != 1.0 else seconds

    def _source(self, device: str, collective: str) -> _Source | None:
        for wanted, times in ((collective, 1.0), HALVES.get(collective, (collective, 1.0))):
            for name in (device, self.like.get(device, device)):
                counts = self._counts.get((name, wanted))
                if counts:
                    return _Source(name, wanted, times, counts)
        return None

    def _between(self, source: _Source, ranks: int, used: tuple[int, ...], sizes: Floats) -> Floats:
        name, collective, (low, high) = source.device, source.collective, used
        weight = log(ranks / low) / log(high / low)
        first, last = (
            np.log(self.curves[name, c, collective].at(sizes) / share(collective, c)) for c in used
        )
        mixed = np.exp((1.0 - weight) * first + weight * last)
        return np.asarray(share(collective, ranks) * mixed, dtype=np.float64)

    def _beyond(self, source: _Source, ranks: int, used: tuple[int, ...], sizes: Floats) -> Floats:
        """The largest measured curve, its two parts scaled as the model says they grow.

        What is above the floor is transfer and grows with the share of the buffer that crosses a port. The
        floor is steps: a step more per rank for rings (all-gather, reduce-scatter), per doubling for
        all-reduce and others, which have trees or direct exchange; what a step costs is read off the floors
        of the two largest measured counts.
        """
        name, collective, largest = source.device, source.collective, used[-1]
        curve = self.curves[name, largest, collective]
        moved = (curve.at(sizes) - curve.floor) * share(collective, ranks)
        moved = moved / share(collective, largest)
        if len(used) == 1:
            return np.asarray(curve.floor + moved, dtype=np.float64)
        steps = float if collective in RINGS else log2
        before = self.curves[name, used[0], collective].floor
        step = max(curve.floor - before, 0.0) / (steps(largest) - steps(used[0]))
        floor = curve.floor + step * (steps(ranks) - steps(largest))
        return np.asarray(floor + moved, dtype=np.float64)

    def seconds(self, device: str, ranks: int, collective: str, size: float) -> float | None:
        """Seconds for one size, or None where nothing was measured."""
        found = self.seconds_of(device, ranks, collective, size)
        return None if found is None else float(found)

    def alone(self, joint: Joint, ranks: int, collective: str, size: float) -> MeasuredSeconds:
        """A collective of `ranks` devices of a joint, nothing else on their links."""
        sources = [self._source(name, collective) for name in joint.devices]
        device, source = joint.devices[0], next((one for one in sources if one is not None), None)
        if source is None:
            return MeasuredSeconds()
        if len(sources) > 1:
            return MeasuredSeconds(
                left=f"{' and '.join(joint.devices)} were never measured together: {MODELLED}"
            )
        held = self.interconnects.get(source.device)
        if held is not None and not is_usual(joint, held.kind):
            return MeasuredSeconds(
                left=f"Collectives of {source.device} were measured on {held.kind}; here the devices "
                f"are on {joint.node.interconnect.kind}: {MODELLED}"
            )
        machine = self._machine(source, ranks)
        if machine not in ("", joint.node.identity):
            return MeasuredSeconds(
                left=f"Groups of {ranks} {source.device} were measured on one machine only ({machine}), "
                f"far below link bandwidth: {MODELLED}"
            )
        seconds = self.seconds(device, ranks, collective, size)
        if seconds is None:
            return MeasuredSeconds()
        faster = joint.scale if held is None else joint.bandwidth / held.bandwidth
        later = joint.latency_scale if held is None else joint.latency / held.latency
        if (faster, later) != (1.0, 1.0):
            floor = self.seconds(device, ranks, collective, 0.0) or 0.0
            seconds = floor * later + (seconds - floor) / faster
        return MeasuredSeconds(seconds)

    def _machine(self, source: _Source, ranks: int) -> str:
        """The one machine that an answer for so many ranks holds for; "" for all."""
        used = (
            self.curves[source.device, count, source.collective] for count in source.used(ranks)
        )
        return next((curve.only_on for curve in used if curve.only_on), "")


@dataclass(frozen=True, eq=False, slots=True)
class OwnCurves:
    """Collectives as the user measured them: a table for each library and number of domains that ranks were in.

    Networks are remembered by it, so it is equal to itself alone.
    """

    tables: Mapping[tuple[str, int], CurveTable]
    device: str = ""  # between whose processes they were measured
    drift: float = 0.0  # how far such processes drift apart in a second (`cost.drift`)

    def drift_between(self, devices: Iterable[Device]) -> float:
        """That of the devices measured; of others nothing is known."""
        return self.drift if all(one.identity == self.device for one in devices) else 0.0

    def of(self, library: str, domains: int) -> CurveTable | None:
        return self.tables.get((library.partition("-")[0], domains))


RINGS = ("all_gather", "all_gather_base", "reduce_scatter")
HALVES = {
    "all_gather": ("all_reduce", 0.5),
    "reduce_scatter": ("all_reduce", 0.5),
    "all_reduce": ("all_gather", 2.0),
}
"""An all-reduce over rings is a reduce-scatter and an all-gather (Patarasuk & Yuan 2009)."""


def share(collective: str, ranks: int) -> float:
    """Part of the buffer that crosses each port: nccl-tests PERFORMANCE.md, bus bandwidth factors."""
    if collective in ("reduce", "broadcast", "send"):
        return 1.0
    rounds = 2.0 if collective == "all_reduce" else 1.0
    return rounds * (ranks - 1) / ranks


# --- what ships ---------------------------------------------------------------------------------

_SHIPPED = Path(__file__).parent / "calibration" / "curves" / "curves.json"


@cache
def shipped(via: str = DEVICE_TIME) -> CurveTable:
    """The table that ships with the package. `via` tells device time from the time of a framework's call."""
    data: dict[str, Any] = json.loads(_SHIPPED.read_text("utf-8"))
    found = {
        (row["device"], row["ranks"], row["collective"]): MeasuredCurve(
            np.array(row["bytes"], dtype=np.float64),
            np.array(row["us"]) * 1e-6,
            row["source"],
            row.get("only_on", ""),
        )
        for row in data["curves"]
        if row["via"] == via
    }
    joined = {
        name: InterconnectCurves(row["interconnect"], row["bandwidth"], row["latency"])
        for name, row in data["devices"].items()
    }
    return CurveTable(MappingProxyType(found), data["like"], joined)
