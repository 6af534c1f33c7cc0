"""Measured memory against predicted: what a source's figure means, and figures rank by rank.

A figure may be what tensors take (`allocated`), what the allocator holds (`reserved`) or what the device shows
(`total`). A case tells by `measured.memory_is`; one with figures of ranks both allocated and reserved means the
former by `memory_gib`; remarks that name nvidia-smi mean the device. All others are compared with what the
allocator holds.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from foretrain.cases import scenario_from_case
from foretrain.errors import ForetrainError

GIB = 2.0**30
MEANINGS = {
    "allocated": "allocated_bytes",
    "reserved": "peak_bytes",
    "total": "total_bytes",
}
"""meaning → key of the prediction's memory"""
BY_RANK = {"memory_by_rank_gib": "allocated", "reserved_by_rank_gib": "reserved"}


@dataclass(frozen=True, slots=True)
class RankMemory:
    """One rank's figure of one meaning, in GiB."""

    rank: int
    stage: int
    meaning: str
    predicted: float
    measured: float

    @property
    def error(self) -> float:
        return self.predicted / self.measured - 1.0


def meaning_of(case: Mapping[str, Any]) -> str:
    """What a case's `memory_gib` is."""
    measured: Mapping[str, Any] = case.get("measured") or {}
    stated = str(measured.get("memory_is") or "")
    if stated in MEANINGS:
        return stated
    if all(measured.get(key) for key in BY_RANK):
        return "allocated"
    remarks = " ".join([str(case.get("caveats") or ""), *map(str, case.get("assumed") or ())])
    return "total" if "nvidia-smi" in remarks else "reserved"


def predicted_gib(case: Mapping[str, Any], memory: Mapping[str, Any]) -> float:
    """The fullest device, by what the case means."""
    key = MEANINGS[meaning_of(case)]
    return float(memory.get(key) or memory["peak_bytes"]) / GIB


def by_rank(case: Mapping[str, Any], memory: Mapping[str, Any]) -> tuple[RankMemory, ...]:
    """Every rank that was measured beside the stage it belongs to; empty where there is nothing to compare."""
    measured: Mapping[str, Any] = case.get("measured") or {}
    given = {key: measured[key] for key in BY_RANK if measured.get(key)}
    if not given:
        return ()
    stages = _stages(case)
    held = {int(stage["stage"]): stage for stage in memory["by_stage"]}
    return tuple(
        RankMemory(rank, stage, BY_RANK[key], _size(held[stage], BY_RANK[key]), gib)
        for key, values in given.items()
        for rank, stage, gib in _by_rank(values, stages)
        if stage in held
    )


def _size(stage: Mapping[str, Any], meaning: str) -> float:
    return float(stage[MEANINGS[meaning]]) / GIB


def _stages(case: Mapping[str, Any]) -> list[int]:
    """Every rank's pipeline stage."""
    try:
        mesh = scenario_from_case({k: v for k, v in case.items() if k != "measured"}).plan.mesh
    except ForetrainError:
        return []
    if "pp" not in dict(mesh.axes):
        return [0] * mesh.ranks
    return [int(stage) for stage in mesh.coordinate("pp")]


def _by_rank(values: Any, stages: Sequence[int]) -> Iterator[tuple[int, int, float]]:
    """(rank, stage, GiB): a list goes rank by rank, or stage by stage where it is as long; a mapping names ranks."""
    if isinstance(values, Mapping):
        numbered = [(_number(name), value) for name, value in values.items()]
    elif len(values) == len(set(stages)) < len(stages):
        numbered = [(stages.index(stage), value) for stage, value in enumerate(values)]
    else:
        numbered = list(enumerate(values))
    for rank, gib in numbered:
        if rank is not None and 0 <= rank < len(stages) and gib:
            yield rank, stages[rank], float(gib)


def _number(name: object) -> int | None:
    """`3`, `"3"`, `"rank3"` and `"rank_3"` are rank 3."""
    match = re.search(r"\d+$", str(name).strip())
    return int(match.group()) if match else None
