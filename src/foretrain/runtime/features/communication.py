"""The library that moves data between ranks, and how its flows get along."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from foretrain.errors import InputError, hint
from foretrain.runtime.features.option import Feature, pairs, read_by, switch, word

PURPOSES = (
    "tensor",
    "context",
    "expert",
    "data",
    "pipeline",
    "embedding",
    "halo",
    "reshard",
    "weights",
)
"""What communication serves."""


def _priorities(value: Any) -> tuple[tuple[str, float], ...]:
    return tuple((purpose, _priority(purpose, share)) for purpose, share in pairs(value))


def _priority(purpose: str, share: str) -> float:
    if purpose not in PURPOSES:
        raise InputError(f"{purpose!r} is not a purpose.{hint(purpose, PURPOSES)}")
    try:
        number = float(share)
    except ValueError:
        number = 0.0
    if not 1e-3 <= number <= 1e3:
        raise InputError(f"{share!r} must be a number from 0.001 to 1000.")
    return number


@dataclass(frozen=True, slots=True)
class CommunicationLibrary(Feature):
    """Whose collectives a stack calls, and what they meet on the way."""

    library: str = word("nccl", "nccl", "nccl-pods", "gloo", "mpi")
    # collective → algorithm[/protocol]
    algorithms: tuple[tuple[str, str], ...] = read_by((), pairs)
    # purpose → share of a link that flows compete for, 1 where not named
    priorities: tuple[tuple[str, float], ...] = read_by((), _priorities)
    # kernels and what moves beside them slow each other
    overlap_slows: bool = switch(True)
