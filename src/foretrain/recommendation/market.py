"""The market's small print: how clouds bill, how long machines take to start, and which accelerators are not covered."""

from __future__ import annotations

from collections.abc import Iterable
from math import ceil
from pathlib import Path

from foretrain.analysis.goodput import HOUR
from foretrain.cluster.node import Node
from foretrain.loading import Figures

figure = Figures(Path(__file__).with_name("market.yaml"))
"""Billing, start-up and critical batches, with sources."""


def cloud_of(node: Node) -> str:
    """Whose terms of billing hold: a cloud of the table, else `other`."""
    name = (node.cloud or "").partition(":")[0]
    return name if f"billing-{name}" in figure.groups else "other"


def billed_hours(node: Node, hours: float) -> float:
    """What is paid for of a rental of so long."""
    terms = f"billing-{cloud_of(node)}"
    unit = figure(terms, "unit_seconds")
    seconds = max(hours * HOUR, figure(terms, "least_seconds"))
    units = seconds / unit
    return (ceil(units - 1e-9) if units < 1e15 else units) * unit / HOUR


def startup_seconds(given: float | None) -> float:
    """From the order of machines to the first step."""
    if given is not None:
        return given
    return figure("startup", "node_seconds") + figure("startup", "job_seconds")


def assumptions(nodes: Iterable[Node], startup: float | None) -> list[str]:
    """The terms that are taken, with the word that changes them; sources are in `market.yaml`."""
    known, by_terms = figure.groups, dict[tuple[float, float], list[str]]()
    for cloud in dict.fromkeys(cloud_of(node) for node in nodes):
        terms = known[f"billing-{cloud}"]
        unit = (float(terms["unit_seconds"]), float(terms["least_seconds"]))
        by_terms.setdefault(unit, []).append(cloud)
    billed = "; ".join(
        f"{', '.join(clouds)} in units of {unit:g} s, at least {least:g} s"
        for (unit, least), clouds in by_terms.items()
    )
    if startup is not None:
        return [f"billed from the start of machines: {billed} (--startup)"]
    start = known["startup"]
    return [
        f"start-up, billed: {start['node_seconds']:g} s for machines ({start['node_source']}), {start['job_seconds']:g} s "
        f"for the job ({start['job_source']}); no wait for capacity; billing: {billed} (--startup)"
    ]


def not_covered() -> tuple[str, ...]:
    """Accelerators that clouds rent out and that cannot be predicted."""
    return tuple(figure.groups["not-covered"]["names"])
