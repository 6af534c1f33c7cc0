"""Questions and their kept answers, one JSON line each, compressed; and how answers of today differ from them."""

from __future__ import annotations

import json
import lzma
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.gate.answers import Numbers
from tests.gate.questions import Question

FILE = Path(__file__).parent / "answers.jsonl.xz"
SAME = 1e-12
"""Relative difference up to which two answers are one: another order of a sum."""


@dataclass(frozen=True)
class Kept:
    name: str  # group and number
    question: Question
    answer: Numbers


@dataclass(frozen=True)
class Drift:
    name: str
    key: str
    was: float | str | None
    now: float | str | None

    @property
    def size(self) -> float:
        """Relative; infinite where it is not a matter of degree."""
        if isinstance(self.was, float) and isinstance(self.now, float) and self.was:
            return abs(self.now / self.was - 1.0)
        return math.inf


def read(content: bytes | None = None) -> list[Kept]:
    text = lzma.decompress(FILE.read_bytes() if content is None else content).decode()
    return [Kept(*json.loads(line)) for line in text.splitlines()]


def write(rows: Iterable[Kept]) -> None:
    lines = (json.dumps([r.name, r.question, r.answer], separators=(",", ":")) for r in rows)
    FILE.write_bytes(lzma.compress(("\n".join(lines) + "\n").encode(), preset=9))


def drifts(name: str, was: Numbers, now: Numbers) -> list[Drift]:
    """Numbers that are no longer the same, the first of each question's keys first."""
    keys = [*was, *(key for key in now if key not in was)]
    return [
        Drift(name, key, was.get(key), now.get(key))
        for key in keys
        if not _same(key, was.get(key), now.get(key), was)
    ]


def _same(
    key: str, was: float | str | None, now: float | str | None, row: Mapping[str, object]
) -> bool:
    if was == now:
        return True
    if not isinstance(was, float) or not isinstance(now, float):
        return False
    # parts of almost nothing are rounding: hold them to the whole
    whole = row.get(
        "step" if key.startswith("stall.") else "peak" if key.startswith("memory.") else key
    )
    if key.startswith("estimate."):
        whole = max(abs(was), float(row.get("step", 0.0) or 0.0) if abs(was) < 1e5 else 0.0)
    scale = float(whole) if isinstance(whole, float) else abs(was)
    return abs(now - was) <= SAME * max(abs(was), scale)
