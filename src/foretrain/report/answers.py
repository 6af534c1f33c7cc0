"""The documents of fit, explain, whatif, compare and sweep."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from foretrain.analysis.answers import FitAnswer, WhatIf
from foretrain.analysis.compare import Comparison, Difference
from foretrain.analysis.explain import Explanation
from foretrain.analysis.prediction import STALLS, Prediction, Remedy
from foretrain.asked import word_of
from foretrain.report import words
from foretrain.report.document import Document, Lines, Row, Section, Table, listed
from foretrain.report.prediction import memory_by_stage, memory_table, remedy_table
from foretrain.units import show_bytes, show_count

if TYPE_CHECKING:
    from foretrain.sweeps import Sweep

# --- fit --------------------------------------------------------------------------------------------


def fit_document(answer: FitAnswer) -> Document:
    prediction, changes = answer.prediction, answer.changes
    said = words.verdict(prediction)
    headline = f"{said[0].upper()}{said[1:]}; peak on stage {prediction.memory.peak_stage}"
    if not answer.fits:
        headline += _first(changes)
    names = (*words.names(prediction), *(change.paste for change in changes))
    return Document(
        headline,
        answer.to_dict,
        partial(_fit_sections, prediction, changes),
        not answer.fits,
        asked=words.asked(prediction),
        whole=names,
    )


def _first(changes: Sequence[Remedy]) -> str:
    fitting = next((change for change in changes if change.fits), None)
    if fitting is None:
        return "; none of the changes tried makes it fit"
    return f"; the fastest change that fits: {fitting.change}"


def _fit_sections(prediction: Prediction, changes: Sequence[Remedy]) -> Iterator[Section]:
    yield replace(memory_table(prediction), notes=())  # the headline says them
    yield memory_by_stage(prediction)
    steps = words.seconds_alike(change.step_seconds for change in changes)
    shown = list(zip(changes, steps, strict=True))
    for title in (
        "Changes that fit, fastest first",
        "Machines that fit",
        "Changes that come nearest",
    ):
        mine = [(row, step) for row, step in shown if _listed_under(row) == title]
        yield remedy_table(title, [row for row, _ in mine], [step for _, step in mine])
    yield listed("Warnings", prediction.warnings)
    yield listed("Assumptions", prediction.assumptions)


def _listed_under(row: Remedy) -> str:
    if not row.fits:
        return "Changes that come nearest"
    return "Machines that fit" if row.kind == "machine" else "Changes that fit, fastest first"


# --- explain ----------------------------------------------------------------------------------------


def explanation_document(explanation: Explanation) -> Document:
    return Document(
        explanation.headline, explanation.to_dict, partial(_explanation_sections, explanation)
    )


def _explanation_sections(explanation: Explanation) -> Iterator[Section]:
    data = explanation.to_dict()
    yield Lines("Why", explanation.paragraphs)
    yield _mapping_table("Critical path", data["critical_path"])
    yield _mapping_table("What would help", data["what_would_help"])


def _mapping_table(title: str, rows: Sequence[Mapping[str, Any]]) -> Table:
    names = list(dict.fromkeys(name for row in rows for name in row))
    are_words = {name: any(isinstance(row.get(name), str) for row in rows) for name in names}
    names.sort(key=lambda name: not are_words[name])
    head = tuple(
        "" if name.isdigit() else name.replace("_", " ").removesuffix(" seconds") for name in names
    )
    shown = tuple(tuple(_cell(name, row.get(name)) for name in names) for row in rows)
    return Table(title, head, shown, left=sum(are_words.values()))


def _cell(name: str, value: Any) -> str:
    if not isinstance(value, float):
        return "" if value is None else str(value)
    if name in ("start", "end", "seconds", "step_seconds") or name.isdigit():
        return words.seconds(value)
    return words.times(value) if name == "speedup" else f"{value:.4g}"


# --- what if ----------------------------------------------------------------------------------------


def whatif_document(answer: WhatIf) -> Document:
    """Before and after, cause by cause."""
    base, changed, ratio = answer.base, answer.changed, answer.speedup
    asked = ", ".join(f"{key}={word_of(value)}" for key, value in answer.changes.items())
    headline = (
        f"{words.seconds(changed.step_seconds)} per step instead of {words.seconds(base.step_seconds)} "
        f"({_faster(ratio, answer.unit)}) with {asked}"
    )
    if not changed.fits:
        headline += f"; DOES NOT FIT: {words.of_memory(changed)}"
    elif not base.fits:
        headline += f"; now fits: {words.of_memory(changed)}"
    return Document(
        headline,
        answer.to_dict,
        partial(_whatif_sections, answer),
        not changed.fits,
        asked=words.asked(base),
        whole=(*words.names(base), *words.names(changed), *map(str, answer.changes.values())),
    )


def _faster(ratio: float, unit: str) -> str:
    if abs(ratio - 1.0) < 5e-4:
        return "no difference"
    return f"{ratio:.{2 if abs(ratio - 1.0) >= 0.01 else 3}f}× as fast per {unit}"


def _whatif_sections(answer: WhatIf) -> Iterator[Section]:
    base, changed = answer.base, answer.changed
    head = ("", "before", "after")
    both = ((name, base.stalls.get(name, 0.0), changed.stalls.get(name, 0.0)) for name in STALLS)
    causes = _times([(name, a, b) for name, a, b in both if a > 0 or b > 0])
    speeds = zip(RATES, *rates((base, changed)), strict=True)
    memory = tuple(
        (name, show_bytes(a), show_bytes(b))
        for name, a, b in (
            ("peak", base.memory.peak_bytes, changed.memory.peak_bytes),
            ("usable", base.memory.usable_bytes, changed.memory.usable_bytes),
        )
    )
    yield Lines("Remarks", answer.remarks)
    yield Table("Where the time goes", (*head, "difference"), causes, "lrrr")
    yield Table("Speed and cost", head, tuple(row for row in speeds if any(row[1:])), "lrr")
    yield Table("Memory", head, memory, "lrr")
    yield listed("Warnings", [line for line in changed.warnings if line not in base.warnings])
    yield listed("Assumptions", base.assumptions)
    other = [line for line in changed.assumptions if line not in base.assumptions]
    yield listed("Assumptions after the change", other)


# --- compare ----------------------------------------------------------------------------------------


def comparison_document(comparison: Comparison) -> Document:
    """What differs, where the time went, and the other figures of both."""
    a, b = comparison.names
    spoken_of = (value for pair in comparison.changed.values() for value in pair)
    return Document(
        comparison.summary,
        comparison.to_dict,
        partial(_comparison_sections, comparison),
        is_no=comparison.per is None,
        asked="" if comparison.names == ("A", "B") else f"A: {a} · B: {b}",
        make_rows=comparison.rows,
        whole=(*(str(value) for value in spoken_of if value is not None), a, b),
    )


def _comparison_sections(comparison: Comparison) -> Iterator[Section]:
    head = ("", "A", "B", "B − A")
    asked = tuple((name, _said(x), _said(y)) for name, (x, y) in comparison.changed.items())
    causes = [(row.name, row.a or 0.0, row.b or 0.0) for row in comparison.causes]
    yield Table("What differs", head[:3], asked, "lnn")
    yield Table("Figures", head, tuple(map(_difference, comparison.figures)), "lrrr")
    yield Table(f"Where the time of a {comparison.per} goes", head, _times(causes), "lrrr")


def _said(value: object) -> str:
    if value is None:
        return ""
    return f"{value:,}" if isinstance(value, int) else str(value)


def _difference(row: Difference) -> Row:
    if row.unit == "s" and row.a is not None and row.b is not None:
        return _times([(row.name, row.a, row.b)])[0]
    delta = "" if row.delta is None else _signed(row.delta, row.unit)
    return (row.name, _shown(row.a, row.unit), _shown(row.b, row.unit), delta)


_SHOWN: dict[str, Callable[[float], str]] = {
    "s": words.seconds,
    "bytes": show_bytes,
    "USD": words.usd,
    "share": words.percent,
}


def _shown(value: float | None, unit: str) -> str:
    if value is None:
        return "unknown"
    if unit in _SHOWN:
        return _SHOWN[unit](value)
    return show_count(value) if value >= 100 else f"{value:.3g}"


def _times(rows: Sequence[tuple[str, float, float]]) -> tuple[Row, ...]:
    """(name, A, B, B − A), all times in one unit."""
    both = words.seconds_alike(value for _, a, b in rows for value in (a, b))
    deltas = [b - a for _, a, b in rows]
    unit = both[0].rpartition(" ")[2] if both else None
    sizes = words.seconds_alike(map(abs, deltas), unit=unit)
    return tuple(
        (name, both[2 * at], both[2 * at + 1], _sign(delta, size) + size)
        for at, ((name, *_), delta, size) in enumerate(zip(rows, deltas, sizes, strict=True))
    )


def _sign(delta: float, size: str) -> str:
    return "" if size.startswith("0 ") else "+" if delta > 0 else "−"


def _signed(delta: float, unit: str) -> str:
    """`+1.2 GiB`, `−3.1 points`."""
    if delta == 0:
        return "0"
    sign = "+" if delta > 0 else "−"
    return sign + (
        f"{abs(delta) * 100:.1f} points" if unit == "share" else _shown(abs(delta), unit)
    )


# --- sweep ------------------------------------------------------------------------------------------


def sweep_document(sweep: Sweep) -> Document:
    count, best = len(sweep.points), sweep.best
    headline = f"Best of {count:,}: {best.name}" if best else f"None of {count:,} fits"
    whole = (word_of(value) for point in sweep.points for value in point.values.values())
    return Document(
        headline,
        sweep.to_dict,
        partial(_sweep_sections, sweep),
        is_no=best is None,
        asked=_in_common(sweep),
        make_rows=sweep.rows,
        whole=(*dict.fromkeys(whole),),
    )


def _sweep_sections(sweep: Sweep) -> Iterator[Section]:
    chosen = _filled_in(sweep)
    answered = [(point.values, p) for point in sweep.points if (p := point.prediction) is not None]
    predictions = [prediction for _, prediction in answered]
    steps = words.seconds_alike(prediction.step_seconds for prediction in predictions)
    table = [
        (*map(word_of, values.values()), *_sweep_cells(prediction, chosen, step, speeds))
        for (values, prediction), step, speeds in zip(
            answered, steps, rates(predictions), strict=True
        )
    ]
    named = len(sweep.varied) + len(chosen)
    head = (*sweep.varied, *chosen, "step", "MFU", *RATES, "peak of usable")
    kept = [c for c in range(len(head)) if c < named or any(row[c] for row in table)]
    failed = tuple(
        (point.name, words.clean(point.error["message"]))
        for point in sweep.points
        if point.error is not None
    )
    letters = "".join("p" if head[c] == "plan" else "n" if c < named else "r" for c in kept)
    rows = tuple(tuple(row[c] for c in kept) for row in table)
    yield Table("Sweep", tuple(head[c] for c in kept), rows, letters)
    yield Table("Invalid combinations", ("", "why"), failed, left=2)
    yield listed("Warnings", _warnings(sweep))
    yield listed("Assumptions", _shared_assumptions(sweep))


def _in_common(sweep: Sweep) -> str:
    """What all points have in common."""
    question = next((point.prediction.question for point in sweep.points if point.prediction), {})
    parts = [words.clean(question[key]) for key in ("model", "cluster") if question.get(key)]
    return " on ".join(parts) if not {"model", "on"} & {*sweep.varied} else ""


def _filled_in(sweep: Sweep) -> tuple[str, ...]:
    """What was filled in differently from point to point."""
    asked = [point.prediction.question for point in sweep.points if point.prediction is not None]
    names = (name for name in ("runtime", "plan", "micro_batch") if name not in sweep.varied)
    return tuple(name for name in names if len({one[name] for one in asked}) > 1)


def _warnings(sweep: Sweep) -> Iterator[str]:
    """Each once, with the points it is about unless that is all of them."""
    points: dict[str, list[str]] = {}
    for point in sweep.points:
        for line in () if point.prediction is None else point.prediction.warnings:
            points.setdefault(line, []).append(point.name)
    for line, names in points.items():
        yield line if len(names) == len(sweep.points) else f"{'; '.join(names)}: {line}"


def _shared_assumptions(sweep: Sweep) -> tuple[str, ...]:
    """Assumptions that hold at every point."""
    assumptions = [
        point.prediction.assumptions for point in sweep.points if point.prediction is not None
    ]
    return (
        tuple(line for line in assumptions[0] if all(line in one for one in assumptions))
        if assumptions
        else ()
    )


def _sweep_cells(
    prediction: Prediction, chosen: tuple[str, ...], step: str, speeds: tuple[str, ...]
) -> tuple[str, ...]:
    fits = words.of_memory(prediction) + ("" if prediction.fits else " DOES NOT FIT")
    mfu = "" if prediction.mfu is None else words.percent(prediction.mfu)
    filled_in = (str(prediction.question[name]) for name in chosen)
    return (*filled_in, step, mfu, *speeds, fits.replace(" usable", ""))


# --- speed and money --------------------------------------------------------------------------------

RATES = ("samples/s", "tokens/s/device", "per M tokens", "per k samples", "job", "job cost")


def rates(predictions: Sequence[Prediction]) -> list[tuple[str, ...]]:
    """A cell for each of `RATES`, empty where nothing is known; times in one unit."""
    jobs = [math.nan if p.job is None else p.job.expected_seconds for p in predictions]
    return [
        _rates(prediction, length)
        for prediction, length in zip(predictions, words.durations(jobs), strict=True)
    ]


def _rates(prediction: Prediction, job_length: str) -> tuple[str, ...]:
    job, each = prediction.job, prediction.usd_per_sample
    length, tokens = prediction.question.get("seq_len"), prediction.tokens_per_second
    return (
        words.amount(prediction.samples_per_second),
        "" if tokens is None else words.amount(tokens / words.devices(prediction)),
        "" if each is None or not length else words.usd(1e6 * each / length),
        "" if each is None or length else words.usd(1e3 * each),
        "" if job is None else job_length,
        "" if job is None or job.usd is None else words.usd(job.usd),
    )
