"""Predicted against measured as an SVG: a point per configuration on logarithmic axes, ±10 % shaded."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape

from testbed.report import Row

SIDE, MARGIN, LEGEND = 420, 56, 150
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")  # Okabe & Ito
BAND = 0.10
_Place = Callable[[float], float]  # seconds → pixels along an axis


def figure(rows: Sequence[Row]) -> str:
    """Colours are topologies, shapes are schemes."""
    values = [s for row in rows for s in (row.step_predicted, row.step_measured)]
    low, high = min(values) / 1.15, max(values) * 1.15

    def at(seconds: float) -> float:
        return SIDE * math.log(seconds / low) / math.log(high / low)

    topologies = list(dict.fromkeys(row.topology for row in rows))
    schemes = list(dict.fromkeys(row.scheme for row in rows))
    parts = [_frame(), _band(at, low, high), *_ticks(at, low, high)]
    for row in rows:
        colour = COLOURS[topologies.index(row.topology) % len(COLOURS)]
        x, y = MARGIN + at(row.step_measured), MARGIN + SIDE - at(row.step_predicted)
        title = (
            f"{row.topology}, {row.model}, {row.scheme}: {row.step_predicted * 1e3:.0f} ms predicted, "
            f"{row.step_measured * 1e3:.0f} ms measured"
        )
        parts.append(_point(x, y, schemes.index(row.scheme), colour, title))
    parts += _legend(topologies, schemes)
    width, height = SIDE + 2 * MARGIN + LEGEND, SIDE + 2 * MARGIN
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" font-family="sans-serif" font-size="12">\n'
        f'<rect width="{width}" height="{height}" fill="white"/>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def _frame() -> str:
    middle = MARGIN + SIDE / 2
    return (
        f'<rect x="{MARGIN}" y="{MARGIN}" width="{SIDE}" height="{SIDE}" fill="none" stroke="#444"/>'
        f'<text x="{middle}" y="{SIDE + 2 * MARGIN - 12}" text-anchor="middle">measured step, ms</text>'
        f'<text transform="translate(14 {middle}) rotate(-90)" text-anchor="middle">predicted step, ms</text>'
        f'<text x="{MARGIN}" y="{MARGIN - 16}" font-size="14">Real training over shaped links, ±{BAND:.0%} shaded</text>'
    )


def _band(at: _Place, low: float, high: float) -> str:
    up = at(low * (1 + BAND))
    base, end, top = MARGIN + SIDE, MARGIN + SIDE, MARGIN
    corners = [
        (MARGIN, base), (MARGIN, base - up), (end - up, top), (end, top), (end, top + up), (MARGIN + up, base),
    ]  # fmt: skip
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in corners)
    return (
        f'<polygon points="{points}" fill="#ddd" opacity="0.6"/>'
        f'<line x1="{MARGIN}" y1="{base}" x2="{end}" y2="{top}" stroke="#888" stroke-dasharray="4 3"/>'
    )


def _ticks(at: _Place, low: float, high: float) -> list[str]:
    found = []
    for step in (m * 10.0**e for e in range(-4, 3) for m in (1, 2, 5)):
        if low <= step <= high:
            x, y, name = MARGIN + at(step), MARGIN + SIDE - at(step), f"{step * 1e3:g}"
            found.append(
                f'<text x="{x:.1f}" y="{MARGIN + SIDE + 16}" text-anchor="middle">{name}</text>'
                f'<text x="{MARGIN - 6}" y="{y + 4:.1f}" text-anchor="end">{name}</text>'
            )
    return found


def _point(x: float, y: float, shape: int, colour: str, title: str = "") -> str:
    drawn = (
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4.5"',
        f'<rect x="{x - 4:.1f}" y="{y - 4:.1f}" width="8" height="8"',
        f'<polygon points="{x:.1f},{y - 5:.1f} {x + 5:.1f},{y + 4:.1f} {x - 5:.1f},{y + 4:.1f}"',
        f'<polygon points="{x:.1f},{y - 6:.1f} {x + 6:.1f},{y:.1f} {x:.1f},{y + 6:.1f} {x - 6:.1f},{y:.1f}"',
    )[shape % 4]
    told = f"<title>{escape(title)}</title>" if title else ""
    name = drawn.split()[0][1:]
    return f'{drawn} fill="{colour}" fill-opacity="0.75" stroke="{colour}">{told}</{name}>'


def _legend(topologies: Sequence[str], schemes: Sequence[str]) -> list[str]:
    x, y = SIDE + 2 * MARGIN - 34, MARGIN + 10
    found = []
    for number, name in enumerate(topologies):
        found.append(_point(x, y, 0, COLOURS[number % len(COLOURS)]))
        found.append(f'<text x="{x + 12}" y="{y + 4}">{escape(name)}</text>')
        y += 20
    y += 14
    for number, name in enumerate(schemes):
        found.append(_point(x, y, number, "#555"))
        found.append(f'<text x="{x + 12}" y="{y + 4}">{escape(name)}</text>')
        y += 20
    return found
