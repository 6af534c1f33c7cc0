"""Offers as one HTML file: time against money as an inline drawing, tables below. No script."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

from foretrain.report import words
from foretrain.report.page import Page
from foretrain.report.recommendation import hours
from foretrain.report.templates import template

if TYPE_CHECKING:
    from foretrain.recommendation.facade import Recommendation
    from foretrain.recommendation.offers import Offer

WIDTH, HEIGHT = 1000, 520
LEFT, RIGHT, TOP, BOTTOM = 78, 24, 16, 46
COLOURS = ("#4f7fd9", "#e07b39", "#3aa76d", "#a45ad1", "#d9534f", "#35b0c4", "#b5a12a", "#7f8894")


def render(page: Page, found: Recommendation) -> str:
    return template("offers.html").render(
        title="Cloud offers · Foretrain",
        headline=page.headline,
        is_no=page.is_no,
        drawing=draw(found.offers),
        clouds=[(name, colour) for name, colour in _colours(found.offers).items()],
        sections=[s for s in page.sections if s.rows or s.lines],
    )


@dataclass(frozen=True, slots=True)
class _Axis:
    """A logarithmic axis from `low` to `high`, drawn from `start` to `end`."""

    low: float
    high: float
    start: float
    end: float

    def at(self, value: float) -> float:
        share = math.log(value / self.low) / math.log(self.high / self.low)
        return round(self.start + share * (self.end - self.start), 1)

    def ticks(self, steps: Sequence[float]) -> list[float]:
        return [value for value in steps if self.low <= value <= self.high]


def draw(offers: Sequence[Offer]) -> str:
    """The chart as SVG: hours to the right, money upwards, the front joined by a line."""
    drawn = [one for one in offers if one.hours > 0 and one.usd > 0]
    if not drawn:
        return ""
    x = _axis([o.hours for o in drawn], LEFT, WIDTH - RIGHT)
    y = _axis([o.usd for o in drawn], HEIGHT - BOTTOM, TOP)
    colours = _colours(drawn)
    front = sorted((o for o in drawn if o.is_best), key=lambda o: o.hours)
    parts = [
        f'<svg class="offers" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        'aria-label="Cost over time of every offer">',
        *_grid(x, y),
        '<polyline class="front" points="'
        + " ".join(f"{x.at(o.hours)},{y.at(o.usd)}" for o in front)
        + '"/>',
        *(_point(o, x, y, colours) for o in reversed(drawn)),
        "</svg>",
    ]
    return "\n".join(parts)


def _axis(values: Sequence[float], start: float, end: float) -> _Axis:
    low, high = min(values) / 1.15, max(values) * 1.15
    return _Axis(low, high, start, end)


def _colours(offers: Sequence[Offer]) -> dict[str, str]:
    clouds = sorted({o.candidate.instance.partition(":")[0] for o in offers})
    return {cloud: COLOURS[i % len(COLOURS)] for i, cloud in enumerate(clouds)}


def _grid(x: _Axis, y: _Axis) -> list[str]:
    times = [v / 60 for v in (1, 2, 5, 10, 20, 30)] + [1.0, 2.0, 4.0, 8.0, 12.0]
    times += [24.0 * v for v in (1, 2, 3, 5, 7, 10, 14, 20, 30, 60, 100, 200, 365, 1000)]
    money = [v * 10.0**e for e in range(-3, 10) for v in (1, 2, 5)]
    if len(y.ticks(money)) > 10:
        money = [10.0**e for e in range(-3, 10)]
    out = []
    for value in x.ticks(times):
        at = x.at(value)
        out.append(f'<line class="grid" x1="{at}" x2="{at}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>')
        out.append(_text(at, HEIGHT - BOTTOM + 18, _time(value), "middle"))
    for value in y.ticks(money):
        at = y.at(value)
        out.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at}" y2="{at}"/>')
        out.append(_text(LEFT - 8, at + 4, words.usd(value), "end"))
    out.append(_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8, "time to completion", "middle"))
    return out


def _time(value: float) -> str:
    if value < 1:
        return f"{value * 60:.0f} min"
    return f"{value:.0f} h" if value < 24 else f"{value / 24:g} d"


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}">{escape(text)}</text>'


def _point(one: Offer, x: _Axis, y: _Axis, colours: dict[str, str]) -> str:
    colour = colours[one.candidate.instance.partition(":")[0]]
    told = (
        f"{one.name}\n{one.plan}\n{hours(one.hours)}, {words.usd(one.usd)} (prices as of "
        f"{one.candidate.price_date})\n{one.why}"
    )
    size = 6 if one.is_best else 4
    fill = colour if one.is_simulated else "none"
    return (
        f'<circle cx="{x.at(one.hours)}" cy="{y.at(one.usd)}" r="{size}" fill="{fill}" '
        f'stroke="{colour}"><title>{escape(told)}</title></circle>'
    )
