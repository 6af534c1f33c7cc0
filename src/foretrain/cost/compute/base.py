"""What compute cost models answer, and where the tables of measured kernels are kept.

Tables live in `calibration/compute/<family>/<device>.json`, one file per device, read when first asked for. A
device without a table of its own is given the table of a relative (`calibration/compute/kin.yaml`).
"""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import NormalDist
from typing import Any, Protocol

import numpy as np

from foretrain.arrays import Bools, Floats
from foretrain.cluster.device import Device
from foretrain.loading import load_own_yaml
from foretrain.model.ops.base import Kernel

TABLES = Path(__file__).parents[1] / "calibration" / "compute"


@dataclass(frozen=True, slots=True)
class KernelCosts:
    """Columns over the kernels asked for."""

    seconds: Floats
    spread: Floats  # relative, one standard deviation
    measured: Bools  # rests on measured times of this kind of kernel on this device
    source: tuple[str, ...]
    notes: tuple[str, ...] = ()  # substitutions the user should know of, each once


class ComputeModel(Protocol):
    """How long kernels take on a device, alone. The answer for a kernel does not depend on what else is asked for."""

    def seconds(self, kernels: Sequence[Kernel], device: Device) -> KernelCosts: ...


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a family of measured kernels answers: columns over the kernels asked for."""

    seconds: Floats
    spread: Floats  # relative, one standard deviation
    measured: Bools  # rests on measured times on this device
    source: str
    notes: tuple[str, ...] = ()  # substitutions the user should know of


class Family(Protocol):
    """Times kernels of one kind and phase; None where nothing is known of this device and dtype.

    `dtype` is the one the kernels really run in (`Kernel.dtype` is what was asked for). The answer for a kernel
    must not depend on the others, and must follow the device's own rates: a straggler has the identity of its
    healthy kin.
    """

    def __call__(
        self, kernels: Sequence[Kernel], device: Device, dtype: str
    ) -> Estimate | None: ...


@dataclass(frozen=True, slots=True)
class Kin:
    """Whose table a device uses."""

    name: str
    nearness: str  # own | chip | generation

    @property
    def is_measured(self) -> bool:
        return self.nearness != "generation"

    def notes(
        self, device: Device, what: str, used: str = "the efficiencies measured on"
    ) -> tuple[str, ...]:
        """What to say where another generation's table stands in."""
        if self.is_measured:
            return ()
        return (f"No {what} for {device.title}; using {used} {self.name}.",)


@dataclass(frozen=True, slots=True)
class Hardware:
    """A device as tiles of products and blocks of attention see it."""

    units: float
    peak: float
    bandwidth: float

    @classmethod
    def of(cls, device: Device, dtype: str) -> Hardware:
        peak = device.required_peak(dtype)
        return cls(float(device.compute_units or 1), peak, device.memory_bandwidth)


def kin_of(device: Device, measured: Collection[str]) -> Kin | None:
    """The device itself, a board with the same chip, or the nearest generation that is in `measured`."""
    if device.identity in measured:
        return Kin(device.identity, "own")
    known = _kin()
    for name in known["chip"].get(device.identity, ()):
        if name in measured:
            return Kin(name, "chip")
    for name in known["generation"].get(device.architecture, ()):
        if name in measured:
            return Kin(name, "generation")
    return None


@cache
def _kin() -> Mapping[str, Any]:
    found: Mapping[str, Any] = load_own_yaml(TABLES / "kin.yaml")
    return found


@cache
def names(family: str) -> tuple[str, ...]:
    """Devices with a table, in alphabetical order."""
    return tuple(sorted(path.stem for path in (TABLES / family).glob("*.json")))


@cache
def stored(family: str, name: str) -> Mapping[str, Any]:
    """The table of a device as it is in its file."""
    found: Mapping[str, Any] = json.loads((TABLES / family / f"{name}.json").read_bytes())
    return found


def unpacked(text: str, shape: Sequence[int], form: str = "<f2") -> Floats:
    """An array written as base64 of its bytes."""
    return np.frombuffer(b64decode(text), dtype=form).reshape(shape).astype(np.float64)


@cache
def slowest(device: str, count: int) -> float:
    """Expected time of the slowest of `count` boards of one kind, which a synchronised step waits for, over that of the
    mean one."""
    spread = float(load_own_yaml(TABLES / "boards.yaml")["spread"].get(device, 0.0))
    return 1.0 + spread * latest(count)


@cache
def latest(count: int) -> float:
    """How many standard deviations above their mean the largest of `count` values is expected: close to the quantile
    at (n - 0.375) / (n + 0.25) (Blom 1958)."""
    return NormalDist().inv_cdf((count - 0.375) / (count + 0.25))
