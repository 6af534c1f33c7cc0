"""What a target is asked to write, and the account it gives of every word of the plan."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, fields
from functools import cached_property
from typing import TypeVar

import numpy as np

from foretrain.adapters.write.architecture import shape_of
from foretrain.adapters.write.exported import one_line
from foretrain.compile.compile import micro_batches
from foretrain.compile.passes.place import finer, place
from foretrain.errors import Bug, ModelError
from foretrain.model.details import Details
from foretrain.model.graph import Model
from foretrain.model.shape import TransformerShape
from foretrain.plan.plan_words import said
from foretrain.plan.short_form import Words
from foretrain.plan.strategy import block_choice
from foretrain.scenario import Scenario

T = TypeVar("T")


@dataclass(frozen=True)
class ExportJob:
    """A question in the terms of launch files."""

    question: Scenario
    words: Words
    order: tuple[str, ...]  # degrees above one, from neighbouring ranks outwards
    rest: tuple[str, ...]  # choices of the tree that no word says
    micro_batches: int

    @classmethod
    def of(cls, question: Scenario) -> ExportJob:
        spelled = said(question.plan, question.runtime)
        count = micro_batches(question.workload, question.plan)
        return cls(question, spelled.words, spelled.order, spelled.rest, count)

    @property
    def micro(self) -> int:
        return self.question.plan.schedule.micro_batch

    @property
    def dp(self) -> int:
        return self.question.plan.replicas

    @property
    def batch(self) -> int:
        return self.question.workload.global_batch

    @property
    def devices(self) -> int:
        return self.question.cluster.device_count

    @property
    def nodes(self) -> int:
        return self.question.cluster.node_count

    @cached_property
    def per_node(self) -> tuple[int, ...]:
        """Devices of each node."""
        counts = np.bincount(np.asarray(self.question.cluster.node_of))
        return tuple(int(count) for count in counts)

    @property
    def gradient_bytes(self) -> float:
        """Of one element, as it is reduced."""
        own = self.question.runtime.gradients.gradient_bytes
        return self.question.workload.precision.gradient_bytes if own is None else own

    @property
    def bucket_bytes(self) -> float:
        """Of gradients that are reduced at once, as the plan says it or the stack does."""
        own = self.words.buckets
        return self.question.runtime.gradients.bucket_bytes if own is None else own

    @cached_property
    def shape(self) -> TransformerShape | None:
        return shape_of(self.question.workload.model)

    @property
    def details(self) -> Details:
        """What is known of the model besides its graph."""
        return self.question.workload.model.details

    def transformer(self, title: str) -> TransformerShape:
        """The model's shape, or an error where there is none."""
        if self.shape is None:
            name = self.question.workload.model.name
            raise ModelError(
                f"{title} supports only transformers with an embedding, identical layers and a "
                f"head; {name} is not one. Export to torchrun, deepspeed or accelerate, which "
                "take the model from a script."
            )
        return self.shape

    @property
    def title(self) -> str:
        """One line for the top of a file."""
        w = self.question.workload
        return one_line(
            f"{w.model.name} on {self.question.cluster.name}: "
            f"{self.question.plan.text or 'custom strategy tree'}, batch {w.global_batch} in "
            f"micro-batches of {self.micro}"
        )


class Account:
    """Which words of a plan a target says. A word that is neither said nor refused is our bug."""

    def __init__(self, job: ExportJob) -> None:
        self._words, self._order = job.words, job.order
        self._model = job.question.workload.model.name
        self._assumed: list[str] = []
        self._open = dict.fromkeys(_spoken(job.words, job.order))
        self._cannot: list[str] = [
            f"{line}: applies to part of the model; these files have one setting for all of it"
            for line in job.rest
        ]

    def has(self, name: str) -> bool:
        """Whether the plan says it at all."""
        return name in _spoken(self._words, self._order)

    def says(self, *names: str) -> None:
        """The files say these words, where the plan does."""
        for name in names:
            self._open.pop(name, None)

    def cannot(self, name: str, why: str) -> None:
        """The files do not say this word, if the plan does and they have not yet, and why."""
        if name in self._open:
            self.note(f"{spelled(self._words, self._order, name)}: {why}")
            del self._open[name]

    def one_of(self, name: str, known: Collection[str], why: str) -> None:
        """The files say this word where it is one of those that the target knows; else they cannot, and why."""
        if getattr(self._words, name) in known:
            self.says(name)
        self.cannot(name, why)

    def note(self, line: str) -> None:
        """Something else that the files do not say as the question did."""
        self._cannot.append(line)

    def either(self, known: T | None, default: T, what: str) -> T:
        """What is known of the model, or the default that is written in its place, which is told."""
        if known is not None:
            return known
        shown = f"{default:g}" if isinstance(default, float) else str(default).lower()
        self._assumed.append(f"{what} {shown}: not known of {self._model}")
        return default

    @property
    def assumed(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(self._assumed))

    def ranks(self, *orders: tuple[str, ...], why: str) -> tuple[str, ...] | None:
        """The first of a target's orders of ranks, from the inside, that is the plan's; else that is refused."""
        for order in orders:
            if self._order == tuple(role for role in order if role in self._order):
                self.says("order")
                return order
        self.cannot("order", why)
        return None

    def close(self, target: str) -> tuple[str, ...]:
        if self._open:
            raise Bug(f"export to {target} dropped {', '.join(self._open)} without a word.")
        return tuple(dict.fromkeys(self._cannot))


def _spoken(words: Words, order: tuple[str, ...]) -> Iterable[str]:
    """Fields of the words that say something."""
    default = Words()
    needs = {"etp": words.ep > 1, "sp": words.tp > 1, "exchange": words.cp > 1}
    needs["schedule"] = words.pp > 1
    for field in fields(Words):
        name, value = field.name, getattr(words, field.name)
        if name == "order":
            if len(order) > 1:
                yield name
        elif name == "dp":
            if (value or 1) > 1:
                yield name
        elif name == "recompute":
            if value not in (None, "none"):
                yield name
        elif name in needs:
            # where it has a meaning, its default means something too
            if needs[name] and value not in (None, False):
                yield name
        elif value != getattr(default, name):
            yield name


def spelled(words: Words, order: tuple[str, ...], name: str) -> str:
    """A word as a plan has it."""
    value = getattr(words, name)
    match name:
        case "order":
            return f"order={'-'.join(order)}"
        case "sp":
            return "sp"
        case "schedule":
            return str(value)
        case "exchange":
            return f"cp={value}"
        case "buckets":
            return f"buckets={value / 1e6:g}MB"
        case "layers":
            return f"layers={','.join(map(str, value))}"
        case "offload":
            return f"offload={'+'.join(value)}"
        case "recompute" | "tables" | "shard" | "micro":
            return f"{name}={value}"
    return f"{name}{value}"


def parts_of(job: ExportJob) -> tuple[str, ...] | None:
    """A word per part (piece of the model, from the first to the last) of E embedding, t layer, m module of multi-token
    prediction, L head; None where a part holds less than a layer."""
    model, schedule = job.question.workload.model, job.question.plan.schedule
    if finer(model, schedule) is not model:
        return None
    letters = _letters(model)
    placed = place(model, schedule, job.question.runtime.pipeline.places_by_products)
    return tuple("".join(letters[block] for block, _ in part) for part in placed)


def _letters(model: Model) -> list[str]:
    """Of every block; the head of a module goes with it."""
    letters = ["E"]
    for block in model.blocks[1:-1]:
        names = {op.name for op in block.ops}
        letters.append("m" if "eh_proj" in names else "" if "loss" in names else "t")
    return [*letters, "L"]


def is_even(parts: tuple[str, ...]) -> bool:
    """As many layers everywhere, the embedding with the first and the head with the last."""
    bare = [part.strip("EmL") for part in parts]
    is_last = parts[-1].startswith(("t", "Et")) and parts[-1].endswith("L")
    return len(set(bare)) == 1 and parts[0].startswith("Et") and is_last


def recomputed(job: ExportJob) -> tuple[tuple[str, ...], ...]:
    """What every layer of every part runs again: none, selective, full or names of ops."""
    model, plan = job.question.workload.model, job.question.plan
    placed = place(
        finer(model, plan.schedule), plan.schedule, job.question.runtime.pipeline.places_by_products
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
