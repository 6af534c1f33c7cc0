"""Fits how far a predicted peak may be off: `memory` in `cost/calibration/uncertainty.yaml`.

    python tools/fit_memory_spread.py [CASES.jsonl ...] [--jobs N] [--write]

A run's error is log(measured / predicted), predicted by what its source means by memory. A spread is the standard
deviation whose 80 % interval holds 80 % of the errors. `other` is that of all groups, each counting the same;
a runtime's own is that of its runs, to which `PRIOR` runs of the spread `other` are added (in squares), so that a few
runs of one source make nobody too sure. Fitted is the half "fit" of the cases. Printed is what the intervals hold
of both halves, and what `other` holds of each group when it was fitted without that group.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from math import log, sqrt
from pathlib import Path
from typing import Any

import numpy as np
from fit_memory import MEANINGS as OF_GROUPS
from fit_runs import default_cases, record
from fit_uncertainty import SURE, TARGET, with_memory
from memory_table import GIB, row
from trial import written

from foretrain.analysis.prediction import Z80
from foretrain.cases import scenario_from_case
from foretrain.validation.cases import blind, read_cases
from foretrain.validation.memory import MEANINGS, meaning_of
from foretrain.validation.running import cores, run_all
from foretrain.validation.split import SEED

PRIOR = 4.0
"""runs that `other` counts for beside a runtime's own"""
LEAST_ROWS = 8
"""in the fitted half, for a runtime to have a spread of its own"""


@dataclass(frozen=True, slots=True)
class Run:
    group: str
    runtime: str  # "" where a preset stands in for it
    half: str
    error: float  # of the logarithm


def run(case: Mapping[str, Any]) -> Run | None:
    """None where the case cannot be predicted."""
    found = row(case)
    if found is None:
        return None
    question = scenario_from_case(blind(case))
    name = question.runtime.name if question.is_runtime_known else ""
    meaning = OF_GROUPS.get(found.group)
    if meaning is not None and meaning.is_of_first:
        predicted = found.found.by_stage[0].peak_bytes
    else:
        predicted = getattr(found.found, MEANINGS[meaning_of(case)])
    return Run(found.group, name, found.half, log(float(found.measured or 0.0) * GIB / predicted))


def is_measured(case: Mapping[str, Any]) -> bool:
    measured = case.get("measured") or {}
    return bool(measured.get("memory_gib")) and measured.get("ok") is not False


def pooled(runs: Sequence[Run]) -> float:
    """The spread of all groups, each counting the same however many runs it has."""
    size = np.array([abs(one.error) for one in runs])
    groups = [one.group for one in runs]
    weight = np.array([1.0 / groups.count(group) for group in groups])
    order = np.argsort(size)
    share = np.cumsum(weight[order]) / weight.sum()
    return float(size[order][np.searchsorted(share, SURE)]) / Z80


def own(runs: Sequence[Run], other: float) -> float:
    """The spread of one runtime's runs, `PRIOR` runs of the pooled one added."""
    size = float(np.quantile([abs(one.error) for one in runs], SURE)) / Z80
    return sqrt((len(runs) * size**2 + PRIOR * other**2) / (len(runs) + PRIOR))


def spreads(runs: Sequence[Run]) -> dict[str, float]:
    """By runtime, `other` first."""
    found = {"other": pooled(runs)}
    for name in sorted({one.runtime for one in runs} - {""}):
        mine = [one for one in runs if one.runtime == name]
        if len(mine) >= LEAST_ROWS:
            found[name] = own(mine, found["other"])
    return found


def held(runs: Sequence[Run], sizes: Mapping[str, float]) -> float:
    """Share of runs inside their 80 % interval."""
    inside = [abs(one.error) <= Z80 * sizes.get(one.runtime, sizes["other"]) for one in runs]
    return float(np.mean(inside)) if inside else float("nan")


def document(sizes: Mapping[str, float], fitted: Sequence[Run]) -> str:
    groups = len({one.group for one in fitted})
    source = (
        f"fitted to the memory of {len(fitted)} published training runs of {groups} groups, the half 'fit' of seed "
        f"{SEED}, by tools/fit_memory_spread.py; what the other half says is in docs/memory.md; "
        f"{date.today().isoformat()}"
    )
    rows = [f"    {name}: {written(size)}" for name, size in sizes.items()]
    return "\n".join(["memory:", f"  source: {source}", "  spread:", *rows]) + "\n"


def show(runs: Sequence[Run], sizes: Mapping[str, float]) -> None:
    print("  ".join(f"{name} {size:.3f}" for name, size in sizes.items()))
    fitted = [one for one in runs if one.half == "fit"]
    for group in (*sorted({one.group for one in runs}), "all"):
        mine = [one for one in runs if group in (one.group, "all")]
        cells = [group.ljust(18)]
        for half in ("fit", "check"):
            here = [one for one in mine if one.half == half]
            cells.append(f"{half} {len(here):4} {held(here, sizes):7.1%}")
        rest = [one for one in fitted if one.group != group]
        alone = {"other": pooled(rest)}
        cells.append(f"unseen {held(mine, alone):7.1%} (spread {alone['other']:.3f})")
        print("   ".join(cells if group != "all" else cells[:3]))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "cases", nargs="*", type=Path, help="case files; else those beside the checkout"
    )
    parser.add_argument("--jobs", type=int, default=cores())
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    cases = [case for case in read_cases(given.cases or default_cases()) if is_measured(case)]
    runs = [one for one in run_all(run, cases, given.jobs) if one is not None]
    fitted = [one for one in runs if one.half == "fit"]
    sizes = spreads(fitted)
    show(runs, sizes)
    if given.write:
        text = TARGET.read_text(encoding="utf-8")
        TARGET.write_text(with_memory(text, document(sizes, fitted)), encoding="utf-8")
        record([
            {
                "parameter": "spread of predicted memory",
                "where": "cost/calibration/uncertainty.yaml: memory",
                "value": f"{len(sizes)} numbers",
                "groups": sorted({one.group for one in fitted}),
                "rows": len(fitted),
                "tool": "tools/fit_memory_spread.py",
            }
        ])  # fmt: skip


if __name__ == "__main__":
    main()
