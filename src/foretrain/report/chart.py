"""Charts as SVG: points over two axes, with lines for the eye. Colors are those of the page, light or dark."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from html import escape

from foretrain.report import words
from foretrain.report.document import Axis, Chart, ChartPoint, Guide, Series
from foretrain.units import show_bytes

WIDTH, HEIGHT = 1000, 480
LEFT, RIGHT, TOP, BOTTOM = 84, 24, 20, 52
COLORS = 17
"""Of the palette `c0`… in the style sheet."""


@dataclass(frozen=True, slots=True)
class Scale:
    """From the values of an axis to pixels between `start` and `end`."""

    axis: Axis
    low: float
    high: float
    start: float
    end: float

    def at(self, value: float) -> float:
        low, high = self.low, self.high
        if self.axis.is_log:
            share = math.log(value / low) / math.log(high / low)
        else:
            share = (value - low) / (high - low)
        return round(self.start + share * (self.end - self.start), 1)

    def ticks(self) -> list[tuple[float, str]]:
        """Place and text of round values, those left out that would lie on the one before."""
        kept: list[tuple[float, str]] = []
        room = 56.0 if self.end > self.start else 16.0  # texts are wider than high
        for value, text in _TICKS[self.axis.is_log](self):
            if not kept or abs(self.at(value) - kept[-1][0]) >= room:
                kept.append((self.at(value), text))
        return kept


def draw(chart: Chart) -> str:
    """The chart; empty where there is nothing to draw."""
    points = [point for series in chart.series for point in series.points]
    if not points:
        return ""
    x, y = scales(chart, points)
    parts = [*_grid(x, y), *itertools.chain(*(_guide(guide, x, y) for guide in chart.guides))]
    for number, series in enumerate(chart.series):
        marks = "".join(_series(series, x, y))
        parts.append(f'<g class="series c{number % COLORS}">{marks}</g>')
    parts += labels(points, x, y)
    name = escape(f"{chart.y.title} over {chart.x.title}")
    return (
        f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{name}">'
        f"{''.join(parts)}</svg>"
    )


def scales(chart: Chart, points: Sequence[ChartPoint]) -> tuple[Scale, Scale]:
    xs, ys = [p.x for p in points], [p.y for p in points]
    if any(guide.factor is not None for guide in chart.guides):
        xs = ys = [*xs, *ys]  # what is compared has one scale
    ys = [*ys, *(g.value for g in chart.guides if g.value is not None)]
    return (
        Scale(chart.x, *_ends(chart.x, xs), LEFT, WIDTH - RIGHT),
        Scale(chart.y, *_ends(chart.y, ys), HEIGHT - BOTTOM, TOP),
    )


def _ends(axis: Axis, values: Sequence[float]) -> tuple[float, float]:
    """With some room; sizes start at nothing."""
    low, high = min(values), max(values)
    if axis.is_log:
        return low / 1.15, high * 1.15
    margin = 0.05 * (high - low) or 0.05 * high or 1.0
    return 0.0 if axis.quantity == "bytes" else max(0.0, low - margin), high + margin


# --- ticks ------------------------------------------------------------------------------------------

_UNITS = {
    "bytes": (2.0**30, " GiB"),
    "hours": (1.0, " h"),
}


def _linear(scale: Scale) -> Iterator[tuple[float, str]]:
    unit, name = _UNITS.get(scale.axis.quantity, (1.0, ""))
    if scale.axis.quantity == "s":
        unit, name = (1.0, " s") if scale.high >= 1.0 else (1e-3, " ms")
    step = _step((scale.high - scale.low) / unit, 7)
    digits = next((n for n in range(12) if abs(round(step, n) - step) < 1e-9 * step), 12)
    first, last = math.ceil(scale.low / unit / step), math.floor(scale.high / unit / step)
    for n in range(first, last + 1):
        yield n * step * unit, f"{n * step:,.{digits}f}{name}"


def _step(span: float, wanted: int) -> float:
    """A round step that makes about as many ticks."""
    rough = max(span, 1e-12) / wanted
    power = 10.0 ** math.floor(math.log10(rough))
    return next(m * power for m in (1.0, 2.0, 2.5, 5.0, 10.0) if m * power >= rough * 0.999)


def _logarithmic(scale: Scale) -> Iterator[tuple[float, str]]:
    quantity = scale.axis.quantity
    if quantity == "hours":
        values = [v / 60 for v in (1, 2, 5, 10, 20, 30)] + [1.0, 2.0, 4.0, 8.0, 12.0]
        values += [24.0 * v for v in (1, 2, 3, 5, 7, 10, 14, 20, 30, 60, 100, 200, 365, 1000)]
    elif quantity == "bytes":
        values = [2.0**power for power in range(6, 60, 2)]
    else:
        values = _decades(scale, (1.0, 2.0, 5.0))
        if len(values) > 12:
            values = _decades(scale, (1.0,))
    show = _SHOWN[quantity]
    return ((value, show(value)) for value in values if scale.low <= value <= scale.high)


def _decades(scale: Scale, digits: Sequence[float]) -> list[float]:
    powers = range(math.floor(math.log10(scale.low)), math.ceil(math.log10(scale.high)) + 1)
    ticks = (digit * 10.0**power for power in powers for digit in digits)
    return [value for value in ticks if scale.low <= value <= scale.high]


def _hours(value: float) -> str:
    if value < 1:
        return f"{value * 60:.0f} min"
    return f"{value:.0f} h" if value < 24 else f"{value / 24:g} d"


_TICKS: dict[bool, Callable[[Scale], Iterator[tuple[float, str]]]] = {
    False: _linear,
    True: _logarithmic,
}
_SHOWN: dict[str, Callable[[float], str]] = {
    "s": words.seconds,
    "hours": _hours,
    "bytes": lambda value: show_bytes(value).replace(".0 ", " "),
    "usd": words.usd,
    "count": lambda value: f"{value:g}",
}


# --- marks ------------------------------------------------------------------------------------------


def _grid(x: Scale, y: Scale) -> Iterator[str]:
    for at, text in x.ticks():
        yield f'<line class="grid" x1="{at}" x2="{at}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>'
        yield _text(at, HEIGHT - BOTTOM + 18, text, "middle")
    for at, text in y.ticks():
        yield f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at}" y2="{at}"/>'
        yield _text(LEFT - 8, at + 4, text, "end")
    yield _text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 10, x.axis.title, "middle")
    yield _text(LEFT, TOP - 8, y.axis.title, "start")


def _text(x: float, y: float, text: str, anchor: str, cls: str = "") -> str:
    named = f' class="{cls}"' if cls else ""
    return f'<text{named} x="{x}" y="{y}" text-anchor="{anchor}">{escape(words.clean(text))}</text>'


def _guide(guide: Guide, x: Scale, y: Scale) -> Iterator[str]:
    if guide.value is not None:
        ends = [(x.low, guide.value), (x.high, guide.value)]
    else:
        factor = guide.factor or 1.0
        low, high = max(x.low, y.low / factor), min(x.high, y.high / factor)
        ends = [(low, low * factor), (high, high * factor)]
    (x1, y1), (x2, y2) = ((x.at(a), y.at(b)) for a, b in ends)
    cls = "limit" if guide.value is not None else "guide dashed" if guide.is_dashed else "guide"
    yield f'<line class="{cls}" x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}"/>'
    if guide.text:
        yield _text(x2 - 4, y2 - 5, guide.text, "end", cls)


def _series(series: Series, x: Scale, y: Scale) -> Iterator[str]:
    places = [(x.at(p.x), y.at(p.y)) for p in series.points]
    # between two plans one has the memory of the left or the time of the right
    if series.line == "stairs":
        path = "".join(f"H{a}V{b}" if n else f"M{a} {b}" for n, (a, b) in enumerate(places))
        yield f'<path class="line" d="{path}"/>'
    elif series.line:
        yield f'<polyline class="line dashed" points="{" ".join(f"{a},{b}" for a, b in places)}"/>'
    for point, (a, b) in zip(series.points, places, strict=True) if series.line != "only" else ():
        ring = "" if point.is_filled else ' class="ring"'
        tip = f"<title>{escape(words.clean_lines(point.tip))}</title>"
        yield f'<circle{ring} cx="{a}" cy="{b}" r="{point.size}">{tip}</circle>'


def labels(points: Sequence[ChartPoint], x: Scale, y: Scale) -> Iterator[str]:
    """Left out where they would lie on one before."""
    taken: list[tuple[float, float]] = []
    for point in points:
        a, b = x.at(point.x), y.at(point.y)
        if point.label and all(abs(a - c) >= 14 or abs(b - d) >= 13 for c, d in taken):
            taken.append((a, b))
            yield _text(a, b - 11, point.label, "middle", "mark")
