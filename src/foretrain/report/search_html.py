"""The best plans as one HTML file."""

from __future__ import annotations

from typing import Any

from foretrain.planning.explain import Explanation
from foretrain.planning.per_layer import described
from foretrain.planning.survey import TOO_LARGE
from foretrain.report import words
from foretrain.report.front import drawing
from foretrain.report.page import Section
from foretrain.report.search import (
    asked_line,
    best_section,
    best_steps,
    closing,
    headline,
    pruned_section,
    remedies,
)
from foretrain.report.templates import template
from foretrain.searching import Found
from foretrain.units import show_bytes


def render(found: Found, launch: tuple[Section, ...] = ()) -> str:
    return template("search.html").render(
        title=f"Best plans: {asked_line(found)} · Foretrain",
        asked=asked_line(found),
        headline=headline(found),
        nothing_fits=not found.best,
        remedies=list(remedies(found)),
        tiles=_tiles(found),
        best=best_section(found),
        stalls=_stalls(found),
        chart=drawing(found),
        pruned=pruned_section(found),
        groups=_groups(found.explanations),
        command=found.command,
        sections=[section for section in (*launch, *closing(found)) if section.lines],
    )


def _tiles(found: Found) -> list[dict[str, str]]:
    whole = found.plans_valid + sum(
        count for reason, count in found.plans_pruned.items() if reason != TOO_LARGE
    )
    tiles = [
        {
            "name": "Plans looked at",
            "value": f"{found.plans_valid:,}",
            "note": f"of {whole:,}, in {words.seconds(found.seconds)}",
        },
        {"name": "Plans that fit", "value": f"{found.plans_fitting:,}", "note": "by estimate"},
    ]
    if found.best:
        best = found.best[0].prediction
        rate, _, unit = words.rate(best).rpartition(" ")
        tiles += [
            {
                "name": "Step time",
                "value": words.seconds(best.step_seconds),
                "note": words.interval(best),
            },
            {"name": "Rate", "value": rate, "note": unit},
            {
                "name": "Memory",
                "value": show_bytes(best.memory.peak_bytes),
                "note": f"of {show_bytes(best.memory.usable_bytes)} usable",
            },
        ]
        if (money := words.money(best)) is not None:
            shown = "" if best.cost.usd_per_step is None else words.usd(best.cost.usd_per_step)
            tiles.append({"name": "Cost per step", "value": shown, "note": money})
    return tiles


def _stalls(found: Found) -> list[dict[str, Any]]:
    """Where the step of each of the best plans goes, as widths of a bar."""
    longest = max((row.prediction.step_seconds for row in found.best), default=1.0)
    return [
        {
            "number": number,
            "plan": described(row.plan),
            "step": step,
            "parts": [
                {
                    "name": name,
                    "width": f"{100 * value / longest:.2f}",
                    "tip": f"{name}: {words.seconds(value)}, {words.percent(share)}",
                }
                for name, value, share in words.stall_rows(row.prediction)
            ],
        }
        for number, (row, step) in enumerate(zip(found.best, best_steps(found), strict=True), 1)
    ]


def _groups(told: tuple[Explanation, ...]) -> list[dict[str, Any]]:
    """Explanations choice by choice."""
    names = dict.fromkeys(one.choice for one in told)
    return [
        {"choice": name, "lines": [one.sentence for one in told if one.choice == name]}
        for name in names
    ]
