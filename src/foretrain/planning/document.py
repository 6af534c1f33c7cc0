"""A search's answer as plain data, for JSON and for reports."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import zip_longest
from typing import Any

from foretrain.planning.explain import Explanation
from foretrain.planning.more_nodes import Larger
from foretrain.planning.partial_result import EstimatedPlan
from foretrain.planning.per_layer import described
from foretrain.planning.planner import Ranked, RankedPlans
from foretrain.planning.robustness import Robustness
from foretrain.planning.taste import Fastest


@dataclass(frozen=True, slots=True)
class Standing:
    """How the best plans compare beyond their figures."""

    as_good: tuple[bool, ...] = ()  # of each whether it may be as fast as the fastest
    fastest: Fastest | None = None
    robustness: tuple[Robustness, ...] = ()  # of the first plans


def document(
    result: RankedPlans,
    told: Sequence[Explanation],
    with_more: Larger | None,
    command: str | None,
    standing: Standing,
) -> dict[str, Any]:
    """What `foretrain search --json` gives."""
    return {
        "objective": result.objective,
        "question": question(result),
        "plans_valid": result.plans_valid,
        "plans_fitting": result.plans_fitting,
        "plans_pruned": pruned(result.plans_pruned),
        "plans_varied": dict(result.plans_varied),
        "seconds": result.seconds,
        "best": ranked_rows(result.best, standing),
        "fastest": None if standing.fastest is None else asdict(standing.fastest),
        "as_good": sum(standing.as_good),
        "command": command,
        "pareto": [seen_row(row) for row in result.pareto],
        "explanations": [one.to_dict() for one in told],
        "nearest": None if result.nearest is None else seen_row(result.nearest),
        "with_more_nodes": None
        if with_more is None
        else {
            "factor": with_more.factor,
            "nodes": with_more.nodes,
            **seen_row(with_more.best),
        },
        "per_layer": None if result.per_layer is None else result.per_layer.to_dict(),
        "assumptions": list(result.task.assumptions),
        "warnings": list(result.task.warnings),
        "notes": list(result.notes),
    }


def flat_rows(result: RankedPlans, as_good: Sequence[bool]) -> list[dict[str, Any]]:
    """One row per plan: the best, then the front, whose figures are estimates."""
    best = [
        {
            "list": "best",
            "rank": number,
            "plan": described(row.plan),
            "step_seconds": row.prediction.step_seconds,
            "peak_bytes": row.prediction.memory.peak_bytes,
            "usable_bytes": row.prediction.memory.usable_bytes,
            "mfu": row.prediction.mfu,
            "usd_per_step": row.prediction.cost.usd_per_step,
            "as_good": is_as_good,
        }
        for number, (row, is_as_good) in enumerate(zip(result.best, as_good, strict=True), 1)
    ]
    front = [
        {
            "list": "pareto",
            "rank": number,
            "plan": seen.plan,
            "step_seconds": seen.seconds,
            "peak_bytes": seen.memory,
            "usable_bytes": seen.usable,
            "mfu": None,
            "usd_per_step": None,
            "as_good": None,
        }
        for number, seen in enumerate(result.pareto, 1)
    ]
    return [*best, *front]


def question(result: RankedPlans) -> dict[str, Any]:
    """What was searched for; the keys are those of a prediction's question."""
    task = result.task
    return {
        "model": task.workload.model.name,
        "parameters": task.workload.model.parameters,
        "seq_len": task.workload.seq_len,
        "global_batch": task.workload.global_batch,
        "precision": task.workload.precision.name,
        "optimizer": task.workload.optimizer.name,
        "cluster": task.cluster.name,
        "devices": task.devices,
        "nodes": task.cluster.node_count,
        "runtime": task.runtime.name,
        "headroom": task.headroom,
    }


def pruned(reasons: Mapping[str, int]) -> dict[str, int]:
    """Plans that were not considered by the reason, most first."""
    ordered = sorted(reasons.items(), key=lambda item: (-item[1], item[0]))
    found: dict[str, int] = {}
    for reason, count in ordered:
        if count:
            name = reason.rstrip(" :")
            found[name] = found.get(name, 0) + count
    return found


def ranked_rows(rows: Iterable[Ranked], standing: Standing) -> list[dict[str, Any]]:
    known = zip_longest(rows, standing.as_good, standing.robustness)
    return [
        {
            "plan": described(row.plan),
            "tree": row.plan.to_dict(),
            "prediction": row.prediction.to_dict(),
            "estimated_seconds": row.estimated_seconds,
            "as_good": is_as_good,
            "robustness": None if robust is None else robust.to_dict(),
        }
        for row, is_as_good, robust in known
    ]


def seen_row(row: EstimatedPlan) -> dict[str, Any]:
    """An estimated plan."""
    return {
        "plan": row.plan,
        "step_seconds": row.seconds,
        "peak_bytes": row.memory,
        "usable_bytes": row.usable,
        "lacks_bytes": row.lacks,
        "work_seconds": row.work,
        "pipeline_seconds": row.pipeline,
        "data_seconds": row.data,
        "update_seconds": row.update,
    }
