"""Pages for the answers of fit, explain and whatif."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from foretrain.analysis.answers import FitAnswer, FitChange, WhatIf
from foretrain.analysis.explain import Explanation
from foretrain.analysis.prediction import STALLS, Prediction
from foretrain.asked import word_of
from foretrain.report import words
from foretrain.report.comparison import times
from foretrain.report.page import Late, Page, Section, listed
from foretrain.report.rates import RATES, rates
from foretrain.units import show_bytes


def fit_page(answer: FitAnswer) -> Page:
    prediction, changes = answer.prediction, answer.changes
    said = words.verdict(prediction)
    headline = f"{said[0].upper()}{said[1:]}; peak on stage {prediction.memory.peak_stage}"
    if not answer.fits:
        headline += _smallest(changes)
    names = (*words.names(prediction), *(change.change for change in changes))
    return Page(
        headline,
        Late(answer.to_dict),
        (
            *_memory_sections(prediction),
            _changes(changes),
            listed("Assumptions", prediction.assumptions),
        ),
        not answer.fits,
        asked=words.asked(prediction),
        whole=names,
    )


def _smallest(changes: Sequence[FitChange]) -> str:
    fitting = next((change for change in changes if change.fits), None)
    if fitting is None:
        return "; none of the changes tried makes it fit"
    return f"; smallest change that fits: {fitting.change}"


def _changes(changes: Sequence[FitChange]) -> Section:
    steps = words.seconds_alike(change.step_seconds for change in changes)
    rows = tuple(
        (
            change.change,
            "yes" if change.fits else "no",
            show_bytes(change.peak_bytes),
            step,
        )
        for change, step in zip(changes, steps, strict=True)
    )
    return Section("Changes tried", ("change", "fits", "peak", "step"), rows, columns="nlrr")


def _memory_sections(prediction: Prediction) -> tuple[Section, ...]:
    memory = prediction.memory
    kinds = words.kinds(prediction)
    whole = memory.peak_bytes or 1.0
    fill = tuple(
        (
            kind,
            show_bytes(memory.by_kind.get(kind, 0.0)),
            words.percent(memory.by_kind.get(kind, 0.0) / whole),
        )
        for kind in kinds
    )
    stages = tuple(
        (
            str(s.stage),
            show_bytes(s.peak_bytes),
            *(show_bytes(s.by_kind.get(k, 0.0)) for k in kinds),
        )
        for s in memory.by_stage
    )
    return (
        Section(
            f"Memory breakdown ({words.clean(memory.moment)})", ("kind", "size", "share"), fill
        ),
        Section("By stage", ("stage", "peak", *kinds), stages),
    )


def explain_page(explanation: Explanation) -> Page:
    document = explanation.to_dict()
    sections = (
        Section("Why", lines=explanation.paragraphs),
        _mapping_table("Critical path", document["critical_path"]),
        _mapping_table("What would help", document["what_would_help"]),
    )
    return Page(explanation.headline, document, sections)


def _mapping_table(title: str, rows: Sequence[Mapping[str, Any]]) -> Section:
    names = list(dict.fromkeys(name for row in rows for name in row))
    words_first = sorted(names, key=lambda n: not any(isinstance(r.get(n), str) for r in rows))
    left = sum(any(isinstance(row.get(name), str) for row in rows) for name in names)
    head = tuple(
        "" if name.isdigit() else name.replace("_", " ").removesuffix(" seconds")
        for name in words_first
    )
    shown = tuple(tuple(_cell(name, row.get(name)) for name in words_first) for row in rows)
    return Section(title, head, shown, left=left)


_TIMES = ("start", "end", "seconds", "step_seconds")


def _cell(name: str, value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return (
            words.seconds(value)
            if name in _TIMES or name.isdigit()
            else f"{value:.2f}×"
            if name == "speedup"
            else f"{value:.4g}"
        )
    return str(value)


def whatif_page(answer: WhatIf) -> Page:
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
    return Page(
        headline,
        Late(answer.to_dict),
        (Section("Remarks", lines=answer.remarks), *_before_after(base, changed)),
        not changed.fits,
        asked=words.asked(base),
        whole=(*words.names(base), *words.names(changed), *map(str, answer.changes.values())),
    )


def _faster(ratio: float, unit: str) -> str:
    if abs(ratio - 1.0) < 5e-4:
        return "no difference"
    return f"{ratio:.{2 if abs(ratio - 1.0) >= 0.01 else 3}f}× as fast per {unit}"


def _before_after(base: Prediction, changed: Prediction) -> tuple[Section, ...]:
    both = ((name, base.stalls.get(name, 0.0), changed.stalls.get(name, 0.0)) for name in STALLS)
    causes = times([(name, a, b) for name, a, b in both if a > 0 or b > 0])
    memory = tuple(
        (name, show_bytes(a), show_bytes(b))
        for name, a, b in (
            ("peak", base.memory.peak_bytes, changed.memory.peak_bytes),
            ("usable", base.memory.usable_bytes, changed.memory.usable_bytes),
        )
    )
    speeds = zip(RATES, *rates((base, changed)), strict=True)
    new = tuple(line for line in changed.warnings if line not in base.warnings)
    other = tuple(line for line in changed.assumptions if line not in base.assumptions)
    return (
        Section(
            "Where the time goes", ("", "before", "after", "difference"), causes, columns="lrrr"
        ),
        Section(
            "Speed and cost",
            ("", "before", "after"),
            tuple((name, a, b) for name, a, b in speeds if a or b),
            columns="lrr",
        ),
        Section("Memory", ("", "before", "after"), memory, columns="lrr"),
        Section("Warnings", lines=new),
        listed("Assumptions", base.assumptions),
        listed("Assumptions after the change", other),
    )
