"""How much computing, collectives and copies on one device slow each other.

Factors are on time, by pairs: at (a, b) the factor on an activity a while b is under way; several multiply.
The engine applies them to rates (see `foretrain.engine.places`), `together` in closed form to activities that
start at the same moment. The figures and where they come from are in `calibration/interference.yaml`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from foretrain.arrays import Floats, Ints
from foretrain.cluster.device import Device
from foretrain.errors import Bug
from foretrain.loading import load_own_yaml

NOTHING, COMPUTE, COLLECTIVE, COPY_IN, COPY_OUT = range(5)
"""Activity numbers, as the engine takes them; copies are between host and device memory."""
SPANNING = 5
"""A collective that spans nodes, where a program has both kinds."""

ACTIVITIES = ("nothing", "compute", "collective", "copy_in", "copy_out")


@dataclass(frozen=True, slots=True, eq=False)
class Interference:
    """The factors of one device: collectives that stay inside a node, and that span nodes."""

    name: str
    source: str
    inside: Floats
    between: Floats

    def of(self, spans_nodes: bool) -> Floats:
        return self.between if spans_nodes else self.inside


def factors(device: Device, spans_nodes: bool) -> Floats:
    """[activities, activities] factor on the time of the row's activity while the column's runs.

    `spans_nodes`: whether the collective in question leaves the node.
    """
    return entry(device)[0].of(spans_nodes)


def read_factors(name: str, spans_nodes: bool) -> Floats:
    """The same for an entry of the table by its name."""
    return _table()[0][name].of(spans_nodes)


@dataclass(frozen=True, slots=True, eq=False)
class Slowdown:
    """One table for a program on several kinds of devices; `number` says where an activity stands in it.

    Collectives that span nodes are an activity beside those that do not. Between the two, and between
    activities of different devices, there is none but the contention for links.
    """

    table: Floats
    entry_of: Ints  # kind of device → its entry; kinds that behave alike share one

    def number(self, kind: ArrayLike, activity: ArrayLike) -> NDArray[np.int8]:
        """The numbers of activities on kinds of devices."""
        if len(self.table) == 1:
            return np.zeros(np.shape(activity), dtype=np.int8)
        activity = np.asarray(activity)
        entry = self.entry_of[np.asarray(kind)]
        return np.where(activity == NOTHING, 0, SPANNING * entry + activity).astype(np.int8)


def slowdown(devices: Sequence[Device], is_felt: bool = True) -> Slowdown:
    """The factors of these kinds of devices as the engine takes them; all 1 where they are not to be felt."""
    if not is_felt:
        return Slowdown(np.ones((1, 1)), np.zeros(len(devices), dtype=np.int64))
    entries = {found.name: found for found, _ in map(entry, devices)}
    table = np.ones((1 + SPANNING * len(entries), 1 + SPANNING * len(entries)))
    for number, found in enumerate(entries.values()):
        at = slice(1 + SPANNING * number, 1 + SPANNING * (number + 1))
        table[at, at] = _with_spanning(found)
    names = list(entries)
    return Slowdown(table, np.array([names.index(entry(device)[0].name) for device in devices]))


def _with_spanning(found: Interference) -> Floats:
    """[5, 5] for COMPUTE to SPANNING."""
    table = np.ones((SPANNING, SPANNING))
    table[:-1, :-1] = found.inside[1:, 1:]
    others = [activity - 1 for activity in (COMPUTE, COPY_IN, COPY_OUT)]
    table[others, SPANNING - 1] = found.between[1:, 1:][others, COLLECTIVE - 1]
    table[SPANNING - 1, others] = found.between[1:, 1:][COLLECTIVE - 1, others]
    return table


def entry(device: Device) -> tuple[Interference, bool]:
    """The factors for a device, and whether they were measured on it (not on a relative)."""
    devices, defaults = _table()
    if device.identity in devices:
        return devices[device.identity], True
    if device.kind == "cpu":
        return devices["none"], False
    linked = "linked" if device.link_bandwidth > 0 else "unlinked"
    for key in (f"{device.architecture} {linked}", linked):
        if key in defaults:
            return devices[defaults[key]], False
    raise Bug(f"interference.yaml has no default for {linked} devices")


def pair(first: float, second: float, first_slowed: float, second_slowed: float) -> float:
    """`together` of two: when both are done, each slowed by its factor while the other runs."""
    if first * first_slowed > second * second_slowed:
        first, second, first_slowed, second_slowed = second, first, second_slowed, first_slowed
    ends = first * first_slowed
    return ends + second - ends / second_slowed


def together(seconds: Floats, slowdown: Floats) -> Floats:
    """[n] when all is done, of activities that start together and would take `seconds` alone.

    `seconds` is [n, activities], 0 where an activity is absent. Between two ends rates are constant, so
    there are as many steps as activities: the next to end does, and the others have done that much less.
    """
    left = seconds.copy()
    now = np.zeros(len(seconds))
    others = np.log(slowdown) * (1.0 - np.eye(len(slowdown)))
    for _ in range(seconds.shape[1]):
        active = left > 0.0
        factor = np.exp(active @ others.T)
        step = np.where(active, left * factor, np.inf).min(axis=1)
        step = np.where(np.isfinite(step), step, 0.0)
        now += step
        ended = left * factor <= step[:, None] * (1.0 + 1e-12)
        left = np.where(ended, 0.0, left - step[:, None] / factor)
    return now


@cache
def _table() -> tuple[Mapping[str, Interference], Mapping[str, str]]:
    path = Path(__file__).parent / "calibration" / "interference.yaml"
    data = load_own_yaml(path)
    devices = {name: _read(name, row) for name, row in data["devices"].items()}
    return devices, {row["for"]: row["like"] for row in data["defaults"]}


def _read(name: str, row: Mapping[str, Any]) -> Interference:
    inside = matrix(row["inside"])
    between = matrix(row["between"]) if "between" in row else inside
    return Interference(name, row["source"], inside, between)


def matrix(pairs: Mapping[str, Mapping[str, float]]) -> Floats:
    """A read-only table from {slowed: {by: factor}}; what is not named is 1."""
    table = np.ones((len(ACTIVITIES), len(ACTIVITIES)))
    for slowed, others in pairs.items():
        for other, factor in others.items():
            table[ACTIVITIES.index(slowed), ACTIVITIES.index(other)] = factor
    table.setflags(write=False)
    return table
