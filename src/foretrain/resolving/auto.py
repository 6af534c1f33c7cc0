"""The plan where none is given: what the stack does by itself if that fits, else the winner of a quick search."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import exp
from statistics import NormalDist
from typing import TYPE_CHECKING

from foretrain.analysis.uncertainty import memory_spread
from foretrain.cluster.headroom import usable_bytes
from foretrain.errors import InputError
from foretrain.plan.plan import Plan
from foretrain.plan.short_form import filled
from foretrain.resolving.defaults import defaults, quick_space, surely
from foretrain.resolving.draft import Draft
from foretrain.resolving.micro_batch import MicroBatch, largest_that_fits
from foretrain.units import show_bytes

if TYPE_CHECKING:
    from foretrain.planning.planner import Ranked

LOOKED_AT = 4
"""Plans of a quick search that are simulated, the best by estimate."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """A plan, why it was taken, and its batch (None: as is usual for it) and micro-batch."""

    plan: Plan
    why: str
    batch: int | None
    micro: MicroBatch


def own_plan(draft: Draft) -> Plan:
    """What the stack does by itself: replicas on all devices, their states split as it has it."""
    return draft.plan(filled({}, draft.defaults, draft.cluster.device_count))


def chosen_plan(draft: Draft, batch: int | None, micro: int | None, *, is_searched: bool) -> Chosen:
    """The stack's own plan, or the fastest that a quick search finds; `is_searched` asks for the latter."""
    own = own_plan(draft)
    lacking, size = "", MicroBatch(micro or 1, "the smallest there is", False)
    if not is_searched:
        try:
            size = _size(draft, own, batch, micro)
        except InputError as error:
            lacking = str(error).splitlines()[0].split(". ")[0].rstrip(".")
        else:
            if size.fits:
                return Chosen(own, f"{draft.runtime.name} default", batch, size)
            needs = show_bytes(size.needed_bytes)
            lacking = f"the {draft.runtime.name} default, {own.text}, needs {needs} per device"
    best = _quick(draft, batch or _usual_batch(draft), micro)
    if best is None:
        if lacking:
            lacking += ", and "
        return Chosen(own, f"{lacking}a quick search found none that fits", batch, size)
    plan, samples, count = best
    why = f"the fastest of {count:,} in a quick search"
    size = MicroBatch(samples, "part of that plan", True)
    return Chosen(plan, f"{why}; {lacking}" if lacking else why, batch or _usual_batch(draft), size)


def _size(draft: Draft, plan: Plan, batch: int | None, micro: int | None) -> MicroBatch:
    if micro is None:
        return largest_that_fits(draft, plan, batch)
    total = batch or plan.replicas * micro
    needed = draft.memory(plan, total, micro)
    return MicroBatch(micro, "as specified", needed.fits, needed.total_bytes)


def _quick(draft: Draft, batch: int, micro: int | None) -> tuple[Plan, int, int] | None:
    """The best plan of the small space, its micro-batch, and how many plans there were."""
    # here, because a question with a plan has no use for a search
    from foretrain.planning import planner
    from foretrain.planning.task import Task

    where = [*quick_space(draft.model, draft.runtime)]
    if micro is not None:
        where.append(f"micro={micro}")
    for who in (_with_room(draft), draft):  # a plan that surely fits, else one that is expected to
        task = Task.of(who.scenario(own_plan(who), batch, 1))
        try:
            result = planner.search(task, where=where, top=LOOKED_AT, simulated=LOOKED_AT)
        except InputError:
            return None
        if result.best:
            winner = _plainest(result.best)
            draft.compiled.update(winner.simulation.scenario.compiled)
            best = winner.plan
            words = replace(task.words(best.text), micro=None)
            return draft.plan(words), best.schedule.micro_batch, result.plans_valid
    return None


def _plainest(ranked: Sequence[Ranked]) -> Ranked:
    """Of plans that are as good as equally fast, the one with the fewest parts."""
    limit = ranked[0].simulation.step_seconds * (1.0 + defaults()["quick_search"]["ties"])
    close = [row for row in ranked if row.simulation.step_seconds <= limit]
    return min(close, key=lambda row: row.plan.schedule.stages * row.plan.schedule.chunks)


def _with_room(draft: Draft) -> Draft:
    """With so much kept free that what is expected to fit does so with the probability a choice should have."""
    spread = memory_spread(draft.runtime.name, is_runtime_known=True)
    share = exp(-NormalDist().inv_cdf(surely()) * spread)
    size, context = (
        min(d.memory_bytes for d in draft.cluster.devices),
        draft.runtime.memory.context_bytes,
    )
    usable = usable_bytes(size, context, draft.headroom)
    return replace(draft, headroom=1.0 - (usable * share + context) / size)


def _usual_batch(draft: Draft) -> int:
    """Samples of a step where neither batch nor plan is given."""
    row, length = defaults()["micro_batch"], draft.model.seq_len
    if length is None:
        return int(row["samples"]) * draft.cluster.device_count
    return max(draft.cluster.device_count, int(row["step_tokens"]) // length)
