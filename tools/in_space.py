"""Whether the search looks at a plan, and if not, which of its words no plan of the space has."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from foretrain.arrays import Bools
from foretrain.plan.short_form import Words, schedule_of
from foretrain.planning.choices import Choices
from foretrain.planning.space import Space, space
from foretrain.planning.task import Task

REFINED = (
    ("recompute", "recompute", "full"),
    ("order", "order", None),
    ("cp-exchange", "exchange", "all-gather"),
    ("shard", "shard", None),
    ("buckets", "buckets", None),
)
NUMBERS = ("pp", "vpp", "dp", "micro", "zero", "shard", "sp")
NAMES = ("recompute", "schedule", "order", "offload", "buckets", "exchange", "tables")


def not_searched(task: Task, words: Words) -> list[str]:
    """Empty where the plan is in the space."""
    plans = space(task)
    if holds(plans, words):
        return []
    lacking = [name for name in _options(plans, words) if not _has(plans, words, name)]
    return [f"{name}={_shown(words, name)}" for name in lacking] or ["their combination"]


def holds(plans: Space, words: Words) -> bool:
    """Also of choices that are refinements of a plan in the grid: where it could still win, they are tried."""
    if words.pp > 1 and schedule_of(words).kind not in plans.palette.schedule:
        return False
    words = _coarse(plans, words)
    wanted = (words.tp, words.cp, words.ep)
    for part in plans.parts():
        if (part.tp, part.cp, part.ep) == wanted:
            return bool(_same(plans.choices(part)[0], words).any())
    return False


def _coarse(plans: Space, words: Words) -> Words:
    """The plan of the grid that it is a refinement of."""
    more = plans.more
    if words.layers is not None and plans.splits_layers:
        words = replace(words, layers=None)
    for name, field, usual in REFINED:
        value = getattr(words, field)
        shown = "-".join(value) if name == "order" and value else value
        if shown in more.get(name, ()):
            words = replace(words, **{field: usual})
    is_apart = (words.pp, words.vpp) in plans.refused_parts or words.vpp not in plans.vpp
    if is_apart and words.vpp in more.get("vpp", ()) and plans.splits_layers:
        words = replace(words, vpp=1, schedule=None)
    if words.micro in more.get("micro", ()):
        smaller = [
            n for n in plans.micro if n < words.micro and plans.batch % ((words.dp or 1) * n) == 0
        ]
        words = replace(words, micro=max(smaller))
    return words


def _same(found: Choices, words: Words) -> Bools:
    ok = np.ones(len(found), dtype=np.bool_)
    for name in NUMBERS:
        ok &= getattr(found, name) == _value(words, name)
    for name in NAMES:
        if name == "schedule" and words.pp == 1:
            continue
        values = getattr(found.palette, name)
        value = _value(words, name)
        ok &= getattr(found, name) == (values.index(value) if value in values else -1)
    if words.etp is not None and words.ep > 1:
        ok &= found.etp == words.etp
    return ok


def _value(words: Words, name: str) -> Any:
    if name == "schedule":
        return schedule_of(words).kind
    value = getattr(words, name)
    return {"shard": value or 0, "recompute": value or "none"}.get(name, value)


def _options(plans: Space, words: Words) -> tuple[str, ...]:
    names = ("tp", "cp", "ep", "pp", "vpp", "micro", "zero", "shard", "sp", *NAMES, "layers")
    return tuple(name for name in names if name != "schedule" or words.pp > 1)


def _has(plans: Space, words: Words, name: str) -> bool:
    if name == "layers":
        return words.layers is None or plans.splits_layers
    where = plans.palette if name in NAMES else plans
    named = {"exchange": "cp-exchange"}.get(name, name)
    value = _value(words, name)
    shown = "-".join(value) if name == "order" and value else value
    return value in getattr(where, name) or shown in plans.more.get(named, ())


def _shown(words: Words, name: str) -> Any:
    return words.layers if name == "layers" else _value(words, name)
