"""Writes `docs/expert-plans.md`: plans that experts published beside what a search finds for the same job.

    python tools/expert_plans.py [--only TEXT] [--quick] [-o docs/expert-plans.md]

The plans are in `tests/accuracy/expert_plans.yaml`, each with its source.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from math import inf
from pathlib import Path
from typing import Any

import yaml
from in_space import not_searched

from foretrain import search
from foretrain.errors import InputError
from foretrain.plan.short_form import Words, schedule_of
from foretrain.plan.supported import refusals
from foretrain.planning.task import Task
from foretrain.report.md import table
from foretrain.resolving import ask
from foretrain.simulate import Simulation, simulate_scenario
from foretrain.units import rounded_seconds, show_bytes

HERE = Path(__file__).resolve().parents[1]
ROWS = HERE / "tests" / "accuracy" / "expert_plans.yaml"
PAGE = """# Plans of experts

Written by `tools/expert_plans.py`; do not edit. {count} jobs for which an expert's plan is published, from
`tests/accuracy/expert_plans.yaml`: each is searched without constraints on the stack it ran on, and the plan found first is
held against the expert's. Both are predicted, neither is measured here; the [accuracy page](accuracy.md) says how far
predictions are from runs. Experts heed what a search does not know, and often plan for many jobs at once.

{summary}

{rows}

## Sources

{sources}
"""


@dataclass(frozen=True)
class Expert:
    """A published plan and the job it was for."""

    source: str
    runtime: str
    model: str
    cluster: str
    batch: int
    seq: int
    precision: str
    plan: str
    quick: bool = False

    @property
    def name(self) -> str:
        return f"{self.model}, {self.cluster}, batch {self.batch:,}, {self.seq:,} tokens, {self.precision}, {self.runtime}"

    @property
    def key(self) -> str:
        return f"{self.name}: {self.plan} ({self.source})"

    def keywords(self) -> dict[str, Any]:
        names = ("batch", "seq", "precision", "runtime")
        return {"on": self.cluster, **{name: getattr(self, name) for name in names}}

    def task(self) -> Task:
        return Task.of(ask(self.model, **self.keywords()))


@dataclass(frozen=True)
class Judged:
    """An expert's plan beside the plan found. `lacking`: words of the expert's that the space does not have."""

    expert: Expert
    words: Words
    text: str
    simulation: Simulation
    refused: tuple[str, ...]
    lacking: tuple[str, ...]
    found: Words | None
    found_text: str
    found_seconds: float

    @property
    def seconds(self) -> float:
        return self.simulation.step_seconds

    @property
    def faster(self) -> float:
        """By which the plan found is predicted faster than the expert's."""
        return self.seconds / self.found_seconds - 1.0

    @property
    def is_beaten(self) -> bool:
        """Where the expert's plan does not fit as predicted, or the stack refuses it, no search can have it."""
        return self.found_seconds <= self.seconds * (1 + 1e-9) or not self.is_possible

    @property
    def is_possible(self) -> bool:
        return self.simulation.memory.fits and not self.refused

    @property
    def differences(self) -> str:
        """What the plan found has and the expert's has not."""
        if self.found is None:
            return ""
        theirs, mine = _choices(self.words), _choices(self.found)
        changed = [
            f"{name} {theirs[name]} → {mine[name]}" for name in theirs if theirs[name] != mine[name]
        ]
        return ", ".join(changed) or "the same plan"


def _choices(words: Words) -> dict[str, str]:
    """Every choice of a plan as a word."""
    told = {field.name: _word(getattr(words, field.name)) for field in fields(Words)}
    kind = schedule_of(words).kind if words.pp > 1 else "none"
    return {**told, "schedule": kind, "recompute": words.recompute or "none"}


def _word(value: object) -> str:
    if isinstance(value, tuple):
        return "+".join(map(str, value)) or "none"
    if value is None:
        return "default"
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)


def experts(path: Path = ROWS) -> tuple[Expert, ...]:
    data = yaml.safe_load(path.read_text())
    return tuple(
        Expert(runtime=data["sources"][row["source"]]["runtime"], **row) for row in data["rows"]
    )


def sources(path: Path = ROWS) -> Mapping[str, str]:
    data = yaml.safe_load(path.read_text())
    return {name: " ".join(row["text"].split()) for name, row in data["sources"].items()}


def judged(expert: Expert) -> Judged:
    task = expert.task()
    words, simulated = own(task, expert.plan)
    result = search(expert.model, **expert.keywords())
    first = result.best[0] if result.best else None
    text = first.plan.text if first else ""
    return Judged(
        expert, words, task.text(words), simulated,
        refused=tuple(refusals(task.runtime, words)), lacking=tuple(not_searched(task, words)),
        found=task.words(text) if text else None,
        found_text=text or ("strategies per layer" if first else "nothing fits"),
        found_seconds=first.simulation.step_seconds if first else inf,
    )  # fmt: skip


def own(task: Task, plan: str) -> tuple[Words, Simulation]:
    """The expert's plan, of the fastest micro-batch that fits where none is said; of one sample where none fits."""
    words = task.words(plan)
    if words.micro is not None:
        return words, _simulated(task, words)
    each = task.workload.global_batch // (words.dp or 1)
    tried = []
    for micro in (n for n in (1, 2, 4, 8, 16, 32, 64) if each % n == 0):
        sized = replace(words, micro=micro)
        try:
            tried.append((sized, _simulated(task, sized)))
        except InputError:
            continue
        if not tried[-1][1].memory.fits:
            break
    fitting = [one for one in tried if one[1].memory.fits]
    return min(fitting, key=lambda one: one[1].step_seconds) if fitting else tried[0]


def _simulated(task: Task, words: Words) -> Simulation:
    return simulate_scenario(task.scenario(task.plan(words)))


@dataclass(frozen=True)
class Row:
    """A row of the page."""

    name: str
    cells: tuple[str, ...]
    fits: bool
    is_refused: bool
    is_searched: bool
    is_beaten: bool

    @classmethod
    def of(cls, row: Judged) -> Row:
        return cls(
            row.expert.key, tuple(_cells(row)), row.simulation.memory.fits, bool(row.refused),
            not row.lacking, row.is_beaten,
        )  # fmt: skip


def page(rows: Sequence[Row]) -> str:
    possible = [row for row in rows if row.fits and not row.is_refused]
    beaten = sum(row.is_beaten for row in possible)
    here = sum(row.is_searched for row in possible)
    misfits = sum(not row.fits for row in rows)
    refused = sum(row.is_refused for row in rows)
    summary = (
        f"The expert's plan is among the plans searched in {here} of the {len(possible)} jobs in which it is predicted "
        f"to fit and the stack's rules allow it, and the plan found is predicted no slower in {beaten} of them."
    )
    if misfits:
        summary += f" {misfits} published plans are predicted not to fit (marked); that is an error of predicted memory, or of what the source leaves unsaid."
    if refused:
        summary += f" {refused} are refused by the rules of the stack (marked)."
    return PAGE.format(
        count=len(rows),
        summary=summary,
        rows=table(
            ["job", "expert's plan", "step", "plan found", "step", "faster by", "what changed"],
            [list(row.cells) for row in rows],
        ),
        sources="\n".join(f"- {name}: {text}" for name, text in sources().items()),
    )


def _cells(row: Judged) -> list[str]:
    marks = []
    if not row.simulation.memory.fits:
        held = row.simulation.memory
        marks.append(f"predicted not to fit: {show_bytes(held.peak_bytes)}")
    if row.refused:
        marks.append("refused by the stack's rules")
    elif row.lacking:
        marks.append(f"not searched: {', '.join(row.lacking)}")
    theirs = f"{row.text} ({row.expert.source})" + "".join(f"; {mark}" for mark in marks)
    found = rounded_seconds(row.found_seconds) if row.found_seconds < inf else ""
    by = f"{100 * row.faster:.1f} %" if row.found_seconds < inf else ""
    return [row.expert.name, theirs, rounded_seconds(row.seconds), row.found_text, found, by, row.differences]  # fmt: skip


def _asked(options: argparse.Namespace) -> Iterator[Expert]:
    """Those that the tests look at first, and mixtures of experts last: their spaces are the largest."""
    every = sorted(experts(), key=lambda one: (not one.quick, " ep" in f" {one.plan}"))
    for expert in every:
        if (options.only in f"{expert.source} {expert.name}") and (
            expert.quick or not options.quick
        ):
            yield expert


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="", help="rows whose source or name has this text")
    parser.add_argument("--quick", action="store_true", help="rows that the tests look at")
    parser.add_argument("--rows", type=Path, help="file of finished rows, to go on from")
    parser.add_argument("-o", type=Path, default=HERE / "docs" / "expert-plans.md", dest="out")
    options = parser.parse_args()
    known: dict[str, Row] = {}
    if options.rows and options.rows.is_file():
        for line in options.rows.read_text().splitlines():
            data = json.loads(line)
            known[data["name"]] = Row(**{**data, "cells": tuple(data["cells"])})
    rows: list[Row] = []
    for expert in _asked(options):
        row = known.get(expert.key) or Row.of(judged(expert))
        rows.append(row)
        if expert.key not in known:
            told = "ok  " if row.is_beaten and row.is_searched else "MISS"
            print(told, *row.cells, sep=" | ", file=sys.stderr, flush=True)
            if options.rows:
                with options.rows.open("a") as file:
                    file.write(json.dumps(asdict(row)) + "\n")
        options.out.write_text(page(rows))


if __name__ == "__main__":
    main()
