"""Whether the search looks at a plan, and if not, which of its words no plan of the space has."""

from __future__ import annotations

from typing import Any

import numpy as np

from foretrain.arrays import Bools
from foretrain.plan.short_form import Words, schedule_of
from foretrain.planning.choices import Choices
from foretrain.planning.space import Space, space
from foretrain.planning.task import Task

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
    if words.layers is not None:
        return False
    wanted = (words.tp, words.cp, words.ep)
    for part in plans.parts():
        if (part.tp, part.cp, part.ep) == wanted:
            return bool(_same(plans.choices(part)[0], words).any())
    return False


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
        return words.layers is None
    where = plans.palette if name in NAMES else plans
    return _value(words, name) in getattr(where, name)


def _shown(words: Words, name: str) -> Any:
    return words.layers if name == "layers" else _value(words, name)
