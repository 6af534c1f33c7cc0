"""Step time vs. memory, drawn: the front that was estimated and the best plans that were simulated."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from foretrain.planning.per_layer import described
from foretrain.report import words
from foretrain.searching import Found
from foretrain.units import show_bytes

WIDTH, HEIGHT = 900, 400
LEFT, RIGHT, TOP, BOTTOM = 78, 20, 24, 52
FAR = 3.0
"""Plans more times slower than the fastest are not drawn: nobody would take them, and the rest would be squeezed."""


@dataclass(frozen=True, slots=True)
class Point:
    x: float
    y: float
    tip: str
    label: str = ""
    has_room: bool = True  # for the label


@dataclass(frozen=True, slots=True)
class Tick:
    at: float
    text: str


@dataclass(frozen=True, slots=True)
class Drawing:
    """In pixels of a drawing of WIDTH x HEIGHT."""

    line: str
    front: tuple[Point, ...]
    best: tuple[Point, ...]
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    usable: Tick | None
    hidden: int
    x_title: str
    far: str = f"{FAR:g}"
    width: int = WIDTH
    height: int = HEIGHT
    left: int = LEFT
    right: int = WIDTH - RIGHT
    top: int = TOP
    bottom: int = HEIGHT - BOTTOM


def drawing(found: Found) -> Drawing | None:
    """None where there is nothing to draw."""
    best = [
        (row.prediction.step_seconds, row.prediction.memory.peak_bytes, described(row.plan))
        for row in found.best
    ]
    front = [(row.seconds, row.memory, row.plan) for row in found.pareto]
    fastest = min((row[0] for row in (*front, *best)), default=math.inf)
    near = [row for row in front if row[0] <= FAR * fastest]
    drawn_best = [row for row in best if row[0] <= FAR * fastest]
    every = [*near, *drawn_best]
    if not every:
        return None
    usable = min(row.usable for row in found.pareto) if found.pareto else None
    scale = _Scale(every, usable)
    return Drawing(
        line=_stairs([scale.place(s, m) for s, m, _ in near]),
        front=tuple(scale.point(*row) for row in near),
        best=_labelled([scale.point(*row, str(n)) for n, row in enumerate(drawn_best, 1)]),
        x_ticks=scale.x_ticks(),
        y_ticks=scale.y_ticks(),
        usable=scale.limit(usable),
        hidden=len(front) - len(near),
        x_title=f"step time ({scale.unit})",
    )


class _Scale:
    """From seconds and bytes to pixels, both linear; memory starts at nothing."""

    def __init__(self, rows: Sequence[tuple[float, float, str]], usable: float | None) -> None:
        times, sizes = [row[0] for row in rows], [row[1] for row in rows]
        margin = 0.05 * (max(times) - min(times)) or 0.05 * max(times)
        self.low, self.high = max(0.0, min(times) - margin), max(times) + margin
        top = 1.08 * max(sizes)
        self.has_limit = usable is not None and usable <= 2.0 * top
        self.most = max(top, 1.04 * usable) if self.has_limit and usable else top
        factor, self.unit = (1.0, "s") if self.high >= 1.0 else (1e3, "ms")
        self.factor = factor

    def place(self, seconds: float, size: float) -> tuple[float, float]:
        x = LEFT + (WIDTH - LEFT - RIGHT) * (seconds - self.low) / (self.high - self.low)
        y = HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * size / self.most
        return round(x, 1), round(y, 1)

    def point(self, seconds: float, size: float, plan: str, label: str = "") -> Point:
        kind = f"{label}. simulated" if label else "estimated"
        tip = f"{plan}\n{words.seconds(seconds)}, {show_bytes(size)} ({kind})"
        return Point(*self.place(seconds, size), tip, label)

    def x_ticks(self) -> tuple[Tick, ...]:
        low, high = self.low * self.factor, self.high * self.factor
        step = _step(high - low, 7)
        first = math.ceil(low / step)
        values = [n * step for n in range(first, math.floor(high / step) + 1)]
        return tuple(Tick(self.place(v / self.factor, 0.0)[0], _number(v, step)) for v in values)

    def y_ticks(self) -> tuple[Tick, ...]:
        gib = 2.0**30
        step = _step(self.most / gib, 6)
        values = [n * step for n in range(math.floor(self.most / gib / step) + 1)]
        return tuple(
            Tick(self.place(self.low, v * gib)[1], f"{_number(v, step)} GiB") for v in values
        )

    def limit(self, usable: float | None) -> Tick | None:
        if usable is None or not self.has_limit:
            return None
        return Tick(self.place(self.low, usable)[1], f"{show_bytes(usable)} usable")


def _labelled(points: Sequence[Point]) -> tuple[Point, ...]:
    """Numbers are left out where they would lie on that of a better plan."""
    found: list[Point] = []
    for point in points:
        near = (p for p in found if p.has_room)
        is_free = all(abs(p.x - point.x) >= 14 or abs(p.y - point.y) >= 13 for p in near)
        found.append(replace(point, has_room=is_free))
    return tuple(found)


def _stairs(points: Sequence[tuple[float, float]]) -> str:
    """Between two plans of the front one can have the memory of the left or the time of the right, no better."""
    parts: list[str] = []
    for number, (x, y) in enumerate(points):
        if not number:
            parts.append(f"M{x} {y}")
        else:
            parts.append(f"H{x}V{y}")
    return "".join(parts)


def _step(span: float, wanted: int) -> float:
    """A round step that makes about as many ticks."""
    rough = max(span, 1e-12) / wanted
    power = 10.0 ** math.floor(math.log10(rough))
    return next(m * power for m in (1.0, 2.0, 2.5, 5.0, 10.0) if m * power >= rough * 0.999)


def _number(value: float, step: float) -> str:
    digits = next((n for n in range(12) if abs(round(step, n) - step) < 1e-9 * step), 12)
    return f"{value:,.{digits}f}"
