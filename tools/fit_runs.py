"""Fits the scalars of `tools/scalars.yaml` to measured training runs.

    python tools/fit_runs.py [CASES.jsonl ...] [--only NAME] [--write]

Each scalar is fitted on the half "fit" of its groups' cases (`foretrain.validation.split`), one after the other
and round again until none moves: a coarse scan between its bounds, then golden section around the best.
Minimised is the mean over groups of the median of |log(predicted / measured)|, to which a tenth of the mean is
added so that a flat median still has a slope. Only the cases that a scalar can change are predicted again, and of
large groups an even sample. With --write values go into their files and into cost/calibration/fitted.yaml.
"""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from statistics import mean, median
from typing import Any

import yaml
from case_steps import is_timed
from trial import PACKAGE, Change, Trials, edited, fitted, value_at, written

from foretrain.validation.cases import read_cases
from foretrain.validation.split import SEED, half_of

HERE = Path(__file__).resolve().parent
SCALARS = HERE / "scalars.yaml"
FITTED = PACKAGE / "cost" / "calibration" / "fitted.yaml"
RUNTIMES = "runtime/fitted.yaml"
"""Scalars of software stacks, each with what it rests on."""
SLOPE = 0.1
GRID = 5
SECTIONS = 5
ROUNDS = 2
MOST_ROWS = 40
WORTH_MOVING = 1e-4
"""of the loss"""
MOVED = 0.02
"""relative change below which a round has settled"""


@dataclass(frozen=True, slots=True)
class Scalar:
    name: str
    file: str
    path: str
    low: float
    high: float
    prior: float
    groups: tuple[str, ...]
    where: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def sees(self, case: Mapping[str, Any]) -> bool:
        """Whether it is fitted on a case of this configuration."""
        words = {
            "device": case["cluster"].get("device"),
            "precision": case.get("precision"),
            "runtime": case.get("runtime"),
            "experts": "some" if case["model"].get("num_experts") else "none",
        }
        return case.get("group") in self.groups and all(
            words[key] in allowed for key, allowed in self.where.items()
        )

    def change(self, value: float) -> Change:
        return self.file, self.path, value

    @property
    def now(self) -> float:
        return value_at((PACKAGE / self.file).read_text(encoding="utf-8"), self.path)


def scalars(path: Path = SCALARS) -> list[Scalar]:
    rows = yaml.safe_load(path.read_text(encoding="utf-8"))["scalars"]
    found = [
        Scalar(
            **{key: row[key] for key in ("name", "file", "path", "low", "high", "prior")},
            groups=tuple(row["groups"]),
            where={
                k: (v,) if isinstance(v, str) else tuple(v) for k, v in row.get("where", {}).items()
            },
        )
        for row in rows
    ]
    for one in found:
        if not one.low <= one.prior <= one.high:
            raise SystemExit(f"{one.name}: the prior {one.prior} is not between its bounds.")
    return found


def default_cases() -> list[Path]:
    """Case files of `FORETRAIN_CASES`, or of shared/cases/open beside the checkout."""
    beside = HERE.parents[1] / "shared" / "cases" / "open"
    return sorted(Path(os.environ.get("FORETRAIN_CASES", beside)).glob("*.jsonl"))


def sampled(cases: Sequence[Mapping[str, Any]], most: int) -> list[Mapping[str, Any]]:
    """At most so many of each group, evenly spread over the files' order."""
    by_group: dict[str, list[Mapping[str, Any]]] = {}
    for case in cases:
        by_group.setdefault(str(case.get("group")), []).append(case)
    return [c for rows in by_group.values() for c in rows[:: math.ceil(len(rows) / most)]]


def timed_cases(paths: Sequence[Path], most: int) -> list[Mapping[str, Any]]:
    """Cases with a step time, of each group and half at most `most`."""
    cases = [case for case in read_cases(paths) if is_timed(case)]
    halves = ([c for c in cases if half_of(c) == half] for half in ("fit", "check"))
    return [case for half in halves for case in sampled(half, most)]


def loss(errors: Mapping[int, float], cases: Sequence[Mapping[str, Any]]) -> float:
    by_group: dict[str, list[float]] = {}
    for row, error in errors.items():
        by_group.setdefault(str(cases[row].get("group")), []).append(abs(error))
    if not by_group:
        return math.inf
    return mean(median(found) + SLOPE * mean(found) for found in by_group.values())


class Fit:
    """Values of all scalars, as far as they are found, and how to better one."""

    def __init__(
        self,
        trials: Trials,
        known: Sequence[Scalar],
        values: Mapping[str, float],
        half: str = "fit",
    ) -> None:
        self.trials, self.scalars, self.values = trials, known, dict(values)
        self.half = [row for row, case in enumerate(trials.cases) if half_of(case) == half]

    def changes(self, name: str = "", value: float = 0.0) -> list[Change]:
        return [s.change(value if s.name == name else self.values[s.name]) for s in self.scalars]

    def rows(self, scalar: Scalar, without: str = "") -> list[int]:
        cases = self.trials.cases
        return [r for r in self.half if scalar.sees(cases[r]) and cases[r].get("group") != without]

    def groups(self, scalar: Scalar) -> list[str]:
        return sorted({str(self.trials.cases[row]["group"]) for row in self.rows(scalar)})

    def better(self, scalar: Scalar, without: str = "") -> float:
        """The scalar's best value with the others as they are; its prior where no case may be used."""
        rows = self.rows(scalar, without)
        if not rows:
            return scalar.prior

        def at(log_value: float) -> float:
            value = float(written(math.exp(log_value)))
            return loss(
                self.trials.errors(self.changes(scalar.name, value), rows), self.trials.cases
            )

        now = math.log(self.values[scalar.name])
        best = _minimum(at, math.log(scalar.low), math.log(scalar.high))
        # what the cases cannot tell stays as it is
        return float(written(math.exp(best if at(best) < at(now) - WORTH_MOVING else now)))

    def run(
        self, wanted: Sequence[Scalar], without: str = "", rounds: int = ROUNDS
    ) -> dict[str, float]:
        for _ in range(rounds):
            before = dict(self.values)
            for scalar in wanted:
                self.values[scalar.name] = self.better(scalar, without)
            moved = [abs(self.values[s.name] / before[s.name] - 1.0) for s in wanted]
            if max(moved, default=0.0) < MOVED or len(wanted) < 2:
                break
        return self.values


def _minimum(function: Any, low: float, high: float) -> float:
    """Scan, then golden section in the bracket around the best point of the scan."""
    step = (high - low) / (GRID - 1)
    points = [low + i * step for i in range(GRID)]
    best = min(points, key=function)
    low, high = max(low, best - step), min(high, best + step)
    ratio = (math.sqrt(5.0) - 1.0) / 2.0
    a, b = high - ratio * (high - low), low + ratio * (high - low)
    for _ in range(SECTIONS):
        if function(a) <= function(b):
            high, b = b, a
            a = high - ratio * (high - low)
        else:
            low, a = a, b
            b = low + ratio * (high - low)
    return min((best, a, b), key=function)


# --- what was found --------------------------------------------------------------------------------


def write(fit: Fit, wanted: Sequence[Scalar]) -> None:
    """Values into their files, and a row for each into fitted.yaml."""
    for scalar in wanted:
        path, value = PACKAGE / scalar.file, fit.values[scalar.name]
        text = path.read_text(encoding="utf-8")
        if scalar.file == RUNTIMES:
            text = fitted(text, scalar.path, value, fit.groups(scalar))
        else:
            text = edited(text, scalar.path, value)
        path.write_text(text, encoding="utf-8")
    record(
        {
            "parameter": scalar.name,
            "where": f"{scalar.file}: {scalar.path}",
            "value": fit.values[scalar.name],
            "groups": fit.groups(scalar),
            "rows": len(fit.rows(scalar)),
            "tool": "tools/fit_runs.py",
        }
        for scalar in wanted
    )


def record(rows: Any, path: Path = FITTED) -> None:
    """Rows of fitted.yaml, each in place of the one of the same parameter."""
    kept = yaml.safe_load(path.read_text(encoding="utf-8"))["fitted"] if path.exists() else []
    by_name = {row["parameter"]: row for row in kept} | {
        row["parameter"]: row | {"date": date.today().isoformat()} for row in rows
    }
    head = (
        "# What was fitted to measured training runs, on which groups. Written by the tools it names; do not edit.\n"
        f"# Halves are those of foretrain.validation.split, seed {SEED}; only the half `fit` is fitted on.\n"
    )
    body = yaml.safe_dump(
        {"fitted": list(by_name.values())}, sort_keys=False, width=110, allow_unicode=True
    )
    path.write_text(head + body, encoding="utf-8")


def arguments(text: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=text.splitlines()[0])
    parser.add_argument(
        "cases", nargs="*", type=Path, help="case files; else those beside the checkout"
    )
    parser.add_argument("--scalars", type=Path, default=SCALARS)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument(
        "--rows", type=int, default=MOST_ROWS, help="of each group and half at most"
    )
    return parser


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--only", action="append", help="this scalar alone; repeatable")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    known = scalars(options.scalars)
    wanted = [s for s in known if not options.only or s.name in options.only]
    cases = timed_cases(options.cases or default_cases(), options.rows)
    cases = [case for case in cases if any(s.sees(case) for s in wanted)]
    with Trials(cases, options.jobs) as trials:
        fit = Fit(trials, known, {s.name: s.now for s in known})
        for scalar in wanted:
            before = loss(trials.errors(fit.changes(), fit.rows(scalar)), cases)
            print(
                f"{scalar.name}: {fit.values[scalar.name]:g}, {len(fit.rows(scalar))} rows, loss {before:.4f}",
                flush=True,
            )
        fit.run(wanted)
        check = Fit(trials, known, fit.values, half="check")
        for scalar in wanted:
            after, held = (
                loss(trials.errors(f.changes(), f.rows(scalar)), cases) for f in (fit, check)
            )
            print(
                f"{scalar.name}: {fit.values[scalar.name]:g}, loss {after:.4f}, other half {held:.4f}"
            )
        if options.write:
            write(fit, wanted)


if __name__ == "__main__":
    main()
