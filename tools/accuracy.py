"""Writes `docs/accuracy.md`: how far off predictions of published runs are, and what they rest on.

    python tools/accuracy.py [CASES.jsonl ...] [--jobs N] [--leave-one-out FILE] [-o docs/accuracy.md]

Every case of quality high or medium is predicted and scored by the half it belongs to. Ablations repeat a sample of
each group with a part of the model switched off. Leave-one-out figures are read from what `tools/leave_one_out.py`
wrote, fitted parameters from `cost/calibration/fitted.yaml`.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from functools import partial
from math import expm1
from pathlib import Path
from statistics import mean, median
from typing import Any

import yaml
from case_steps import is_timed, step_of
from fit_runs import FITTED, HERE, default_cases, sampled
from scaling_efficiency import scaling

from foretrain.cases import predict_case
from foretrain.cost.compute import Roofline
from foretrain.errors import ForetrainError
from foretrain.report.md import table
from foretrain.report.validation import MEANING, STEP_TIME, share, step_time_row, worst_line
from foretrain.validation.cases import ValidationReport, blind, read_cases, report
from foretrain.validation.figures import Scored
from foretrain.validation.running import cores, run_all
from foretrain.validation.split import HALVES, SEED, half_of

AS_IT_IS = "as it is"
ABLATIONS: dict[str, tuple[dict[str, Any], bool]] = {
    AS_IT_IS: ({}, False),
    "no overlap of communication and kernels": (
        {
            "overlaps_gradients": False,
            "overlaps_scatters": False,
            "overlaps_parameter_gather": False,
            "overlaps_pipeline": False,
            "tp_comm_overlap": False,
            "expert_overlap": 0.0,
            "prefetched_blocks": 0,
        },
        False,
    ),
    "no interference between kernels and communication": ({"overlap_slows": False}, False),
    "no host overhead": (
        {
            "host_seconds_per_kernel": 0.0,
            "host_seconds_per_collective": 0.0,
            "host_delay_on_network": 0.0,
            "kernels_per_tensor": 0.0,
            "jitter_seconds": 0.0,
        },
        False,
    ),
    "roofline instead of measured kernels": ({}, True),
}
"""runtime options, and whether kernels are timed by the roofline"""

MOST_ROWS = 30
"""of each group in an ablation"""

TOUCHED = 0.02
"""a case whose prediction moves by more than this is one the part affects"""


def ablated(case: Mapping[str, Any], name: str) -> float | None:
    """Log of predicted over measured of a case under an ablation."""
    options, by_roofline = ABLATIONS[name]
    try:
        found = step_of(case, options, compute=Roofline() if by_roofline else None)
    except ForetrainError:
        return None
    return found.log_error


def ablations(cases: Sequence[Mapping[str, Any]], jobs: int) -> str:
    picked = sampled([case for case in cases if is_timed(case)], MOST_ROWS)
    whole = run_all(partial(ablated, name=AS_IT_IS), picked, jobs)
    rows = [_ablation_row(AS_IT_IS, picked, whole, whole)]
    for name in ABLATIONS:
        if name != AS_IT_IS:
            errors = run_all(partial(ablated, name=name), picked, jobs)
            rows.append(_ablation_row(name, picked, whole, errors))
    note = (
        f"At most {MOST_ROWS} cases of each group. MAPE and median are medians over groups, so that neither a large group"
        " nor a bad one dominates. A part affects the cases whose prediction changes by more than"
        f" {TOUCHED:.0%} without it: the last columns are for those cases only, in groups with at least five"
        " of them.\n\n"
    )
    titles = (
        "model",
        "cases",
        "MAPE",
        "median",
        "affects",
        "their MAPE with it",
        "without it",
    )
    return note + table(titles, rows)


Errors = Sequence[float | None]


def _ablation_row(
    name: str, cases: Sequence[Mapping[str, Any]], whole: Errors, errors: Errors
) -> tuple[object, ...]:
    told: dict[str, list[float]] = {}
    touched: dict[str, list[tuple[float, float]]] = {}
    for case, with_it, without in zip(cases, whole, errors, strict=True):
        if with_it is None or without is None:
            continue
        told.setdefault(str(case["group"]), []).append(abs(expm1(without)))
        if abs(with_it - without) > TOUCHED:
            pair = (abs(expm1(with_it)), abs(expm1(without)))
            touched.setdefault(str(case["group"]), []).append(pair)
    groups = [found for found in touched.values() if len(found) >= 5]
    say = f"{sum(map(len, groups))} in {len(groups)} groups" if groups else "–"
    kept, lost = (
        share(median(mean(pair[side] for pair in found) for found in groups)) if groups else "–"
        for side in (0, 1)
    )
    middle, off = median(map(median, told.values())), median(map(mean, told.values()))
    count = sum(map(len, told.values()))
    return name, count, share(off), share(middle), say, kept, lost


def halves(cases: Sequence[Mapping[str, Any]], scored: Sequence[Scored]) -> str:
    parts = []
    for half in HALVES:
        mine = [row for case, row in zip(cases, scored, strict=True) if half_of(case) == half]
        found = report(mine, {})
        rows = [
            step_time_row(name, g) for name, g in (*found.groups.items(), ("total", found.total))
        ]
        title = "Fitted half" if half == "fit" else "Held-out half"
        parts.append(f"### {title}\n\n" + table(("group", "n", *_titles()), rows))
    return "\n\n".join(parts)


def _titles() -> tuple[str, ...]:
    return tuple(title for title, _ in STEP_TIME)


def fitted(path: Path = FITTED) -> str:
    if not path.exists():
        return "Nothing was fitted to training runs."
    rows = [
        (row["parameter"], row["value"], row["rows"], ", ".join(row["groups"]), row["tool"])
        for row in yaml.safe_load(path.read_text(encoding="utf-8"))["fitted"]
    ]
    return table(("parameter", "value", "cases", "groups", "tool"), rows)


def left_out(path: Path) -> str:
    if not path.exists():
        return "Not run: `python tools/leave_one_out.py` writes the figures."
    rows = []
    for group, found in json.loads(path.read_text(encoding="utf-8")).items():
        moved = (f"{name} {a:.3g} → {b:.3g}" for name, (a, b) in found["values"].items())
        with_, out = found["as_shipped"], found["fitted_without"]
        rows.append(
            (group, found["rows"], share(with_["mape"]), share(out["mape"]), share(out["median"]), "; ".join(moved))
        )  # fmt: skip
    return table(
        ("group held out", "cases", "MAPE as shipped", "MAPE without it", "median", "values"), rows
    )


def others(found: ValidationReport) -> str:
    keys = ("memory_mape", "fits_accuracy")
    rows = [
        (
            name,
            group["memory_n"],
            *(share(group[key]) for key in keys),
            group["pairs"],
            group["failed"],
        )
        for name, group in (*found.groups.items(), ("total", found.total))
    ]
    return table(
        ("group", "memory rows", "memory error", "fit verdicts right", "pairs", "failed"), rows
    )


def scalings(scored: Sequence[Scored]) -> str:
    rows = [
        (s.group, s.families, s.runs, f"{s.mean:.1f}", f"{s.median:.1f}", f"{s.largest:.1f}")
        for s in scaling(scored)
    ]
    return table(("group", "families", "larger runs", "mean", "median", "largest"), rows)


def waits(scored: Sequence[Scored]) -> str:
    """Synchronisation measured apart from the step, against exposed communication."""
    rows = []
    for half in HALVES:
        for least in (0.0, 0.1):
            errors = [
                abs(_exposed(row) / float(row.measured["sync_time_s"]) - 1.0)
                for row in scored
                if row.error is not None and half_of(row.case) == half
                and float(row.measured.get("sync_time_s") or 0.0)
                > least * float(row.measured["step_time_s"])
            ]  # fmt: skip
            if errors:
                rows.append(
                    (half, f"{least:.0%}", len(errors), share(mean(errors)), share(median(errors)))
                )
    return table(("half", "synchronization is over", "runs", "MAPE", "median"), rows)


def _exposed(row: Scored) -> float:
    found = row.prediction["stalls"]
    return float(found["network"]) + float(found["interconnect"]) + float(found["imbalance"])


def page(cases: Sequence[Mapping[str, Any]], jobs: int, leave_one_out: Path) -> str:
    documents = run_all(predict_case, [blind(case) for case in cases], jobs)
    scored = [Scored(case, found) for case, found in zip(cases, documents, strict=True)]
    found = report(scored, {})
    worst = [worst_line(case) for group in found.groups.values() for case in group["worst"][:2]]
    total = found.total
    return f"""# Accuracy

Generated by `python tools/accuracy.py`; do not edit. {total["n"]:,} published training runs in {len(found.groups)} groups:
MAPE {share(total["mape"])}, {share(total["mape_of_groups"])} as the mean of groups, {share(total["coverage"])} inside their 80 % interval.

{MEANING} Large groups dominate the total; see the individual groups. `foretrain validate CASES -o accuracy.html`
plots the same for your own runs.

## Predicted vs. measured

Cases are split in halves by SHA-256 of their configuration (seed {SEED}). The listed scalars were fitted on one
half; the mechanisms behind them, and values set manually, were chosen with runs of both halves in view. So the second half is
not a fully independent test.

{halves(cases, scored)}

## Fitted parameters

{fitted()}

## Leave-one-group-out

Scalars that depend on a group are refitted without it; those that depend on no other group use their value from kernels, data
sheets or documentation.

{left_out(leave_one_out)}

## Ablations

{ablations(cases, jobs)}

## Scaling

Throughput per device relative to that of the smallest run with the same work per device: difference between
prediction and measurement in percentage points.

{scalings(scored)}

Pollux measured synchronization separately; it is compared with the predicted exposed communication (for runs where it is at
least the fraction of the step time in the second column).

{waits(scored)}

## Memory and fit verdicts

{others(found)}

## Largest errors

""" + "\n".join(f"- {line}" for line in worst) + "\n"  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "cases", nargs="*", type=Path, help="case files; else those beside the checkout"
    )
    parser.add_argument("--jobs", type=int, default=cores())
    parser.add_argument("--leave-one-out", type=Path, default=Path("build/leave_one_out.json"))
    parser.add_argument("-o", "--output", type=Path, default=HERE.parent / "docs" / "accuracy.md")
    options = parser.parse_args()
    cases = read_cases(options.cases or default_cases())
    text = page(cases, options.jobs, options.leave_one_out)
    options.output.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
