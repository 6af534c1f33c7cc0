"""Curves: measured times of collectives inside one domain, for devices that somebody has measured.

A curve is a few knots (size, seconds) of one collective on one kind of device with one number of ranks.
Between knots it is a straight line in log-log space; outside it keeps to what a transfer does at the ends:
a latency that does not go away, and a bandwidth that does not grow any more.

Sizes follow nccl-tests: the full buffer of all-reduce and all-to-all on a rank, the gathered buffer of
all-gather, the buffer before the scatter of reduce-scatter. How the knots came about and how well they hold
is in docs/communication-accuracy.md; `tools/distil_collectives.py` makes them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.resources import files
from math import isclose, log, log2
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from foretrain.cluster.device import Device
from foretrain.errors import Bug

__all__ = [
    "Curve",
    "Interconnect",
    "Key",
    "OwnCurves",
    "Table",
    "alone_seconds",
    "curves",
    "seconds",
    "seconds_of",
    "shipped",
    "with_measurements",
]

Floats = NDArray[np.float64]
Key = tuple[str, int, str]
"""Device name of the catalogue, ranks, collective."""

DEVICE_TIME = "nccl-tests"
"""Collectives back to back on the device: what a cost of a device task needs."""
CALL_TIME = "param"
"""One call of a framework and its end awaited: the host's part is in it."""

LEAST_FLOOR = 0.5
"""Share of the first knot's time that stays however small the message: a curve whose first knot lies on
the slope would else fall to nothing."""
LEAST_MARGINAL = 0.7
"""The last bytes may be cheaper than the average byte by no more than this: noise in two knots is not a law."""


@dataclass(frozen=True, eq=False)
class Curve:
    """Seconds against bytes. Both rise from knot to knot (seconds may stay)."""

    sizes: Floats
    seconds: Floats
    source: str = "measured here"

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
class Interconnect:
    """What joined the devices when they were measured: a curve holds for this and nothing else."""

    kind: str
    bandwidth: float  # bytes/s, one direction of one device

    def joins(self, device: Device) -> bool:
        """Whether the device has it, unchanged: what-if devices with other links have no curve."""
        own = device.link_bandwidth if self.kind.startswith("nvlink") else device.pcie_bandwidth
        return isclose(own, self.bandwidth, rel_tol=0.01)


# Not slotted: cached_property keeps what it found in the instance's __dict__.
@dataclass(frozen=True, eq=False)
class Table:
    """Curves of one way to measure, and the devices they stand for."""

    curves: Mapping[Key, Curve]
    like: Mapping[str, str]  # device → the measured device with the same interconnect
    interconnects: Mapping[str, Interconnect]  # of measured devices

    @cached_property
    def _counts(self) -> Mapping[tuple[str, str], tuple[int, ...]]:
        found: dict[tuple[str, str], list[int]] = {}
        for device, ranks, collective in sorted(self.curves):
            found.setdefault((device, collective), []).append(ranks)
        return {key: tuple(counts) for key, counts in found.items()}

    def with_measurements(self, measured: Mapping[Key, Curve]) -> Table:
        """The same table where the user's own curves stand before those that ship.

        Of a device and collective that the user has measured, shipped curves are put aside altogether: two
        machines in one interpolation over ranks would be neither.
        """
        own = {(device, collective) for device, _, collective in measured}
        kept = {key: curve for key, curve in self.curves.items() if (key[0], key[2]) not in own}
        return Table(MappingProxyType(kept | dict(measured)), self.like, self.interconnects)

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
        name = self._measured_name(device, collective)
        counts = self._counts.get((name, collective), ())
        if not counts and collective in HALVES:
            other, times = HALVES[collective]
            if self._counts.get((self._measured_name(device, other), other)):
                found = self.seconds_of(device, ranks, other, sizes)
                return None if found is None else found * times
        if not counts or 1 < ranks < counts[0]:
            return None
        if ranks == 1:
            return np.zeros_like(asked)
        if (name, ranks, collective) in self.curves:
            return self.curves[name, ranks, collective].at(asked)
        if ranks > counts[-1]:
            return self._beyond(name, ranks, collective, counts, asked)
        return self._between(name, ranks, collective, counts, asked)

    def _measured_name(self, device: str, collective: str) -> str:
        if (device, collective) in self._counts:
            return device
        return self.like.get(device, device)

    def _between(
        self, name: str, ranks: int, collective: str, counts: tuple[int, ...], sizes: Floats
    ) -> Floats:
        low = max(c for c in counts if c < ranks)
        high = min(c for c in counts if c > ranks)
        weight = log(ranks / low) / log(high / low)
        first, last = (
            np.log(self.curves[name, c, collective].at(sizes) / share(collective, c))
            for c in (low, high)
        )
        mixed = np.exp((1.0 - weight) * first + weight * last)
        return np.asarray(share(collective, ranks) * mixed, dtype=np.float64)

    def _beyond(
        self, name: str, ranks: int, collective: str, counts: tuple[int, ...], sizes: Floats
    ) -> Floats:
        """The largest measured curve, its two parts scaled as the model says they grow.

        What is above the floor is transfer and grows with the share of the buffer that crosses a port. The
        floor is steps: a step more per rank for rings (all-gather, reduce-scatter), per doubling for
        all-reduce and others, which have trees or direct exchange; what a step costs is read off the floors
        of the two largest measured counts.
        """
        largest = counts[-1]
        curve = self.curves[name, largest, collective]
        moved = (curve.at(sizes) - curve.floor) * share(collective, ranks)
        moved = moved / share(collective, largest)
        if len(counts) == 1:
            return np.asarray(curve.floor + moved, dtype=np.float64)
        steps = float if collective in RINGS else log2
        before = self.curves[name, counts[-2], collective].floor
        step = max(curve.floor - before, 0.0) / (steps(largest) - steps(counts[-2]))
        floor = curve.floor + step * (steps(ranks) - steps(largest))
        return np.asarray(floor + moved, dtype=np.float64)

    def seconds(self, device: str, ranks: int, collective: str, size: float) -> float | None:
        """Seconds for one size, or None where nothing was measured."""
        found = self.seconds_of(device, ranks, collective, size)
        return None if found is None else float(found)

    def alone_seconds(
        self,
        device: Device,
        ranks: int,
        collective: str,
        size: float,
        interconnect: str | None = None,
    ) -> float | None:
        """Seconds of a collective of `ranks` equal devices of one domain, nothing else on its links.

        None where the model has to answer: nothing measured, the device's links are not those that were
        measured, or `interconnect` (the node's kind, for example nvlink3-nvswitch) is another one.
        """
        held = self.interconnects.get(self._measured_name(device.name, collective))
        if held is not None:
            if not held.joins(device):
                return None
            if interconnect is not None and interconnect != held.kind:
                return None
        return self.seconds(device.name, ranks, collective, size)


@dataclass(frozen=True, eq=False, slots=True)
class OwnCurves:
    """Collectives as the user measured them: a table for each library and number of domains that ranks were in.

    Networks are remembered by it, so it is equal to itself alone.
    """

    tables: Mapping[tuple[str, int], Table]
    device: str = ""  # between whose processes they were measured
    drift: float = 0.0  # how far such processes drift apart in a second (`cost.drift`)

    def drift_between(self, devices: Iterable[Device]) -> float:
        """That of the devices measured; of others nothing is known."""
        return self.drift if all(one.name == self.device for one in devices) else 0.0

    def of(self, library: str, domains: int) -> Table | None:
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


@cache
def _data() -> dict[str, Any]:
    folder = files("foretrain.cost.calibration").joinpath("curves")
    data: dict[str, Any] = json.loads(folder.joinpath("curves.json").read_text("utf-8"))
    return data


@cache
def shipped(via: str = DEVICE_TIME) -> Table:
    """The table that ships with the package. `via` tells device time from the time of a framework's call."""
    data = _data()
    found = {
        (row["device"], row["ranks"], row["collective"]): Curve(
            np.array(row["bytes"], dtype=np.float64), np.array(row["us"]) * 1e-6, row["source"]
        )
        for row in data["curves"]
        if row["via"] == via
    }
    joined = {
        name: Interconnect(row["interconnect"], row["bandwidth"])
        for name, row in data["devices"].items()
    }
    return Table(MappingProxyType(found), data["like"], joined)


def curves(via: str = DEVICE_TIME) -> Mapping[Key, Curve]:
    """Every curve that ships."""
    return shipped(via).curves


def with_measurements(store: Mapping[Key, Curve]) -> Table:
    """The shipped table with the user's curves before it."""
    return shipped().with_measurements(store)


def seconds(device: str, ranks: int, collective: str, size: float) -> float | None:
    """Seconds by the shipped table, or None."""
    return shipped().seconds(device, ranks, collective, size)


def seconds_of(device: str, ranks: int, collective: str, sizes: ArrayLike) -> Floats | None:
    """Seconds for each size by the shipped table, or None."""
    return shipped().seconds_of(device, ranks, collective, sizes)


def alone_seconds(
    device: Device, ranks: int, collective: str, size: float, interconnect: str | None = None
) -> float | None:
    """`Table.alone_seconds` of the shipped table."""
    return shipped().alone_seconds(device, ranks, collective, size, interconnect)
