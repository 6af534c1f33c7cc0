"""The one model of what is shown: a headline and typed sections. Each answer makes its document in one function, each
format renders it in one module. Text formats show a section as lines or as its table; HTML draws it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from foretrain.analysis.prediction import Prediction

MAX_BAR_ROWS = 16
"""Rows of stacked bars in text; HTML and JSON have all."""


@dataclass(frozen=True, slots=True)
class Text:
    """A text that says no."""

    text: str

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class Bar:
    """A share of the whole, beginning at `start` in a waterfall. `color`: a class of the style sheet: a stall, an entry
    of the palette (`c0`…), `free` or `bad`. `tip`: what a page says of it besides."""

    share: float
    color: str = ""
    start: float = 0.0
    tip: str = ""


Cell: TypeAlias = str | Text | Bar
Row: TypeAlias = tuple[Cell, ...]


@dataclass(frozen=True)
class Section:
    """What all sections have. `detail`: 1 is shown in a terminal with -v only."""

    title: str
    detail: int = field(default=0, kw_only=True)

    @property
    def table(self) -> Table | None:
        """What text formats show of it; None for what only a page can draw."""
        return None


@dataclass(frozen=True)
class Lines(Section):
    """Sentences; with `has_bullets` a list. `kind`: `warning`, or `command` for what is to be copied."""

    lines: Sequence[str] = ()
    has_bullets: bool = field(default=False, kw_only=True)
    kind: str = field(default="", kw_only=True)


@dataclass(frozen=True)
class Table(Section):
    """Columns by letter: `n`ames are never broken and may have a line of their own, a `p`lan is a name to copy,
    `o`ptions of a command are broken between one and the next, `l`eft and `r`ight are figures and words that are never
    broken, `w` wraps, a `b`ar is left out where there is no room, as are `L` and `R` before it, and a `B`ar in text
    altogether. Without letters the first `left` columns are a name and words, the others figures."""

    head: Sequence[str] = ()
    rows: Sequence[Row] = ()
    columns: str = ""
    notes: Sequence[str | Text] = field(default=(), kw_only=True)
    left: int = field(default=1, kw_only=True)
    has_head_in_text: bool = field(
        default=True, kw_only=True
    )  # not where figures say what they are

    @property
    def letters(self) -> str:
        count = len(self.head) or max(map(len, self.rows), default=0)
        words = ("n" + "w" * count)[: min(self.left, count)]
        return self.columns or words + "r" * (count - len(words))

    @property
    def is_waterfall(self) -> bool:
        return any(isinstance(cell, Bar) and cell.start > 0 for row in self.rows for cell in row)

    @property
    def table(self) -> Table:
        return self

    def without(self, letters: str) -> Table:
        """Without the columns of these letters."""
        return self.of(i for i, letter in enumerate(self.letters) if letter not in letters)

    def of(self, columns: Iterable[int]) -> Table:
        """Some of the columns."""
        at = list(columns)
        return replace(
            self,
            head=[self.head[i] for i in at] if self.head else (),
            rows=[tuple(row[i] for i in at) for row in self.rows],
            columns="".join(self.letters[i] for i in at),
        )


@dataclass(frozen=True)
class Facts(Section):
    """Names and their values."""

    rows: Sequence[tuple[str, str]] = ()

    @property
    def table(self) -> Table:
        return Table(self.title, (), self.rows, "nw", detail=self.detail)


@dataclass(frozen=True, slots=True)
class Figure:
    name: str
    value: str
    note: str = ""
    tone: str = ""


@dataclass(frozen=True)
class Figures(Section):
    """Key figures, as tiles: the headline says them in words."""

    tiles: Sequence[Figure] = ()


@dataclass(frozen=True)
class Bars(Section):
    """A stacked bar for each row: its name, and a value for each of `parts`."""

    label: str
    total: str
    parts: Sequence[str]
    rows: Sequence[tuple[str, Sequence[float]]]
    text: Callable[[float], str]
    limit: tuple[float, str] | None = field(default=None, kw_only=True)  # where a line is drawn
    tips: Sequence[str] = field(default=(), kw_only=True)  # what a page says of each row besides

    @property
    def table(self) -> Table:
        shown = list(self.rows)
        notes = []
        if len(shown) > MAX_BAR_ROWS:
            largest = sorted(shown, key=lambda row: -sum(row[1]))[:MAX_BAR_ROWS]
            shown = [row for row in shown if row in largest]
            notes.append(
                f"Showing the {len(shown)} of {len(self.rows)} {self.label}s with the highest "
                f"{self.total}; the JSON and HTML reports list all."
            )
        rows = tuple((name, self._total(values), *map(self.text, values)) for name, values in shown)
        letters = "rr" + "R" * len(self.parts)
        head = (self.label, self.total, *self.parts)
        return Table(self.title, head, rows, letters, notes=notes, detail=self.detail)

    def _total(self, values: Sequence[float]) -> str | Text:
        whole = sum(values)
        text = self.text(whole)
        return Text(text) if self.limit is not None and whole > self.limit[0] else text


@dataclass(frozen=True, slots=True)
class Axis:
    """`quantity`: `s`, `hours`, `bytes`, `usd` or `count`, which decides the ticks."""

    title: str
    quantity: str
    is_log: bool = True


@dataclass(frozen=True, slots=True)
class ChartPoint:
    x: float
    y: float
    tip: str
    label: str = ""
    is_filled: bool = True
    size: int = 5


@dataclass(frozen=True, slots=True)
class Series:
    """`line`: `stairs` or `dashed` joins the points, `only` shows no points."""

    name: str
    points: Sequence[ChartPoint]
    line: str = ""


@dataclass(frozen=True, slots=True)
class Guide:
    """A line for the eye: y = `factor` · x, or y = `value`."""

    factor: float | None = None
    value: float | None = None
    text: str = ""
    is_dashed: bool = True


@dataclass(frozen=True)
class Chart(Section):
    """Points over two axes. `data`: the same for text formats."""

    x: Axis
    y: Axis
    series: Sequence[Series]
    guides: Sequence[Guide] = field(default=(), kw_only=True)
    hint: str = field(default="", kw_only=True)
    data: Table | None = field(default=None, kw_only=True)

    @property
    def table(self) -> Table | None:
        return self.data


@dataclass(frozen=True)
class TimelineChart(Section):
    """One step, task by task."""

    prediction: Prediction


@dataclass(frozen=True)
class NetworkDrawing(Section):
    """The cluster with the use of its links; `links` are the busiest."""

    prediction: Prediction
    links: Table | None

    @property
    def table(self) -> Table | None:
        return self.links


def is_empty(section: Section) -> bool:
    if isinstance(section, Lines):
        return not section.lines
    if isinstance(section, Table):
        return not (section.rows or section.notes)
    if isinstance(section, Chart):
        return not any(series.points for series in section.series) and not (
            section.data and section.data.rows
        )
    if isinstance(section, Facts | Bars):
        return not section.rows
    return isinstance(section, Figures) and not section.tiles


@dataclass(frozen=True)
class Document:
    """An answer as it is shown. What takes work is made when it is looked at: remedies take simulations that a
    headline does not need."""

    headline: str
    make_data: Callable[[], Mapping[str, Any]]  # what JSON holds
    make_sections: Callable[[], Iterable[Section]] = tuple
    is_no: bool = False  # a well-formed question whose answer is no
    asked: str = ""  # what the answer is to, in one line
    lead: Callable[[], str] = str  # what else matters most, in a line
    title: str = ""  # of the page, where nothing was asked in so many words
    make_rows: Callable[[], Sequence[Mapping[str, Any]]] | None = None  # lines of a CSV file
    whole: tuple[str, ...] = ()  # names in its sentences that no line may break
    prediction: Prediction | None = None  # whose timeline can be written as a trace

    @cached_property
    def data(self) -> Mapping[str, Any]:
        return self.make_data()

    @cached_property
    def sections(self) -> tuple[Section, ...]:
        return tuple(section for section in self.make_sections() if not is_empty(section))


def listed(title: str, lines: Iterable[str]) -> Lines:
    """Assumptions, warnings and the like."""
    return Lines(
        title, tuple(lines), has_bullets=True, kind="warning" if title == "Warnings" else ""
    )
