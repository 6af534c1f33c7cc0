"""Validate: run every measured case of some files and say how far off the predictions are, group by group."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

from foretrain.cases import predict_case
from foretrain.errors import CaseError, InputError, did_you_mean
from foretrain.loading import read_text
from foretrain.validation.figures import Scored, figures, row_document
from foretrain.validation.running import Progress, run_all
from foretrain.validation.split import HALVES, SEED, half_of
from foretrain.validation.steps import blind


@dataclass(frozen=True)
class ValidationReport:
    """Figures per group and over all, the rows behind them, and which cases were asked for."""

    groups: Mapping[str, Mapping[str, Any]]
    total: Mapping[str, Any]
    rows: Sequence[Mapping[str, Any]] = ()
    chosen: Mapping[str, Any] | None = None

    def to_dict(self) -> dict[str, Any]:
        return {
            "groups": {name: dict(g) for name, g in self.groups.items()},
            "total": dict(self.total),
            "chosen": dict(self.chosen or {}),
            "rows": [dict(row) for row in self.rows],
        }


def validate(
    paths: Iterable[str | Path],
    quality: Sequence[str] = ("high", "medium"),
    progress: Progress | None = None,
    *,
    split: str | None = None,
    groups: Sequence[str] = (),
    jobs: int = 1,
) -> ValidationReport:
    """Predict every case of the wanted quality and compare with what was measured.

    `split` takes one half of them (`fit` or `check`), `groups` those groups only. More than one of `jobs` starts
    processes, so a script that asks for it needs the usual `if __name__ == "__main__"`.
    """
    cases = read_cases(paths, quality, split=split, groups=groups)
    documents = run_all(predict_case, [blind(case) for case in cases], jobs, progress)
    scored = [Scored(case, found) for case, found in zip(cases, documents, strict=True)]
    return report(scored, {"quality": list(quality), "split": split, "seed": SEED})


def report(scored: Sequence[Scored], chosen: Mapping[str, Any]) -> ValidationReport:
    """The figures of predicted cases."""
    by_group: dict[str, list[Scored]] = {}
    for row in scored:
        by_group.setdefault(row.group, []).append(row)
    groups = {name: figures(rows) for name, rows in sorted(by_group.items())}
    errors = [float(group["mape"]) for group in groups.values() if group["mape"] is not None]
    total = figures(scored) | {"mape_of_groups": mean(errors) if errors else None}
    return ValidationReport(groups, total, [row_document(row) for row in scored], chosen)


def read_cases(
    paths: Iterable[str | Path],
    quality: Sequence[str] = ("high", "medium"),
    *,
    split: str | None = None,
    groups: Sequence[str] = (),
) -> list[dict[str, Any]]:
    """The cases that are wanted, in the order of the files."""
    if split is not None and split not in HALVES:
        raise InputError(
            f"split {split!r}: one of {' or '.join(HALVES)}.{did_you_mean(split, HALVES)}"
        )
    read = [case for path in paths for case in _read(Path(path))]
    known = sorted({str(case.get("group", "")) for case in read})
    unknown = [name for name in groups if name not in known]
    if unknown:
        raise InputError(
            f"group {unknown[0]!r} is not in these files.{did_you_mean(unknown[0], known)}"
            f" They have {', '.join(known)}."
        )
    cases = [
        case
        for case in read
        if case.get("quality") in quality
        and (not groups or case.get("group") in groups)
        and (split is None or half_of(case) == split)
    ]
    if not cases:
        of = f" in the half {split!r}" if split else ""
        raise CaseError(f"no case of quality {' or '.join(quality)}{of} in these files.")
    return cases


def _read(path: Path) -> list[dict[str, Any]]:
    cases = []
    for number, line in enumerate(read_text(path, what="a case file").splitlines(), start=1):
        if not line.strip():
            continue
        try:
            case = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise CaseError(f"{path}, line {number}: not JSON ({error}).") from None
        if not isinstance(case, dict):
            raise CaseError(
                f"{path}, line {number}: a case is an object, found {type(case).__name__}."
            )
        cases.append(case)
    return cases
