"""Page of `sweep`: a row for each combination."""

from __future__ import annotations

from foretrain.report import words
from foretrain.report.page import Late, Page, Section
from foretrain.report.rates import RATES, rates
from foretrain.sweeps import Point, Sweep


def sweep_page(found: Sweep) -> Page:
    count, best = len(found.points), found.best
    headline = f"Best of {count:,}: {best.name}" if best else f"None of {count:,} fits"
    table = [_row(point) for point in found.points if point.prediction is not None]
    head = (*found.varied, "step", "MFU", *RATES, "peak of usable")
    kept = [c for c in range(len(head)) if c < len(found.varied) or any(row[c] for row in table)]
    failed = tuple(
        (point.name, words.clean(point.error["message"]))
        for point in found.points
        if point.error is not None
    )
    sections = (
        Section(
            "Sweep",
            tuple(head[c] for c in kept),
            tuple(tuple(row[c] for c in kept) for row in table),
            columns="".join("n" if c < len(found.varied) else "r" for c in kept),
        ),
        Section("Invalid combinations", ("", "why"), failed, left=2),
    )
    whole = tuple(str(value) for point in found.points for value in point.values.values())
    return Page(
        headline,
        Late(found.to_dict),
        sections,
        is_no=best is None,
        rows=found.rows(),
        asked=_asked(found),
        whole=(*dict.fromkeys(whole),),
    )


def _asked(found: Sweep) -> str:
    """What all points have in common."""
    told = next((point.prediction.question for point in found.points if point.prediction), {})
    parts = [words.clean(told[key]) for key in ("model", "cluster") if told.get(key)]
    return " on ".join(parts) if not {"model", "on"} & {*found.varied} else ""


def _row(point: Point) -> tuple[str, ...]:
    prediction = point.prediction
    assert prediction is not None
    fits = words.of_memory(prediction) + ("" if prediction.fits else " DOES NOT FIT")
    mfu = "" if prediction.mfu is None else words.percent(prediction.mfu)
    shown = tuple(str(value) for value in point.values.values())
    speeds = (text for _, text in rates(prediction))
    step = words.seconds(prediction.step_seconds)
    return (*shown, step, mfu, *speeds, fits.replace(" usable", ""))
