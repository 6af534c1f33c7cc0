"""How far predicted memory is from measured memory, group by group.

    python tools/memory_table.py CASES.jsonl ... [--quality high,medium] [--kinds] [--jobs 2]

Sources mean different things by memory, so each meaning of the prediction is compared: what tensors take
(`allocated`), what the allocator holds (`peak`), what the device shows (`total`), and what the allocator of rank 0
holds (`rank 0`, as logs often print). Right verdicts are those on "does it fit". The halves are those of
`foretrain validate`: parameters are fitted on one and checked on the other. Only the graph is compiled, nothing is
timed. `--kinds` prints every case with its parts in GiB.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing import Pool
from statistics import mean
from typing import Any

import numpy as np

from foretrain.analysis.memory import memory
from foretrain.analysis.prediction import Memory
from foretrain.cases import scenario_from_case
from foretrain.errors import ForetrainError
from foretrain.simulate import compile_scenario
from foretrain.validation.cases import blind, read_cases
from foretrain.validation.split import HALVES, half_of

GIB = 2.0**30
MEANINGS = ("allocated", "peak", "total", "rank 0")


@dataclass(frozen=True, slots=True)
class Row:
    group: str
    id: str
    half: str
    ran: bool
    measured: float | None  # GiB
    found: Memory

    def predicted(self, meaning: str) -> float:
        sizes = {
            "allocated": self.found.allocated_bytes,
            "peak": self.found.peak_bytes,
            "total": self.found.total_bytes,
            "rank 0": self.found.by_stage[0].peak_bytes,
        }
        return sizes[meaning] / GIB

    def error(self, meaning: str = "peak") -> float | None:
        if not self.ran or not self.measured:
            return None
        return self.predicted(meaning) / self.measured - 1.0


def row(case: Mapping[str, Any]) -> Row | None:
    """A case with its predicted memory, None where it cannot be predicted."""
    try:
        question = scenario_from_case(blind(case))
        graph = compile_scenario(question)
    except ForetrainError:
        return None
    kinds = np.asarray(question.cluster.device_kind)[graph.fold.examples]
    capacities = np.array([d.memory_bytes for d in question.cluster.devices])[kinds]
    measured = case["measured"]
    return Row(
        group=str(case["group"]),
        id=str(case["id"]),
        half=half_of(case),
        ran=measured.get("ok") is not False,
        measured=measured.get("memory_gib"),
        found=memory(
            graph, question.runtime, capacities, question.headroom, question.is_runtime_known
        ),
    )


def is_told(case: Mapping[str, Any]) -> bool:
    measured = case.get("measured") or {}
    return bool(measured.get("memory_gib")) or measured.get("ok") is False


def line(name: str, rows: Sequence[Row]) -> str:
    cells = [f"{name:<18}", f"{len(rows):>5}"]
    for meaning in MEANINGS:
        cells.append(_percent([e for e in (r.error(meaning) for r in rows) if e is not None]))
    for half in HALVES:
        mine = [r.error() for r in rows if r.half == half]
        cells.append(_percent([e for e in mine if e is not None]))
    errors = [e for e in (r.error() for r in rows) if e is not None]
    cells.append(f"{mean(errors):>+9.1%}" if errors else f"{'':>9}")
    cells.append(f"{mean(r.found.fits == r.ran for r in rows):>9.1%}")
    return " ".join(cells)


def _percent(errors: Sequence[float]) -> str:
    return f"{mean(abs(e) for e in errors):>9.1%}" if errors else f"{'':>9}"


def parts(one: Row) -> str:
    kinds = " ".join(f"{kind} {size / GIB:.2f}" for kind, size in one.found.by_kind.items())
    said = "did not fit" if not one.ran else f"{one.measured:.2f}"
    return f"  {one.id:<24} {one.predicted('peak'):8.2f} for {said}: {kinds}, stage {one.found.peak_stage}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="+")
    parser.add_argument("--quality", default="high,medium")
    parser.add_argument("--kinds", action="store_true")
    parser.add_argument("--jobs", type=int, default=2)
    given = parser.parse_args()
    cases = [c for c in read_cases(given.cases, given.quality.split(",")) if is_told(c)]
    with Pool(given.jobs) as pool:
        found = [r for r in pool.map(row, cases, chunksize=8) if r is not None]
    heads = (*MEANINGS, *HALVES, "bias", "verdict")
    print(" ".join([f"{'group':<18}", f"{'n':>5}", *(f"{head:>9}" for head in heads)]))
    for group in sorted({r.group for r in found}):
        mine = [r for r in found if r.group == group]
        print(line(group, mine))
        if given.kinds:
            print("\n".join(map(parts, mine)))


if __name__ == "__main__":
    main()
