"""Where nothing fits: by how much, and how many nodes would do."""

from __future__ import annotations

from dataclasses import dataclass, replace

from foretrain.cluster.cluster import Cluster
from foretrain.errors import InputError
from foretrain.planning.partial_result import EstimatedPlan, survey
from foretrain.planning.planner import simulate
from foretrain.planning.space import SpacePart, space
from foretrain.planning.task import Task

FACTORS = (2, 4, 8, 16)
TRIED = 4
"""Plans that are simulated, best first, to see whether they fit in truth."""


@dataclass(frozen=True, slots=True)
class Larger:
    """So many times the nodes, and the fastest plan found there that fits."""

    factor: int
    nodes: int
    best: EstimatedPlan


def larger(task: Task, nearest: EstimatedPlan, where: tuple[str, ...] = ()) -> Larger | None:
    """The fewest times more nodes on which plans that split blocks as the nearest one does fit, when simulated."""
    words = task.words(nearest.plan)
    for factor in FACTORS:
        cluster = times(task.cluster, factor)
        if cluster is None:
            return None
        grown = replace(task, cluster=cluster)
        best = _best(grown, SpacePart(words.tp, words.cp, words.ep), where)
        if best is not None:
            return Larger(factor, cluster.node_count, best)
    return None


def _best(task: Task, part: SpacePart, where: tuple[str, ...]) -> EstimatedPlan | None:
    try:
        plans = space(task, where)
        found = survey(task, plans, part, "time", TRIED)
        fitting = (row for row in found.best if simulate(task, row).score.fits)
        return next(fitting, None)
    except InputError:
        return None


def times(cluster: Cluster, factor: int) -> Cluster | None:
    """A cluster of as many times the nodes; None where they are unlike, or their network is drawn node by node."""
    if len(cluster.runs) != 1 or cluster.network.edges:
        return None
    run = cluster.runs[0]
    count = run.count * factor
    try:
        grown = replace(
            cluster, name=f"{count} x {run.node.name}", runs=(replace(run, count=count),)
        )
        return grown if grown.device_count == factor * cluster.device_count else None
    except InputError:
        return None
