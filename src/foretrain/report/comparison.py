"""Page of `compare`: what differs, where the time went, and the other figures of both."""

from __future__ import annotations

from foretrain.analysis.compare import Comparison, Difference
from foretrain.report import words
from foretrain.report.page import Page, Section
from foretrain.units import show_bytes, show_count

__all__ = ["compare_page", "signed"]


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
            tuple(map(_row, comparison.causes)),
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
    delta = "" if row.delta is None else signed(row.delta, row.unit)
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


def signed(delta: float, unit: str = "s") -> str:
    """`+1.20 s`, `−340 ms`."""
    if delta == 0:
        return "0 s" if unit == "s" else "0"
    sign = "+" if delta > 0 else "−"
    return sign + (
        f"{abs(delta) * 100:.1f} points" if unit == "share" else _shown(abs(delta), unit)
    )
