"""Pipeline schedules by name: one file each, one row each in `SCHEDULES`."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection

from foretrain.errors import PlanError, hint
from foretrain.plan.schedules.base import (
    BACKWARD,
    BACKWARD_WEIGHT,
    FORWARD,
    PipelineSchedule,
    Steps,
)
from foretrain.plan.schedules.dualpipe_v import DualPipeV
from foretrain.plan.schedules.gpipe import GPipe
from foretrain.plan.schedules.interleaved import Interleaved
from foretrain.plan.schedules.one_f_one_b import OneForwardOneBackward
from foretrain.plan.schedules.pieces import Pieces
from foretrain.plan.schedules.v_half import VHalf
from foretrain.plan.schedules.v_min import VMin
from foretrain.plan.schedules.zero_bubble import ZeroBubbleH1
from foretrain.plan.schedules.zero_bubble_v import ZeroBubbleV
from foretrain.plan.words import is_word
from foretrain.registering import expect_variant, once

__all__ = [
    "BACKWARD",
    "BACKWARD_WEIGHT",
    "DEFAULT",
    "FORWARD",
    "SCHEDULES",
    "Pieces",
    "PipelineSchedule",
    "Steps",
    "called",
    "is_outside",
    "meant",
    "nearest",
    "register",
    "remedy",
    "schedule",
]

SCHEDULES: dict[str, PipelineSchedule] = {
    "1f1b": OneForwardOneBackward(),
    "interleaved": Interleaved(),
    "gpipe": GPipe(),
    "zb-h1": ZeroBubbleH1(),
    "zb-v": ZeroBubbleV(),
    "dualpipev": DualPipeV(),
    "v-half": VHalf(),
    "v-min": VMin(),
}
_OURS = frozenset(SCHEDULES)
DEFAULT = "1f1b"
"""What a pipeline runs that nobody says anything about, and what one stage does whatever it is called."""


_EQUAL: dict[str, str] = {
    "dualpipe": (
        "DualPipe runs micro-batches from both ends, with two copies of every stage; a stage has one here. Use dualpipev "
        "with half of the stages and twice the replicas: every device holds the same two pieces of the model, and "
        "bubble and activations are the same (deepseek-ai/DualPipe, README)."
    )
}
"""Schedules that are not here, and the plans that are the same."""


def schedule(name: str) -> PipelineSchedule:
    """A schedule by name."""
    if name not in SCHEDULES:
        raise PlanError(f"unknown schedule {name!r}.{remedy(name)}")
    return SCHEDULES[name]


def remedy(word: str, known: Collection[str] = SCHEDULES) -> str:
    """What to write in place of a name that is none, after a space: plans that are the same, or names like it."""
    return f" {_EQUAL[word]}" if word in _EQUAL else hint(word, known)


def register(kind: PipelineSchedule) -> Callable[[], None]:
    """Add a schedule of one's own, for this process: plans, searches and documents know it by its name. Its orders are
    tried on a few sizes; what comes back takes it out again."""
    expect_variant(kind, PipelineSchedule, "a pipeline schedule", PlanError)
    name = kind.name
    if name in SCHEDULES:
        raise PlanError(f"there is a schedule {name!r} already. Use another name.")
    if not re.fullmatch(r"[a-z0-9-]+", name):
        raise PlanError(f"{name!r} cannot stand in a plan: use small letters, digits and -.")
    if is_word(name):
        raise PlanError(f"{name!r} is a word of plans and means something else. Use another name.")
    from foretrain.plan.schedules.legal import check_order  # for those who bring one of their own

    check_order(kind)
    SCHEDULES[name] = kind
    return once(lambda: SCHEDULES.__delitem__(name))


def is_outside(name: str) -> bool:
    """Whether a schedule was registered for this process alone."""
    return name not in _OURS


def meant(word: str | None, stages: int, chunks: int) -> tuple[PipelineSchedule, int]:
    """The schedule that a plan's word means, and chunks per stage: those asked for, or where a plan leaves a stage in
    one piece as many as the schedule has."""
    kind = SCHEDULES[word or DEFAULT]
    if chunks in kind.chunks:
        return kind, chunks
    if kind.otherwise is not None:
        return SCHEDULES[kind.otherwise], chunks
    if stages == 1:
        return SCHEDULES[DEFAULT], chunks
    return kind, kind.chunks.start if chunks == 1 else chunks


def called(word: str) -> str | None:
    """The schedule with a name as papers and stacks spell it: letters and digits count."""
    letters = _letters(word)
    names = (n for n, k in SCHEDULES.items() if letters in (_letters(n), *k.aliases))
    return next(names, None)


def nearest(word: str, chunks: int) -> str:
    """The schedule that comes nearest to one that is not here."""
    letters = _letters(word)
    near = (n for n, k in SCHEDULES.items() if letters in k.stands_for and chunks in k.chunks)
    return next(near, meant(None, 2, chunks)[0].name)


def _letters(word: str) -> str:
    return "".join(letter for letter in word.lower() if letter.isalnum())
