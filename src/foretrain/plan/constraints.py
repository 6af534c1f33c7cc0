"""What the user pins: `tp<=8`, `pp=4|8`, `zero>=1`, `no recompute`, `sp`, `schedule=1f1b`."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from foretrain.errors import PlanError, hint
from foretrain.plan.parallelism import expert_tensor_degree
from foretrain.plan.schedules import SCHEDULES, meant, remedy
from foretrain.plan.short_form import Words, value_of

NUMBERS = ("tp", "pp", "vpp", "cp", "ep", "etp", "dp", "micro", "zero", "shard")
NAMES = ("recompute", "schedule", "order", "offload", "cp-exchange", "tables", "buckets", "layers")
FLAGS = ("sp",)
_NOTHING = {
    "recompute": "none", "offload": "none", "shard": 0, "zero": 0, "sp": False,
    "tp": 1, "pp": 1, "vpp": 1, "cp": 1, "ep": 1, "etp": 1, "dp": 1, "buckets": "default", "layers": "even",
}  # fmt: skip
_READ_AS = {"order": "order", "offload": "offload", "cp-exchange": "exchange", "tables": "tables", "buckets": "buckets", "layers": "layers"}  # fmt: skip
"""Options of plans, which say what they take, by their names among constraints."""
_LEFT_OPEN = {"order": ("default",), "offload": ("none",), "buckets": ("default",), "layers": ("even",)}  # fmt: skip
_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "<=": operator.le, ">=": operator.ge, "<": operator.lt, ">": operator.gt, "=": operator.eq,
    "!=": operator.ne,
}  # fmt: skip
_WORD = re.compile(r"(?P<name>[a-z-]+)\s*(?P<sign><=|>=|!=|=|<|>)\s*(?P<value>.+)")


@dataclass(frozen=True, slots=True)
class Constraint:
    """`name` must compare with one of `values` as `sign` says."""

    text: str
    name: str
    sign: str
    values: tuple[Any, ...]

    def allows(self, value: Any) -> bool:
        compare = _COMPARE[self.sign]
        if self.sign == "!=":
            return all(compare(value, one) for one in self.values)
        return any(compare(value, one) for one in self.values)


def parse(texts: Iterable[str]) -> tuple[Constraint, ...]:
    """Constraints from words separated by commas, semicolons or given one by one; all faults at once."""
    found, faults = [], []
    for text in texts:
        for word in re.split(r"[;,](?!\s*\d)", text):  # the commas of layers=24,8 are its own
            if not word.strip():
                continue
            try:
                found.append(_read(word.strip().lower()))
            except PlanError as error:
                faults.append(str(error))
    if faults:
        raise PlanError("invalid constraints:", faults=faults)
    return tuple(found)


def _read(word: str) -> Constraint:
    if word.startswith("no "):
        name = _known(word, word[3:].strip())
        if name not in _NOTHING:
            raise PlanError(f"{word}: {name} always has a value; specify the values to allow.")
        return Constraint(word, name, "=", (_NOTHING[name],))
    if word in FLAGS:
        return Constraint(word, word, "=", (True,))
    match = _WORD.fullmatch(word)
    if match is None:
        raise PlanError(
            f"{word}: not a constraint. Write tp<=8, pp=4|8, zero>=1, recompute=none|full, sp or no offload."
        )
    name, sign = _known(word, match["name"]), match["sign"]
    values = tuple(_value(word, name, part.strip()) for part in match["value"].split("|"))
    if name == "zero" and sign == "=":
        values = tuple(value_of(word, name, str(value)) for value in values)
    if name not in NUMBERS and sign not in ("=", "!="):
        raise PlanError(f"{word}: {name} is not numeric. Use = or !=.")
    if len(values) > 1 and sign not in ("=", "!="):
        raise PlanError(f"{word}: expected one value after {sign}.")
    return Constraint(word, name, sign, values)


def _known(word: str, name: str) -> str:
    known = (*NUMBERS, *NAMES, *FLAGS)
    if name not in known:
        raise PlanError(f"{word}: unknown name {name!r}.{hint(name, known)}")
    return name


def _value(word: str, name: str, text: str) -> Any:
    if name in NUMBERS:
        if not (text.isdecimal() and len(text) < 20):
            raise PlanError(f"{word}: {text!r} is not a whole number.")
        return int(text)
    if name in FLAGS:
        if text not in ("true", "false", "1", "0", "yes", "no", "on", "off"):
            raise PlanError(f"{word}: {name} takes true or false.")
        return text in ("true", "1", "yes", "on")
    if name == "schedule" and text not in SCHEDULES:
        raise PlanError(f"{word}: unknown schedule.{remedy(text)}")
    if text in _LEFT_OPEN.get(name, ()) or name not in _READ_AS:
        return text
    value = value_of(word, _READ_AS[name], text)
    match name:
        case "buckets":
            return value
        case "order":
            return "-".join(value)
        case "layers":
            return ",".join(map(str, value))
    return text


def kept(name: str, values: Sequence[Any], constraints: Sequence[Constraint]) -> tuple[Any, ...]:
    """The values that all constraints on a name allow; values asked for by name are added if they were not there."""
    mine = [c for c in constraints if c.name == name]
    asked = [v for c in mine if c.sign == "=" for v in c.values]
    every = dict.fromkeys((*values, *asked))
    return tuple(v for v in every if all(c.allows(v) for c in mine))


def value_in(words: Words, name: str) -> Any:
    """What a plan has of a choice, comparable between plans and with constraints; None where it has no such choice."""
    match name:
        case "shard":
            return words.shard or 0
        case "etp":
            return expert_tensor_degree(words) if words.ep > 1 else None
        case "micro":
            return words.micro or 1
        case "recompute":
            return words.recompute or "none"
        case "schedule":
            return meant(words.schedule, words.pp, words.vpp)[0].name if words.pp > 1 else None
        case "offload":
            return "+".join(words.offload) or "none"
        case "order":
            return "-".join(words.order) if words.order else "default"
        case "cp-exchange":
            return words.exchange
        case "layers":
            return "even" if words.layers is None else ",".join(map(str, words.layers))
        case "buckets":
            return words.buckets or "default"
    return getattr(words, name)
