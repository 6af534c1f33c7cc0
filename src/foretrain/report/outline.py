"""What the report in a terminal says, part by part; `terminal` and `plain` draw it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeAlias

from foretrain.analysis.prediction import Prediction, StageMemory
from foretrain.report import links, words
from foretrain.report.layout import Cell, Grid, Part, Sheet
from foretrain.units import show_bandwidth, show_bytes

__all__ = ["Section", "bar", "bar_width", "sections", "sheet"]

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

Section: TypeAlias = tuple[str, tuple[Part, ...]]


def sheet(prediction: Prediction, width: int, detail: int = 0) -> Sheet:
    """`detail` -1 is the headline alone, 1 adds operators, the critical path and the provenance."""
    said, no, rest = words.headline(prediction).partition("DOES NOT FIT")
    headline = tuple(span for span in ((said, "bold"), (no + rest, "bold red")) if span[0])
    if detail < 0:
        return Sheet(headline, whole=words.names(prediction))
    opening = ((words.asked(prediction), "dim"), (_facts(prediction), ""))
    return Sheet(
        headline, opening, tuple(sections(prediction, width, detail)), words.names(prediction)
    )


def sections(prediction: Prediction, width: int, detail: int) -> Iterator[Section]:
    """Title and body of each section."""
    if prediction.job is not None:
        yield "Job totals", (_pairs(words.job_rows(prediction)),)
    yield "Where the time goes", (_stalls(prediction, width),)
    verdict = words.verdict(prediction), "" if prediction.fits else "bold red"
    yield _memory_title(prediction), (verdict, _memory(prediction, width))
    if len(prediction.memory.by_stage) > 1:
        yield "Memory by stage", _stages(prediction, width)
    if links.worth_a_table(prediction):
        yield "Links", (_links(prediction, width),)
    if prediction.what_would_help:
        yield "What would help", (_remedies(prediction),)
    if detail > 0 and prediction.operators:
        rows = [(name, words.seconds(value)) for name, value in prediction.operators[:12]]
        yield "Top operators by time", (_pairs(rows),)
    if detail > 0 and prediction.critical_path:
        yield "Critical path", _path(prediction)
    if prediction.warnings:
        yield "Warnings", (_bullets(prediction.warnings, "yellow"),)
    if prediction.assumptions:
        yield "Assumptions", (_bullets(prediction.assumptions),)
    if detail > 0:
        yield "Provenance", (_pairs(prediction.provenance.items()),)


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


def _bullets(lines: Iterable[object], style: str = "") -> Grid:
    return Grid("ww", tuple((("-", ""), (words.clean(line), style)) for line in lines))


def _pairs(rows: Iterable[tuple[object, object]]) -> Grid:
    cells = tuple(((words.clean(name), ""), (words.clean(value), "")) for name, value in rows)
    return Grid("nw", cells, gap=2)


def _facts(prediction: Prediction) -> str:
    facts = [f"Bottleneck: {words.clean(prediction.bottleneck)}."]
    if (money := words.money(prediction)) is not None:
        facts.append(f"{money}.")
    facts.append(
        f"{words.percent(prediction.measured_share)} of the time is based on measured tables."
    )
    return " ".join(facts)


def _stalls(prediction: Prediction, width: int) -> Grid:
    cells = bar_width(width, 36)
    found = words.stall_rows(prediction)
    longest = max((share for _, _, share in found), default=1.0)
    rows: list[tuple[Cell, ...]] = []
    for name, value, share in found:
        drawn = (bar(share / longest, cells), STALL_STYLE[name]) if cells else ("", "")
        meaning = words.STALL_MEANING[name] if width >= 36 + cells + 36 else ""
        figures = (words.seconds(value), ""), (words.percent(share), "")
        rows.append(((name, ""), *figures, drawn, (meaning, "dim")))
    return Grid("lrrbl", tuple(rows))


def _memory_title(prediction: Prediction) -> str:
    memory = prediction.memory
    return f"Peak memory of a device: stage {memory.peak_stage}, {words.clean(memory.moment)}"


def _memory(prediction: Prediction, width: int) -> Grid:
    memory = prediction.memory
    whole = max(memory.capacity_bytes, memory.total_bytes, 1.0)
    cells = bar_width(width, 36)
    kinds = [(kind, memory.by_kind.get(kind, 0.0)) for kind in words.kinds(prediction)]
    if memory.context_bytes:
        kinds.append(("driver and libraries", memory.context_bytes))
    if memory.headroom_bytes:
        kinds.append(("headroom", memory.headroom_bytes))
    if memory.fits:
        kinds.append(("free", memory.usable_bytes - memory.peak_bytes))
    else:
        kinds.append(("missing", memory.peak_bytes - memory.usable_bytes))
    rows: list[tuple[Cell, ...]] = []
    for kind, size in kinds:
        style = {"free": "dim", "missing": "bold red"}.get(kind, "blue")
        label = (words.clean(kind, 20), "" if style == "blue" else style)
        share = words.percent(size / max(memory.capacity_bytes, 1.0))
        rows.append((label, (show_bytes(size), ""), (share, ""), (bar(size / whole, cells), style)))
    return Grid("lrrb", tuple(rows))


def _stages(prediction: Prediction, width: int) -> tuple[Part, ...]:
    stages = prediction.memory.by_stage
    shown = _chosen(stages)
    kinds = words.kinds(prediction)
    if width < 20 + sum(max(9, len(kind)) + 2 for kind in kinds):
        kinds = []
    rows: list[tuple[Cell, ...]] = []
    for stage in shown:
        full = stage.peak_bytes > prediction.memory.usable_bytes
        peak = (show_bytes(stage.peak_bytes), "bold red" if full else "")
        cells = [(show_bytes(stage.by_kind.get(kind, 0.0)), "") for kind in kinds]
        rows.append(((str(stage.stage), ""), peak, *cells))
    head = ("stage", "peak", *kinds)
    table = Grid("r" * len(head), tuple(rows), gap=2, head=head)
    if len(shown) == len(stages):
        return (table,)
    note = (
        f"Showing the {len(shown)} of {len(stages)} stages with the highest peak; the JSON and "
        "HTML reports list all."
    )
    return table, (note, "dim")


def _chosen(stages: tuple[StageMemory, ...]) -> list[StageMemory]:
    if len(stages) <= MAX_STAGES:
        return list(stages)
    fullest = sorted(stages, key=lambda s: (-s.peak_bytes, s.stage))[:MAX_STAGES]
    return sorted(fullest, key=lambda s: s.stage)


def _links(prediction: Prediction, width: int) -> Grid:
    """The busiest; what they carried and for what only where there is room."""
    is_wide = width >= 72
    rows: list[tuple[Cell, ...]] = []
    for row in links.rows(prediction, MAX_LINKS):
        link = row.link
        texts = [row.name, links.stage_runs(row.stages), words.percent(link.share)]
        if is_wide:
            texts += [
                show_bytes(link.bytes),
                show_bandwidth(link.bandwidth),
                links.purposes(link),
            ]
        rows.append(tuple((text, "") for text in texts))
    head = ("link", "stages", "busy", "per step", "of", "for")
    if is_wide:
        return Grid("nlrrrw", tuple(rows), gap=2, head=head)
    return Grid("nlr", tuple(rows), gap=2, head=head[:3])


def _remedies(prediction: Prediction) -> Grid:
    rows = [
        (words.clean(remedy.change), step, f"{remedy.speedup:.2f}×")
        for remedy, step in words.remedy_rows(prediction)
    ]
    return Grid("wrr", tuple(tuple((text, "") for text in row) for row in rows), gap=2)


def _path(prediction: Prediction) -> tuple[Part, ...]:
    rows = [
        (what, f"stage {stage}", f"{count:,}×", words.seconds(total))
        for what, stage, count, total in words.path_rows(prediction, 12)
    ]
    grid = Grid("wrrr", tuple(tuple((text, "") for text in row) for row in rows), gap=2)
    return (words.path_note(prediction), "dim"), grid
