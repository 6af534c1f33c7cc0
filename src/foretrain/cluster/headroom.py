"""How much of a device's memory a training process may fill."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

import numpy as np

from foretrain.arrays import Floats
from foretrain.cluster.device import Device
from foretrain.errors import InputError
from foretrain.limits import shown
from foretrain.units import parse_bytes

MOST = 0.9
"""of a device: with more kept free nothing would be left to train with"""
Bytes = TypeVar("Bytes", float, Floats)


def usable_bytes(capacity: Bytes, context: float, headroom: float) -> Bytes:
    """What is left of a device's `capacity` for the framework's allocator.

    `context` lies outside the allocator (driver context, libraries, communicators); `headroom` is the share of the
    device that is kept free. Every question of whether something fits is decided against this.
    """
    left = capacity * (1.0 - headroom) - context
    if isinstance(left, np.ndarray):
        return np.maximum(left, 0.0)
    return max(left, 0.0)


def fill(peak: Bytes, usable: Bytes) -> Bytes:
    """Peak over what is usable: more than 1 does not fit. Where nothing is usable the fill is huge, not undefined."""
    shares: Bytes = peak / np.maximum(usable, 1.0)
    return shares


def headroom_share(
    given: float | str | None, devices: Iterable[Device], usual: float = 0.0
) -> float:
    """The share of a device that is kept free: from a share (`0.05`, `"5%"`) or a size (`"4GiB"`); else the usual one.

    Of devices of several sizes the smallest decides, so that as much as was asked for is free on all.
    """
    if given is None:
        return usual
    text = str(given).strip()
    try:
        if text.endswith("%"):
            share = float(text[:-1]) / 100.0
        elif text.endswith(("B", "b")):
            share = parse_bytes(text) / min(device.memory_bytes for device in devices)
        else:
            share = float(text)
    except (ValueError, InputError):
        raise _fault(given, "is neither a percentage nor a size") from None
    if not 0.0 <= share <= MOST:
        raise _fault(given, f"must be between 0 and {100 * MOST:.0f} % of device memory")
    return share


def _fault(given: float | str, reason: str) -> InputError:
    return InputError(
        f"headroom: {shown(given)} {reason}. Write a percentage such as 5% or a size such as 4GiB."
    )
