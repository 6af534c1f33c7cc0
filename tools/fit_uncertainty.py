"""Fits how wide 80 % intervals are: `cost/calibration/uncertainty.yaml`.

    python tools/fit_uncertainty.py [CASES.jsonl ...] [--jobs N] [--write]

Every case is predicted once for its parts and terms (`foretrain.analysis.uncertainty`); then factors and sizes are
fitted on the half "fit" of the cases, all groups counting the same. Minimised is the interval score of Gneiting and
Raftery (2007, JASA 102, eq. 43) in log seconds, in units of what the group's 80 % interval would be by itself, plus
a price on groups that are covered far from 80 % and a small one on sizes, so that what the cases cannot tell stays
at its start. Printed is the coverage of both halves; the half "check" took no part.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import left_curve
import numpy as np
from case_steps import is_timed, step_of
from fit_runs import default_cases, record
from numpy.typing import NDArray
from trial import PACKAGE, written

from foretrain.analysis.prediction import Z80
from foretrain.analysis.uncertainty import APART, GREATEST, NAMED, term_of
from foretrain.arrays import Floats
from foretrain.errors import ForetrainError
from foretrain.validation.cases import read_cases
from foretrain.validation.running import cores, run_all
from foretrain.validation.split import SEED, half_of

TARGET = PACKAGE / "cost" / "calibration" / "uncertainty.yaml"

STARTS = {
    "kernels": 1.0, **dict.fromkeys(APART, 1.0), "interconnect": 1.0, "network": 1.0, "host": 0.3, "data": 0.3,
    "model": 0.03, "unmeasured_kernels": 0.05, "several_devices": 0.02, "several_nodes": 0.02,
    "experts": 0.05,
    "unknown_runtime": 0.15, "unknown_switches": 0.01, "left_curve": left_curve.spread(),
    **{f"{kind} other": 0.05 for kind in NAMED},
}  # fmt: skip
PARTS = ("kernels", *APART, "interconnect", "network", "host", "data")
NOT_TOLD = ("data", "unknown_runtime", "left_curve")
"""no case has them"""
LEAST_ROWS = 12
"""in the fitted half, for a runtime or architecture to have a term of its own"""
SURE = 0.8
NEAR, FAR_PRICE, PULL = 0.04, 60.0, 0.01
BOUNDS = {"part": (0.5, 5.0), "term": (0.2, 5.0), "name": (0.1, 50.0)}
"""factors on the start: what cost models state of themselves is not far wrong, and terms that all questions share
must not stand in for what one runtime or architecture needs"""
DESCENTS = 30
FACTORS = (0.25, 0.5, 0.7, 0.85, 0.95, 1.05, 1.2, 1.4, 2.0, 4.0)
ROUNDS = 60


@dataclass(frozen=True, slots=True)
class Rows:
    """Cases in columns."""

    ids: list[str]
    group: NDArray[np.str_]
    is_fitted: NDArray[np.bool_]
    error: Floats
    """|log(predicted / measured)|"""
    found: list[dict[str, float]]
    named: list[dict[str, str]]


def _one(case: Mapping[str, Any]) -> tuple[Any, ...] | None:
    try:
        step = step_of(case, with_trust=True)
    except ForetrainError:
        return None
    assert step.trust is not None
    found = {**step.trust.parts, **step.trust.terms}
    is_fitted = half_of(case) == "fit"
    return step.id, step.group, is_fitted, abs(step.log_error), found, dict(step.trust.named)


def predicted(cases: Sequence[Mapping[str, Any]], jobs: int) -> Rows:
    kept = [row for row in run_all(_one, cases, jobs) if row is not None]
    ids, group, is_fitted, error, found, named = zip(*kept, strict=True)
    return Rows(
        list(ids),
        np.array(group),
        np.array(is_fitted),
        np.array(error),
        list(found),
        list(named),
    )


def columns(rows: Rows) -> tuple[list[str], Floats]:
    """Names of what is fitted, and [cases, names] the squares they multiply."""
    known = [
        f"{kind} {name}"
        for named, is_fitted in zip(rows.named, rows.is_fitted, strict=True)
        for kind, name in named.items()
        if is_fitted
    ]
    own = sorted(name for name in set(known) if known.count(name) >= LEAST_ROWS)
    names = [*STARTS, *own]
    squares = np.zeros((len(rows.ids), len(names)))
    place = {name: number for number, name in enumerate(names)}
    for row, (found, named) in enumerate(zip(rows.found, rows.named, strict=True)):
        for name, value in found.items():
            squares[row, place[name]] = value**2
        for pair in named.items():
            squares[row, place[term_of(pair, place)]] = 1.0
    return names, squares


def half_width(squares: Floats, sizes: Floats) -> Floats:
    """In log seconds."""
    width: Floats = np.minimum(Z80 * np.sqrt(squares @ sizes**2), GREATEST)
    return width


class Loss:
    """Of sizes, on the fitted half."""

    def __init__(self, rows: Rows, squares: Floats, starts: Floats) -> None:
        self.starts, self.groups = starts, []
        for name in np.unique(rows.group):
            mine = (rows.group == name) & rows.is_fitted
            if mine.any():
                error = rows.error[mine]
                unit = max(float(np.quantile(error, SURE)), 0.01)
                self.groups.append((squares[mine], error, unit))

    def __call__(self, sizes: Floats) -> float:
        price = PULL * float(np.sum(np.log(sizes / self.starts) ** 2))
        for squares, error, unit in self.groups:
            width = half_width(squares, sizes)
            beyond = np.maximum(error - width, 0.0)
            score = float(np.mean(width + beyond / (1.0 - SURE))) / unit
            away = abs(float(np.mean(error <= width)) - SURE) - NEAR
            weight = min(1.0, len(error) / 15.0)
            price += weight * (score + FAR_PRICE * max(0.0, away) ** 2)
        return price


def fit(rows: Rows) -> tuple[list[str], Floats]:
    """The best of several descents: from the starts, then from drawn places around the best so far."""
    names, squares = columns(rows)
    starts = np.array([STARTS.get(name, 0.05) for name in names])
    free = np.array([name not in NOT_TOLD for name in names])
    bounds = starts * np.array([BOUNDS[_sort(name)] for name in names]).T
    # scalars were fitted to the same half: what is left there flatters, so this much doubt stays always
    bounds[0, names.index("model")] = STARTS["model"]
    loss, draw = Loss(rows, squares, starts), np.random.default_rng(SEED)
    best, sizes = _descent(loss, starts, bounds, free)
    for _ in range(DESCENTS):
        drawn = sizes * np.exp(np.where(free, draw.normal(0.0, 1.0, len(sizes)), 0.0))
        price, other = _descent(loss, np.clip(drawn, *bounds), bounds, free)
        if price < best:
            best, sizes = price, other
    return names, _unseen(names, sizes)


def _sort(name: str) -> str:
    if name in PARTS:
        return "part"
    return "name" if name.startswith(tuple(f"{kind} " for kind in NAMED)) else "term"


def _descent(
    loss: Loss, start: Floats, bounds: Floats, free: NDArray[np.bool_]
) -> tuple[float, Floats]:
    """One size after the other, by factors, until none helps."""
    sizes, best = start.copy(), loss(start)
    for _ in range(ROUNDS):
        before = best
        for number in np.flatnonzero(free).tolist():
            for factor in FACTORS:
                other = sizes.copy()
                other[number] = np.clip(sizes[number] * factor, *bounds[:, number])
                price = loss(other)
                if price < best - 1e-9:
                    best, sizes = price, other
        if before - best < 1e-5:
            break
    return best, sizes


def _unseen(names: Sequence[str], sizes: Floats) -> Floats:
    """What has no runs of its own is known no better than the middle of what has."""
    sizes = sizes.copy()
    for kind in NAMED:
        own = [s for n, s in zip(names, sizes, strict=True) if n.startswith(f"{kind} ")]
        other = names.index(f"{kind} other")
        sizes[other] = max(sizes[other], float(np.median(own)))
    return sizes


def coverage(rows: Rows, sizes: Floats) -> list[tuple[str, int, float, int, float, float]]:
    """group, rows and coverage of the fitted and of the other half, median half width of the other."""
    _, squares = columns(rows)
    width = half_width(squares, sizes)
    inside = rows.error <= width
    table = []
    for name in (*np.unique(rows.group), "all"):
        cells: list[Any] = [str(name)]
        mine = np.ones(len(inside), bool) if name == "all" else rows.group == name
        for half in (rows.is_fitted, ~rows.is_fitted):
            here = mine & half
            cells += [int(here.sum()), float(inside[here].mean()) if here.any() else float("nan")]
        table.append((*cells, float(np.median(width[mine]))))
    return table


HEAD = """\
# How wide 80 % intervals are. Written by tools/fit_uncertainty.py; do not edit.
#
#   parts   factors on the relative standard deviation that cost models state for a part of the step: kernels (conv and
#           embedding have their own), exposed communication inside and between nodes; of host and data work the
#           relative standard deviation itself
#   terms   standard deviations of log seconds that come on top: model always, unmeasured_kernels by the share of the
#           step in kernels without measured tables, several_devices and several_nodes from two on, experts of models that have some, unknown_runtime
#           where a preset stands in for the software, unknown_switches times the root of how many settings have no
#           counterpart here, left_curve by the share of the step in collectives whose measured curves do not hold on these links: how far
#           the model is from the curves that ship (tools/left_curve.py)
#   runtime, architecture   the same for how well the software's preset and the devices are known; `other` for those
#           without enough runs
#   memory  standard deviations of log bytes of a predicted peak, by runtime; tools/fit_memory_spread.py fits them
#
# {kept} were not told by any case: they are estimates, or come from elsewhere as said above.
"""


def document(names: Sequence[str], sizes: Floats, rows: Rows) -> str:
    value = {name: written(float(size)) for name, size in zip(names, sizes, strict=True)}
    groups = len(np.unique(rows.group[rows.is_fitted]))

    def flow(chosen: Sequence[str], prefix: str = "") -> str:
        return "{" + ", ".join(f"{name}: {value[prefix + name]}" for name in chosen) + "}"

    prefixes = tuple(f"{kind} " for kind in NAMED)
    terms = [name for name in names if name not in PARTS and not name.startswith(prefixes)]
    source = (
        f"fitted to {int(rows.is_fitted.sum())} published training runs of {groups} groups, the half 'fit' of seed "
        f"{SEED}; coverage of the other half is in docs/accuracy.md; {date.today().isoformat()}"
    )
    lines = [f"source: {source}", f"parts: {flow(PARTS)}", f"terms: {flow(terms)}"]
    for kind, prefix in zip(NAMED, prefixes, strict=True):
        own = [name.removeprefix(prefix) for name in names if name.startswith(prefix)]
        lines += [f"{kind}:", *(f"  {name}: {value[prefix + name]}" for name in own)]
    return (
        HEAD.format(kept=f"{', '.join(NOT_TOLD[:-1])} and {NOT_TOLD[-1]}") + "\n".join(lines) + "\n"
    )


def with_memory(text: str, section: str) -> str:
    """The file with another section `memory`, which stands last and is fitted by a tool of its own."""
    return text.partition("\nmemory:\n")[0].rstrip("\n") + "\n" + section


def memory_section(text: str) -> str:
    _, key, rest = text.partition("\nmemory:\n")
    return key.lstrip("\n") + rest


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "cases", nargs="*", type=Path, help="case files; else those beside the checkout"
    )
    parser.add_argument("--jobs", type=int, default=cores())
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    cases = [c for c in read_cases(options.cases or default_cases()) if is_timed(c)]
    rows = predicted(cases, options.jobs)
    names, sizes = fit(rows)
    show(rows, names, sizes)
    if options.write:
        kept = memory_section(TARGET.read_text(encoding="utf-8"))
        text = with_memory(document(names, sizes, rows), kept)
        TARGET.write_text(text, encoding="utf-8")
        groups = sorted(set(rows.group[rows.is_fitted].tolist()))
        record([
            {
                "parameter": "widths of intervals",
                "where": "cost/calibration/uncertainty.yaml",
                "value": f"{len(names) - len(NOT_TOLD)} numbers",
                "groups": groups,
                "rows": int(rows.is_fitted.sum()),
                "tool": "tools/fit_uncertainty.py",
            }
        ])  # fmt: skip


def show(rows: Rows, names: Sequence[str], sizes: Floats) -> None:
    print("  ".join(f"{name} {size:.3g}" for name, size in zip(names, sizes, strict=True)))
    for name, n, covered, m, held, width in coverage(rows, sizes):
        print(
            f"{name:18} fit {n:5} {covered:6.1%}   check {m:5} {held:6.1%}   half width {width:.2f}"
        )


if __name__ == "__main__":
    main()
