"""Calibration: what the measurements of one machine say, as tables that costs are made from. A JSON file, or a value.

`fitting.calibrate` makes one from a store. A prediction takes it as `measured`: its kernels and collectives then
stand before those that ship.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from foretrain.errors import FileError
from foretrain.limits import is_finite
from foretrain.loading import load_json, validated
from foretrain.measurement.machine import Machine

if TYPE_CHECKING:
    from foretrain.cost.compute import ComputeModel
    from foretrain.cost.curves import OwnCurves

SCHEMA = 1
LOCAL = "local"
"""Name of the device that stands for a process on the machine itself."""
WHAT = "a calibration (create one with 'foretrain calibrate -o FILE.json')"

_STRICT: dict[str, str] = {"extra": "forbid"}


def _expect(value: float | None, name: str, *, zero: bool = False) -> None:
    if value is not None and not (is_finite(value) and (value > 0 or (zero and value == 0))):
        raise ValueError(f"{name} must be a {'number' if zero else 'positive number'}")


@dataclass(frozen=True, slots=True)
class Op:
    """A kernel that was timed, and how long it took."""

    __pydantic_config__: ClassVar[dict[str, str]] = _STRICT

    kernel: str
    phase: str
    dtype: str
    shape: tuple[int, ...]
    flops: float
    bytes: float
    seconds: float
    spread: float

    def __post_init__(self) -> None:
        _expect(self.seconds, "seconds")
        for name in ("flops", "bytes", "spread"):
            _expect(getattr(self, name), name, zero=True)
        if len(self.shape) > 16 or any(dim < 0 or dim > 2**62 for dim in self.shape):
            raise ValueError("shape must be a few whole numbers, zero or more")


@dataclass(frozen=True, slots=True)
class Peak:
    """FLOP/s that kernels of a kind reach in a number format."""

    __pydantic_config__: ClassVar[dict[str, str]] = _STRICT

    kernel: str
    dtype: str
    flops: float

    def __post_init__(self) -> None:
        _expect(self.flops, "flops")


@dataclass(frozen=True, slots=True)
class Roofline:
    """What is left where no kernel like it was timed: a start, and the longer of arithmetic and traffic.

    `best_*` are the highest rates seen: the data sheet of a device that has none.
    """

    __pydantic_config__: ClassVar[dict[str, str]] = _STRICT

    start_seconds: float
    bandwidth: float
    peaks: tuple[Peak, ...]
    spread: float  # of measured over fitted, one standard deviation of the logarithm
    best_bandwidth: float
    best_flops: Mapping[str, float]  # by number format

    def __post_init__(self) -> None:
        for name in ("start_seconds", "bandwidth", "best_bandwidth"):
            _expect(getattr(self, name), name)
        _expect(self.spread, "spread", zero=True)
        for dtype, rate in self.best_flops.items():
            _expect(rate, f"best_flops.{dtype}")


@dataclass(frozen=True, slots=True)
class LinkCurve:
    """Seconds of a collective against its size, on so many ranks in so many nodes."""

    __pydantic_config__: ClassVar[dict[str, str]] = _STRICT

    collective: str
    backend: str
    ranks: int
    nodes: int
    bytes: tuple[float, ...]
    seconds: tuple[float, ...]
    spread: float = 0.0

    def __post_init__(self) -> None:
        from foretrain.cost.curves import Curve

        if self.ranks < 2 or not 1 <= self.nodes <= self.ranks:
            raise ValueError("ranks must be 2 or more, and nodes no more than ranks")
        Curve(self.bytes, self.seconds)  # type: ignore[arg-type]  # says what is wrong with it


@dataclass(frozen=True, slots=True)
class DataRates:
    """How fast this machine reads and prepares training data; None where it was not measured."""

    __pydantic_config__: ClassVar[dict[str, str]] = _STRICT

    fetch_cold: float | None = None  # bytes/s
    fetch_warm: float | None = None
    host_to_device: float | None = None
    prep_seconds_per_sample: float | None = None  # on one worker

    def __post_init__(self) -> None:
        for name in self.__slots__:
            _expect(getattr(self, name), name)


@dataclass(frozen=True, slots=True)
class Provenance:
    """Which measurements it is made of."""

    __pydantic_config__: ClassVar[dict[str, str]] = _STRICT

    version: str  # of Foretrain
    measurements: int
    first: str  # when the oldest and newest of them were made
    last: str
    sha256: str  # over their digests


# Not slotted: cached_property keeps what is worked out in the instance's __dict__.
@dataclass(frozen=True)
class Calibration:
    """Costs of one machine. `device` is `local`, or the catalog's name of the device that was measured."""

    __pydantic_config__: ClassVar[dict[str, str]] = _STRICT

    machine: Mapping[str, Any]  # of Machine.to_dict
    device: str
    threads: int | None  # of a process, on CPUs
    ops: tuple[Op, ...]
    roofline: Roofline | None
    links: tuple[LinkCurve, ...]
    data: DataRates
    host_seconds_per_kernel: float | None
    provenance: Provenance
    drift: float = 0.0  # deviation of a process after a second of equal work, seconds
    processes: int = 1  # that ran a kernel at once while it was timed
    schema_version: int = SCHEMA

    def __post_init__(self) -> None:
        _expect(self.host_seconds_per_kernel, "host_seconds_per_kernel")
        _expect(self.threads, "threads")
        _expect(self.processes, "processes")
        _expect(self.drift, "drift", zero=True)
        if self.schema_version != SCHEMA:
            raise ValueError(
                f"schema_version is {self.schema_version}; this version reads {SCHEMA}"
            )
        Machine.from_dict(self.machine)

    def __repr__(self) -> str:
        return f"<Calibration {self.name}>"

    @property
    def name(self) -> str:
        """For people and provenance."""
        told = Machine.from_dict(self.machine).title
        return f"{told}: {self.provenance.measurements} measurements ({self.digest[:12]})"

    @cached_property
    def digest(self) -> str:
        return hashlib.sha256(self.dumps().encode()).hexdigest()

    @cached_property
    def compute(self) -> ComputeModel:
        from foretrain.measurement.compute import MeasuredCompute

        return MeasuredCompute(self)

    @cached_property
    def curves(self) -> OwnCurves | None:
        from foretrain.measurement.link_curves import own_curves

        return own_curves(self.links, self.device, self.drift)

    # --- files ----------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        row = asdict(self)
        return {"schema_version": row.pop("schema_version"), **row}

    def dumps(self) -> str:
        """One line per op and curve, so that files can be compared."""
        row = self.to_dict()
        return _lines({key: _listed(value) for key, value in row.items()})

    def save(self, path: str | Path) -> None:
        """Written beside and moved into place, so that the file is there whole or not at all."""
        place = Path(path)
        beside = place.with_name(f".{place.name}.{os.getpid()}")
        try:
            beside.write_text(self.dumps(), "utf-8")
            beside.replace(place)
        except OSError as error:
            beside.unlink(missing_ok=True)
            raise FileError(f"cannot write {place} ({error.strerror or error}).") from None

    @classmethod
    def from_dict(cls, row: object, where: str = "calibration") -> Calibration:
        """Inverse of `to_dict`; every fault at once."""
        if not isinstance(row, Mapping) or "schema_version" not in row:
            raise FileError(f"{where} is not {WHAT}: schema_version missing.")
        if row["schema_version"] != SCHEMA:
            raise FileError(
                f"{where} has schema_version {str(row['schema_version'])[:20]}; this version of Foretrain reads "
                f"{SCHEMA}. Run 'foretrain calibrate' again."
            )
        return validated(cls, row, where, FileError)

    @classmethod
    def load(cls, path: str | Path) -> Calibration:
        return cls.from_dict(load_json(Path(path), WHAT), str(path))


def _listed(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _lines(row: Mapping[str, Any]) -> str:
    parts = []
    for key, value in row.items():
        text = json.dumps(value, allow_nan=False)
        if isinstance(value, Sequence) and not isinstance(value, str) and value:
            inner = ",\n    ".join(json.dumps(one, allow_nan=False) for one in value)
            text = f"[\n    {inner}\n  ]"
        parts.append(f"  {json.dumps(key)}: {text}")
    return "{\n" + ",\n".join(parts) + "\n}\n"
