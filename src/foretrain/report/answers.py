"""Pages for the answers of fit, compare, explain, whatif and sweep."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from foretrain.analysis.prediction import STALLS, Prediction
from foretrain.report import words
from foretrain.report.page import Page, Section
from foretrain.units import show_bytes


def fit_page(answer: Any) -> Page:
    """`answer` is a FitAnswer: prediction, fits, changes."""
    prediction: Prediction = answer.prediction
    changes = [_change(change) for change in answer.changes]
    document = {
        "fits": bool(answer.fits),
        "memory": prediction.to_dict()["memory"],
        "changes": changes,
        "prediction": prediction.to_dict(),
    }
    memory = prediction.memory
    verdict = "Fits" if answer.fits else "Does not fit"
    headline = f"{verdict}: {words.of_memory(prediction)} on stage {memory.peak_stage}"
    if not answer.fits:
        headline += _smallest(changes)
    return Page(
        headline, document, (*_memory_sections(prediction), _changes(changes)), not answer.fits
    )


def _change(change: Any) -> dict[str, Any]:
    names = ("change", "peak_bytes", "fits", "step_seconds")
    return {name: getattr(change, name, None) for name in names}


def _smallest(changes: Sequence[Mapping[str, Any]]) -> str:
    fitting = next((change for change in changes if change["fits"]), None)
    if fitting is None:
        return "; no single change that was tried makes it fit"
    return f"; smallest change that fits: {fitting['change']}"


def _changes(changes: Sequence[Mapping[str, Any]]) -> Section:
    rows = tuple(
        (
            str(change["change"]),
            "yes" if change["fits"] else "no",
            "" if change["peak_bytes"] is None else show_bytes(change["peak_bytes"]),
            "" if change["step_seconds"] is None else words.seconds(change["step_seconds"]),
        )
        for change in changes
    )
    return Section("What would change it", ("change", "fits", "peak", "step"), rows, left=2)


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
            f"What fills memory ({words.clean(memory.moment)})", ("kind", "size", "share"), fill
        ),
        Section("By stage", ("stage", "peak", *kinds), stages),
    )


def compare_page(comparison: Any, names: tuple[str, str]) -> Page:
    """`comparison` has rows (name, a, b, delta in seconds) and a summary."""
    rows = [tuple(row) for row in comparison.rows]
    document = {
        "summary": comparison.summary,
        "a": names[0],
        "b": names[1],
        "rows": [
            dict(zip(("name", "a_seconds", "b_seconds", "delta"), row, strict=True)) for row in rows
        ],
    }
    shown = tuple(
        (str(name), words.seconds(a), words.seconds(b), signed(delta)) for name, a, b, delta in rows
    )
    return Page(
        comparison.summary,
        document,
        (Section("Where they differ", ("", "A", "B", "B − A"), shown),),
    )


def signed(delta: float) -> str:
    """`+1.20 s`, `−340 ms`."""
    if delta == 0:
        return "0 s"
    return ("+" if delta > 0 else "−") + words.seconds(abs(delta))


def explain_page(explanation: Any) -> Page:
    """`explanation` has headline, paragraphs, critical_path rows and remedies."""
    path = [_row(step) for step in explanation.critical_path]
    remedies = [_row(remedy) for remedy in explanation.remedies]
    document = {
        "headline": explanation.headline,
        "paragraphs": list(explanation.paragraphs),
        "critical_path": path,
        "what_would_help": remedies,
    }
    sections = (
        Section("Why", lines=tuple(explanation.paragraphs)),
        _mapping_table("Critical path", path),
        _mapping_table("What would help", remedies),
    )
    return Page(explanation.headline, document, sections)


def _row(value: Any) -> dict[str, Any]:
    """A dataclass, mapping or plain tuple as named values."""
    if isinstance(value, Mapping):
        return dict(value)
    names = getattr(value, "__dataclass_fields__", None)
    if names is not None:
        return {name: getattr(value, name) for name in names}
    return {str(index): item for index, item in enumerate(value)}


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


def whatif_page(base: Prediction, changed: Prediction, changes: Mapping[str, Any]) -> Page:
    """Before and after, cause by cause."""
    ratio = base.step_seconds / changed.step_seconds if changed.step_seconds else 1.0
    asked = ", ".join(f"{key}={value}" for key, value in changes.items())
    document = {
        "changes": dict(changes),
        "speedup": ratio,
        "base": base.to_dict(),
        "changed": changed.to_dict(),
    }
    headline = (
        f"{words.seconds(changed.step_seconds)} per step instead of {words.seconds(base.step_seconds)} "
        f"({_faster(ratio)}) with {asked}"
    )
    if not changed.fits:
        headline += f"; DOES NOT FIT: {words.of_memory(changed)}"
    elif not base.fits:
        headline += f"; now fits: {words.of_memory(changed)}"
    return Page(headline, document, _before_after(base, changed), not changed.fits)


def _faster(ratio: float) -> str:
    if abs(ratio - 1.0) < 5e-4:
        return "no difference"
    return f"{ratio:.2f}× as fast"


def _before_after(base: Prediction, changed: Prediction) -> tuple[Section, ...]:
    causes = tuple(
        (name, words.seconds(a), words.seconds(b), signed(b - a))
        for name, a, b in (
            (name, base.stalls.get(name, 0.0), changed.stalls.get(name, 0.0)) for name in STALLS
        )
        if a > 0 or b > 0
    )
    peaks = (base.memory.peak_bytes, changed.memory.peak_bytes)
    memory = (("peak", show_bytes(peaks[0]), show_bytes(peaks[1])),)
    new = tuple(line for line in changed.warnings if line not in base.warnings)
    return (
        Section("Where the time goes", ("", "before", "after", "difference"), causes),
        Section("Memory", ("", "before", "after"), memory),
        Section("Warnings", lines=new),
    )


def sweep_page(varied: Sequence[str], points: Iterable[Mapping[str, Any]]) -> Page:
    """`points`: one mapping per grid point with `values` and either `prediction` or `error`."""
    rows, entries = [], []
    best: tuple[float, str] | None = None
    for point in points:
        shown = tuple(str(point["values"][name]) for name in varied)
        prediction: Prediction | None = point.get("prediction")
        if prediction is None:
            entries.append({"values": dict(point["values"]), "error": point["error"]})
            message = str(point["error"]["message"]).splitlines()[0]
            rows.append((*shown, "", "", "", words.clean(message, 160)))
            continue
        entries.append({"values": dict(point["values"]), "prediction": prediction.to_dict()})
        rate = prediction.samples_per_second
        if prediction.fits and (best is None or rate > best[0]):
            best = (rate, " ".join(f"{n}={v}" for n, v in zip(varied, shown, strict=True)))
        rows.append((*shown, *_sweep_cells(prediction)))
    head = (*varied, "step", "rate", "MFU", "memory")
    headline = f"Best of {len(rows)}: {best[1]}" if best else f"None of {len(rows)} fits"
    document = {
        "varied": list(varied),
        "points": entries,
        "best": None if best is None else best[1],
    }
    section = Section("Sweep", head, tuple(rows), left=len(varied))
    return Page(headline, document, (section,), best is None)


def _sweep_cells(prediction: Prediction) -> tuple[str, ...]:
    fits = words.of_memory(prediction) + ("" if prediction.fits else " DOES NOT FIT")
    mfu = "" if prediction.mfu is None else words.percent(prediction.mfu)
    return words.seconds(prediction.step_seconds), words.rate(prediction), mfu, fits
