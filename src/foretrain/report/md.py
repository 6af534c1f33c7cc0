"""Documents as Markdown (GitHub flavour), for pull requests and notes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from foretrain.report.document import Document, Lines, Section
from foretrain.report.words import clean

_SPECIAL = re.compile(r"[\\`*_{}\[\]!|~$]|^[-+#]|@|:(?=//)")


def render(document: Document) -> str:
    headline, asked = text(document.headline, 4000), text(document.asked)
    parts = [f"# {asked}", f"**{headline}**"] if asked else [f"# {headline}"]
    parts += [text(document.lead())]
    parts += [part for section in document.sections for part in _parts(section)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _parts(section: Section) -> Iterator[str]:
    shown = section if isinstance(section, Lines) else section.table
    if shown is None:
        return
    yield f"## {text(shown.title)}"
    if isinstance(shown, Lines):
        yield "\n".join(f"- {text(line, 4000)}" for line in shown.lines)
        return
    yield from (text(note, 4000) for note in shown.notes)
    if shown.rows:
        bare = shown.without("bB")
        yield table(bare.head or [""] * len(bare.letters), bare.rows)


def text(value: object, limit: int = 2000) -> str:
    """`value` as literal text: nothing in it is markup, a link, a mention or HTML."""
    shown = clean(value, limit).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return _SPECIAL.sub(_escape, shown)


def _escape(match: re.Match[str]) -> str:
    # a backslash does not stop GitHub from linking addresses and mentions, an entity does
    character = match[0]
    return f"&#{ord(character)};" if character in "@:" else f"\\{character}"


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = ["| " + " | ".join(text(cell) for cell in row) + " |" for row in (head, *rows)]
    lines.insert(1, "|" + "---|" * len(head))
    return "\n".join(lines)
