"""Page of `compare`: what differs, where the time went, and the other figures of both."""

from __future__ import annotations

from collections.abc import Sequence

from foretrain.analysis.compare import Comparison, Difference
from foretrain.report import words
from foretrain.report.page import Page, Section
from foretrain.units import show_bytes, show_count

__all__ = ["compare_page", "times"]


def compare_page(comparison: Comparison) -> Page:
    a, b = comparison.names
    head = ("", "A", "B", "B − A")
    asked = tuple((name, _said(x), _said(y)) for name, (x, y) in comparison.changed.items())
    sections = (
        Section("What differs", ("", "A", "B"), asked, left=3, columns="lnn"),
        Section("Figures", head, tuple(map(_row, comparison.figures)), columns="lrrr"),
        Section(
            f"Where the time of a {comparison.per} goes",
            head,
            times(tuple((row.name, row.a or 0.0, row.b or 0.0) for row in comparison.causes)),
            columns="lrrr",
        ),
    )
    whole = tuple(
        str(value) for pair in comparison.changed.values() for value in pair if value is not None
    )
    return Page(
        comparison.summary,
        comparison.to_dict(),
        sections,
        is_no=comparison.per is None,
        rows=comparison.rows(),
        asked="" if comparison.names == ("A", "B") else f"A: {a} · B: {b}",
        whole=(*whole, a, b),
    )


def _said(value: object) -> str:
    if value is None:
        return ""
    return f"{value:,}" if isinstance(value, int) else str(value)


def _row(row: Difference) -> tuple[str, ...]:
    if row.unit == "s" and row.a is not None and row.b is not None:
        return times([(row.name, row.a, row.b)])[0]
    delta = "" if row.delta is None else _signed(row.delta, row.unit)
    return (row.name, _shown(row.a, row.unit), _shown(row.b, row.unit), delta)


def _shown(value: float | None, unit: str) -> str:
    if value is None:
        return "unknown"
    if unit == "s":
        return words.seconds(value)
    if unit == "bytes":
        return show_bytes(value)
    if unit == "USD":
        return words.usd(value)
    if unit == "share":
        return words.percent(value)
    return show_count(value) if value >= 100 else f"{value:.3g}"


def times(rows: Sequence[tuple[str, float, float]]) -> tuple[tuple[str, ...], ...]:
    """(name, A, B, B − A), all times in one unit."""
    both = words.seconds_alike(value for _, a, b in rows for value in (a, b))
    deltas = [b - a for _, a, b in rows]
    unit = both[0].rpartition(" ")[2] if both else None
    sizes = words.seconds_alike(map(abs, deltas), unit=unit)
    return tuple(
        (name, both[2 * at], both[2 * at + 1], _sign(delta, size) + size)
        for at, ((name, *_), delta, size) in enumerate(zip(rows, deltas, sizes, strict=True))
    )


def _sign(delta: float, size: str) -> str:
    return "" if size.startswith("0 ") else "+" if delta > 0 else "−"


def _signed(delta: float, unit: str) -> str:
    """`+1.2 GiB`, `−3.1 points`."""
    if delta == 0:
        return "0"
    sign = "+" if delta > 0 else "−"
    return sign + (
        f"{abs(delta) * 100:.1f} points" if unit == "share" else _shown(abs(delta), unit)
    )
