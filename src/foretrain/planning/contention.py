"""Plans that take their time, and what keeps them company: gradients and sends of other micro-batches on the links that
their own work uses, and kernels that these slow."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from foretrain.arrays import Bools, Floats, Ints
from foretrain.cost import interference
from foretrain.planning.plan_batch import PlanBatch
from foretrain.planning.replicas import NETWORK, WAYS, Replicas
from foretrain.planning.sends import Sends, sends
from foretrain.planning.task import Task


@dataclass(frozen=True, eq=False, slots=True)
class TimedPlans:
    """Plans of a fleet, one for all that take as long, with what they exchange."""

    f: PlanBatch
    few: Ints  # which row of `replicas` stands for each
    replicas: Replicas
    sends: Sends
    puts_off: Bools  # [plans] whether weight gradients are steps of their own
    follows: Bools  # [plans] whether backward steps follow one another
    filling: Floats  # [plans] micro-batches that a stage runs before its first backward step …
    lone_passes: Floats  # … and passes of either direction without one in the other
    moved: Floats  # [plans, parts] seconds to reduce a micro-batch's gradients, where ZeRO splits them …
    flowing: tuple[Floats, ...]  # … and those in which links are busy, each way
    slow: Floats  # [ways] factors on kernels …
    slowed: Floats  # … and on what moves between replicas beside them

    def take(self, rows: Ints) -> TimedPlans:
        """Some of the plans."""
        f = self.f.take(rows)
        return replace(
            self,
            f=f,
            few=self.few[rows],
            sends=self.sends.take(f, rows),
            puts_off=self.puts_off[rows],
            follows=self.follows[rows],
            filling=self.filling[rows],
            lone_passes=self.lone_passes[rows],
            moved=self.moved[rows],
            flowing=tuple(flow[rows] for flow in self.flowing),
        )

    def of_replicas(self, column: Floats | None) -> Floats | None:
        """A column of `replicas` for every plan."""
        return None if column is None else column[self.few]

    def crowded(self) -> Floats:
        """[plans] the share of forward steps that come after the first backward step."""
        return np.asarray(np.maximum(1.0 - self.filling / self.f.counts, 0.0))

    def at_end(self) -> Floats:
        """[plans] the share of a part's gradients that are there no sooner than its backward work ends."""
        f, runtime = self.f, self.f.task.runtime
        if not runtime.gradients.overlaps_gradients:
            return np.ones(len(f.choices))
        waits = (f.choices.zero >= 1) & (not runtime.gradients.overlaps_scatters)
        return np.where(waits, 1.0, len(f.share) / f.share.sum())


def timed(f: PlanBatch) -> TimedPlans:
    """All plans of a fleet."""
    c, runtime = f.choices, f.task.runtime
    used, which = np.unique(c.schedule, return_inverse=True)
    kinds = [f.schedule(number) for number in used.tolist()]
    puts_off, follows, filling, lone_passes = (
        np.array(answers)[which]
        for answers in (
            [k.splits_backward for k in kinds],
            [k.separates_phases for k in kinds],
            [k.filling(f.stages, f.chunks) for k in kinds],
            [k.lone_passes(f.stages, f.chunks) for k in kinds],
        )
    )
    if runtime.fusion_cycles is not None:
        few, replicas = np.arange(len(c)), Replicas(f, _making(f, puts_off))
    else:
        fleet, few = f.distinct(f.weights, c.zero, c.buckets)
        replicas = Replicas(fleet)
    moved, *flowing = (column[few] for column in replicas.scatters())
    slow, slowed = _interference(f.task)
    return TimedPlans(
        f,
        few,
        replicas,
        sends(f),
        puts_off,
        follows,
        filling,
        lone_passes,
        moved,
        tuple(flowing),
        slow,
        slowed,
    )


def _making(f: PlanBatch, puts_off: Bools) -> Floats:
    """[plans, parts] seconds of kernels that make gradients, by the clock of a thread that fuses those; no less than
    hosts need to issue them."""
    layers = f.layers
    backward, weight = (f.seconds_by_part(c[f.rows]) for c in (layers.backward, layers.weight))
    backward = np.maximum(backward - f.by_part(layers.wire_backward.sum(axis=2)), 0.0)
    kernels = np.where(puts_off[:, None], weight, backward)
    host = np.where(puts_off[:, None], f.by_part(layers.host_weight), f.by_part(layers.host_backward))  # fmt: skip
    return np.maximum(kernels, host)


def _interference(task: Task) -> tuple[Floats, Floats]:
    if not task.runtime.communication.overlap_slows:
        return np.ones(len(WAYS)), np.ones(len(WAYS))
    compute, moving = interference.COMPUTE, interference.COLLECTIVE
    tables = [
        [interference.factors(device, way == NETWORK) for way in WAYS]
        for device in task.cluster.devices
    ]
    slow, slowed = (
        np.max([[table[pair] for table in row] for row in tables], axis=0)
        for pair in ((compute, moving), (moving, compute))
    )
    return slow, slowed


@dataclass(frozen=True, eq=False, slots=True)
class Contention:
    """What keeps links busy beside work, as a share of the time that work takes."""

    data: Floats  # [plans, ways] reductions, which slow kernels too …
    sent: Floats  # [plans] … and sends between nodes, which do not

    def on(self, way: int) -> Floats:
        """[plans] by how much what goes the same way is stretched: at most to twice its time by each."""
        found = np.minimum(self.data[:, way], 1.0)
        return np.asarray(found + self.sent if way == NETWORK else found)

    def slows(self, slow: Floats) -> Floats:
        """[plans] factor on kernels."""
        return np.asarray(1.0 + self.data @ (1.0 - 1.0 / slow))


class StepContention(NamedTuple):
    """The company of a micro-batch's steps."""

    forward: Contention
    backward: Contention
    later: Contention  # weight gradients that are put off


def beside(t: TimedPlans, parts: list[Floats], mine: Ints) -> StepContention:
    """Of a stage that has the parts `mine`, or of one for each of the plans; how often it meets sends is the mean over
    all. `parts`: [plans, parts] forward, backward and weight-gradient work without company.

    Gradients go while the work that makes them is under way, as far as they are there before its end; then beside the
    next forward step, then beside the next backward step. Where backward steps follow one another, beside those. While a
    stage sends and waits for that, they go beside nothing.
    """
    ahead, back, late = (np.maximum(_sum_of(part, mine), 1e-12)[:, None] for part in parts)
    off = t.puts_off[:, None]
    turn = _turn(t, parts)
    back = np.where(
        off, np.maximum(back - late, 1e-12), back
    )  # tables alone have no other gradients
    moved = _slowed(t, ahead + back, mine)
    making = np.where(off, late, back) * t.slow
    early = np.minimum(moved * (1.0 - t.at_end()[:, None]), making)
    left = moved - early
    room = ahead * t.slow * np.where(t.follows, 0.0, t.crowded())[:, None]
    ahead_pause, back_pause = _pauses(t, mine)
    left = np.maximum(left - back_pause, 0.0)
    next_ahead = np.minimum(left, room)
    left = np.maximum(left - next_ahead - ahead_pause, 0.0)
    next_back = np.minimum(left, np.where(off, back * t.slow, making - early))
    sent = _met(np.minimum(1.0, 2.0 * t.sends.flow.sum(axis=1) / turn))
    return StepContention(
        Contention(next_ahead / ahead, sent),
        Contention((next_back + np.where(off, 0.0, early)) / back, sent),
        Contention(np.where(off, early / late, 0.0), sent),
    )


def _sum_of(column: Floats, mine: Ints) -> Floats:
    """[plans, parts] → [plans] of the parts `mine`, those of every plan or of all."""
    parts = column[:, mine] if mine.ndim == 1 else np.take_along_axis(column, mine, axis=1)
    return np.asarray(parts.sum(axis=1))


def _pauses(t: TimedPlans, mine: Ints) -> tuple[Floats, Floats]:
    """[plans, 1] seconds in which a stage waits for what it sends between a forward step and the next backward step,
    and after that."""
    if t.f.task.runtime.pipeline.overlaps_pipeline:
        none = np.zeros((len(t.f.choices), 1))
        return none, none
    ahead, back = (_sum_of(part, mine)[:, None] for part in t.sends.leaving(t.sends.seconds))
    return np.where(t.follows[:, None], 0.0, ahead), back


def _turn(t: TimedPlans, parts: list[Floats]) -> Floats:
    """[plans] forward and backward work of all stages on a micro-batch, without weight gradients that are put off."""
    ahead, back, late = (part.sum(axis=1) for part in parts)
    return np.asarray(np.maximum(ahead + np.where(t.puts_off, back - late, back), 1e-12))


def _met(busy: Floats) -> Floats:
    """The share of the time in which sends are on the links out of a stage's nodes or on those into them, each so much
    of it: collectives use both, and wait for the slower."""
    return np.asarray(busy * (2.0 - busy))


def _slowed(t: TimedPlans, turn: Floats, mine: Ints) -> Floats:
    """[plans, ways] seconds in which a micro-batch's gradients of some parts keep links busy, slowed by kernels beside
    them."""
    f = t.f
    slowest = (column[f.rows].max(axis=1) for column in (f.layers.forward, f.layers.backward))
    kernels = (sum(slowest) * f.share[mine].sum(axis=-2)).sum(axis=1)
    meets = np.minimum(1.0, np.asarray(kernels)[:, None] / turn)
    moved = np.stack([_sum_of(flow, mine) for flow in t.flowing], axis=1)
    return np.asarray(moved * (1.0 + (t.slowed - 1.0)[None, :] * meets))
