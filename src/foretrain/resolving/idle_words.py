"""Words of a plan that change nothing where they stand: a schedule without stages, experts' degrees without experts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from foretrain.errors import PlanError
from foretrain.model.graph import Model
from foretrain.plan.parallelism import LARGE
from foretrain.plan.schedules import DEFAULT, meant
from foretrain.plan.short_form import Words
from foretrain.plan.strategy import listed_recomputed
from foretrain.resolving.request import Notes
from foretrain.units import counted


def note_idle_words(said: Mapping[str, object], whole: Words, model: Model, notes: Notes) -> None:
    """`said`: what was written; `whole`: with what the stack and the devices add."""
    if notes.strict:
        _expect_chunks(said, whole)
    for word, reason in _idle(said, whole, model):
        notes.warn(f"{word} in the plan has no effect: {reason}.")
    if "recompute" in said:
        _expect_layers(whole.recompute or "", model, notes)


def _idle(said: Mapping[str, object], whole: Words, model: Model) -> Iterator[tuple[str, str]]:
    schedule = said.get("schedule")
    if (
        schedule not in (None, DEFAULT) and whole.pp == 1
    ):  # the default is what one stage does anyway
        yield str(schedule), "pp is 1"
    elif schedule is not None:
        kind, _ = meant(str(schedule), whole.pp, whole.vpp)
        if kind.name != schedule:
            yield str(schedule), f"vpp is {whole.vpp}, so {kind.name} is used"
    if "exchange" in said and whole.cp == 1:
        yield f"cp={whole.exchange}", "the context-parallel degree is 1"
    if said.get("sp") is True and whole.tp == 1:
        yield "sp", "tp is 1"
    if "etp" in said and not model.has_experts:
        yield f"etp{whole.etp}", f"{model.name} has no experts"
    names = {name for block, op in model.ops() for name in (block.name, op.name)}
    if said.get("tables") == "rows" and LARGE not in names:
        yield "tables=rows", f"{model.name} has no embedding tables to split"


def _expect_chunks(said: Mapping[str, object], whole: Words) -> None:
    """A stage in one piece, for a schedule that has none such."""
    if said.get("vpp") == 1 and whole.vpp > 1:
        raise PlanError(
            f"vpp1: schedule {whole.schedule!r} runs {counted(whole.vpp, 'model chunk')} per stage. Drop vpp1, or use "
            f"schedule {DEFAULT!r}."
        )


def _expect_layers(word: str, model: Model, notes: Notes) -> None:
    layers = max((block.repeat for block in model.blocks), default=1)
    beyond = sorted(index for index in listed_recomputed(word) or () if index >= layers)
    if not beyond:
        return
    fault = f"recompute=full@…: {model.name} has {counted(layers, 'layer')}, numbered from 0; there is no layer {beyond[0]}."
    if notes.strict:
        raise PlanError(fault)
    notes.warn(fault)
