"""The documents of what was read from other tools: profiler traces and nccl-tests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from foretrain.adapters.read.nccl_tests import LinkRow, LinkTable
from foretrain.measurement.traces import TraceReport
from foretrain.report import words
from foretrain.report.document import Document, Lines, Section, Table, listed
from foretrain.report.prediction import stall_bars, stall_table
from foretrain.units import counted, show_bandwidth, show_bytes

MOST_ROWS = 15
MOST_ROWS_IN_DETAIL = 60
STRETCHES = {
    "T1": "between operators",
    "T2": "before the first launch",
    "T3": "after the last launch",
    "T4": "a launch",
    "T5": "between launches",
}


# --- traces -----------------------------------------------------------------------------------------


def trace_document(report: TraceReport, kept: Mapping[str, Any] | None = None) -> Document:
    """`kept`: how many measurements went into which store, where that was asked for."""
    return Document(
        headline(report),
        lambda: report.to_dict() | _kept(kept),
        partial(_sections, report, kept),
        title=words.clean(", ".join(rank.path for rank in report.ranks), 300),
    )


def _kept(kept: Mapping[str, Any] | None) -> dict[str, Any]:
    return {} if kept is None else {"kept": dict(kept)}


def _kept_lines(kept: Mapping[str, Any] | None) -> Lines:
    said = f"{counted(kept['measurements'], 'measurement')} in {kept['store']}" if kept else ""
    return Lines("Kept", (said,) if said else ())


def _sections(report: TraceReport, kept: Mapping[str, Any] | None) -> Iterator[Section]:
    yield listed("Warnings", report.warnings)
    busy, bare = report.communication_seconds, report.exposed_seconds
    exposed = (
        f"communication {words.seconds(busy)} per step, of which {words.seconds(bare)} "
        f"({words.percent(bare / (busy or 1.0))}) exposed"
    )
    notes = (exposed,) if busy > 0 else ()
    yield stall_table("Where the time goes", report.stalls, report.step_seconds, notes=notes)
    ranks = {
        str(number if rank.rank is None else rank.rank): rank.stalls
        for number, rank in enumerate(report.ranks)
    }
    if len(ranks) > 1:
        yield stall_bars("Ranks", "rank", ranks, detail=0)
    yield _collectives(report)
    yield _operators(report, MOST_ROWS, 0)
    yield _overheads(report)
    yield _operators(report, MOST_ROWS_IN_DETAIL, 1)
    yield listed("Assumptions", report.assumptions)
    yield _kept_lines(kept)


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


def _collectives(report: TraceReport) -> Table:
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
    return Table("Communication", head, rows, left=2)


def _operators(report: TraceReport, most: int, detail: int) -> Table:
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
    return Table(title, head, rows, left=2, detail=detail)


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


def _overheads(report: TraceReport) -> Table:
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
    return Table("Host overheads", head, tuple(rows), left=3)


# --- nccl-tests -------------------------------------------------------------------------------------


def links_document(tables: Sequence[LinkTable], kept: Mapping[str, Any] | None = None) -> Document:
    """Every collective that was timed, by size."""
    rows = [row for table in tables for row in table.rows]
    warnings = [f"{table.path}: {line}" for table in tables for line in table.warnings]
    data = {
        "files": [{"file": table.path, "device": table.device} for table in tables],
        "links": [row.to_dict() for row in rows],
        "warnings": warnings,
        **_kept(kept),
    }
    names = ", ".join(dict.fromkeys(f"{row.collective} on {row.ranks}" for row in rows))
    best = max(row.bus_bandwidth for row in rows)
    return Document(
        f"{len(rows):,} timings of {names}; up to {show_bandwidth(best)} of bus bandwidth",
        lambda: data,
        lambda: (listed("Warnings", warnings), _links(rows), _kept_lines(kept)),
    )


def _links(rows: Sequence[LinkRow]) -> Table:
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
    return Table("Collectives", head, shown, left=3)
