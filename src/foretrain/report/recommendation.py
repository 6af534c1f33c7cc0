"""Ranked cloud offers: the table, the reasons, and a chart of time against money."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from foretrain.named import named
from foretrain.report import words
from foretrain.report.page import Page, Section, listed
from foretrain.units import alike, counted, show_bytes

if TYPE_CHECKING:
    from foretrain.recommendation.facade import Recommendation
    from foretrain.recommendation.offers import Offer

MOST_ROWS = 12
HOURS = {"d": 24.0, "h": 1.0, "min": 1.0 / 60.0}
HEAD = ("offer", "time", "80 % interval", "cost", "prices as of")


def recommendation_page(found: Recommendation) -> Page:
    """Best offers first; with -v all of them, and every instance that is none."""
    document = found.to_dict()
    sections = (
        Section("Offers", HEAD, _rows(found.offers[:MOST_ROWS]), _more(found)),
        Section("Plans and reasons", lines=tuple(map(_reason, found.offers[:MOST_ROWS]))),
        Section(
            "Pareto-optimal offers: none is both cheaper and faster",
            HEAD,
            _rows(found.pareto),
        ),
        _offer_sections(found),
        Section("Other offers", HEAD, _rows(found.offers[MOST_ROWS:]), detail=1),
        Section(
            "Infeasible",
            ("instance", "why"),
            tuple((row.instance, row.why) for row in found.infeasible),
            left=2,
            detail=0 if not found.offers else 1,
        ),
        listed("Assumptions", found.notes),
    )
    names = tuple(name for one in found.offers for name in (one.name, one.plan))
    page = Page(headline(found), document, sections, not found.offers, whole=names)
    return replace(page, more={"html": partial(_html, page, found)}, rows=found.rows())


def headline(found: Recommendation) -> str:
    job = found.job
    asked = f"{job.model.name}, {job.asked}"
    if not found.offers:
        nearest = f" Closest: {found.nearest}" if found.nearest else ""
        return f"No feasible offer for {asked}.{nearest}"
    best = found.offers[0]
    return (
        f"{best.name} trains {asked} in {hours(best.hours)} ({_interval(best)}) for "
        f"{words.usd(best.usd)} (prices as of {best.candidate.price_date}): {best.plan}"
    )


def hours(value: float) -> str:
    """`42 min`, `3.2 h` below two days, `14.1 d` above."""
    if value < 1:
        return f"{value * 60:.1f} min"
    return f"{value:.1f} h" if value < 48 else f"{value / 24:,.1f} d"


def _interval(one: Offer) -> str:
    return _between(*map(hours, one.interval_hours))


def _between(low: str, high: str) -> str:
    number, _, unit = low.partition(" ")
    return f"{number}–{high}" if high.endswith(f" {unit}") else f"{low} – {high}"


def _rows(offers: Sequence[Offer]) -> tuple[tuple[str, ...], ...]:
    """Times in one unit, so that rows compare."""
    ends = alike((value for one in offers for value in one.interval_hours), hours, HOURS)
    takes = alike((one.hours for one in offers), hours, HOURS, _unit(ends))
    return tuple(
        (one.name, time, _between(low, high), words.usd(one.usd), one.candidate.price_date)
        for one, time, low, high in zip(offers, takes, ends[::2], ends[1::2], strict=True)
    )


def _unit(texts: Sequence[str]) -> str | None:
    return texts[0].rpartition(" ")[2] if texts else None


def _reason(one: Offer) -> str:
    return f"{one.name}: {one.plan}; {one.why}"


def _more(found: Recommendation) -> tuple[str, ...]:
    if not found.offers:
        return ()
    rest = len(found.offers) - MOST_ROWS
    seen = f"{counted(found.looked_at, 'cluster')} evaluated, {len(found.offers):,} feasible"
    seen += f"; showing the first {MOST_ROWS}." if rest > 0 else "."
    return (seen,)


def _offer_sections(found: Recommendation) -> Section:
    """What the best offer is made of."""
    if not found.offers:
        return Section("Best offer")
    best = found.offers[0]
    share = best.step_seconds or 1.0
    rows = [
        (name, words.seconds(value), words.percent(value / share))
        for name, value in sorted(best.stalls.items(), key=lambda row: -row[1])
        if value > 5e-4 * share
    ]
    risk = best.interruptions
    every = risk.interval(best.passed.seconds)
    lines = [
        f"{counted(best.steps, 'step')} of {words.seconds(best.step_seconds)}; memory "
        f"{show_bytes(best.peak_bytes)} of {show_bytes(best.usable_bytes)} usable per device.",
        f"Goodput {words.percent(best.goodput)}: an interruption every "
        f"{hours(risk.mtbf / 3600)} on average, a checkpoint of "
        f"{words.seconds(risk.checkpoint)} every {hours(every / 3600)}, "
        f"{words.seconds(risk.restart)} to restart.",
    ]
    if found.job.data is not None:
        lines.append(
            f"A step takes {words.seconds(best.passed.cold_seconds)} with a cold cache, "
            f"{words.seconds(best.passed.warm_seconds)} once the data is cached"
            + (
                " (after the first epoch)."
                if best.feed.is_cached
                else " (never: the data does not fit in memory)."
            )
        )
    head = ("cause", "seconds", "share")
    return Section("Best offer", head, tuple(rows), tuple(lines))


def _html(page: Page, found: Recommendation) -> str:
    html: str = named("foretrain.report.offers_chart:render")(page, found)
    return html
