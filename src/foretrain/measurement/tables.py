"""The tables of a calibration: kernels that were timed, a roofline for the others, collectives, rates of data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from foretrain.cost.curves import MeasuredCurve
from foretrain.limits import is_finite
from foretrain.loading import Strict

LOCAL = "local"
"""Name of the device that stands for a process on the machine itself."""


def expect_positive(value: float | None, name: str, *, zero: bool = False) -> None:
    if value is not None and not (is_finite(value) and (value > 0 or (zero and value == 0))):
        raise ValueError(f"{name} must be a {'number' if zero else 'positive number'}")


@dataclass(frozen=True, slots=True)
class MeasuredOp(Strict):
    """A kernel that was timed, and how long it took."""

    kernel: str
    phase: str
    dtype: str
    shape: tuple[int, ...]
    flops: float
    bytes: float
    seconds: float
    spread: float

    @property
    def identity(self) -> tuple[object, ...]:
        """What tells its kernel from others."""
        return self.kernel, self.phase, self.dtype, self.shape, self.flops, self.bytes

    def __post_init__(self) -> None:
        expect_positive(self.seconds, "seconds")
        for name in ("flops", "bytes", "spread"):
            expect_positive(getattr(self, name), name, zero=True)
        if len(self.shape) > 16 or any(dim < 0 or dim > 2**62 for dim in self.shape):
            raise ValueError("shape must be a few whole numbers, zero or more")


@dataclass(frozen=True, slots=True)
class Peak(Strict):
    """FLOP/s that kernels of a kind reach in a number format."""

    kernel: str
    dtype: str
    flops: float

    def __post_init__(self) -> None:
        expect_positive(self.flops, "flops")


@dataclass(frozen=True, slots=True)
class MeasuredRoofline(Strict):
    """What is left where no kernel like it was timed: a start, and the longer of arithmetic and traffic.

    `best_*` are the highest rates seen: the data sheet of a device that has none.
    """

    start_seconds: float
    bandwidth: float
    peaks: tuple[Peak, ...]
    spread: float  # of measured over fitted, one standard deviation of the logarithm
    best_bandwidth: float
    best_flops: Mapping[str, float]  # by number format

    def __post_init__(self) -> None:
        for name in ("start_seconds", "bandwidth", "best_bandwidth"):
            expect_positive(getattr(self, name), name)
        expect_positive(self.spread, "spread", zero=True)
        for dtype, rate in self.best_flops.items():
            expect_positive(rate, f"best_flops.{dtype}")


@dataclass(frozen=True, slots=True)
class LinkCurve(Strict):
    """Seconds of a collective against its size, on so many ranks in so many nodes."""

    collective: str
    backend: str
    ranks: int
    nodes: int
    bytes: tuple[float, ...]
    seconds: tuple[float, ...]
    spread: float = 0.0

    def __post_init__(self) -> None:
        if self.ranks < 2 or not 1 <= self.nodes <= self.ranks:
            raise ValueError("ranks must be 2 or more, and nodes no more than ranks")
        MeasuredCurve(self.bytes, self.seconds)  # type: ignore[arg-type]  # says what is wrong with it


@dataclass(frozen=True, slots=True)
class DataRates(Strict):
    """How fast this machine reads and prepares training data; None where it was not measured."""

    fetch_cold: float | None = None  # bytes/s
    fetch_warm: float | None = None
    host_to_device: float | None = None
    prep_seconds_per_sample: float | None = None  # on one worker

    def __post_init__(self) -> None:
        for name in self.__slots__:
            expect_positive(getattr(self, name), name)


@dataclass(frozen=True, slots=True)
class Provenance(Strict):
    """Which measurements it is made of."""

    version: str  # of Foretrain
    measurements: int
    first: str  # when the oldest and newest of them were made
    last: str
    sha256: str  # over their digests
