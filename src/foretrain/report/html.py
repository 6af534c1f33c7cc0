"""Documents as one HTML file that holds everything: works offline, from a mail attachment, in light and dark."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Iterator
from html import escape
from importlib.resources import files
from typing import Any

from foretrain.report import chart, links, network, timeline
from foretrain.report.document import (
    Bar,
    Bars,
    Cell,
    Chart,
    Document,
    Facts,
    Figures,
    Lines,
    NetworkDrawing,
    Section,
    Table,
    Text,
    TimelineChart,
)
from foretrain.report.json import dumps
from foretrain.report.words import STALL_MEANING, clean, clean_lines, percent

NARROW_COLUMNS, NARROW_LETTERS = 5, 62
"""Tables of more take the whole width of a page."""
MUCH_TEXT = 1000
"""Characters of lines that take the whole width too."""
MOST_LINKS = 12

_FRAME = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title} · Foretrain</title>
<link rel="icon" href="data:,">
<style>
{style}
</style>
</head>
<body>
<header>
<p class="asked">{asked}</p>
<h1{bad}>{headline}</h1>
</header>
<main>
{main}
</main>
<footer>Foretrain predicts distributed training before the cluster is rented.</footer>
{scripts}
</body>
</html>
"""


def render(document: Document) -> str:
    asked = document.asked or document.title
    shown = sorted(document.sections, key=_place)
    has_timeline = any(isinstance(section, TimelineChart) for section in shown)
    scripts = ("gantt.js", "page.js") if has_timeline else ("page.js",)
    return _FRAME.format(
        title=_said(asked or document.headline, 120),
        style=_asset("page.css"),
        asked=_said(asked),
        bad=' class="bad"' if document.is_no else "",
        headline=_said(document.headline, 4000),
        main="\n".join(map(_section, shown)),
        scripts="\n".join(f"<script>{_asset(name)}</script>" for name in scripts),
    )


@functools.cache
def _asset(name: str) -> str:
    return (files("foretrain.report") / "assets" / name).read_text("utf-8")


def _said(text: object, limit: int = 20_000) -> str:
    return escape(clean(text, limit))


def _tip(text: str) -> str:
    return f' title="{escape(clean_lines(text))}"' if text else ""


def _place(section: Section) -> int:
    """Key figures, then what is wrong, then the rest in its order."""
    if isinstance(section, Figures):
        return 0
    return 1 if isinstance(section, Lines) and section.kind == "warning" else 2


def _section(section: Section) -> str:
    draw, cls = _DRAWN[type(section)]
    if isinstance(section, Figures):
        return "".join(draw(section))
    if isinstance(section, Table) and _is_wide(section):
        cls = "full"
    if isinstance(section, Lines):
        cls = "full" if sum(map(len, section.lines)) > MUCH_TEXT else ""
        cls = "full warnings" if section.kind == "warning" else cls
    body = "\n".join(draw(section))
    return f'<section class="card {cls}">\n<h2>{_said(section.title)}</h2>\n{body}\n</section>'


def _is_wide(table: Table) -> bool:
    """Whether a card of half the page's width would cut the table off: cells stay in a line, but for words."""
    columns = zip(table.letters, *(r for r in (table.head, *table.rows) if r), strict=False)
    letters = sum(
        max(len(str(cell)) for cell in cells) for kind, *cells in columns if kind not in "wbBL"
    )
    return len(table.letters) > NARROW_COLUMNS or letters > NARROW_LETTERS


# --- words and figures ------------------------------------------------------------------------------


def _figures(section: Figures) -> Iterator[str]:
    yield f'<section class="tiles full" aria-label="{_said(section.title)}">'
    for tile in section.tiles:
        parts = (("name", tile.name), ("value", tile.value), ("note", tile.note))
        inner = "".join(f'<div class="{cls}">{_said(text)}</div>' for cls, text in parts)
        yield f'<div class="tile {tile.tone}">{inner}</div>'
    yield "</section>"


_FLAG = re.compile(r"--[a-z][a-z-]*(?: [a-z_]+=…)?")


def _flags(text: str) -> str:
    """Options in a sentence marked, so that no line breaks at their dashes."""
    return _FLAG.sub(r'<span class="flag">\g<0></span>', _said(text))


def _lines(section: Lines) -> Iterator[str]:
    if section.kind == "command":
        yield from (f'<pre class="plan">{_said(line)}</pre>' for line in section.lines)
        return
    yield "<ul>"
    yield from (f"<li>{_flags(line)}</li>" for line in section.lines)
    yield "</ul>"


def _facts(section: Facts) -> Iterator[str]:
    rows = (f"<tr><th>{_said(a)}</th><td>{_said(b)}</td></tr>" for a, b in section.rows)
    yield f'<table class="pairs"><tbody>{"".join(rows)}</tbody></table>'


def _notes(notes: Iterable[str | Text]) -> Iterator[str]:
    for note in notes:
        yield f'<p class="hint{" bad" if isinstance(note, Text) else ""}">{_said(note)}</p>'


# --- tables and bars --------------------------------------------------------------------------------

_CLASSES = {
    "r": "n", "R": "n", "w": "says", "L": "says", "p": "plan", "o": "plan", "b": "gain", "B": "gain",
}  # fmt: skip


def _table(section: Table) -> Iterator[str]:
    yield from _notes(section.notes)
    if not section.rows:
        return
    classes = [_CLASSES.get(letter, "") for letter in section.letters]
    head = ""
    if any(section.head):
        cells = (
            f'<th class="{cls}">{_said(cell)}</th>'
            for cls, cell in zip(classes, section.head, strict=True)
        )
        head = f"<thead><tr>{''.join(cells)}</tr></thead>"
    rows = "\n".join(f"<tr>{''.join(map(_cell, classes, row))}</tr>" for row in section.rows)
    sorts = " sorts" if head and not section.is_waterfall else ""
    yield f'<div class="wide"><table class="figures{sorts}">{head}<tbody>\n{rows}\n</tbody></table></div>'


def _cell(cls: str, cell: Cell) -> str:
    if isinstance(cell, Bar):
        return f'<td class="{cls}">{_bar(cell)}</td>'
    if isinstance(cell, Text):
        cls += " bad"
    return f'<td class="{cls}">{_said(cell)}</td>' if cls else f"<td>{_said(cell)}</td>"


def _bar(bar: Bar) -> str:
    width, at = (100 * max(0.0, min(1.0, value)) for value in (bar.share, bar.start))
    margin = f"margin-left:{at:.2f}%;" if at else ""
    color = bar.color or "accent"
    return (
        f'<i class="{color}" style="{margin}width:{width:.2f}%"{_tip(bar.tip)}></i>'
        if width
        else ""
    )


def _bars(section: Bars) -> Iterator[str]:
    """All to one scale."""
    are_stalls = all(part in STALL_MEANING for part in section.parts)
    colors = section.parts if are_stalls else [f"c{n}" for n in range(len(section.parts))]
    yield _legend(zip(colors, section.parts, strict=True))
    limit, text = section.limit or (0.0, "")
    longest = max([limit, *(sum(values) for _, values in section.rows)]) or 1.0
    line = ""
    if text:
        line = f'<b class="limit" style="left:{100 * limit / longest:.2f}%"{_tip(text)}></b>'
        yield f'<p class="hint bad">{_said(text)}</p>'
    yield f'<div class="bars" role="img" aria-label="{_said(section.title)}">'
    for (name, values), tip in zip(
        section.rows, section.tips or [""] * len(section.rows), strict=True
    ):
        bars = "".join(
            _bar(
                Bar(
                    v / longest, color, tip=f"{part}: {section.text(v)}, {percent(v / sum(values))}"
                )
            )
            for color, part, v in zip(colors, section.parts, values, strict=True)
            if v > 0
        )
        label = f"{section.label} {name}" if name.isdigit() else name
        yield (
            f"<span{_tip(tip)}>{_said(label)}</span><span>{_said(section.text(sum(values)))}</span>"
            f'<div class="stalls">{bars}{line}</div>'
        )
    yield "</div>"


def _legend(named: Iterable[tuple[str, str]]) -> str:
    items = "".join(f'<span><i class="{cls}"></i>{_said(text)}</span>' for cls, text in named)
    return f'<p class="legend">{items}</p>'


# --- drawings ---------------------------------------------------------------------------------------


def _chart(section: Chart) -> Iterator[str]:
    if section.hint:
        yield f'<p class="hint">{_said(section.hint)}</p>'
    if len(section.series) > 1:
        yield _legend((f"c{n % chart.COLORS}", one.name) for n, one in enumerate(section.series))
    yield f'<div class="wide">{chart.draw(section)}</div>'
    if section.data is not None:
        yield "<details><summary>As a table</summary>"
        yield from _table(section.data)
        yield "</details>"


def _timeline(section: TimelineChart) -> Iterator[str]:
    data = dumps(timeline.page_data(section.prediction), indent=None)
    for character in "<>&":  # none of which may end the element early
        data = data.replace(character, f"\\u{ord(character):04x}")
    yield '<p class="hint" id="gantt-note"></p>'
    yield '<div id="gantt"><noscript>The timeline needs JavaScript.</noscript></div>'
    yield f'<script type="application/json" id="timeline">{data}</script>'


def _network(section: NetworkDrawing) -> Iterator[str]:
    drawing = network.drawing(section.prediction)
    yield (
        '<p class="hint">Links are colored by utilization: the share of the step they are busy at the bandwidth of '
        "large messages. One link and one node of each kind is shown; hover over a line for details.</p>"
    )
    yield _legend(network.legend())
    yield '<div class="boxes">'
    yield from map(_box, drawing.boxes)
    yield "</div>"
    if drawing.has_network:
        chips = "".join(
            f'<span class="chip {part.cls}"{_tip(part.tip)}>{_said(part.text)}</span>'
            for part in drawing.fabric
        )
        yield f'<div class="fabric"><b>network fabric</b>{chips}</div>'
    if drawing.left_out:
        yield (
            f'<p class="hint">{drawing.left_out} more kinds of nodes are not shown; the JSON report lists '
            "their links.</p>"
        )
    yield "<h3>Most utilized links</h3>"
    yield from _table(links.table(section.prediction, MOST_LINKS))


def _box(box: network.Picture) -> str:
    lines = "".join(
        f'<path class="link {line.cls}" d="{line.path}">'
        + (f"<title>{escape(clean_lines(line.tip))}</title>" if line.tip else "")
        + "</path>"
        for line in box.lines
    )
    rects = "".join(
        f'<rect class="{r.cls}" x="{r.x}" y="{r.y}" width="{r.width}" height="{network.SIZE}" rx="4"></rect>'
        f'<text x="{r.x + r.width / 2:.1f}" y="{r.y + 16}">{_said(r.text)}</text>'
        for r in box.rects
    )
    words = "".join(
        f'<text class="soft" x="{x}" y="{y}">{_said(t)}</text>' for x, y, t in box.words
    )
    name = _said(f"{box.title}: {box.note}")
    return (
        f'<figure class="box"><figcaption><b>{_said(box.title)}</b><br>{_said(box.note)}</figcaption>'
        f'<svg class="drawing" viewBox="0 40 {network.WIDTH} {box.height - 40}" role="img" aria-label="{name}">'
        f"{lines}{rects}{words}</svg></figure>"
    )


_DRAWN: dict[type[Section], tuple[Callable[[Any], Iterator[str]], str]] = {
    Figures: (_figures, ""),
    Lines: (_lines, ""),
    Facts: (_facts, ""),
    Table: (_table, ""),
    Bars: (_bars, ""),
    Chart: (_chart, "full"),
    TimelineChart: (_timeline, "full"),
    NetworkDrawing: (_network, "full network"),
}
"""How each kind of section is drawn, and the classes of its card."""
