"""Validate: run every measured case of some files and say how far off the predictions are, group by group."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

from foretrain.analysis.answer import TableAnswer
from foretrain.case_schema import case_faults, case_keys
from foretrain.cases import predict_case
from foretrain.errors import CaseError, FileError, InputError, did_you_mean, hint, refuse
from foretrain.keywords import paths_of
from foretrain.limits import shown
from foretrain.loading import load_json, read_standard_input, read_text
from foretrain.units import counted
from foretrain.validation.figures import Scored, figures, row_document
from foretrain.validation.memory import BY_RANK
from foretrain.validation.running import Progress, run_all
from foretrain.validation.split import HALVES, SEED, half_of


def blind(case: Mapping[str, Any]) -> dict[str, Any]:
    """A case without what a prediction must not see."""
    return {
        key: value for key, value in case.items() if key not in ("measured", "caveats", "source")
    }


def is_comparable(case: Mapping[str, Any]) -> bool:
    """Whether something was measured that a prediction says too."""
    measured: Mapping[str, Any] = case.get("measured") or {}
    amounts = ("step_time_s", "memory_gib", *BY_RANK)
    return measured.get("ok") is False or any(measured.get(name) for name in amounts)


@dataclass(frozen=True, repr=False)
class ValidationReport(TableAnswer):
    """Figures per group and over all, the cases behind them, and which of them were asked for."""

    groups: Mapping[str, Mapping[str, Any]]
    total: Mapping[str, Any]
    cases: Sequence[Mapping[str, Any]] = ()
    chosen: Mapping[str, Any] | None = None

    def rows(self) -> list[dict[str, Any]]:
        """Cases beside what was measured: seconds, GiB, shares."""
        return [_flat(case) for case in self.cases]

    def to_dict(self) -> dict[str, Any]:
        return {
            "groups": {name: dict(g) for name, g in self.groups.items()},
            "total": dict(self.total),
            "chosen": dict(self.chosen or {}),
            "rows": [dict(case) for case in self.cases],
        }


def _flat(case: Mapping[str, Any]) -> dict[str, Any]:
    """Without what is a list: the interval has two columns, memory rank by rank is in the document."""
    low, high = case.get("interval") or (None, None)
    kept = {name: v for name, v in case.items() if name not in ("interval", "memory_by_rank")}
    return {**kept, "interval_low": low, "interval_high": high}


def validate(
    paths: str | Path | Iterable[str | Path],
    quality: Sequence[str] = ("high", "medium"),
    progress: Progress | None = None,
    *,
    split: str | None = None,
    groups: Sequence[str] = (),
    jobs: int = 1,
) -> ValidationReport:
    """Predict every measured case of the given files and report prediction errors, group by group.

    Args:
        paths: a case file with measured values (JSON Lines), or several.
        quality: qualities of measurement to include; a case that states none is included.
        progress: called with the number of cases done and the total.
        split: only the `fit` or the `check` half of the cases, split by a hash of their configuration.
        groups: only these groups.
        jobs: number of processes; with more than one, the script needs an `if __name__ == "__main__"` guard.

    >>> from foretrain import validate
    >>> validate(["no-such-file.jsonl"])
    Traceback (most recent call last):
        ...
    foretrain.errors.FileError: no-such-file.jsonl does not exist; expected a case file.
    """
    cases = read_cases(paths_of(paths), quality, split=split, groups=groups)
    if not any(map(is_comparable, cases)):
        raise CaseError(
            f"nothing measured in {counted(len(cases), 'case')}: a prediction is compared with "
            "measured.step_time_s (seconds), measured.memory_gib, or measured.ok false."
        )
    documents = run_all(predict_case, [blind(case) for case in cases], jobs, progress)
    scored = [Scored(case, prediction) for case, prediction in zip(cases, documents, strict=True)]
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
        if case.get("quality") in (None, *quality)
        and (not groups or case.get("group") in groups)
        and (split is None or half_of(case) == split)
    ]
    if not cases:
        half = f" in the half {split!r}" if split else ""
        raise CaseError(f"no case of quality {' or '.join(quality)}{half} in these files.")
    return cases


def _read(path: Path) -> list[dict[str, Any]]:
    cases, faults = [], []
    text = read_standard_input() if str(path) == "-" else read_text(path, what="a case file")
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        if not line.lstrip().startswith("{"):
            raise CaseError(
                f"{path}, line {number}: a case must be a JSON object, got {shown(line)}."
            )
        try:
            case = load_json(line, "a case")
        except FileError as error:
            message = str(error).removeprefix("the given text ")
            raise CaseError(f"{path}, line {number}: {message}") from None
        wrong = case_faults(case) or unknown_measurements(case)
        faults += [f"line {number}: {fault}" for fault in wrong]
        cases.append(case)
    refuse(f"{path} is invalid:", faults, CaseError)
    return cases


def unknown_measurements(case: Mapping[str, Any]) -> list[str]:
    """What was measured under names that nothing is compared with: a slip there would count as not measured."""
    known = case_keys("measured")
    names = (name for name in case.get("measured") or () if name not in known)
    return [f"measured.{name}: unknown key.{hint(name, known)}" for name in names]
