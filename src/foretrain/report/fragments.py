"""Documents in a notebook: what a terminal shows, as HTML whose styles reach nothing else in the page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from foretrain.report.text import Cell, Part, Sheet, TextTable
from foretrain.report.words import clean

_STYLES = {
    "bold": "font-weight:650", "bold red": "font-weight:650;color:#d1342b", "dim": "opacity:.65",
    "red": "color:#d1342b", "yellow": "color:#b3860b", "green": "color:#2e9e5b", "blue": "color:#4f7fd9",
    "cyan": "color:#2496ab", "magenta": "color:#a45ad1",
}  # fmt: skip
_CELL = "padding:1px 10px 1px 0;border:0;vertical-align:top;background:none;text-align:"
_HEADED = "font-weight:400;opacity:.65"


def fragment(sheet: Sheet) -> str:
    """One element; colours are those of the notebook, light or dark."""
    parts = [f"<div>{''.join(map(_span, sheet.headline))}</div>"]
    parts += [f"<div>{_span(line)}</div>" for line in sheet.opening]
    for title, body in sheet.blocks:
        parts.append(f'<div style="font-weight:650;margin-top:10px">{escape(clean(title))}</div>')
        parts += [_part(part) for part in body]
    style = "font:13px/1.45 system-ui,sans-serif;max-width:1000px;overflow-x:auto"
    return f'<div class="foretrain" style="{style}">{"".join(parts)}</div>'


def _part(part: Part) -> str:
    if not isinstance(part, TextTable):
        return f"<div>{_span(part)}</div>"
    at, cells = part.columns.find("b"), [list(row) for row in part.rows]
    for row, share in zip(cells, part.shares, strict=False):
        row[at] = (f"{100 * max(0.0, min(1.0, share)):.1f}", row[at][1])
    rows = "".join(f"<tr>{''.join(_cells(row, part.columns))}</tr>" for row in cells)
    head = ""
    if any(part.head):
        titles = tuple((title, "") for title in part.head)
        head = f"<thead><tr>{''.join(_cells(titles, part.columns, 'th'))}</tr></thead>"
    return f'<table style="border-collapse:collapse;margin:0">{head}<tbody>{rows}</tbody></table>'


def _cells(row: Sequence[Cell], columns: str, tag: str = "td") -> Iterator[str]:
    for cell, letter in zip(row, columns, strict=True):
        style = _CELL + ("right" if letter in "rR" else "left")
        style += "" if letter == "w" else ";white-space:nowrap"
        style += f";{_HEADED}" if tag == "th" else ""
        inner = _bar(cell) if letter == "b" and tag == "td" else _span(cell)
        yield f'<{tag} style="{style}">{inner}</{tag}>'


def _bar(cell: Cell) -> str:
    share, style = cell
    color = "#8a94a3" if style == "dim" else _STYLES[style].rpartition("color:")[2]
    look = f"background:{color};width:{share}%;height:.7em;min-width:1px"
    return f'<div style="width:260px"><div style="{look}"></div></div>'


def _span(cell: Cell) -> str:
    text, style = cell
    shown = escape("".join(c if c.isprintable() else " " for c in text))
    return f'<span style="{_STYLES[style]}">{shown}</span>' if style else shown
