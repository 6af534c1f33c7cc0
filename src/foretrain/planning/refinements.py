"""Refinements: what plans of the grid become when choices are made that would make the grid too large.

Only plans that could still win are refined: those that a lower bound on their time, whatever the refinement, leaves
below the best one of their part. What is left out is counted.
"""

from __future__ import annotations

from dataclasses import fields, replace
from math import inf

import numpy as np

from foretrain.arrays import Floats, Ints
from foretrain.planning.choices import Choices, joined
from foretrain.planning.estimator import Estimates, Estimator, alike
from foretrain.planning.plan_batch import plan_batch
from foretrain.planning.space import Space
from foretrain.planning.uneven import splits, whole_work

MARGIN = 1.02
"""Over the best plan's time, within which others are worth a simulation."""


def refined(
    space: Space, choices: Choices, found: Estimates, estimator: Estimator, fastest: float = inf
) -> tuple[Choices, Estimates]:
    """Plans and those that come of them. `fastest`: seconds of the best plan of other parts."""
    if not space.splits_layers or not (choices.pp > 1).any():
        return choices, found
    limit = MARGIN * float(found.seconds[found.fits].min(initial=fastest))
    more = _split(space, choices, found, estimator, limit)
    if more is None or not len(more):
        return choices, found
    whole = joined((replace(choices, palette=more.palette), more), more.palette)
    return whole, _joined(found, estimator.estimate(more))


def _split(
    space: Space, choices: Choices, found: Estimates, estimator: Estimator, limit: float
) -> Choices | None:
    """Pipelines with other layers on their stages."""
    rows, known = estimator.states(choices)
    pipelines = np.flatnonzero((rows >= 0) & (choices.pp > 1) & (choices.layers == 0))
    worth = pipelines[_least_seconds(choices, pipelines, rows, estimator) < limit]
    texts: dict[tuple[int, ...], int] = {}
    where: list[Ints] = []
    numbers: list[int] = []
    for mine in alike(choices, worth):
        fleet = plan_batch(
            estimator.shares, choices.take(mine), known, rows[mine], estimator.exchanges
        )
        split = splits(fleet, limit, found.fits[mine])
        where.append(mine[split.plans])
        for counts in split.counts.tolist():
            numbers.append(
                texts.setdefault(tuple(counts), len(choices.palette.layers) + len(texts))
            )
    if not numbers:
        return None
    palette = replace(choices.palette, layers=(*choices.palette.layers, *texts))
    more = replace(choices.take(np.concatenate(where)), palette=palette)
    return space.able(more.with_column("layers", np.array(numbers, np.int32)))


def _least_seconds(choices: Choices, plans: Ints, rows: Ints, estimator: Estimator) -> Floats:
    """… of a step, however layers are shared out: the slowest stage takes no less than the mean of all would on the
    fastest devices. (`splits` then knows what each stage runs on.)"""
    _, known = estimator.states(choices)
    work = whole_work(estimator.task, known)[rows[plans]].min(axis=1)
    replicas = choices.dp[plans] * choices.micro[plans]
    return np.asarray(estimator.task.workload.global_batch / replicas * work / choices.pp[plans])


def _joined(a: Estimates, b: Estimates) -> Estimates:
    """Rows of both."""
    reasons = tuple(dict.fromkeys((*a.refusal, *b.refusal)))
    number = np.array([*(reasons.index(r) for r in b.refusal), -1], dtype=np.int64)
    columns = {
        f.name: np.concatenate([getattr(a, f.name), getattr(b, f.name)])
        for f in fields(Estimates)
        if f.name not in ("refusal", "refused")
    }
    return Estimates(
        **columns, refusal=reasons, refused=np.concatenate([a.refused, number[b.refused]])
    )
