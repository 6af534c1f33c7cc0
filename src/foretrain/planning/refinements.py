"""Refinements: what plans of the grid become when choices are made that would make the grid too large.

A refinement is tried for a plan only where a lower bound on the step, whatever the choice, is below the best plan known.
Bounds rest on what a step cannot do without: every micro-batch passes all blocks on the fastest devices, shared out over
the stages at best evenly. What a choice changes of that is taken off the bound.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from foretrain.arrays import Bools, Floats, Ints, Ints32
from foretrain.plan.schedules import SCHEDULES
from foretrain.plan.strategy import share_recomputed
from foretrain.planning.choices import COLUMNS, Choices, Palette
from foretrain.planning.estimator import Estimates, Estimator, alike, row_keys
from foretrain.planning.layers import Layers, State
from foretrain.planning.plan_batch import plan_batch
from foretrain.planning.space import Space
from foretrain.planning.uneven import distributed, splits

MARGIN = 1.01
"""Over the best plan's time, within which others are worth a simulation."""
ALONE = 0.95
"""Share of a step that is left, at least, where kernels have no exchanges beside them (`runtime.interference`)."""
GAIN = 1e-3
"""Share of a plan's time that a choice must save that changes nothing but communication."""


@dataclass(frozen=True, eq=False, slots=True)
class Pool:
    """Plans and what is estimated of them. `floor`: seconds that all micro-batches take at least as their blocks are;
    `bare` and `lean`: shares of that without collectives, and without forward passes, of which one may run again;
    `denser`: of it per sample in the next larger micro-batch of the grid, 0 where it is not known."""

    choices: Choices
    found: Estimates
    estimator: Estimator
    floor: Floats
    bare: Floats
    lean: Floats
    denser: Floats

    @classmethod
    def of(cls, choices: Choices, found: Estimates, estimator: Estimator) -> Pool:
        return cls(choices, found, estimator, *_floors(choices, estimator))

    def take(self, rows: Ints | Bools) -> Pool:
        few = {name: getattr(self.found, name)[rows] for name in _ROWS}
        bounds = (each[rows] for each in (self.floor, self.bare, self.lean, self.denser))
        where = np.flatnonzero(rows) if rows.dtype == np.bool_ else rows
        return Pool(self.choices.take(where), replace(self.found, **few), self.estimator, *bounds)

    @property
    def best(self) -> float:
        """Seconds of the fastest that fits."""
        return float(self.found.seconds[self.found.fits].min(initial=np.inf))

    @property
    def filled(self) -> Floats:
        """`floor` with what fills and drains a pipeline. A stage in one piece waits for those before it as its first
        micro-batch comes and as its last one leaves: layers that are shared out at best for that take 1 / (1 - (1 -
        1/m)^p) of a pass, with m micro-batches on p stages that are alike."""
        c, task = self.choices, self.estimator.task
        if len(task.cluster.devices) > 1:
            return self.floor
        names = c.palette.schedule
        fills = np.array([not SCHEDULES[name].splits_backward for name in names])[c.schedule]
        counts = task.workload.global_batch / (c.dp.astype(np.float64) * c.micro)
        filled = c.pp / counts / (1.0 - (1.0 - 1.0 / np.maximum(counts, 1.0)) ** c.pp)
        return self.floor * np.where(fills & (c.vpp == 1), np.maximum(filled, 1.0), 1.0)

    @property
    def quiet(self) -> Floats:
        """Seconds at least without what replicas exchange, beside which kernels are a little slower. Weights that are
        gathered for every micro-batch (ZeRO-3) are among its work. Of plans that were not timed it is their bound."""
        found, alone = self.found, np.zeros(len(self.floor))
        fits = found.fits & (self.choices.zero < 3)
        alone[fits] = found.least[fits] * ALONE
        timed = fits & np.isfinite(found.seconds)
        alone[timed] = (found.seconds[timed] - found.data[timed] - found.update[timed]) * ALONE
        return np.maximum(self.floor, alone)

    def within(self, space: Space, limit: float) -> Pool:
        """Those of which a refinement could be faster than a limit."""
        least = np.minimum(self.floor, self.quiet * np.minimum(self.bare, self.lean))
        for samples, rows in _larger(space, self):
            least[rows] = np.minimum(least[rows], _of_samples(self, rows, samples))
        return self.take(least < limit)


_ROWS = tuple(f.name for f in fields(Estimates) if f.name != "refusal")


def _floors(choices: Choices, estimator: Estimator) -> tuple[Floats, ...]:
    rows, known = estimator.states(choices)
    if not known.number:
        return (np.full(len(rows), np.inf), *np.ones((3, len(rows))))
    task = estimator.task
    shared = distributed(task, known.places)
    every = shared.layers + shared.first + shared.last
    share = np.bincount(np.asarray(task.cluster.device_kind), minlength=len(task.cluster.devices))

    def of_model(seconds: Floats) -> Floats:
        """[states, kinds of devices, blocks] → [states]: devices are at best given work by their speed."""
        each = np.maximum(seconds @ every, 1e-30)
        return np.asarray(share.sum() / (share / each).sum(axis=1))

    both = known.forward + known.backward
    wires = (known.wire_forward + known.wire_backward).sum(axis=2)[:, None]
    work = of_model(both)
    bare, lean = of_model(np.maximum(both - wires, 0.0)) / work, of_model(known.backward) / work
    replicas = choices.dp.astype(np.float64) * choices.micro
    turns = task.workload.global_batch / replicas / choices.pp
    able, known_rows = rows >= 0, np.maximum(rows, 0)
    return (
        np.where(able, turns * work[known_rows], np.inf),
        *(np.where(able, each[known_rows], 1.0) for each in (bare, lean, _denser(known, work))),
    )


def _denser(known: Layers, work: Floats) -> Floats:
    """[states] seconds per sample in the next larger micro-batch that is known, as a share of those in this one."""
    found = np.zeros(len(work))
    families: dict[State, list[tuple[int, int]]] = {}
    for state, row in known.number.items():
        if known.is_timed[row]:
            families.setdefault(state._replace(micro=0), []).append((state.micro, row))
    for family in families.values():
        ordered = sorted(family)
        for (micro, row), (more, larger) in pairwise(ordered):
            found[row] = min(work[larger] / more / (work[row] / micro), 1.0)
    return found


# --- which plans, and what of them ------------------------------------------------------------------------


@dataclass(frozen=True, eq=False, slots=True)
class Variants:
    """Plans that others become: `parents` are rows of those."""

    choices: Choices
    parents: Ints


Move = Callable[[Space, Pool, float], Variants | None]


def refinements(space: Space, start: Pool, limit: float) -> tuple[list[Pool], Counter[str]]:
    """Pools of new plans, and how many plans were varied by each choice."""
    best, varied = limit / MARGIN, Counter[str]()
    pools, split = [start], 0
    for name, move, is_new_state, is_fine in MOVES:
        there = len(pools)
        for pool in pools[split if move is _layers else 0 : there]:
            made = move(space, pool, MARGIN * best)
            if made is None or not len(made.parents):
                continue
            varied[name] += len(np.unique(made.parents))
            one = _estimated(space, pool, made, is_new_state, is_fine)
            if len(one.choices):
                best = min(best, one.best)
                pools.append(one)
        split = there if move is _layers else split
    return pools[1:], varied


def _estimated(space: Space, pool: Pool, made: Variants, is_new_state: bool, is_fine: bool) -> Pool:
    parents = np.arange(len(made.parents))
    ok = space.allowed(made.choices)
    choices, parents = made.choices.take(np.flatnonzero(ok)), made.parents[ok]
    estimator = pool.estimator.another() if is_new_state else pool.estimator
    one = Pool.of(choices, estimator.estimate(choices), estimator)
    if is_fine:
        before = np.where(pool.found.fits, pool.found.seconds, np.inf)[parents]
        one = one.take(one.found.seconds < before * (1.0 - GAIN))
    return one


def _set(pool: Pool, rows: Ints, palette: Palette, **columns: Ints32 | int) -> Choices:
    """Some of the plans with other choices."""
    few = pool.choices.take(rows)
    table = np.stack([
        np.broadcast_to(np.asarray(columns.get(name, getattr(few, name)), np.int32), (len(rows),))
        for name in COLUMNS
    ])  # fmt: skip
    return Choices.of(palette, table)


def _joined(made: list[tuple[Ints, Choices]], palette: Palette) -> Variants | None:
    if not made:
        return None
    tables = [np.stack([getattr(c, name) for name in COLUMNS]) for _, c in made]
    parents = np.concatenate([rows for rows, _ in made])
    return Variants(Choices.of(palette, np.concatenate(tables, axis=1)), parents)


def _named(pool: Pool, rows: Ints, name: str, values: tuple[object, ...]) -> Variants | None:
    """Every plan with each value of a choice that has names."""
    known = getattr(pool.choices.palette, name)
    values = tuple(v for v in values if v not in known)
    longer: dict[str, Any] = {name: (*known, *values)}
    palette = replace(pool.choices.palette, **longer)
    made = [(rows, _set(pool, rows, palette, **{name: len(known) + n})) for n in range(len(values))]
    return _joined(made, palette) if len(rows) else None


def _larger(space: Space, pool: Pool) -> Iterator[tuple[int, Ints]]:
    """Micro-batches that are not in the grid, each with the plans that have the next smaller one in it. Memory grows
    with micro-batches, so that only plans that fit have larger ones that do."""
    c, batch = pool.choices, space.batch
    fits = pool.found.fits
    for samples in space.more.get("micro", ()):
        ok = fits & (c.micro < samples) & (batch % (c.dp.astype(np.int64) * samples) == 0)
        for other in (m for m in space.micro if m < samples):
            ok &= (c.micro >= other) | (batch % (c.dp * other) != 0)
        if ok.any():
            yield samples, np.flatnonzero(ok)


def _of_samples(pool: Pool, rows: Ints, samples: int) -> Floats:
    """A larger micro-batch does not pass sooner than a smaller one, nor, but for how tiles fit, sooner per sample than a
    still larger one."""
    passes = pool.quiet[rows] * pool.choices.micro[rows] / samples
    return np.asarray(np.maximum(passes, ALONE * pool.floor[rows] * pool.denser[rows]))


def _micros(space: Space, pool: Pool, limit: float) -> Variants | None:
    made = []
    for samples, rows in _larger(space, pool):
        worth = rows[_of_samples(pool, rows, samples) < limit]
        if len(worth):
            made.append((worth, _set(pool, worth, pool.choices.palette, micro=samples)))
    return _joined(made, pool.choices.palette)


def _shares(space: Space, pool: Pool, limit: float) -> Variants | None:
    """Where running all layers again fits and none does not: the least that fits by what both hold, and one more."""
    c, shares = pool.choices, space.more.get("recompute", ())
    words = c.palette.recompute
    if not shares or not {"none", "full"} <= {*words}:
        return None
    others = row_keys(c, [name for name in COLUMNS if name != "recompute"])
    is_none = np.flatnonzero((c.recompute == words.index("none")) & np.isfinite(pool.found.memory))
    is_none = is_none[np.argsort(others[is_none])]
    is_full = (c.recompute == words.index("full")) & pool.found.fits
    rows = np.flatnonzero(is_full & (pool.quiet * pool.lean < limit))
    if not len(rows) or not len(is_none):
        return None
    place = np.minimum(np.searchsorted(others[is_none], others[rows]), len(is_none) - 1)
    same = others[is_none[place]] == others[rows]
    rows, without = rows[same], is_none[place[same]]
    memory, usable = pool.found.memory, pool.found.usable[rows]
    least = (memory[without] - usable) / np.maximum(memory[without] - memory[rows], 1.0)
    sizes = np.array([share_recomputed(word) for word in shares], dtype=np.float64)
    first = np.searchsorted(sizes, least - 0.02)
    palette = replace(c.palette, recompute=shares)
    made = []
    for number, size in enumerate(sizes.tolist()):
        bound = pool.quiet[rows] * (1.0 - (1.0 - size) * (1.0 - pool.lean[rows]))
        is_next = (least > 0) & ((first == number) | (first + 1 == number)) & (bound < limit)
        if is_next.any():
            made.append((rows[is_next], _set(pool, rows[is_next], palette, recompute=number)))
    return _joined(made, palette)


def _orders(space: Space, pool: Pool, limit: float) -> Variants | None:
    """One for each order in which the axes that a plan has can stand."""
    texts = space.more.get("order", ())
    if not texts:
        return None
    c = pool.choices
    rows = np.flatnonzero(pool.found.fits & (pool.floor * pool.bare < limit) & (c.order == 0))
    orders = [tuple(text.split("-")) for text in texts]
    palette = replace(c.palette, order=(*c.palette.order, *orders))
    usual = tuple(reversed(pool.estimator.task.runtime.plan.rank_order))
    sizes = np.stack([getattr(c, axis)[rows] > 1 for axis in ("tp", "cp", "pp", "dp")], axis=1)
    made = []
    for pattern in np.unique(sizes, axis=0):
        there = {axis for axis, is_there in zip(("tp", "cp", "pp", "dp"), pattern, strict=True) if is_there}  # fmt: skip
        mine = rows[(sizes == pattern).all(axis=1)]
        seen = {_present(order or usual, there) for order in c.palette.order}
        for number, order in enumerate(orders):
            if (present := _present(order, there)) not in seen:
                seen.add(present)
                made.append((mine, _set(pool, mine, palette, order=len(c.palette.order) + number)))
    return _joined(made, palette)


def _present(order: tuple[str, ...], there: set[str]) -> tuple[str, ...]:
    return tuple(axis for axis in order if axis in there)


def _exchanges(space: Space, pool: Pool, limit: float) -> Variants | None:
    rows = np.flatnonzero(
        pool.found.fits & (pool.choices.cp > 1) & (pool.quiet * pool.bare < limit)
    )
    return _named(pool, rows, "exchange", space.more.get("cp-exchange", ()))


def _shards(space: Space, pool: Pool, limit: float) -> Variants | None:
    """Smaller groups of replicas hold more, so that states split over all of them fit as well."""
    c = pool.choices
    rows = pool.found.fits & (c.zero > 0) & (c.shard == 0) & (pool.quiet < limit)
    made = []
    for size in space.more.get("shard", ()):
        replicas = c.dp * c.cp
        mine = np.flatnonzero(rows & (replicas > size) & (replicas % size == 0))
        if len(mine):
            made.append((mine, _set(pool, mine, c.palette, shard=size)))
    return _joined(made, c.palette)


def _chunks(space: Space, pool: Pool, limit: float) -> Variants | None:
    """Virtual chunks over which layers do not divide: on stages over which they divide into none, or on unlike devices."""
    c, made = pool.choices, []
    if not space.splits_layers:
        return None
    names = c.palette.schedule
    plain = [n for n, name in enumerate(names) if 1 in SCHEDULES[name].chunks]
    if not plain:
        return None
    is_unlike = len(pool.estimator.task.cluster.devices) > 1
    several = [n for n in space.vpp if n > 1]
    divided = {
        p for p in space.pp if not is_unlike and any(_is_in_grid(space, p, n) for n in several)
    }
    rows = (
        (c.pp > 1)
        & (c.vpp == 1)
        & (c.schedule == plain[0])
        & (c.layers == 0)
        & (pool.floor < limit)
    )
    for vpp in space.more.get("vpp", ()):
        for pp in np.unique(c.pp[rows]).tolist():
            if pp in divided or pp * vpp > space.layers or _is_in_grid(space, pp, vpp):
                continue
            mine = np.flatnonzero(rows & (c.pp == pp))
            for number, name in enumerate(names):
                if vpp in SCHEDULES[name].chunks:
                    made.append((mine, _set(pool, mine, c.palette, vpp=vpp, schedule=number)))
    return _joined(made, c.palette)


def _is_in_grid(space: Space, pp: int, vpp: int) -> bool:
    return vpp in space.vpp and (pp, vpp) not in space.refused_parts


def _layers(space: Space, pool: Pool, limit: float) -> Variants | None:
    """Pipelines with other layers on their stages."""
    c, estimator = pool.choices, pool.estimator
    worth = np.flatnonzero((c.pp > 1) & (c.layers == 0) & (_of_layers(pool) < limit))
    if not space.splits_layers or not len(worth):
        return None
    rows, known = estimator.states(c)
    texts: dict[tuple[int, ...], int] = {}
    where: list[Ints] = []
    numbers: list[int] = []
    for mine in alike(c, worth):
        fleet = plan_batch(estimator.shares, c.take(mine), known, rows[mine], estimator.exchanges)
        split = splits(fleet, limit, pool.found.fits[mine])
        where.append(mine[split.plans])
        for counts in split.counts.tolist():
            numbers.append(texts.setdefault(tuple(counts), len(c.palette.layers) + len(texts)))
    if not numbers:
        return None
    palette = replace(c.palette, layers=(*c.palette.layers, *texts))
    parents = np.concatenate(where)
    return Variants(_set(pool, parents, palette, layers=np.array(numbers, np.int32)), parents)


def _of_layers(pool: Pool) -> Floats:
    """[plans] what a pipeline takes at least with any split of its layers, infinite where none can fit.

    Where plans fit: no pass is shortened by more than the slowest stage exceeds the mean, and filling and draining by no
    more than `Pool.filled` has less of it than stages alike. Others: a split by what a layer holds on each stage needs
    the harmonic mean of that at best.
    """
    c, found, fits = pool.choices, pool.found, pool.found.fits
    rooms = pool.estimator.task.usable_bytes
    stages = np.maximum(c.pp, 1)
    spread = np.ones(len(stages))
    for pp, vpp in {*zip(stages.tolist(), c.vpp.tolist(), strict=True)}:
        spread[(stages == pp) & (c.vpp == vpp)] = _in_flight(pp, vpp)
    least = np.where(found.memory <= rooms.max() * spread, pool.filled, np.inf)
    counts = pool.estimator.task.workload.global_batch / (c.dp.astype(np.float64) * c.micro)
    alike = 1.0 + (stages - 1) / (c.vpp * counts)
    shorter = np.ones(len(least))
    shorter[fits] = np.minimum(pool.floor[fits] / found.work[fits], 1.0)
    tapered = np.ones(len(least))
    tapered[fits] = np.minimum(pool.filled[fits] / pool.floor[fits] / alike[fits], 1.0)
    return np.where(fits, np.maximum(least, pool.quiet * shorter * tapered), least)


@lru_cache(maxsize=1024)
def _in_flight(stages: int, chunks: int) -> float:
    """By how much more the first stage holds of a layer than the harmonic mean of all, if weights were nothing: of
    micro-batches one less on every stage, or by chunks two less of many (Narayanan et al. 2021)."""
    held = np.arange(stages, 0.0, -1.0)
    if chunks > 1:
        held = (chunks - 1) * stages + 2.0 * held - 1.0
    return float((held[0] / held).mean())


def _buckets(space: Space, pool: Pool, limit: float) -> Variants | None:
    c = pool.choices
    rows = pool.found.fits & (c.dp * c.cp > 1) & (c.buckets == 0) & (pool.quiet < limit)
    return _named(pool, np.flatnonzero(rows), "buckets", space.more.get("buckets", ()))


class _Moved(NamedTuple):
    """A choice that is varied, whether blocks are in another state then, and whether nothing but communication changes."""

    name: str
    move: Move
    is_new_state: bool = False
    is_fine: bool = False


MOVES = (
    _Moved("layers", _layers),
    _Moved("micro", _micros, is_new_state=True),
    _Moved("recompute", _shares, is_new_state=True),
    _Moved("order", _orders, is_new_state=True, is_fine=True),
    _Moved("cp-exchange", _exchanges, is_new_state=True, is_fine=True),
    _Moved("shard", _shards, is_fine=True),
    _Moved("vpp", _chunks),
    _Moved("layers", _layers),
    _Moved("buckets", _buckets, is_fine=True),
)
"""In this order, each of all plans before it: layers first, by which unlike devices gain most, and again of what is new."""
