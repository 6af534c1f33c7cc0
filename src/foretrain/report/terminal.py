"""The answer in a terminal: the decision first, the evidence after."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterable
from typing import IO

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from foretrain.analysis.prediction import Prediction, StageMemory
from foretrain.report import links, words
from foretrain.units import show_bandwidth, show_bytes

PLAIN_WIDTH = 100
MAX_STAGES = 16
MAX_LINKS = 5
STALL_STYLE = {
    "compute": "green",
    "optimizer": "blue",
    "interconnect": "cyan",
    "network": "magenta",
    "bubble": "yellow",
    "host": "red",
    "prep": "red",
    "fetch": "red",
    "imbalance": "yellow",
}


def console(stream: IO[str] | None = None) -> Console:
    """Colour only on a terminal, and never under NO_COLOR; width of the terminal."""
    return Console(file=stream or sys.stdout, highlight=False, soft_wrap=False)


def plain_console(width: int = PLAIN_WIDTH) -> Console:
    """Text only, whatever the environment says."""
    return Console(
        file=io.StringIO(), width=width, color_system=None, force_terminal=False,
        legacy_windows=False, highlight=False, _environ={},
    )  # fmt: skip


def render(prediction: Prediction, width: int = PLAIN_WIDTH) -> str:
    """The report as plain text of a fixed width."""
    out = plain_console(width)
    show(prediction, out, detail=1)
    assert isinstance(out.file, io.StringIO)
    return "\n".join(line.rstrip() for line in out.file.getvalue().splitlines()) + "\n"


def show(prediction: Prediction, out: Console, detail: int = 0) -> None:
    """Print the report: `detail` -1 is the headline alone, 1 adds operators and the critical path."""
    out.print(_headline(prediction))
    if detail < 0:
        return
    out.print(Text(words.asked(prediction), style="dim"))
    out.print(Text(_facts(prediction)))
    width = out.width
    section(out, "Where the time goes", _stalls(prediction, width))
    section(out, _memory_title(prediction), _memory(prediction, width))
    if len(prediction.memory.by_stage) > 1:
        section(out, "Memory by stage", _stages(prediction, width))
    if links.worth_a_table(prediction):
        section(out, "Links", _links(prediction, width))
    if prediction.what_would_help:
        section(out, "What would help", _remedies(prediction))
    if detail > 0 and prediction.operators:
        rows = [(name, words.seconds(value)) for name, value in prediction.operators[:12]]
        section(out, "Busiest operators", pairs(rows))
    if detail > 0 and prediction.critical_path:
        section(out, "Critical path", _path(prediction))
    if prediction.warnings:
        section(out, "Warnings", bullets(prediction.warnings, "yellow"))
    if prediction.assumptions:
        section(out, "Assumptions", bullets(prediction.assumptions))
    if detail > 0:
        section(out, "Provenance", pairs(prediction.provenance.items()))


def section(out: Console, title: str, body: RenderableType) -> None:
    out.print()
    out.print(Text(title, style="bold"))
    out.print(Padding(body, (0, 0, 0, 2), expand=False))


def bullets(lines: Iterable[object], style: str = "") -> RenderableType:
    grid = Table.grid(padding=(0, 1))
    for line in lines:
        grid.add_row("-", Text(words.clean(line), style=style))
    return grid


def pairs(rows: Iterable[tuple[object, object]]) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(overflow="fold")
    grid.add_column(overflow="fold")
    for name, value in rows:
        grid.add_row(Text(words.clean(name)), Text(words.clean(value)))
    return grid


def bar(share: float, width: int) -> str:
    """A bar of eighths of a cell; anything above nothing shows at least a sliver."""
    eighths = round(max(0.0, min(1.0, share)) * width * 8)
    if share > 0:
        eighths = max(1, eighths)
    full, rest = divmod(eighths, 8)
    return "█" * full + (" ▏▎▍▌▋▊▉"[rest] if rest else "")


def bar_width(width: int, taken: int) -> int:
    """Cells left for bars beside `taken` cells of text; none at all in a very narrow terminal."""
    left = min(40, width - taken)
    return left if left >= 6 else 0


def _headline(prediction: Prediction) -> Text:
    text = Text(words.headline(prediction), style="bold")
    text.highlight_regex(r"DOES NOT FIT.*", "bold red")
    return text


def _facts(prediction: Prediction) -> str:
    facts = [f"Bottleneck: {words.clean(prediction.bottleneck)}."]
    if (money := words.money(prediction)) is not None:
        facts.append(f"{money}.")
    facts.append(
        f"{words.percent(prediction.measured_share)} of the time rests on measured tables."
    )
    return " ".join(facts)


def _stalls(prediction: Prediction, width: int) -> Table:
    cells = bar_width(width, 36)
    rows = words.stall_rows(prediction)
    longest = max((share for _, _, share in rows), default=1.0)
    grid = Table.grid(padding=(0, 1))
    for justify in ("left", "right", "right", "left", "left"):
        grid.add_column(justify=justify, no_wrap=True)
    for name, value, share in rows:
        drawn = Text(bar(share / longest, cells), style=STALL_STYLE[name]) if cells else Text()
        meaning = words.STALL_MEANING[name] if width >= 36 + cells + 36 else ""
        grid.add_row(
            name, words.seconds(value), words.percent(share), drawn, Text(meaning, style="dim")
        )
    return grid


def _memory_title(prediction: Prediction) -> str:
    memory = prediction.memory
    return (
        f"Memory: {words.of_memory(prediction)} on the fullest device "
        f"(stage {memory.peak_stage}, {words.clean(memory.moment)})"
    )


def _memory(prediction: Prediction, width: int) -> Table:
    memory = prediction.memory
    whole = max(memory.capacity_bytes, memory.peak_bytes, 1.0)
    cells = bar_width(width, 36)
    rows = [(kind, memory.by_kind.get(kind, 0.0)) for kind in words.kinds(prediction)]
    if memory.fits:
        rows.append(("free", memory.capacity_bytes - memory.peak_bytes))
    else:
        rows.append(("missing", memory.peak_bytes - memory.capacity_bytes))
    grid = Table.grid(padding=(0, 1))
    for justify in ("left", "right", "right", "left"):
        grid.add_column(justify=justify, no_wrap=True)
    for kind, size in rows:
        style = {"free": "dim", "missing": "bold red"}.get(kind, "blue")
        share = size / max(memory.capacity_bytes, 1.0)
        drawn = Text(bar(size / whole, cells), style=style)
        label = Text(words.clean(kind, 20), style="" if style == "blue" else style)
        grid.add_row(label, show_bytes(size), words.percent(share), drawn)
    return grid


def _stages(prediction: Prediction, width: int) -> RenderableType:
    stages = prediction.memory.by_stage
    shown = _chosen(stages)
    kinds = words.kinds(prediction)
    if width < 20 + sum(max(9, len(kind)) + 2 for kind in kinds):
        kinds = []
    table = Table(box=None, padding=(0, 1), pad_edge=False, header_style="dim")
    for title in ("stage", "peak", *kinds):
        table.add_column(title, justify="right", no_wrap=True)
    for stage in shown:
        full = stage.peak_bytes > prediction.memory.capacity_bytes
        cells = [show_bytes(stage.by_kind.get(kind, 0.0)) for kind in kinds]
        peak = Text(show_bytes(stage.peak_bytes), style="bold red" if full else "")
        table.add_row(str(stage.stage), peak, *cells)
    if len(shown) == len(stages):
        return table
    note = f"The fullest {len(shown)} of {len(stages)} stages; the JSON and HTML reports hold all."
    return Group(table, Text(note, style="dim"))


def _chosen(stages: tuple[StageMemory, ...]) -> list[StageMemory]:
    if len(stages) <= MAX_STAGES:
        return list(stages)
    fullest = sorted(stages, key=lambda s: (-s.peak_bytes, s.stage))[:MAX_STAGES]
    return sorted(fullest, key=lambda s: s.stage)


def _links(prediction: Prediction, width: int) -> Table:
    """The busiest; what they carried and for what only where there is room."""
    table = Table(box=None, padding=(0, 1), pad_edge=False, header_style="dim")
    is_wide = width >= 72
    table.add_column("link", overflow="fold")
    table.add_column("stages", overflow="fold")
    for title in ("busy", "per step", "of") if is_wide else ("busy",):
        table.add_column(title, justify="right", no_wrap=True)
    if is_wide:
        table.add_column("for", overflow="fold")
    for row in links.rows(prediction, MAX_LINKS):
        link = row.link
        cells: list[str | Text] = [
            Text(row.name),
            links.stage_runs(row.stages),
            words.percent(link.share),
        ]
        if is_wide:
            cells += [show_bytes(link.bytes), show_bandwidth(link.bandwidth)]
            cells.append(Text(links.purposes(link)))
        table.add_row(*cells)
    return table


def _remedies(prediction: Prediction) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(overflow="fold")
    grid.add_column(justify="right", no_wrap=True)
    grid.add_column(justify="right", no_wrap=True)
    for remedy in prediction.what_would_help:
        change = Text(words.clean(remedy.change))
        grid.add_row(change, words.seconds(remedy.step_seconds), f"{remedy.speedup:.2f}×")
    return grid


def _path(prediction: Prediction) -> RenderableType:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(overflow="fold")
    for _ in range(3):
        grid.add_column(justify="right", no_wrap=True)
    for what, stage, count, total in words.path_rows(prediction, 12):
        grid.add_row(Text(what), f"stage {stage}", f"{count:,}×", words.seconds(total))
    return Group(Text(words.path_note(prediction), style="dim"), grid)
