"""What the experiment found: rows, how well they were predicted, as text, JSON and Markdown."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

from foretrain import __version__
from foretrain.errors import InputError
from testbed.experiment import Outcome
from testbed.prediction import Machine

FORMAT = 1
APART = 0.10  # topologies whose measured steps differ by less are not told apart
TARGETS = {"step": 0.10, "exchange": 0.12, "order": 0.90}


@dataclass(frozen=True, slots=True)
class Row:
    """One configuration, predicted and measured (seconds; noise is half of the repeats' range over their median)."""

    topology: str
    hosts: int
    rate: float
    model: str
    batch: int
    scheme: str
    step_predicted: float
    step_measured: float
    step_noise: float
    exchange_predicted: float
    exchange_measured: float
    exchange_noise: float
    step_repeats: tuple[float, ...] = ()
    exchange_repeats: tuple[float, ...] = ()

    @staticmethod
    def of(outcome: Outcome) -> Row:
        c = outcome.configuration
        return Row(
            c.graph.name, c.graph.hosts, c.rate, c.model, c.batch, c.scheme,
            outcome.expected.step, outcome.step.seconds, outcome.step.noise,
            outcome.expected.exchange, outcome.exchange.seconds, outcome.exchange.noise,
            outcome.step.repeats, outcome.exchange.repeats,
        )  # fmt: skip

    @property
    def step_error(self) -> float:
        return self.step_predicted / self.step_measured - 1

    @property
    def exchange_error(self) -> float:
        return self.exchange_predicted / self.exchange_measured - 1


@dataclass(frozen=True, slots=True)
class Summary:
    rows: int
    topologies: int
    models: int
    schemes: int
    step_error: float  # mean of absolute relative errors
    worst_step_error: float
    exchange_error: float
    worst_exchange_error: float
    pairs: int  # of topologies under the same model, scheme, batch and rate that differ by more than APART
    pairs_right: int
    step_noise: float  # mean
    worst_step_noise: float
    exchange_noise: float

    @property
    def order(self) -> float:
        return self.pairs_right / self.pairs if self.pairs else 1.0

    @property
    def is_met(self) -> bool:
        return (
            self.step_error <= TARGETS["step"]
            and self.exchange_error <= TARGETS["exchange"]
            and self.order >= TARGETS["order"]
        )


def summary(rows: Sequence[Row]) -> Summary:
    steps = [abs(row.step_error) for row in rows]
    exchanges = [abs(row.exchange_error) for row in rows]
    pairs = [pair for pair in combinations(rows, 2) if _are_comparable(*pair)]
    right = sum(
        (a.step_predicted < b.step_predicted) == (a.step_measured < b.step_measured)
        for a, b in pairs
    )
    return Summary(
        rows=len(rows),
        topologies=len({row.topology for row in rows}),
        models=len({row.model for row in rows}),
        schemes=len({row.scheme for row in rows}),
        step_error=_mean(steps),
        worst_step_error=max(steps),
        exchange_error=_mean(exchanges),
        worst_exchange_error=max(exchanges),
        pairs=len(pairs),
        pairs_right=right,
        step_noise=_mean([row.step_noise for row in rows]),
        worst_step_noise=max(row.step_noise for row in rows),
        exchange_noise=_mean([row.exchange_noise for row in rows]),
    )


def _are_comparable(a: Row, b: Row) -> bool:
    """Two topologies and nothing else, far enough apart."""
    alike = (a.model, a.scheme, a.batch, a.rate, a.hosts)
    if a.topology == b.topology or alike != (b.model, b.scheme, b.batch, b.rate, b.hosts):
        return False
    low, high = sorted((a.step_measured, b.step_measured))
    return high > low * (1 + APART)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def to_json(machine: Machine, rows: Sequence[Row]) -> str:
    """Raw results with what they rest on."""
    found = {
        "format": FORMAT,
        "foretrain": __version__,
        "system": {"kernel": platform.release(), "machine": platform.machine(), "cores": os.cpu_count()},
        "measured_once": asdict(machine),
        "summary": asdict(summary(rows)),
        "rows": [asdict(row) for row in rows],
    }  # fmt: skip
    return json.dumps(found, indent=1) + "\n"


def from_json(path: Path) -> list[Row]:
    """Rows of a file that `to_json` wrote."""
    try:
        found = json.loads(path.read_text())
        if found["format"] != FORMAT:
            raise InputError(f"{path}: format {found['format']!r}; this version reads {FORMAT}.")
        return [_row(row) for row in found["rows"]]
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}).") from error
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path}: not a file of testbed results ({error}).") from error


def _row(data: Mapping[str, Any]) -> Row:
    repeats = {name: tuple(data[name]) for name in ("step_repeats", "exchange_repeats")}
    return Row(**{**data, **repeats})


def lines(rows: Sequence[Row]) -> list[str]:
    """A table in Markdown, which reads well in a terminal too."""
    head = "| topology | Mbit/s | model | batch | scheme | step, ms: predicted | measured | noise | error | communication, ms: predicted | measured | noise | error |"
    found = [head, "|---|---:|---|---:|---|" + "---:|" * 8]
    for r in rows:
        found.append(
            f"| {r.topology} | {r.rate / 1e6:g} | {r.model} | {r.batch} | {r.scheme} "
            f"| {r.step_predicted * 1e3:,.0f} | {r.step_measured * 1e3:,.0f} | ±{r.step_noise:.1%} | {r.step_error:+.1%} "
            f"| {r.exchange_predicted * 1e3:,.0f} | {r.exchange_measured * 1e3:,.0f} | ±{r.exchange_noise:.1%} | {r.exchange_error:+.1%} |"
        )
    return found


def verdict(found: Summary) -> list[str]:
    def against(value: float, target: float, is_met: bool) -> str:
        return f"{value:.1%} (target {target:.0%}, {'met' if is_met else 'missed'})"

    step, exchange = found.step_error, found.exchange_error
    return [
        f"- {found.rows} configurations: {found.topologies} topologies, {found.models} models, {found.schemes} schemes",
        f"- step: mean error {against(step, TARGETS['step'], step <= TARGETS['step'])}, worst {found.worst_step_error:.1%}",
        f"- communication alone: mean error {against(exchange, TARGETS['exchange'], exchange <= TARGETS['exchange'])}, worst {found.worst_exchange_error:.1%}",
        f"- order of topologies: {found.pairs_right} of {found.pairs} pairs more than {APART:.0%} apart are right, "
        f"{against(found.order, TARGETS['order'], found.order >= TARGETS['order'])}",
        f"- noise: steps ±{found.step_noise:.1%} on average (worst ±{found.worst_step_noise:.1%}), communication ±{found.exchange_noise:.1%}",
    ]
