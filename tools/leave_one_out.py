"""Fits without one group at a time and scores on it: does what was fitted carry over to runs nobody fitted on?

    python tools/leave_one_out.py [CASES.jsonl ...] [--group NAME] [-o build/leave_one_out.json]

For every group that a scalar of `tools/scalars.yaml` sees, the scalars that see it are fitted again on the other
groups (`tools/fit_runs.py`); one that no other group sees takes its prior. All of the group's cases are scored then.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, median
from typing import Any

from fit_runs import Fit, Scalar, arguments, default_cases, scalars, timed_cases
from trial import Trials


def figures(errors: Sequence[float]) -> dict[str, float]:
    """Of log errors (predicted over measured)."""
    relative = [math.expm1(error) for error in errors]
    sizes = [abs(error) for error in relative]
    return {"mape": mean(sizes), "median": median(sizes), "bias": mean(relative)}


def without(trials: Trials, known: Sequence[Scalar], group: str) -> dict[str, Any]:
    """Figures of a group with the values as they are and with those found without it."""
    now = {scalar.name: scalar.now for scalar in known}
    rows = [row for row, case in enumerate(trials.cases) if case.get("group") == group]
    touched = [s for s in known if any(s.sees(trials.cases[row]) for row in rows)]
    fit = Fit(trials, known, now)
    before = trials.errors(fit.changes(), rows)
    values = fit.run(touched, without=group)
    after = trials.errors(fit.changes(), rows)
    return {
        "rows": len(after),
        "as_shipped": figures(list(before.values())),
        "fitted_without": figures(list(after.values())),
        "values": {s.name: [now[s.name], values[s.name]] for s in touched},
    }


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--group", action="append", help="this group alone; repeatable")
    parser.add_argument("-o", "--output", type=Path, default=Path("build/leave_one_out.json"))
    options = parser.parse_args()
    known = scalars(options.scalars)
    cases = timed_cases(options.cases or default_cases(), options.rows)
    cases = [case for case in cases if any(s.sees(case) for s in known)]
    groups = sorted({str(case["group"]) for case in cases})
    found: dict[str, Any] = {}
    with Trials(cases, options.jobs) as trials:
        for group in options.group or groups:
            found[group] = without(trials, known, group)
            with_, left_out = found[group]["as_shipped"], found[group]["fitted_without"]
            print(
                f"{group:18} {found[group]['rows']:4} rows: MAPE {with_['mape']:.1%} as shipped, "
                f"{left_out['mape']:.1%} fitted without it; {found[group]['values']}",
                flush=True,
            )
            options.output.parent.mkdir(parents=True, exist_ok=True)
            options.output.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
