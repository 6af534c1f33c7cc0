"""The plan where none is given: what the stack does by itself if that fits, else the winner of a quick search."""

from __future__ import annotations

from dataclasses import dataclass, replace

from foretrain.errors import InputError
from foretrain.plan.plan import Plan
from foretrain.plan.short_form import filled
from foretrain.resolving.defaults import defaults, quick_space, surely
from foretrain.resolving.draft import Draft
from foretrain.resolving.micro_batch import MicroBatch, largest_that_fits
from foretrain.units import show_bytes

LOOKED_AT = 8
"""Plans among which one that surely fits is looked for."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """A plan, why it was taken, and its micro-batch where that is decided too."""

    plan: Plan
    why: str
    batch: int | None = None
    micro: MicroBatch | None = None


def own_plan(draft: Draft) -> Plan:
    """What the stack does by itself: replicas on all devices, their states split as it has it."""
    return draft.plan(filled({}, draft.defaults, draft.cluster.device_count))


def chosen_plan(draft: Draft, batch: int | None, micro: int | None, *, is_searched: bool) -> Chosen:
    """The stack's own plan, or the fastest that a quick search finds; `is_searched` asks for the latter."""
    own = own_plan(draft)
    lacking = ""
    if not is_searched:
        try:
            size = _size(draft, own, batch, micro)
        except InputError as error:
            lacking = str(error).splitlines()[0].rstrip(".")
        else:
            if size.fits:
                return Chosen(own, f"{draft.runtime.name} default", batch, size)
            total = batch or own.replicas * size.samples
            needs = draft.memory(own, total, size.samples).total_bytes
            lacking = (
                f"the {draft.runtime.name} default, {own.text}, needs {show_bytes(needs)} per "
                "device"
            )
    found = _quick(draft, batch or _usual_batch(draft), micro)
    if found is None:
        if lacking and not is_searched:
            return Chosen(own, f"{lacking}, and a quick search found none that fits", batch)
        return Chosen(own, "a quick search found none that fits", batch)
    plan, samples, count = found
    why = f"the fastest of {count:,} in a quick search"
    size = MicroBatch(samples, "part of that plan", True)
    return Chosen(plan, f"{why}; {lacking}" if lacking else why, batch or _usual_batch(draft), size)


def _size(draft: Draft, plan: Plan, batch: int | None, micro: int | None) -> MicroBatch:
    if micro is None:
        return largest_that_fits(draft, plan, batch)
    total = batch or plan.replicas * micro
    return MicroBatch(micro, "as specified", draft.memory(plan, total, micro).fits)


def _quick(draft: Draft, batch: int, micro: int | None) -> tuple[Plan, int, int] | None:
    """The best plan of the small space, its micro-batch, and how many plans there were."""
    # here, because a question with a plan has no use for a search
    from foretrain.planning import planner
    from foretrain.planning.task import Task

    anything = draft.scenario(own_plan(draft), batch, 1)
    task = Task.of(anything)
    where = [*quick_space(draft.model, draft.runtime.name)]
    if micro is not None:
        where.append(f"micro={micro}")
    try:
        found = planner.search(task, where=where, top=LOOKED_AT)
    except InputError:
        return None
    if not found.best:
        return None
    sure = (row for row in found.best if row.simulation.memory.fits_probability >= surely())
    best = next(sure, found.best[0]).plan
    words = replace(task.words(best.text), micro=None)
    return draft.plan(words), best.schedule.micro_batch, found.plans_valid


def _usual_batch(draft: Draft) -> int:
    """Samples of a step where neither batch nor plan is given."""
    row, length = defaults()["micro_batch"], draft.model.seq_len
    if length is None:
        return int(row["samples"]) * draft.cluster.device_count
    return max(draft.cluster.device_count, int(row["step_tokens"]) // length)
