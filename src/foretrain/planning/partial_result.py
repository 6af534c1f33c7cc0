"""One part of a space looked at: the few plans worth remembering of the many seen.

What a survey keeps is small and plain, so that it can be stored, sent and merged in any order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from foretrain.arrays import Bools, Floats, Ints
from foretrain.planning.choices import Choices
from foretrain.planning.estimator import Estimates, Estimator
from foretrain.planning.incumbents import Incumbents, said
from foretrain.planning.refinements import MARGIN, Pool, refinements
from foretrain.planning.space import Space, SpacePart
from foretrain.planning.task import Task
from foretrain.units import counted, rounded_seconds, show_bytes

OBJECTIVES = ("time", "cost", "memory")
TOLD = ("tp", "pp", "vpp", "cp", "ep", "micro", "zero", "shard", "sp", "recompute", "schedule", "order", "offload", "tables")  # fmt: skip
"""Choices of which the best plan is remembered for each value, to say why others lose."""
REFUSED = "the model cannot be split this way: "
TOO_LARGE = "does not fit in memory"


@dataclass(frozen=True, slots=True)
class EstimatedPlan:
    """A plan as estimated: `memory` is what the allocator holds on the fullest device, `usable` what it may take."""

    plan: str
    seconds: float
    memory: float
    usable: float
    work: float
    pipeline: float
    data: float
    update: float

    def __repr__(self) -> str:
        figures = f"{rounded_seconds(self.seconds)}, peak {show_bytes(self.memory)}"
        return f"<EstimatedPlan {self.plan}: {figures}, estimated>"

    @property
    def lacks(self) -> float:
        """Bytes too few."""
        return max(0.0, self.memory - self.usable)


@dataclass(frozen=True, slots=True)
class BestPerChoice:
    """The plans with one value of a choice."""

    choice: str
    value: str
    seen: int
    fitting: int
    best: (
        EstimatedPlan | None
    )  # or, where none fits, the one that lacks least; of a part, none if it is slower than others

    def __repr__(self) -> str:
        counts = f"{self.fitting:,} of {counted(self.seen, 'plan')} fit"
        return f"<BestPerChoice {self.choice}={self.value}: {counts}, best {self.best!r}>"


@dataclass(frozen=True, slots=True)
class PartialResult:
    """What was found in some parts of a space."""

    seen: int = 0
    fitting: int = 0
    pruned: Mapping[str, int] = None  # type: ignore[assignment]
    best: tuple[EstimatedPlan, ...] = ()
    pareto: tuple[EstimatedPlan, ...] = ()  # step time against memory
    told: tuple[BestPerChoice, ...] = ()
    nearest: EstimatedPlan | None = None  # of the plans that do not fit, the one that lacks least
    varied: Mapping[str, int] = field(
        default_factory=dict
    )  # plans of which other values were tried

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> PartialResult:
        def seen(row: Mapping[str, Any] | None) -> EstimatedPlan | None:
            return None if row is None else EstimatedPlan(**row)

        return cls(
            seen=data["seen"],
            fitting=data["fitting"],
            pruned=dict(data["pruned"]),
            best=tuple(EstimatedPlan(**row) for row in data["best"]),
            pareto=tuple(EstimatedPlan(**row) for row in data["pareto"]),
            told=tuple(BestPerChoice(**{**row, "best": seen(row["best"])}) for row in data["told"]),
            nearest=seen(data["nearest"]),
            varied=dict(data["varied"]),
        )


def survey(
    task: Task,
    space: Space,
    part: SpacePart,
    objective: str,
    keep: int,
    estimator: Estimator | None = None,
    incumbents: Incumbents | None = None,
) -> PartialResult:
    """Estimate every plan of a part's grid; keep the best few. The time is that of plans that could beat the `incumbents`,
    those of the part among them; of others it is not asked, as they are nowhere told of."""
    choices, pruned = space.choices(part)
    estimator = estimator or Estimator(task)
    incumbents = incumbents or Incumbents(TOLD, keep)
    goals = None if objective == "memory" else incumbents.copy()
    found = estimator.estimate(choices, goals)
    if goals is not None:
        _remember(space, part, Pool.of(choices, found, estimator), MARGIN * goals.fastest)
    return _summary(choices, found, pruned, objective, keep)


def survey_refined(
    task: Task,
    space: Space,
    objective: str,
    keep: int,
    limit: float,
    surveyed: tuple[SpacePart, Incumbents],
) -> PartialResult:
    """The plans that those of a part become with choices that are not in the grid, as far as they could be faster than
    so many seconds. `surveyed`: the part, and what its plans had to beat."""
    pool = _remembered(task, space, *surveyed).within(space, limit)
    pools, varied = refinements(space, pool, limit)
    parts = [_summary(one.choices, one.found, {}, objective, keep) for one in pools]
    return replace(merged(parts, objective, keep), varied=dict(varied))


_POOLS: WeakKeyDictionary[Space, dict[SpacePart, Pool]] = WeakKeyDictionary()
"""What was estimated of parts, for as long as their space is there: processes that did not estimate it do so anew."""


def _remember(space: Space, part: SpacePart, pool: Pool, limit: float) -> None:
    """… as far as it could be of use: not what is behind the best plan so far."""
    _POOLS.setdefault(space, {})[part] = pool.within(space, limit)


def _remembered(task: Task, space: Space, part: SpacePart, incumbents: Incumbents) -> Pool:
    known = _POOLS.get(space, {}).get(part)
    if known is not None:
        return known
    choices, _ = space.choices(part)
    estimator = Estimator(task)
    return Pool.of(choices, estimator.estimate(choices, incumbents.copy()), estimator)


def _summary(
    choices: Choices, found: Estimates, pruned: dict[str, int], objective: str, keep: int
) -> PartialResult:
    for number, reason in enumerate(found.refusal):
        lost = int((found.refused == number).sum())
        pruned[REFUSED + reason] = pruned.get(REFUSED + reason, 0) + lost
    able = found.refused < 0
    fits = found.fits
    if (able & ~fits).any():
        pruned[TOO_LARGE] = int((able & ~fits).sum())
    value = score(found, objective)
    rows = np.flatnonzero(fits & np.isfinite(found.seconds))
    order = rows[np.lexsort((rows, found.seconds[rows], value[rows]))]
    return PartialResult(
        seen=int(able.sum()),
        fitting=int(fits.sum()),
        pruned=pruned,
        best=tuple(_seen(choices, found, row) for row in order[:keep].tolist()),
        pareto=tuple(_seen(choices, found, row) for row in _front(found, rows).tolist()),
        told=tuple(_told(choices, found, able, order)),
        nearest=_nearest(choices, found, np.flatnonzero(able & ~fits)),
    )


def incumbents_of(found: PartialResult, keep: int) -> Incumbents:
    """What plans of other parts have to beat."""
    front = [(row.memory, row.seconds) for row in reversed(found.pareto)]
    return Incumbents(
        TOLD,
        keep,
        best=np.array([row.seconds for row in found.best]),
        of_value={
            (row.choice, row.value): row.best.seconds
            for row in found.told
            if row.fitting and row.best
        },
        front=np.array(front).reshape(len(front), 2),
    )


def score(found: Estimates, objective: str) -> Floats:
    """What is made small. Rent runs by the hour for the whole cluster, so the cheapest plan is the fastest."""
    return found.memory if objective == "memory" else found.seconds


def _seen(choices: Choices, found: Estimates, row: int) -> EstimatedPlan:
    columns = ("seconds", "memory", "usable", "work", "pipeline", "data", "update")
    return EstimatedPlan(
        choices.text(row), **{name: float(getattr(found, name)[row]) for name in columns}
    )


def _front(found: Estimates, rows: Ints) -> Ints:
    """Plans that no other beats both in time and in memory, fastest first."""
    order = rows[np.lexsort((found.memory[rows], found.seconds[rows]))]
    memory = found.memory[order]
    least = np.minimum.accumulate(memory) if len(memory) else memory
    is_new = np.concatenate([[True], memory[1:] < least[:-1]]) if len(memory) else memory > 0
    return np.asarray(order[is_new], dtype=np.int64)


def _told(choices: Choices, found: Estimates, able: Bools, order: Ints) -> Iterable[BestPerChoice]:
    rank, fits = np.full(len(choices), len(choices), dtype=np.int64), found.fits
    rank[order] = np.arange(len(order))
    for name in TOLD:
        column = getattr(choices, name)
        for value in np.unique(column[able]).tolist():
            mine = np.flatnonzero((column == value) & able)
            fitting, timed = mine[fits[mine]], mine[rank[mine] < len(choices)]
            best = None if len(fitting) else _nearest(choices, found, mine)
            if len(timed):
                best = _seen(choices, found, int(timed[np.argmin(rank[timed])]))
            yield BestPerChoice(name, said(choices, name, value), len(mine), len(fitting), best)


def _nearest(choices: Choices, found: Estimates, rows: Ints) -> EstimatedPlan | None:
    if not len(rows):
        return None
    lack = found.memory[rows] - found.usable[rows]
    return _seen(choices, found, int(rows[np.argmin(lack)]))


def merged(parts: Iterable[PartialResult], objective: str, keep: int) -> PartialResult:
    """Several surveys as one; parts come in the order of the space, so that ties fall the same way always."""
    whole = PartialResult(pruned={})
    for one in parts:
        whole = _joined(whole, one, objective, keep)
    return whole


def _joined(a: PartialResult, b: PartialResult, objective: str, keep: int) -> PartialResult:
    pruned = dict(a.pruned)
    for reason, count in b.pruned.items():
        pruned[reason] = pruned.get(reason, 0) + count
    best = sorted((*a.best, *b.best), key=lambda row: _order(row, objective))[:keep]
    return PartialResult(
        seen=a.seen + b.seen,
        fitting=a.fitting + b.fitting,
        pruned=pruned,
        best=tuple(best),
        pareto=_joined_front((*a.pareto, *b.pareto)),
        told=_joined_told((*a.told, *b.told), objective),
        nearest=_least_lacking(a.nearest, b.nearest),
        varied=dict(Counter(a.varied) + Counter(b.varied)),
    )


def _order(row: EstimatedPlan, objective: str) -> tuple[float, float]:
    return (row.memory, row.seconds) if objective == "memory" else (row.seconds, row.memory)


def _joined_front(rows: Iterable[EstimatedPlan]) -> tuple[EstimatedPlan, ...]:
    front: list[EstimatedPlan] = []
    for row in sorted(rows, key=lambda r: (r.seconds, r.memory)):
        if not front or row.memory < front[-1].memory:
            front.append(row)
    return tuple(front)


def _joined_told(rows: Iterable[BestPerChoice], objective: str) -> tuple[BestPerChoice, ...]:
    found: dict[tuple[str, str], BestPerChoice] = {}
    for row in rows:
        known = found.setdefault((row.choice, row.value), row)
        if known is row:
            continue
        found[row.choice, row.value] = replace(
            known,
            seen=known.seen + row.seen,
            fitting=known.fitting + row.fitting,
            best=_better(known, row, objective),
        )
    names = {name: place for place, name in enumerate(TOLD)}
    return tuple(sorted(found.values(), key=lambda row: names[row.choice]))


def _better(a: BestPerChoice, b: BestPerChoice, objective: str) -> EstimatedPlan | None:
    if a.fitting or b.fitting:
        rows = [row.best for row in (a, b) if row.fitting and row.best]
        return min(rows, key=lambda row: _order(row, objective), default=None)
    return _least_lacking(a.best, b.best)


def _least_lacking(a: EstimatedPlan | None, b: EstimatedPlan | None) -> EstimatedPlan | None:
    rows = [row for row in (a, b) if row is not None]
    return min(rows, key=lambda row: row.lacks) if rows else None
