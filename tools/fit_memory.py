"""Fits what allocators hold beyond tensors to measured memory.

    python tools/fit_memory.py CASES.jsonl ... [--write]

One share of what comes and goes per runtime (`fragmentation`), and more of it with tensor parallelism where the
runtime exchanges on a stream of its own (`exchange_fragmentation`); or, where what is missing does not grow with the
micro-batch, a share of split optimizer states (`update_copies`). The peak is linear in each, so the least mean
absolute relative error is a weighted median, taken over the half "fit" of the cases; errors of the other half are
printed beside it. With --write values go into runtime/fitted.yaml and into cost/calibration/fitted.yaml.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing import Pool
from typing import Any

from fit_runs import RUNTIMES, record
from memory_table import GIB, Row, is_told, row
from trial import PACKAGE, fitted

from foretrain.runtime import option_table, runtime
from foretrain.validation.cases import read_cases


@dataclass(frozen=True, slots=True)
class Meaning:
    """What a group's figure is: of rank 0 or of the fullest device, with the context or without."""

    runtime: str
    is_of_first: bool
    has_context: bool
    has_exchange: bool = False
    field: str = "fragmentation"  # what is fitted; or update_copies


MEANINGS = {
    # nanotron logs rank 0; nonlinear in the micro-batch, so what the allocator holds, not what tensors take
    "nanotron": Meaning("nanotron", is_of_first=True, has_context=False, has_exchange=True),
    # peak of XLA's allocator
    "alpa_ablation": Meaning("alpa", is_of_first=False, has_context=False),
    # as nvidia-smi shows it; tensors explain all but 14 GiB, whatever micro-batch and stage sizes are
    "bigscience_bloom": Meaning(
        "megatron-deepspeed", is_of_first=False, has_context=True, field="update_copies"
    ),
}


@dataclass(frozen=True, slots=True)
class Point:
    """GiB: measured = fixed + share · moving."""

    half: str
    is_exchanging: bool
    measured: float
    fixed: float
    moving: float


def point(case: Mapping[str, Any], found: Row, meaning: Meaning) -> Point:
    memory = found.found
    stage = memory.by_stage[0 if meaning.is_of_first else memory.peak_stage]
    fixed = memory.context_bytes if meaning.has_context else 0.0
    if meaning.field == "update_copies":
        moving = stage.by_kind["optimizer"]
        fixed += stage.peak_bytes - runtime(meaning.runtime).option("update_copies") * moving
    else:
        moving = stage.by_kind["activations"]
        fixed += stage.allocated_bytes
    tensor = int((case.get("plan") or {}).get("tp") or 1)
    return Point(
        half=found.half,
        is_exchanging=meaning.has_exchange and tensor > 1,
        measured=float(found.measured or 0.0),
        fixed=fixed / GIB,
        moving=moving / GIB,
    )


def best_share(points: Sequence[Point]) -> float:
    """Weighted median: the share of least mean |error| / measured."""
    ranked = sorted(((p.measured - p.fixed) / p.moving, p.moving / p.measured) for p in points)
    left = sum(weight for _, weight in ranked) / 2
    for share, weight in ranked:
        left -= weight
        if left <= 0:
            return max(0.0, share)
    return 0.0


def error(points: Sequence[Point], share: float) -> float:
    sizes = [abs((p.fixed + share * p.moving) / p.measured - 1.0) for p in points]
    return sum(sizes) / len(sizes) if sizes else 0.0


def shown(name: str, points: Sequence[Point]) -> float:
    fit, check = ([p for p in points if p.half == half] for half in ("fit", "check"))
    share = round(best_share(fit), 2)
    print(
        f"{name}: {share:.2f} from {len(fit)} rows, error {error(fit, share):.1%},"
        f" other half ({len(check)}) {error(check, share):.1%}"
    )
    return share


def write(values: Mapping[str, float], rows: Mapping[str, int], groups: Mapping[str, str]) -> None:
    file = PACKAGE / RUNTIMES
    text = file.read_text(encoding="utf-8")
    for path, value in values.items():
        text = fitted(text, path, value, [groups[path]])
    file.write_text(text, encoding="utf-8")
    record(
        {
            "parameter": " ".join(path.split(".")[1::2]).replace("_", " "),
            "where": f"{RUNTIMES}: {path}",
            "value": value,
            "groups": [groups[path]],
            "rows": rows[path],
            "tool": "tools/fit_memory.py",
        }
        for path, value in values.items()
    )


def _path(preset: str, field: str) -> str:
    """Where a preset's value of a field stands."""
    feature, _ = option_table()[field]
    return f"presets.{preset}.{feature}.{field}.value"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("cases", nargs="+")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    cases = [c for c in read_cases(given.cases) if is_told(c) and c["group"] in MEANINGS]
    with Pool(given.jobs) as pool:
        found = pool.map(row, cases, chunksize=8)
    values: dict[str, float] = {}
    rows: dict[str, int] = {}
    groups: dict[str, str] = {}
    for group, meaning in MEANINGS.items():
        points = [
            point(case, one, meaning)
            for case, one in zip(cases, found, strict=True)
            if one is not None and one.group == group and one.error() is not None
        ]
        plain = _path(meaning.runtime, meaning.field)
        more = _path(meaning.runtime, "exchange_fragmentation")
        alone = [p for p in points if not p.is_exchanging]
        if not alone:
            continue
        values[plain] = shown(plain, alone)
        rows[plain], groups[plain] = sum(p.half == "fit" for p in alone), group
        beside = [p for p in points if p.is_exchanging]
        if beside:
            values[more] = round(max(0.0, shown(f"{plain} + {more}", beside) - values[plain]), 2)
            rows[more], groups[more] = sum(p.half == "fit" for p in beside), group
    if given.write:
        write(values, rows, groups)


if __name__ == "__main__":
    main()
