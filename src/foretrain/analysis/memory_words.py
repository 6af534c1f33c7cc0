"""Whether it fits, in words: the same of a prediction and of its document."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from foretrain.units import show_bytes

if TYPE_CHECKING:
    from foretrain.analysis.prediction import Memory


@dataclass(frozen=True, slots=True)
class _Told:
    """Figures of a document."""

    peak_bytes: float
    interval: tuple[float, float]
    capacity_bytes: float
    context_bytes: float
    headroom_bytes: float
    usable_bytes: float
    fits: bool
    fits_probability: float


MemoryFigures: TypeAlias = "Memory | _Told"


def memory_of(document: Mapping[str, Any]) -> MemoryFigures:
    """Figures of a valid prediction document; what it may leave out is nothing."""
    memory = document["memory"]
    peak = float(memory["peak_bytes"])
    low, high = memory.get("interval_bytes") or (peak, peak)
    return _Told(
        peak,
        (float(low), float(high)),
        float(memory["capacity_bytes"]),
        float(memory.get("context_bytes", 0.0)),
        float(memory.get("headroom_bytes", 0.0)),
        float(memory["usable_bytes"]),
        bool(document["fits"]),
        float(memory["fits_probability"]),
    )


def memory_verdict(memory: MemoryFigures) -> str:
    """`fits: 30.1 GiB (28.9–31.4) of 77.7 GiB usable (79.2 GiB minus 1.5 GiB driver and libraries), probability > 99 %`."""
    peak = f"{show_bytes(memory.peak_bytes)} ({memory_interval(memory)})"
    said = f"fits: {peak} of" if memory.fits else f"does not fit: needs {peak},"
    return f"{said} {usable(memory)}, probability {probability(memory.fits_probability)}"


def usable(memory: MemoryFigures) -> str:
    """`77.7 GiB usable (79.2 GiB minus 1.5 GiB driver and libraries)`."""
    less = []
    if memory.context_bytes:
        less.append(f"{show_bytes(memory.context_bytes)} driver and libraries")
    if memory.headroom_bytes:
        less.append(f"{show_bytes(memory.headroom_bytes)} headroom")
    room = f"{show_bytes(memory.usable_bytes)} usable"
    return (
        f"{room} ({show_bytes(memory.capacity_bytes)} minus {' and '.join(less)})" if less else room
    )


def memory_interval(memory: MemoryFigures) -> str:
    """`28.9–31.4`, both ends in the unit of the peak; three digits are what a prediction can carry."""
    unit = show_bytes(memory.peak_bytes).partition(" ")[2]
    low, high = (show_bytes(value, unit).partition(" ")[0] for value in memory.interval)
    return f"{low}–{high}"


def probability(share: float) -> str:
    """`72 %`; nothing is certain: `> 99 %`, `< 1 %`."""
    if share > 0.99:
        return "> 99 %"
    return "< 1 %" if share < 0.01 else f"{100 * share:.0f} %"
