"""Which layers each part of a pipeline holds, and which of them run again, as the plan is compiled."""

from __future__ import annotations

from foretrain.adapters.write.job import Job
from foretrain.compile.passes.place import finer, place
from foretrain.plan.strategy import block_choice


def parts_of(job: Job) -> tuple[str, ...] | None:
    """A word per part (chunk c of stage s is part c·stages + s) of E embedding, t layer, L head; None where a
    part holds less than a layer."""
    model, schedule = job.question.workload.model, job.question.plan.schedule
    if finer(model, schedule) is not model:
        return None
    last = len(model.blocks) - 1
    letter = {0: "E", last: "L"}
    placed = place(model, schedule, job.question.runtime.places_by_products)
    return tuple("".join(letter.get(block, "t") for block, _ in part) for part in placed)


def is_even(parts: tuple[str, ...]) -> bool:
    """As many layers everywhere, the embedding with the first and the head with the last."""
    bare = [part.strip("EL") for part in parts]
    return len(set(bare)) == 1 and parts[0].startswith("Et") and parts[-1].endswith("tL")


def recomputed(job: Job) -> tuple[tuple[str, ...], ...]:
    """What every layer of every part runs again: none, selective, full or names of ops."""
    model, plan = job.question.workload.model, job.question.plan
    placed = place(
        finer(model, plan.schedule), plan.schedule, job.question.runtime.places_by_products
    )
    outer = (0, len(model.blocks) - 1)
    return tuple(
        tuple(
            block_choice(plan.root, model.blocks[block].name, repetition).recompute
            for block, repetition in part
            if block not in outer
        )
        for part in placed
    )
