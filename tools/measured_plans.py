"""The part of `docs/search-quality.md` on measured plans; `tools/search_quality.py` writes the page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from plan_sets import LEAST_SET, NEAR, PlanSet, measured_sets

from foretrain.report.md import table
from foretrain.validation.cases import read_cases

GROUPS = ("vtrain_multi", "nanotron", "alpa_ablation")


def cases_of(folder: Path) -> Iterator[dict[str, Any]]:
    for group in GROUPS:
        path = folder / f"{group}.jsonl"
        if path.is_file():
            yield from read_cases([path])


def measured_part(folder: Path) -> str:
    """Figures by group, the sets behind them, and the other reading of what a set is."""
    cases = list(cases_of(folder))
    if not cases:
        return f"Left out: no case files of {', '.join(GROUPS)} were found."
    sets = measured_sets(cases)
    merged = measured_sets(cases, same_batch=False)
    return f"""{_by_group(sets)}

Plans with different batch sizes are not directly comparable, so they are kept separate. Combined and compared by time per
sample, {_within(merged, "simulated")} sets count by the simulator, {_within(merged, "estimated")} by the estimator.

{_by_set(sets)}"""


def share(value: float) -> str:
    return f"{100 * value:.2f} %" if value < 0.1 else f"{100 * value:.1f} %"


def _within(sets: Sequence[PlanSet], by: str) -> str:
    return f"{sum(one.behind(by) <= NEAR for one in sets)} of {len(sets)}"


def _by_group(sets: Sequence[PlanSet]) -> str:
    head = ["group", "sets", "plans", "simulator: within", "median behind", "estimator: within", "median behind"]  # fmt: skip
    rows = []
    for group in (*GROUPS, "all"):
        mine = [one for one in sets if group in (one.group, "all")]
        if not mine:
            rows.append([group, "0", "0", f"no set of {LEAST_SET} plans", "", "", ""])
            continue
        cells: list[str] = []
        for by in ("simulated", "estimated"):
            cells += [_within(mine, by), share(median(one.behind(by) for one in mine))]
        rows.append([group, str(len(mine)), str(sum(len(one.plans) for one in mine)), *cells])
    return table(head, rows)


def _by_set(sets: Sequence[PlanSet]) -> str:
    head = ["set", "plans", "best measured", "first by the simulator", "simulated / measured", "behind", "estimator: behind"]  # fmt: skip
    rows = []
    for one in sets:
        best, first = one.first("measured"), one.first("simulated")
        ratios = " and ".join(f"{p.simulated / p.measured:.2f}" for p in (best, first))
        cells = [best.plan, first.plan, ratios, share(one.behind("simulated"))]
        rows.append([one.name, str(len(one.plans)), *cells, share(one.behind("estimated"))])
    return table(head, rows)
