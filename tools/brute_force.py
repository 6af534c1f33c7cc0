"""The best plan that a stack can run, by simulating all that can be said: nothing of the search is used.

Of every mesh, pipeline, ZeRO stage and shard group the least recomputation and offload that fits is simulated; then of
the fastest few, all combinations of the other words. A mesh whose kernels alone take longer than a step that is known
cannot win and is left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import product
from math import inf

from plan_vocabulary import OFFLOADED, RECOMPUTED, meshes, refined, split

from foretrain.errors import InputError
from foretrain.plan.short_form import Words
from foretrain.plan.supported import refusals
from foretrain.planning.task import Task
from foretrain.simulate import simulate_scenario

REFINED = 12
"""Plans whose other words are all tried: so many of the fastest, one of each mesh and pipeline at most three times."""
OVERLAPPED = 0.95
"""Kernels beside collectives are slowed; by more than the rest of this no plan's kernels are faster than another's."""


@dataclass(slots=True)
class Best:
    """The fastest plan of all, and how many there were to simulate."""

    words: Words | None = None
    seconds: float = inf
    simulated: int = 0
    fitting: int = 0
    refused: int = 0
    seen: dict[Words, float] = field(default_factory=dict)  # those that fit


def best_of_all(task: Task) -> Best:
    best = Best()
    for _, mesh in sorted(_bounded(task), key=lambda row: row[0]):
        bound = _least(task, mesh)
        if bound >= best.seconds:
            continue
        for words in split(task, mesh):
            _try(task, best, _lightest(words))
    for words in _fastest(best):
        for one in refined(task, words):
            if one != words:
                _try(task, best, _lightest(replace(one, recompute=None, offload=())))
    return best


def _bounded(task: Task) -> Iterator[tuple[float, Words]]:
    for mesh in meshes(task):
        yield _least(task, mesh), mesh


_KERNELS: dict[tuple[int, Words], float] = {}


def _least(task: Task, mesh: Words) -> float:
    """What the kernels of a step take by themselves, shared out evenly over stages; 0 where devices differ."""
    if len({device.name for device in task.cluster.devices}) > 1:
        return 0.0
    alone = replace(mesh, pp=1, dp=(mesh.dp or 1) * mesh.pp)
    if task.workload.global_batch % ((alone.dp or 1) * (mesh.micro or 1)):
        return 0.0
    key = (id(task), alone)
    if key not in _KERNELS:
        _KERNELS[key] = _kernels(task, alone)
    return _KERNELS[key]


def _kernels(task: Task, words: Words) -> float:
    try:
        found = simulate_scenario(task.scenario(task.plan(words))).prediction
    except InputError:
        return 0.0
    return OVERLAPPED * float(found.stalls["compute"])


def _lightest(words: Words) -> list[Words]:
    """The same plan with what memory may ask of it, from the least work to the most."""
    return [
        replace(words, recompute=recompute, offload=offload)
        for offload, recompute in product(OFFLOADED, RECOMPUTED)
    ]


def _try(task: Task, best: Best, lighter: list[Words]) -> None:
    """The first that fits without offload, and with it: less work is never slower in the same place."""
    done: set[tuple[str, ...]] = set()
    for words in lighter:
        if words.offload in done or any(refusals(task.runtime, words)):
            continue
        if words.offload and () in done:
            return
        try:
            simulated = simulate_scenario(task.scenario(task.plan(words)))
            fits = simulated.memory.fits
        except InputError:
            best.refused += 1
            if words.recompute == "none":
                return
            continue
        best.simulated += 1
        if not fits:
            continue
        done.add(words.offload)
        best.fitting += 1
        best.seen[words] = simulated.step_seconds
        if simulated.step_seconds < best.seconds:
            best.words, best.seconds = words, simulated.step_seconds


def _fastest(best: Best) -> list[Words]:
    ranked = sorted(best.seen, key=lambda words: best.seen[words])
    count: dict[tuple[object, ...], int] = {}
    kept: list[Words] = []
    for words in ranked:
        key = (words.tp, words.pp, words.cp, words.ep, words.schedule, words.vpp, words.micro)
        count[key] = count.get(key, 0) + 1
        if count[key] <= 3:
            kept.append(words)
    return kept[:REFINED]
