"""Plan words given as data: `{"tp": 8, "zero": 1}`, in Python or as a file. All faults at once."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import fields
from typing import Any

from foretrain.errors import InputError, PlanError, did_you_mean, hint
from foretrain.limits import DEVICES, LAYERS, MICRO_BATCH, Limit, shown
from foretrain.plan.schedules import SCHEDULES
from foretrain.plan.short_form import Words
from foretrain.plan.strategy import EXCHANGES, OFFLOADS
from foretrain.units import parse_bytes


def words_in(plan: Mapping[str, Any]) -> dict[str, object]:
    """The words that a mapping says, checked; None says nothing."""
    known = [field.name for field in fields(Words)]
    found: dict[str, object] = {}
    faults = []
    for name, value in plan.items():
        if name not in known:
            faults.append(f"{str(name)[:40]}: unknown plan keyword.{hint(name, known)}")
            continue
        if value is None:
            continue
        try:
            found[name] = _READERS[name](value)
        except InputError as error:
            faults.append(f"{name}: {error}")
    if faults:
        raise PlanError("the plan is invalid:", faults=faults)
    return found


def _count(limit: Limit) -> Callable[[Any], int]:
    def read(value: Any) -> int:
        if not limit.allows(value):
            raise PlanError(limit.fault(value))
        return int(value)

    return read


def _zero(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= 3:
        raise PlanError(f"{shown(value)}: the ZeRO stage must be 0 to 3.")
    return value


def _switch(value: Any) -> bool:
    if not isinstance(value, bool):
        raise PlanError(f"{shown(value)} is not true or false.")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise PlanError(f"{shown(value)} is not a word, such as none, selective or full.")
    return value.lower()


def _one_of(known: Collection[str]) -> Callable[[Any], str]:
    def read(value: Any) -> str:
        if value not in known:
            near = did_you_mean(value, known)
            raise PlanError(f"{shown(value)} is not one of {', '.join(known)}.{near}")
        return str(value)

    return read


def _names(separator: str, known: tuple[str, ...]) -> Callable[[Any], tuple[str, ...]]:
    def read(value: Any) -> tuple[str, ...]:
        parts = value.replace("+", separator).split(separator) if isinstance(value, str) else value
        if not isinstance(parts, list | tuple):
            raise PlanError(f"{shown(value)} is not a list of {', '.join(known)}.")
        return tuple(_one_of(known)(part) for part in parts)

    return read


def _layers(value: Any) -> tuple[int, ...]:
    is_list = isinstance(value, list | tuple) and len(value) > 0
    if not is_list or not all(n == 0 or LAYERS.allows(n) for n in value):
        raise PlanError(f"{shown(value)} is not a list of layers per stage, such as [8, 8].")
    return tuple(int(n) for n in value)


def _size(value: Any) -> float:
    size = parse_bytes(value)
    if not size > 0:
        raise PlanError(f"{shown(value)} is not a positive size in bytes.")
    return size


_READERS: Mapping[str, Callable[[Any], object]] = {
    **dict.fromkeys(("tp", "pp", "cp", "ep", "dp", "etp", "vpp", "shard"), _count(DEVICES)),
    "micro": _count(MICRO_BATCH),
    "zero": _zero,
    "sp": _switch,
    "schedule": _one_of(SCHEDULES),
    "recompute": _text,
    "offload": _names(",", OFFLOADS),
    "exchange": _one_of(EXCHANGES),
    "tables": _one_of(("replicated", "rows")),
    "buckets": _size,
    "layers": _layers,
    "order": _names("-", ("tp", "cp", "dp", "pp", "ep")),
}
"""One for every word, which a test holds against `Words`."""
