"""Fits how far off the difference of two plans may be: `cost/calibration/differences.yaml`.

    python tools/fit_differences.py [FOLDER] [--write]

The runs are sets of measured plans of one model, cluster, stack and batch (`plan_sets.py`). For each pair of a set the
error is log(measured / predicted) of one less that of the other; its deviation is what `analysis.differences` makes of
the shares of both steps. The five sizes are those under which the errors are likeliest, with tails as heavy as those of
Student's t of three degrees of freedom (runs that something disturbed), then scaled so that 80 % intervals hold 80 % of
the pairs. Sets are split in halves by turns; fitted is the first half, what the intervals hold of both is printed.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from itertools import combinations
from math import log
from pathlib import Path
from typing import Any

import numpy as np
from case_steps import is_timed, step_of
from measured_plans import cases_of
from plan_sets import LEAST_SET, workload_of
from scipy.optimize import minimize
from scipy.stats import t as student
from trial import written

from foretrain.analysis.differences import PARTS, StepParts, squares
from foretrain.analysis.prediction import Z80
from foretrain.cases import scenario_from_case
from foretrain.errors import InputError
from foretrain.planning.task import Task
from foretrain.simulate import simulate_scenario
from foretrain.validation.cases import blind

HERE = Path(__file__).resolve().parents[1]
TARGET = HERE / "src" / "foretrain" / "cost" / "calibration" / "differences.yaml"
SURE = 0.8
FLOOR = 1e-4
"""Of a step: what two runs differ by anyhow, so that pairs that share all have a deviation."""
HEAD = """# How far off the difference of two predicted steps may be. Written by tools/fit_differences.py; do not edit.
#
#   parts   relative standard deviations of the parts of a step (analysis/differences.py says which stalls belong to each): of
#           the difference where two plans run the part alike, of each one's own time where they do not
"""


@dataclass(frozen=True, slots=True)
class Pair:
    error: float
    squares: Mapping[str, float]


def pairs_of(cases: Sequence[Mapping[str, Any]]) -> list[Pair]:
    """All pairs of one set."""
    runs = [run for case in cases if (run := _run(case)) is not None]
    return [Pair(abs(a - b), squares(x, y)) for (a, x), (b, y) in combinations(runs, 2)]


def _run(case: Mapping[str, Any]) -> tuple[float, StepParts] | None:
    try:
        found = simulate_scenario(scenario_from_case(blind(case)))
        step = step_of(case)
    except InputError:  # a configuration that cannot be laid out
        return None
    plan = found.scenario.plan
    words = Task.of(found.scenario).words(f"{plan.text} micro={plan.schedule.micro_batch}")
    return log(step.measured / step.seconds), StepParts.of(found.prediction.stalls, words)


def fitted(pairs: Sequence[Pair]) -> dict[str, float]:
    error, columns = _columns(pairs)

    def unlikely(sizes: Any) -> float:
        deviation = np.sqrt(columns @ np.exp(2.0 * sizes) + FLOOR**2)
        return -float((student.logpdf(error / deviation, 3) - np.log(deviation)).mean())

    options = {"maxiter": 8000, "maxfev": 8000}
    start = np.log(np.full(len(PARTS), 0.1))
    sizes = np.exp(minimize(unlikely, start, method="Nelder-Mead", options=options).x)
    scale = float(np.quantile(error / _deviations(columns, sizes), SURE)) / Z80
    return dict(zip(PARTS, (sizes * scale).tolist(), strict=True))


def held(pairs: Sequence[Pair], sizes: Mapping[str, float]) -> float:
    error, columns = _columns(pairs)
    inside = error <= Z80 * _deviations(columns, np.array(list(sizes.values())))
    return float(inside.mean())


def _columns(pairs: Sequence[Pair]) -> tuple[Any, Any]:
    return np.array([p.error for p in pairs]), np.array([list(p.squares.values()) for p in pairs])


def _deviations(columns: Any, sizes: Any) -> Any:
    return np.sqrt(columns @ sizes**2 + FLOOR**2)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    beside = os.environ.get("FORETRAIN_CASES", HERE.parent / "shared" / "cases" / "open")
    parser.add_argument("folder", nargs="?", type=Path, default=Path(beside))
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    rows: dict[str, list[Mapping[str, Any]]] = {}
    for case in cases_of(given.folder):
        if is_timed(case):
            rows.setdefault(workload_of(case, same_batch=True), []).append(case)
    sets = [found for row in rows.values() if len(row) >= LEAST_SET and (found := pairs_of(row))]
    halves = [[pair for one in sets[n::2] for pair in one] for n in (0, 1)]
    sizes = fitted(halves[0])
    print("  ".join(f"{name} {written(size)}" for name, size in sizes.items()))
    shares = [held(half, sizes) for half in halves]
    print(
        f"held: fitted {shares[0]:.1%} of {len(halves[0])}, check {shares[1]:.1%} of {len(halves[1])}"
    )
    print(f"all together: {fitted([pair for half in halves for pair in half])}")
    if given.write:
        source = (
            f"fitted to {len(halves[0])} pairs of measured plans of {len(sets[0::2])} sets; of the {len(halves[1])} pairs "
            f"of {len(sets[1::2])} other sets 80 % intervals hold {100 * shares[1]:.0f} %; {date.today().isoformat()}"
        )
        parts = ", ".join(f"{name}: {written(size)}" for name, size in sizes.items())
        TARGET.write_text(f"{HEAD}source: {source}\nparts: {{{parts}}}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
