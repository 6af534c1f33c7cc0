"""Closed forms for the step time of plans that share a mesh.

What only depends on the weights that ranks hold and on how those are split is worked out once for all plans that have
it in common (`replicas.py`); what offloading changes is added at the end.

Links are shared fairly, so a link that is never idle is done after its whole load however the load came: where
exchanges of several stages meet on one, a pipeline fills and drains at the pace of a stage alone and runs at that of
all stages together.
"""

from __future__ import annotations

import numpy as np

from foretrain.arrays import Floats, Ints
from foretrain.plan.schedules.closed_form import Pipelines
from foretrain.planning.contention import TimedPlans, timed
from foretrain.planning.exposed_communication import exposed_reductions, parameters
from foretrain.planning.hosts import running_ahead
from foretrain.planning.plan_batch import PlanBatch
from foretrain.planning.sends import Parts
from foretrain.planning.short_runs import limits, run_pipelines, tasks_of_run
from foretrain.planning.steps import copies_out, crowded_steps, have_company, lone_steps, steps
from foretrain.planning.updates import update


class Times:
    """The step time of one fleet."""

    def __init__(self, ships: PlanBatch) -> None:
        self.all = ships
        c = ships.choices
        self.f, self.stands_for = ships.distinct(
            ships.rows, c.schedule, c.zero, c.buckets, ships.leaves
        )
        self.t = timed(self.f)

    def columns(self) -> dict[str, Floats]:
        f, t, there = self.f, self.t, self.stands_for
        lone = lone_steps(t)
        parts, wait = t.sends.blocking(steps(t, lone))
        work = _work(f, parts)
        together = self._together(lone, work)
        seconds = np.maximum(_pipelined(t, parts, wait), t.sends.turns(parts, wait))
        rows, done = self._runs(seconds, lone, parts)
        seconds[rows] = done.max(axis=1)
        seconds = seconds + together - work + self._without_partner()
        host = running_ahead(f, t.sends)
        busy = f.counts * host.max(axis=1)
        seconds = np.maximum(np.maximum(seconds, busy), _leaving(f, parts[0]))
        work = np.minimum(np.maximum(together, busy), seconds)
        starts, gathers = parameters(t, parts[0], wait)
        data, end = self._ended(
            exposed_reductions(t, parts, wait, seconds, host, (rows, done)), gathers
        )
        data += starts[there]
        return {
            "seconds": seconds[there] + data + end,
            "work": work[there],
            "pipeline": (seconds - work)[there],
            "data": data,
            "update": end,
        }

    def _together(self, lone: list[Floats], work: Floats) -> Floats:
        """[plans] the compute of the slowest stage once all are at work."""
        met = np.flatnonzero(have_company(self.t, lone))
        if not len(met):
            return work
        those = self.t.take(met)
        parts = steps(those, crowded_steps(those, [part[met] for part in lone]))
        found = work.copy()
        found[met] = _work(those.f, those.sends.blocking(parts)[0])
        return found

    def _runs(self, seconds: Floats, lone: list[Floats], parts: Parts) -> tuple[Ints, Floats]:
        """Pipelines run step by step, where sends and hosts make more of a difference than a closed form can tell, and
        the run is short for that: which plans, and [those, stages] when each stage is through."""
        f, t = self.f, self.t
        none = np.zeros(0, dtype=np.int64), np.zeros((0, f.stages))
        if f.stages == 1:
            return none
        size = tasks_of_run(f)
        work, waiting = (part[0] + part[1] for part in (lone, parts))
        most = (waiting.sum(axis=1) - work.sum(axis=1)) / np.maximum(work.sum(axis=1), 1e-12)
        most += 2.0 * f.counts * t.sends.seconds.sum(axis=1) / seconds
        small = np.flatnonzero(limits().are_met(most, size))
        if not len(small):
            return none
        alone = (lone[0][small], lone[1][small], lone[2][small])
        bare = _pipelined(t.take(small), alone, np.zeros_like(t.sends.seconds[small]))
        share = seconds[small] / bare - 1.0
        rows = small[limits().are_met(share, size[small])]
        if not len(rows):
            return none
        return rows, run_pipelines(t.take(rows), [part[rows] for part in lone])

    def _without_partner(self) -> Floats:
        """[plans] exchanges of experts in passes beside which none goes the other way, which hide under nothing: a
        pipeline fills with the first forward passes and drains with the last backward ones, on its way through all
        parts. Schedules that separate phases have no others."""
        f, c = self.f, self.f.choices
        if not f.layers.hidden.any():
            return np.zeros(len(c))
        hidden = f.by_part(f.layers.hidden)
        once = hidden.sum(axis=1)
        found = once * self.t.lone_passes / (f.chunks * f.stages)
        every = once + (f.counts - 1) * f.summed(hidden).max(axis=1)
        return np.asarray(np.where(self.t.follows, every, found))

    def _ended(self, tail: Floats, gathers: Floats) -> tuple[Floats, Floats]:
        """[plans of the whole fleet] by how much reductions outlast the last backward step, and updates those.
        `tail`: [plans, stages] when the reductions of a stage are done, after that step. Stages that wait for nobody
        update as soon as their own are."""
        there, replicas = self.stands_for, self.t.replicas
        data = tail.max(axis=1).clip(min=0.0)[there]
        update = self._update() + gathers[there]
        barriers = replicas.barriers()[self.t.few][there]
        if replicas.joins_stages:
            return data, update.max(axis=1) + barriers
        end = (tail[there] + update).max(axis=1) + barriers
        data = np.minimum(data, end)
        return data, end - data

    def _update(self) -> Floats:
        """[plans of the whole fleet, stages] seconds of the optimizer."""
        c = self.all.choices
        few, inverse = self.all.distinct(self.all.weights, c.zero, c.offload)
        return update(few)[inverse]


def _work(f: PlanBatch, parts: Parts) -> Floats:
    """[plans] all micro-batches on the slowest stage."""
    return np.asarray((f.counts[:, None] * f.summed(parts[0] + parts[1])).max(axis=1))


def _leaving(f: PlanBatch, forward: Floats) -> Floats:
    """[plans] copies of all micro-batches to host memory, which the update waits for."""
    return np.asarray(f.counts * f.summed(copies_out(f, forward)).max(axis=1))


def _pipelined(t: TimedPlans, parts: Parts, send: Floats) -> Floats:
    """[plans] in closed form."""
    f, c = t.f, t.f.choices
    forward, backward, weight = parts
    met = t.sends.met(parts, send, t.follows)
    seconds = np.zeros(len(c))
    for number in np.unique(c.schedule).tolist():
        rows = np.flatnonzero(c.schedule == number)
        splits = bool(t.puts_off[rows[0]])
        columns = Pipelines(
            f.stages,
            forward[rows],
            (backward[rows] - weight[rows]) if splits else backward[rows],
            weight[rows] if splits else np.zeros_like(weight[rows]),
            send[rows],
            f.counts[rows],
            met[rows],
        )
        seconds[rows] = f.schedule(number).seconds(columns)
    return seconds
