"""The document of ranked cloud offers: the table, the reasons, and a chart of time against money."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from foretrain.recommendation.choosing import choice
from foretrain.recommendation.market import not_covered
from foretrain.report import words
from foretrain.report.document import (
    Axis,
    Chart,
    ChartPoint,
    Document,
    Lines,
    Row,
    Section,
    Series,
    Table,
    listed,
)
from foretrain.report.prediction import stall_table
from foretrain.units import alike, counted, show_bytes

if TYPE_CHECKING:
    from foretrain.recommendation.answer import Recommendation
    from foretrain.recommendation.offers import Offer

MOST_ROWS = 12
HOURS = {"d": 24.0, "h": 1.0, "min": 1.0 / 60.0}
HEAD = ("offer", "time", "80 % interval", "cost", "prices as of")


def recommendation_document(recommendation: Recommendation) -> Document:
    return Document(
        headline(recommendation),
        recommendation.to_dict,
        partial(_sections, recommendation),
        not recommendation.offers,
        title="Cloud offers",
        make_rows=recommendation.rows,
        whole=tuple(name for one in recommendation.offers for name in (one.name, one.plan)),
    )


def _sections(recommendation: Recommendation) -> Iterator[Section]:
    """Best offers first; with -v all of them, and every instance that is none."""
    offers, rest = recommendation.distinct[:MOST_ROWS], recommendation.distinct[MOST_ROWS:]
    alike = [one for one in recommendation.offers if one.alike]
    yield chart(recommendation.offers)
    yield Table("Offers", HEAD, _rows(offers), notes=_more(recommendation))
    yield Lines("Plans and reasons", [f"{one.name}: {one.plan}; {one.why}" for one in offers])
    title = "Pareto-optimal offers: none is both cheaper and faster"
    yield Table(title, HEAD, _rows(recommendation.pareto))
    yield Table("Best offer of every cloud", HEAD, _rows(tuple(recommendation.by_cloud.values())))
    yield Table("Best offer of every device", HEAD, _rows(tuple(recommendation.by_device.values())))
    yield _best_offer(recommendation)
    yield Table("Other offers", HEAD, _rows(rest), detail=1)
    yield Table(
        "No better than another of as many devices",
        ("offer", "no better than"),
        tuple((one.name, one.alike) for one in alike),
        left=2,
        detail=1,
    )
    refused = tuple((row.instance, row.why) for row in recommendation.infeasible)
    detail = 1 if recommendation.offers else 0
    yield Table("Infeasible", ("instance", "why"), refused, left=2, detail=detail)
    yield Lines("Not covered", [", ".join(not_covered())], detail=1)
    yield listed("Assumptions", recommendation.notes)


def chart(offers: Sequence[Offer]) -> Chart:
    """Hours to the right, money upwards, clouds in colors, the front joined by a line."""
    shown = [one for one in offers if one.hours > 0 and one.usd > 0]
    front = sorted((one for one in shown if one.is_best), key=lambda one: one.hours)
    clouds = sorted({_cloud(one) for one in shown})
    series = [
        Series(cloud, [_point(one) for one in shown if _cloud(one) == cloud]) for cloud in clouds
    ]
    return Chart(
        "Cost vs. time",
        Axis("time to completion", "hours"),
        Axis("cost", "usd"),
        (*series, Series("Pareto-optimal", [_point(one) for one in front], "only")),
        hint="Every feasible offer, both axes logarithmic. The dashed line joins the Pareto-optimal offers. "
        "Filled points are simulated, rings are estimated. Hover over one for its plan and the reason.",
    )


def _cloud(one: Offer) -> str:
    return one.candidate.instance.partition(":")[0]


def _point(one: Offer) -> ChartPoint:
    tip = (
        f"{one.name}\n{one.plan}\n{hours(one.hours)}, {words.usd(one.usd)} (prices as of "
        f"{one.candidate.price_date})\n{one.why}"
    )
    return ChartPoint(one.hours, one.usd, tip, "", one.is_simulated, 6 if one.is_best else 4)


def headline(recommendation: Recommendation) -> str:
    job = recommendation.job
    asked = f"{job.model.name}, {job.asked}"
    if not recommendation.offers:
        nearest = f" Closest: {recommendation.nearest}" if recommendation.nearest else ""
        remedy = f" {recommendation.remedy}" if recommendation.remedy else ""
        return f"No feasible offer for {asked}.{nearest}{remedy}"
    best = recommendation.offers[0]
    return (
        f"{best.name} trains {asked} in {hours(best.hours)} ({words.between(*map(hours, best.interval_hours))}) for "
        f"{words.usd(best.usd)} (prices as of {best.candidate.price_date}): {best.plan}"
    )


def hours(value: float) -> str:
    """`42 min`, `3.2 h` below two days, `14.1 d` above."""
    if value < 1:
        return f"{value * 60:.1f} min"
    return f"{value:.1f} h" if value < 48 else f"{value / 24:,.1f} d"


def _rows(offers: Sequence[Offer]) -> tuple[Row, ...]:
    """Times in one unit, so that rows compare."""
    ends = alike((value for one in offers for value in one.interval_hours), hours, HOURS)
    takes = alike((one.hours for one in offers), hours, HOURS, _unit(ends))
    return tuple(
        (one.name, time, words.between(low, high), words.usd(one.usd), one.candidate.price_date)
        for one, time, low, high in zip(offers, takes, ends[::2], ends[1::2], strict=True)
    )


def _unit(texts: Sequence[str]) -> str | None:
    return texts[0].rpartition(" ")[2] if texts else None


def _more(recommendation: Recommendation) -> tuple[str, ...]:
    if not recommendation.offers:
        return ()
    rest = len(recommendation.distinct) - MOST_ROWS
    every, alike = (
        len(recommendation.offers),
        len(recommendation.offers) - len(recommendation.distinct),
    )
    text = f"{counted(recommendation.looked_at, 'cluster')} evaluated, {every:,} feasible"
    text += f", {alike:,} of them no better than another of as many devices" if alike else ""
    text += f"; showing the first {MOST_ROWS}." if rest > 0 else "."
    return (f"{choice(recommendation.job).sentence}.", text)


def _energy(one: Offer) -> str:
    kwh = one.energy_kwh
    return "" if kwh is None else f" {words.energy(kwh)} at board power."


def _best_offer(recommendation: Recommendation) -> Table:
    """What the best offer is made of."""
    if not recommendation.offers:
        return Table("Best offer")
    best = recommendation.offers[0]
    risk = best.interruptions
    every = risk.interval(best.passed.seconds)
    lines = [
        f"{hours(best.startup_hours)} to start up; {hours(best.billed_hours)} billed at "
        f"{words.usd(best.candidate.usd_per_hour)} per hour." + _energy(best),
        f"{counted(best.steps, 'step')} of {words.seconds(best.step_seconds)}; memory "
        f"{show_bytes(best.peak_bytes)} of {show_bytes(best.usable_bytes)} usable per device.",
        f"Goodput {words.percent(best.goodput)}: an interruption every "
        f"{hours(risk.any_mtbf / 3600)} on average, a checkpoint of "
        f"{words.seconds(risk.checkpoint)} every {hours(every / 3600)}, "
        f"{words.seconds(risk.restart)} to restart.",
    ]
    if recommendation.job.data is not None:
        lines.append(
            f"A step takes {words.seconds(best.passed.cold_seconds)} with a cold cache, "
            f"{words.seconds(best.passed.warm_seconds)} once the data is cached"
            + (
                " (after the first epoch)."
                if best.feed.is_cached
                else " (never: the data does not fit in memory)."
            )
        )
    return stall_table("Best offer", best.stalls, best.step_seconds, notes=lines)
