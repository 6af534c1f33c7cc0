"""Pages of what was read from other tools: profiler traces and nccl-tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from foretrain.adapters.read.nccl_tests import LinkRow, LinkTable
from foretrain.analysis.prediction import STALLS
from foretrain.measurement.traces import RankReport, TraceReport
from foretrain.report import words
from foretrain.report.page import Page, Section
from foretrain.units import counted, show_bandwidth, show_bytes

MOST_ROWS = 15
MOST_ROWS_IN_DETAIL = 60
MOST_RANKS = 64
STRETCHES = {
    "T1": "between operators",
    "T2": "before the first launch",
    "T3": "after the last launch",
    "T4": "a launch",
    "T5": "between launches",
}


# --- traces -----------------------------------------------------------------------------------------


def trace_page(report: TraceReport, kept: Mapping[str, Any] | None = None) -> Page:
    """`kept`: how many measurements went into which store, where that was asked for."""
    document = report.to_dict() | ({} if kept is None else {"kept": dict(kept)})
    said = (
        ()
        if kept is None
        else (f"{counted(kept['measurements'], 'measurement')} in {kept['store']}",)
    )
    sections = (
        Section("Warnings", lines=report.warnings),
        _stalls(report),
        _ranks(report),
        _collectives(report),
        _operators(report, MOST_ROWS, 0),
        _overheads(report),
        _operators(report, MOST_ROWS_IN_DETAIL, 1),
        Section("Assumptions", lines=report.assumptions),
        Section("Kept", lines=said),
    )
    shown = tuple(section for section in sections if section.rows or section.lines)
    return Page(
        headline(report), document, shown, more={"html": partial(_trace_html, report, shown)}
    )


def headline(report: TraceReport) -> str:
    low, high = (words.seconds(value) for value in report.interval)
    share = report.stalls[report.bottleneck] / report.step_seconds
    spread = f" ({low} – {high})" if report.steps > 1 or len(report.ranks) > 1 else ""
    steps = f"{report.steps} step{'' if report.steps == 1 else 's'}"
    ranks = f"{len(report.ranks)} of {counted(report.world, 'rank')}"
    return (
        f"{words.seconds(report.step_seconds)} per step{spread}, "
        f"{words.percent(share)} {report.bottleneck}; {steps}, {ranks}"
    )


def _stall_rows(stalls: Mapping[str, float], step: float) -> list[tuple[str, float]]:
    found = [(name, stalls[name]) for name in STALLS if stalls[name] > step * 5e-5]
    return sorted(found, key=lambda row: -row[1])


def _stalls(report: TraceReport) -> Section:
    step = report.step_seconds
    rows = tuple(
        (name, words.STALL_MEANING[name], words.seconds(value), words.percent(value / step))
        for name, value in _stall_rows(report.stalls, step)
    )
    busy, bare = report.communication_seconds, report.exposed_seconds
    lines: tuple[str, ...] = ()
    if busy > 0:
        lines = (
            f"communication {words.seconds(busy)} per step, of which {words.seconds(bare)} "
            f"({words.percent(bare / busy)}) exposed",
        )
    return Section(
        "Where the time goes", ("cause", "what it is", "per step", "share"), rows, lines, 2
    )


def _ranks(report: TraceReport) -> Section:
    """The causes that matter, rank by rank."""
    if len(report.ranks) < 2:
        return Section("Ranks")
    names = [name for name, _ in _stall_rows(report.stalls, report.step_seconds)][:6]
    rows = tuple(
        (
            _rank_name(rank, number),
            words.seconds(_step(rank)),
            *(words.seconds(rank.stalls[name]) for name in names),
        )
        for number, rank in enumerate(report.ranks[:MOST_RANKS])
    )
    more = len(report.ranks) - MOST_RANKS
    lines = (f"{more:,} more ranks are in the JSON document",) if more > 0 else ()
    return Section("Ranks", ("rank", "step", *names), rows, lines)


def _rank_name(rank: RankReport, number: int) -> str:
    return str(number if rank.rank is None else rank.rank)


def _step(rank: RankReport) -> float:
    return sum(rank.step_seconds) / len(rank.step_seconds)


def _collectives(report: TraceReport) -> Section:
    rows = tuple(
        (
            row.collective,
            "network" if row.is_network else "interconnect",
            str(row.ranks or "?"),
            show_bytes(row.bytes) if row.bytes else "?",
            f"{row.count:,}",
            words.seconds(row.seconds),
            words.percent(row.spread),
            words.seconds(row.wait_seconds),
        )
        for row in report.collectives[:MOST_ROWS]
    )
    head = ("collective", "over", "ranks", "size", "times", "median", "spread", "waited")
    return Section("Communication", head, rows, left=2)


def _operators(report: TraceReport, most: int, detail: int) -> Section:
    rows = tuple(
        (
            row.name,
            _shapes(row.dims)[:120],
            f"{row.count:,}",
            words.seconds(row.seconds),
            words.percent(row.spread),
            words.seconds(row.total_seconds),
        )
        for row in (report.ops[:most] if detail == 0 else report.ops[MOST_ROWS:most])
    )
    title = "Top operators by time" if detail == 0 else "More operators"
    head = ("operator", "input shapes", "times", "median", "spread", "self, total")
    return Section(title, head, rows, left=2, detail=detail)


def _shapes(dims: Any) -> str:
    """`32×64, 64×512`: scalars are not shown, lists of tensors stand in brackets."""
    if not isinstance(dims, list):
        return ""
    shown = []
    for one in dims:
        if isinstance(one, list) and one and all(isinstance(dim, int) for dim in one):
            shown.append("×".join(map(str, one)))
        elif isinstance(one, list) and one:
            shown.append(f"[{_shapes(one)}]")
    return ", ".join(shown)


def _overheads(report: TraceReport) -> Section:
    most = {"T1": 1, "T2": 5, "T3": 5, "T4": 4, "T5": 5}
    shown: dict[str, int] = dict.fromkeys(most, 0)
    rows = []
    for row in report.overheads:
        shown[row.stretch] += 1
        if shown[row.stretch] <= most[row.stretch]:
            rows.append(
                (
                    row.stretch,
                    STRETCHES[row.stretch],
                    row.name,
                    f"{row.count:,}",
                    words.seconds(row.seconds),
                    words.seconds(row.deviation),
                )
            )
    head = ("", "host time", "of", "times", "mean", "deviation")
    return Section("Host overheads", head, tuple(rows), left=3)


def _trace_html(report: TraceReport, sections: Sequence[Section]) -> str:
    from foretrain.report.templates import template

    return template("imported.html").render(
        title="Profiler traces · Foretrain",
        asked=words.clean(", ".join(rank.path for rank in report.ranks), 300),
        headline=headline(report),
        waterfall=_waterfall(report),
        bars=_bars(report),
        names=[name for name, _ in _stall_rows(report.stalls, report.step_seconds)],
        sections=[section for section in sections if section.title != "Ranks"],
    )


def _waterfall(report: TraceReport) -> list[dict[str, str]]:
    """One step from left to right, each cause beginning where the one above it ends."""
    at, rows = 0.0, []
    for name, value in _stall_rows(report.stalls, report.step_seconds):
        share = value / report.step_seconds
        rows.append(
            {
                "name": name,
                "at": f"{100 * at:.2f}",
                "width": f"{100 * share:.2f}",
                "text": f"{words.seconds(value)}  {words.percent(share)}",
                "tip": words.STALL_MEANING[name],
                "side": "right" if at + share < 0.8 else "left" if at > 0.3 else "inside",
            }
        )
        at += share
    return rows


def _bars(report: TraceReport) -> list[dict[str, Any]]:
    """Each rank's step as a bar, all to one scale."""
    if len(report.ranks) < 2:
        return []
    longest = max(_step(rank) for rank in report.ranks)
    return [
        {
            "rank": _rank_name(rank, number),
            "step": words.seconds(_step(rank)),
            "parts": [
                {
                    "name": name,
                    "width": f"{100 * rank.stalls[name] / longest:.2f}",
                    "tip": f"{name}: {words.seconds(rank.stalls[name])}",
                }
                for name in STALLS
                if rank.stalls[name] > 0
            ],
        }
        for number, rank in enumerate(report.ranks[:MOST_RANKS])
    ]


# --- nccl-tests -------------------------------------------------------------------------------------


def links_page(tables: Sequence[LinkTable], kept: Mapping[str, Any] | None = None) -> Page:
    """Every collective that was timed, by size."""
    rows = [row for table in tables for row in table.rows]
    document: dict[str, Any] = {
        "files": [{"file": table.path, "device": table.device} for table in tables],
        "links": [row.to_dict() for row in rows],
        "warnings": [f"{table.path}: {line}" for table in tables for line in table.warnings],
    }
    said: tuple[str, ...] = ()
    if kept is not None:
        document["kept"] = dict(kept)
        said = (f"{counted(kept['measurements'], 'measurement')} in {kept['store']}",)
    names = ", ".join(dict.fromkeys(f"{row.collective} on {row.ranks}" for row in rows))
    best = max(row.bus_bandwidth for row in rows)
    sections = (
        Section("Warnings", lines=tuple(document["warnings"])),
        _links(rows),
        Section("Kept", lines=said),
    )
    return Page(
        f"{len(rows):,} timings of {names}; up to {show_bandwidth(best)} of bus bandwidth",
        document,
        tuple(section for section in sections if section.rows or section.lines),
    )


def _links(rows: Sequence[LinkRow]) -> Section:
    shown = tuple(
        (
            row.collective,
            f"{row.ranks} on {row.nodes} host{'' if row.nodes == 1 else 's'}",
            "in" if row.in_place else "out of",
            show_bytes(row.bytes),
            words.seconds(row.seconds),
            show_bandwidth(row.bus_bandwidth),
        )
        for row in rows
    )
    head = ("collective", "devices", "place", "size", "time", "bus bandwidth")
    return Section("Collectives", head, shown, left=3)
