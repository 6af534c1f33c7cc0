"""The document of a prediction."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from foretrain.analysis.prediction import STALLS, Prediction, Remedy
from foretrain.report import links, words
from foretrain.report.document import (
    Bar,
    Bars,
    Document,
    Facts,
    Figure,
    Figures,
    NetworkDrawing,
    Section,
    Table,
    Text,
    TimelineChart,
    listed,
)
from foretrain.units import counted, show_bytes

MAX_LINKS = 5
MAX_OPERATORS = 20


def prediction_document(prediction: Prediction) -> Document:
    return Document(
        words.headline(prediction),
        prediction.to_dict,
        partial(_sections, prediction),
        not prediction.fits,
        asked=words.asked(prediction),
        lead=partial(_lead, prediction),
        whole=words.names(prediction),
        prediction=prediction,
    )


def _lead(prediction: Prediction) -> str:
    facts = [f"Bottleneck: {words.clean(prediction.bottleneck)}."]
    if (money := words.money(prediction)) is not None:
        facts.append(f"{money}.")
    facts.append(
        f"{words.percent(prediction.measured_share)} of the time is based on measured tables."
    )
    return " ".join(facts)


def _sections(prediction: Prediction) -> Iterator[Section]:
    yield Figures("Key figures", tuple(_tiles(prediction)))
    yield Facts("Job totals", words.job_rows(prediction))
    yield stall_table("Where the time goes", prediction.stalls, prediction.step_seconds)
    yield memory_table(prediction)
    yield memory_by_stage(prediction)
    by_stage = {str(stage): stalls for stage, stalls in enumerate(prediction.stalls_by_stage)}
    if len(by_stage) > 1:
        yield stall_bars("The step on each stage", "stage", by_stage, detail=1)
    yield TimelineChart("Timeline of one step", prediction)
    if prediction.links:
        worth = links.worth_a_table(prediction)
        table = links.table(prediction, MAX_LINKS) if worth else None
        yield NetworkDrawing("Links", prediction, table)
    yield from _remedies(prediction)
    yield _operators(prediction)
    yield _path(prediction)
    yield listed("Warnings", prediction.warnings)
    yield listed("Assumptions", prediction.assumptions)
    yield Facts("Configuration", words.question_rows(prediction), detail=1)
    yield Facts("Provenance", tuple(prediction.provenance.items()), detail=1)


def stall_table(title: str, stalls: Mapping[str, float], step: float, **more: Any) -> Table:
    """One step from left to right, each cause beginning where the one above it ends."""
    at, rows = 0.0, []
    for name, value, share in words.stall_rows(stalls, step):
        figures = (words.seconds(value), words.percent(share), Bar(share, name, at))
        rows.append((name, *figures, words.STALL_MEANING[name]))
        at += share
    head = ("cause", "per step", "share", "", "what it is")
    return Table(title, head, rows, "lrrbL", has_head_in_text=False, **more)


def memory_table(prediction: Prediction) -> Table:
    """What the fullest device holds at its peak, and what is left."""
    memory = prediction.memory
    whole = max(memory.capacity_bytes, memory.total_bytes, 1.0)
    kinds = [
        (kind, memory.by_kind.get(kind, 0.0), f"c{number}")
        for number, kind in enumerate(words.kinds(prediction))
    ]
    if memory.context_bytes:
        kinds.append(("driver and libraries", memory.context_bytes, "c7"))
    if memory.headroom_bytes:
        kinds.append(("headroom", memory.headroom_bytes, "c8"))
    left = memory.usable_bytes - memory.peak_bytes
    kinds.append(("free", left, "free") if memory.fits else ("missing", -left, "bad"))
    rows = tuple(
        (
            Text(kind) if color == "bad" else words.clean(kind, 20),
            show_bytes(size),
            words.percent(size / max(memory.capacity_bytes, 1.0)),
            Bar(size / whole, color),
        )
        for kind, size, color in kinds
    )
    said = words.verdict(prediction)
    return Table(
        f"Peak memory of a device: stage {memory.peak_stage}, {words.clean(memory.moment)}",
        ("", "size", "of the device", ""),
        rows,
        "lrrb",
        notes=(said if prediction.fits else Text(said),),
        has_head_in_text=False,
    )


def memory_by_stage(prediction: Prediction) -> Bars:
    """Nothing where there is one stage only."""
    memory = prediction.memory
    stages = memory.by_stage if len(memory.by_stage) > 1 else ()
    kinds = words.kinds(prediction)
    rows = tuple(
        (str(stage.stage), tuple(stage.by_kind.get(kind, 0.0) for kind in kinds))
        for stage in stages
    )
    usable = (memory.usable_bytes, f"{show_bytes(memory.usable_bytes)} usable")
    moments = [f"peak at: {stage.moment}" for stage in stages]
    title = "Memory by stage"
    return Bars(title, "stage", "peak", kinds, rows, show_bytes, limit=usable, tips=moments)


def stall_bars(
    title: str, label: str, steps: Mapping[str, Mapping[str, float]], detail: int
) -> Bars:
    """Steps as bars of what their time went into."""
    used = [name for name in STALLS if any(stalls.get(name, 0.0) > 0 for stalls in steps.values())]
    rows = tuple(
        (name, tuple(stalls.get(stall, 0.0) for stall in used)) for name, stalls in steps.items()
    )
    return Bars(title, label, "step", used, rows, words.seconds, detail=detail)


def remedy_table(title: str, rows: Sequence[Remedy], steps: Sequence[str]) -> Table:
    """Changes as options to paste, where options make them, and what each brings."""
    gains = [max(0.0, row.speedup - 1.0) for row in rows]
    most = max(gains, default=0.0) or 1.0
    shown = [
        (
            row.paste or row.change,
            step,
            words.times(row.speedup),
            "" if row.peak_bytes is None else show_bytes(row.peak_bytes),
            "" if row.usd_per_hour is None else f"{words.usd(row.usd_per_hour)}/h",
            Bar(gain / most),
        )
        for row, step, gain in zip(rows, steps, gains, strict=True)
    ]
    head = ("change", "step", "speed-up", "peak", "price", "")
    remarks = tuple(f"{row.change}: {row.remark}." for row in rows if row.remark)
    table = Table(title, head, shown, "orrrrB", notes=remarks, has_head_in_text=False)
    return table.of(n for n in range(len(head)) if n < 3 or any(row[n] for row in shown))


def _remedies(prediction: Prediction) -> Iterator[Table]:
    """Plans and switches, which cost nothing, and hardware, which does."""
    rows = words.remedy_rows(prediction)
    kinds = {
        "What would help": ("plan", "option"),
        "Hardware that would help": ("machine", "hardware"),
    }
    for title, kind in kinds.items():
        mine = [(row, step) for row, step in rows if row.kind in kind]
        yield remedy_table(title, [row for row, _ in mine], [step for _, step in mine])


def _operators(prediction: Prediction) -> Table:
    rows = tuple((name, words.seconds(s)) for name, s in prediction.operators[:MAX_OPERATORS])
    head = ("operator", "per step")
    return Table("Top operators by time", head, rows, "nr", has_head_in_text=False, detail=1)


def _path(prediction: Prediction) -> Table:
    rows = tuple(
        (what, f"stage {stage}", f"{count:,}×", words.seconds(total))
        for what, stage, count, total in words.path_rows(prediction)
    )
    return Table(
        "Critical path",
        ("on the critical path", "stage", "times", "in all"),
        rows,
        "wrrr",
        notes=(words.path_note(prediction),) if rows else (),
        has_head_in_text=False,
        detail=1,
    )


# --- key figures ------------------------------------------------------------------------------------


def _tiles(prediction: Prediction) -> Iterator[Figure]:
    yield Figure("Step time", words.seconds(prediction.step_seconds), words.interval(prediction))
    yield _throughput(prediction)
    if prediction.mfu is not None:
        note = f"HFU {words.percent(prediction.hfu)}" if prediction.hfu is not None else ""
        yield Figure("MFU", words.percent(prediction.mfu), note)
    memory, fits = prediction.memory, prediction.fits
    name = "Memory" if fits else "Memory: does not fit"
    peak = show_bytes(memory.peak_bytes)
    yield Figure(name, peak, words.memory_note(memory), "" if fits else "bad")
    bottleneck = words.clean(prediction.bottleneck, 80)
    yield Figure("Bottleneck", bottleneck, tone="long" if len(bottleneck) > 14 else "")
    cost = prediction.cost
    if cost.usd_per_step is not None:
        hourly = f"{words.usd(cost.usd_per_hour)} per hour" if cost.usd_per_hour is not None else ""
        dated = f", prices as of {cost.price_date}" if cost.price_date else ""
        yield Figure("Cost per step", words.usd(cost.usd_per_step), hourly + dated)
    if (job := prediction.job) is not None:
        alone = f"{words.duration(job.compute_seconds)} without failures"
        yield Figure("Job", words.duration(job.expected_seconds), alone)
        if job.usd is not None:
            yield Figure("Job cost", words.usd(job.usd), f"{job.device_hours:,.0f} device-hours")
    share = words.percent(prediction.measured_share)
    yield Figure("Measured share", share, "of the time is based on measured tables")


def _throughput(prediction: Prediction) -> Figure:
    count = words.devices(prediction)
    if prediction.tokens_per_second is None:
        value, unit = prediction.samples_per_second, "Samples per second"
    else:
        value, unit = prediction.tokens_per_second, "Tokens per second"
    note = f"{value / count:,.0f} per device, {counted(count, 'device')}"
    return Figure(unit, f"{value:,.0f}" if value >= 10 else f"{value:.3g}", note)
