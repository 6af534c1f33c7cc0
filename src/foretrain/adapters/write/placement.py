"""Which layers each part of a pipeline holds, and which of them run again, as the plan is compiled."""

from __future__ import annotations

from foretrain.adapters.write.job import Job
from foretrain.compile.passes.place import finer, place
from foretrain.model.graph import Model
from foretrain.plan.strategy import block_choice


def parts_of(job: Job) -> tuple[str, ...] | None:
    """A word per part (chunk c of stage s is part c·stages + s) of E embedding, t layer, m module of multi-token
    prediction, L head; None where a part holds less than a layer."""
    model, schedule = job.question.workload.model, job.question.plan.schedule
    if finer(model, schedule) is not model:
        return None
    letters = _letters(model)
    placed = place(model, schedule, job.question.runtime.places_by_products)
    return tuple("".join(letters[block] for block, _ in part) for part in placed)


def _letters(model: Model) -> list[str]:
    """Of every block; the head of a module goes with it."""
    found = ["E"]
    for block in model.blocks[1:-1]:
        names = {op.name for op in block.ops}
        found.append("m" if "eh_proj" in names else "" if "loss" in names else "t")
    return [*found, "L"]


def is_even(parts: tuple[str, ...]) -> bool:
    """As many layers everywhere, the embedding with the first and the head with the last."""
    bare = [part.strip("EmL") for part in parts]
    is_last = parts[-1].startswith(("t", "Et")) and parts[-1].endswith("L")
    return len(set(bare)) == 1 and parts[0].startswith("Et") and is_last


def recomputed(job: Job) -> tuple[tuple[str, ...], ...]:
    """What every layer of every part runs again: none, selective, full or names of ops."""
    model, plan = job.question.workload.model, job.question.plan
    placed = place(
        finer(model, plan.schedule), plan.schedule, job.question.runtime.places_by_products
    )
    letters = _letters(model)
    return tuple(
        tuple(
            block_choice(plan.root, model.blocks[block].name, repetition).recompute
            for block, repetition in part
            if letters[block] == "t"
        )
        for part in placed
    )
