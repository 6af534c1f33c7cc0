"""The study of communication stalls: what was measured, the law, and the simulator's answer to the same."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from html import escape
from typing import Any

from foretrain.report import words
from foretrain.report.page import Page, Section
from foretrain.units import show_bytes

WIDTH, HEIGHT = 1000, 420
LEFT, RIGHT, TOP, BOTTOM = 78, 24, 16, 46
COLOURS = {"residual": "#4f7fd9", "no residual": "#e07b39", "no batch norm": "#3aa76d"}
LAW_WORDS = {
    "per_layer": "a layer",
    "per_tensor": "a gradient tensor",
    "per_bucket": "a bucket and additional device",
    "per_byte": "a MiB on the wire",
}
CAUSES = {
    "per_layer": "layers",
    "per_tensor": "gradient tensors",
    "per_bucket": "buckets",
    "per_byte": "bytes",
}
AXES: tuple[tuple[str, str], ...] = (
    ("bytes", "bytes of gradients"),
    ("tensors", "gradient tensors"),
    ("layers", "layers"),
)


def study_page(document: Mapping[str, Any]) -> Page:
    """The page of a `measure study` document."""
    sections = (_law(document), _rows(document["rows"]))
    page = Page(headline(document), document, sections)
    return Page(page.headline, document, sections, more={"html": partial(_html, page)})


def headline(document: Mapping[str, Any]) -> str:
    shares = document["law"]["shares"]
    main = max(shares, key=lambda name: shares[name])
    found = document["agreement"]
    order = found["rank_correlation"]
    return (
        f"{len(document['rows'])} networks measured: {words.percent(shares[main])} of their "
        f"communication stalls scales with {CAUSES[main]}; the simulator predicts "
        f"{found['median_ratio']:.2f} times the measured stall (median; "
        f"{found['median_ratio_waited']:.2f} times the wait of ranks after their own work), "
        f"rank correlation {'unknown' if order is None else f'{order:.2f}'}"
    )


def _law(document: Mapping[str, Any]) -> Section:
    rows = []
    for name, what in LAW_WORDS.items():
        scale = 2**20 if name == "per_byte" else 1
        cells = [what]
        for law in (document["law"], document["predicted_law"]):
            cells += [words.seconds(law[name] * scale), words.percent(law["shares"][name])]
        rows.append(tuple(cells))
    fit = ["fit (R², median error)"]
    for law in (document["law"], document["predicted_law"]):
        told = law["r_squared"]
        fit += ["–" if told is None else f"{told:.2f}", words.percent(law["median_error"])]
    head = ("per …", "measured", "share", "simulated", "share")
    return Section("What communication stalls scale with", head, (*rows, tuple(fit)))


def _rows(found: Sequence[Mapping[str, Any]]) -> Section:
    rows = tuple(
        (
            row["net"],
            str(row["devices"]),
            str(row["tensors"]),
            show_bytes(row["bytes"]),
            str(row["buckets"]),
            words.seconds(row["alone_seconds"]),
            words.seconds(row["together_seconds"]),
            words.seconds(row["stall_seconds"]),
            words.seconds(row["waited_seconds"]),
            words.seconds(row["predicted_stall_seconds"]),
        )
        for row in found
    )
    head = ("layers x width", "ranks", "tensors", "bytes", "buckets", "T0", "T1", "stall", "waited", "simulated")  # fmt: skip
    return Section("Networks", head, rows)


def _html(page: Page) -> str:
    from foretrain.report.templates import template

    rows = page.document["rows"]
    kinds = [(name, colour) for name, colour in COLOURS.items() if any(r["kind"] == name for r in rows)]  # fmt: skip
    hint = (
        "One point per network, both axes logarithmic. Filled points are measured, rings are "
        "simulated."
    )
    drawings = [
        (f"Stall vs. {title}", hint, kinds, draw(rows, key, title))
        for key, title in AXES
        if len({row[key] for row in rows}) > 1
    ]
    return template("measured.html").render(
        title="Communication stalls · Foretrain",
        asked="How communication stalls scale",
        headline=page.headline,
        tiles=[],
        charts=False,
        has_prediction=False,
        drawings=drawings,
        sections=page.sections,
        data="{}",
    )


def draw(rows: Sequence[Mapping[str, Any]], key: str, title: str) -> str:
    """Stalls over one cause as SVG."""
    pairs = [(row[key], row[name]) for row in rows for name in ("stall_seconds", "predicted_stall_seconds")]  # fmt: skip
    drawn = [(x, y) for x, y in pairs if x > 0 and y > 0]
    if not drawn:
        return ""
    across = _axis([x for x, _ in drawn], LEFT, WIDTH - RIGHT)
    up = _axis([y for _, y in drawn], HEIGHT - BOTTOM, TOP)
    marks = [_grid(across, up, key == "bytes")]
    for row in rows:
        colour = COLOURS.get(row["kind"], "#7f8894")
        for name, is_full in (("stall_seconds", True), ("predicted_stall_seconds", False)):
            if row[name] <= 0:
                continue
            fill = colour if is_full else "none"
            what = "measured" if is_full else "simulated"
            tip = escape(
                f"{row['net']}, {row['devices']} devices: {words.seconds(row[name])} {what}"
            )
            marks.append(
                f'<circle cx="{across(row[key]):.1f}" cy="{up(row[name]):.1f}" r="5" fill="{fill}" '
                f'stroke="{colour}" stroke-width="1.6"><title>{tip}</title></circle>'
            )
    label = escape(f"Communication stall over {title}")
    return (
        f'<svg class="plot" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}">'
        f"{''.join(marks)}</svg>"
    )


def _axis(values: Sequence[float], start: float, end: float) -> Callable[[float], float]:
    """A logarithmic axis with some room at both ends."""
    low, high = math.log(min(values) / 1.3), math.log(max(values) * 1.3)
    return lambda value: start + (math.log(value) - low) / (high - low) * (end - start)


def _grid(across: Callable[[float], float], up: Callable[[float], float], in_bytes: bool) -> str:
    """Lines and labels at 1, 2 and 5 of every decade that lies within; bytes at powers of two."""
    decades = [digit * 10.0**power for power in range(-7, 7) for digit in (1, 2, 5)]
    sizes = (
        [2.0**power for power in range(6, 40, 2)] if in_bytes else [v for v in decades if v >= 1]
    )
    parts = []
    for value in sizes:
        x = across(value)
        if LEFT <= x <= WIDTH - RIGHT:
            text = show_bytes(value).replace(".0 ", " ") if in_bytes else f"{value:g}"
            parts.append(
                f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>'
                f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 20}" text-anchor="middle">{text}</text>'
            )
    for value in decades:
        y = up(value)
        if TOP <= y <= HEIGHT - BOTTOM:
            parts.append(
                f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
                f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{words.seconds(value)}</text>'
            )
    return "".join(parts)
