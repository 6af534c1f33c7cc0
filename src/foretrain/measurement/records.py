"""Measurement: what was timed, how long it took and how sure that is. And the keys by which it is found again."""

from __future__ import annotations

import hashlib
import json
import statistics
import zlib
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Protocol

from foretrain.analysis.answer import Answer
from foretrain.errors import InputError, refuse
from foretrain.limits import is_finite, shown
from foretrain.measurement.machine import Machine
from foretrain.model.ops.base import Kernel

KINDS = ("op", "link", "data", "train", "host")
MOST_SAMPLES = 100_000
LONGEST_KEY = 20_000  # characters
# median absolute deviation of a normal distribution to its standard deviation
TO_DEVIATION = 1.4826

Key = Mapping[str, Any]


class TimedRow(Protocol):
    """A row of a report: timed by it, or known before."""

    @property
    def was_known(self) -> bool: ...


class MeasurementReport(Answer):
    """What a command of `measure` did."""

    __slots__ = ()

    rows: Sequence[TimedRow]
    store: str  # where the times are kept

    @property
    def measured(self) -> int:
        return sum(not row.was_known for row in self.rows)


@dataclass(frozen=True, slots=True)
class Measurement:
    """One thing that was timed on one machine. Its key says what; see `op_key`, `link_key`, `data_key`."""

    kind: str  # of KINDS
    key: Key
    seconds: float  # median
    spread: float  # relative, one standard deviation of a repeat, robustly
    repeats: int
    machine: Machine
    at: str  # UTC, ISO 8601 with microseconds
    samples: tuple[float, ...] = ()  # seconds of the repeats, as measured; may be left out
    about: Key = field(default_factory=dict)
    """What else is worth keeping but does not identify it (plain JSON values)."""

    def __post_init__(self) -> None:
        faults = []
        if self.kind not in KINDS:
            faults.append(f"kind: {self.kind!r} must be one of {', '.join(KINDS)}.")
        for name in ("seconds", "spread"):
            value = getattr(self, name)
            if not (isinstance(value, float | int) and is_finite(value) and value >= 0):
                faults.append(f"{name}: {shown(value)} must be a finite number, zero or more.")
        if not isinstance(self.repeats, int) or self.repeats < 1:
            faults.append(f"repeats: {shown(self.repeats)} must be 1 or more.")
        if len(self.samples) > MOST_SAMPLES:
            faults.append(f"samples: {len(self.samples):,} exceed the limit of {MOST_SAMPLES:,}.")
        if not all(isinstance(s, float) and is_finite(s) and s >= 0 for s in self.samples):
            faults.append("samples: must be finite numbers of seconds.")
        refuse("Invalid measurement:", faults)

    @classmethod
    def of(
        cls,
        kind: str,
        key: Key,
        samples: Sequence[float],
        machine: Machine,
        *,
        at: str | None = None,
        about: Key | None = None,
    ) -> Measurement:
        """From the seconds of the repeats: their median, and their median absolute deviation as spread."""
        if not samples:
            raise InputError("A measurement needs at least one sample.")
        middle, spread = median_and_spread(samples)
        taken = tuple(float(s) for s in samples)
        return cls(
            kind, dict(key), middle, spread, len(taken), machine, at or now(), taken, dict(about or {})
        )  # fmt: skip

    @property
    def key_text(self) -> str:
        return canonical(self.key)

    @property
    def digest(self) -> str:
        """Of everything it says: the same measurement twice is one row, a changed one is found out."""
        words = [self.kind, self.key_text, canonical(self.about), self.machine.id, self.at]
        numbers = [float(self.seconds), float(self.spread), self.repeats, *self.samples]
        return hashlib.sha256(json.dumps([words, numbers]).encode()).hexdigest()


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds")


def median_and_spread(samples: Sequence[float]) -> tuple[float, float]:
    """The median, and a robust standard deviation relative to it."""
    middle = statistics.median(samples)
    deviation = statistics.median(abs(s - middle) for s in samples) * TO_DEVIATION
    return float(middle), float(deviation / middle) if middle > 0 else 0.0


def canonical(key: Key) -> str:
    """The one text of a key: sorted, without spaces, whole floats as integers, without NaN."""
    try:
        text = json.dumps(_plain(key), sort_keys=True, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"A measurement's key must be plain JSON values: {error}.") from error
    if len(text) > LONGEST_KEY:
        raise InputError(
            f"A measurement's key has {len(text):,} characters; at most {LONGEST_KEY:,}."
        )
    return text


def _plain(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    if isinstance(value, Mapping):
        return {str(name): _plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return value


def packed(samples: Iterable[float]) -> bytes:
    """Samples as bytes: little-endian doubles, deflated."""
    numbers = array("d", samples)
    if array("H", [1]).tobytes() != b"\x01\x00":
        numbers.byteswap()
    return zlib.compress(numbers.tobytes(), 6)


def unpacked(raw: bytes) -> tuple[float, ...]:
    """Inverse of `packed`, bounded whatever it is given; `ValueError` if it is something else."""
    try:
        inflate = zlib.decompressobj()
        plain = inflate.decompress(raw, 8 * MOST_SAMPLES + 1)
    except zlib.error as error:
        raise ValueError(f"samples cannot be read: {error}") from None
    if len(plain) > 8 * MOST_SAMPLES or len(plain) % 8 or not inflate.eof:
        raise ValueError("samples do not match their checksum")
    numbers = array("d", plain)
    if array("H", [1]).tobytes() != b"\x01\x00":
        numbers.byteswap()
    return tuple(numbers)


# --- keys -------------------------------------------------------------------------------------------


def op_key(
    kernel: Kernel, *, device: str = "cpu", threads: int | None = None, processes: int = 1
) -> dict[str, Any]:
    """A kernel on a device. `device` is `cpu` or the GPU's name; `threads` is told of CPUs only, and `processes` where
    several ran it at once."""
    key = {
        "kernel": kernel.kind,
        "phase": kernel.phase,
        "dtype": kernel.dtype,
        "shape": list(kernel.shape),
        "flops": kernel.flops,
        "bytes": kernel.bytes,
        "device": device,
    }
    if threads is not None:
        key["threads"] = threads
    return key if processes == 1 else {**key, "processes": processes}


def link_key(
    collective: str,
    ranks: int,
    size: float,
    *,
    nodes: int = 1,
    backend: str = "gloo",
    device: str = "cpu",
) -> dict[str, Any]:
    """A collective (or `send`) of `ranks` ranks spread evenly over `nodes`. `size` follows nccl-tests: the full
    buffer of all-reduce and all-to-all on a rank, the gathered one of all-gather, the one before reduce-scatter."""
    return {
        "collective": collective,
        "ranks": ranks,
        "bytes": size,
        "nodes": nodes,
        "backend": backend,
        "device": device,
    }


def data_key(what: str, **details: Any) -> dict[str, Any]:
    """`fetch` (bytes, cache="cold"|"warm"), `prep` (samples, workers, about the data set),
    `host_to_device` (bytes, device). Seconds are of all these bytes or samples."""
    return {"what": what, **details}


def host_key(what: str, **details: Any) -> dict[str, Any]:
    """`kernel`: host seconds to issue one kernel (runtime="eager", device, threads …)."""
    return {"what": what, **details}
