"""How large what strangers write may be: one table, which every reader goes by.

A limit stands well above anything that was ever trained and low enough that what is below it is answered in
seconds and without a number too large for arithmetic. Beyond it stands a slip of the finger, or malice.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite


@dataclass(frozen=True, slots=True)
class Limit:
    """A whole number from 1 to `most`; `what` it counts."""

    most: int
    what: str

    def allows(self, value: object) -> bool:
        return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= self.most

    def fault(self, value: object) -> str:
        """What is wrong with a value that is not allowed."""
        if isinstance(value, int) and not isinstance(value, bool) and value > self.most:
            return f"{shown(value)} is too large: at most {self.most:,} {self.what}."
        return f"{shown(value)} is not a positive whole number."


@dataclass(frozen=True, slots=True)
class Range:
    """A number from `least` to `most`."""

    least: float
    most: float

    def allows(self, value: float) -> bool:
        return is_finite(value) and self.least <= value <= self.most


MOST_COUNT = 10**18
"""Of any count in words: below 2^63, so that columns of counts can hold it."""
AXES = Limit(32, "axes of a mesh")
"""Plans in words have six; an array of ranks has at most 64."""
DEVICES = Limit(2**20, "devices")
"""Ten times the largest machine there is."""
NODE_DEVICES = Limit(4096, "devices in a node")
"""Racks that act as one machine have some hundred."""
LAYERS = Limit(10_000, "layers")
"""DeepNet (Wang et al. 2022) has 1,000; every one of ours costs memory when stages are cut."""
DIMENSION = Limit(2**36, "elements along one dim")
"""Rows of the largest embedding tables are some 2^33; squares of it still are exact enough in a double."""
SEQUENCE = Limit(2**27, "tokens in a sample")
"""128 M tokens; the longest contexts that were trained have 10 M."""
BATCH = Limit(2**30, "samples in a step")
MICRO_BATCH = Limit(2**20, "samples in a micro-batch")
PASSES = Limit(500_000, "micro-batch passes through a stage")
"""Of one step, micro-batches x stages x chunks: each is simulated, at some five microseconds and a kilobyte."""
FACTOR = Range(1e-6, 1e6)
"""By which a what-if may change something."""
SLOWNESS = Range(0.01, 1000.0)
"""Of a straggler: what is slower still has failed and is no part of the job."""
BUCKET = Range(1.0, 1e15)
"""Bytes of gradients that are reduced together."""
SEEDS = range(2**63)
"""Of random draws: generators of random numbers take no negative ones."""
QUANTITY = Range(1e-18, 1e24)
"""Of anything with a unit (bytes, seconds, bytes/s, FLOP/s): products and ratios of two stay finite."""


def is_finite(value: float) -> bool:
    """Whether it is a number that a double can hold; whole numbers of hundreds of digits are not finite in this sense."""
    try:
        return isfinite(value)
    except (OverflowError, TypeError):
        return False


def shown(value: object, width: int = 40) -> str:
    """A value as messages show it, however long it is."""
    try:
        text = f"{value:,}" if type(value) is int and abs(value) < 10**18 else repr(value)
    except ValueError:  # whole numbers with thousands of digits are not written out
        text = "a number with thousands of digits"
    return text if len(text) <= width else text[: width - 1] + "…"
