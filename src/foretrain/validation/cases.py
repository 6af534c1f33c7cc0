"""Validate: run every measured case of some files and say how far off the predictions are, group by group."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from foretrain.cases import predict_case
from foretrain.errors import CaseError
from foretrain.loading import read_text
from foretrain.validation.figures import Scored, figures

Progress = Callable[[int, int], None]
_HIDDEN = ("measured", "caveats", "source")  # a prediction must not see what was measured


@dataclass(frozen=True)
class ValidationReport:
    """Figures per group and over all."""

    groups: Mapping[str, Mapping[str, Any]]
    total: Mapping[str, Any]

    def to_dict(self) -> dict[str, Any]:
        return {
            "groups": {name: dict(g) for name, g in self.groups.items()},
            "total": dict(self.total),
        }


def validate(
    paths: Iterable[str | Path],
    quality: Sequence[str] = ("high", "medium"),
    progress: Progress | None = None,
) -> ValidationReport:
    """Predict every case of the wanted quality and compare with what was measured."""
    cases = [case for path in paths for case in _read(Path(path)) if case.get("quality") in quality]
    if not cases:
        raise CaseError(f"no case of quality {' or '.join(quality)} in these files.")
    scored: dict[str, list[Scored]] = {}
    for number, case in enumerate(cases, start=1):
        blind = {key: value for key, value in case.items() if key not in _HIDDEN}
        row = Scored(case, predict_case(blind))
        scored.setdefault(str(case.get("group", "")), []).append(row)
        if progress is not None:
            progress(number, len(cases))
    groups = {name: figures(rows) for name, rows in sorted(scored.items())}
    return ValidationReport(groups, figures(row for rows in scored.values() for row in rows))


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
