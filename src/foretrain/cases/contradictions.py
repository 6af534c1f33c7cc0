"""What a case says twice and not alike: every such pair is named, with what was taken of it and why."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from foretrain.cases import switches
from foretrain.cases.switches import Options, Split
from foretrain.errors import InputError
from foretrain.limits import shown
from foretrain.model.precision import precision

# Switches of one meaning, of which the first that is stated counts.
_ALIKE = (switches.STRATEGY, switches.SHARD_SIZE, switches.REPLICAS, switches.FULLY, switches.RESHARDS,
          switches.SHARE, switches.ACCUMULATED)  # fmt: skip
_PLAN_FIRST = "the plan is the first word"
_FORMATS = {
    "mxfp8": "mxfp8", "mx": "mxfp8", "nvfp4": "nvfp4", "bf16": "bf16", "fp16": "fp16",
    **dict.fromkeys(("fp8", "cs", "delayed", "tensorwise", "rowwise", "current", "e4m3", "hybrid", "true"), "fp8"),
}  # fmt: skip
"""Words of fp8 recipes (NVIDIA Transformer Engine, torchao), and the number format each stands for."""
OF_PRECISION = ("precision", "precision_mode", "fp8", "fp8_recipe", "fp8_scaling")
"""Switches that say the number format once more."""


@dataclass(frozen=True, slots=True)
class _Statement:
    path: str
    value: Any
    holds: bool  # of what was taken
    why: str = ""  # it was taken, where another says otherwise

    def __str__(self) -> str:
        return f"{self.path} = {shown(self.value)}"


def said_twice(beside: Options, inside: Options) -> Iterator[str]:
    """Switches that stand beside a case's keys and among its runtime options, or under two names."""
    for key in beside:
        if inside.get(key) is not None and inside[key] != beside[key]:
            one, other = f"{key} = {shown(beside[key])}", f"{_path(key)} = {shown(inside[key])}"
            yield f"{one} and {other} contradict each other; the latter is used."
    options = {**beside, **inside}
    for keys in _ALIKE:
        stated = [key for key in keys if options.get(key) not in (None, -1)]
        for key in stated[1:]:
            if _folded(keys, options[key]) != _folded(keys, options[stated[0]]):
                first = f"{_path(stated[0])} = {shown(options[stated[0]])}"
                second = f"{_path(key)} = {shown(options[key])}"
                yield f"{first} and {second} contradict each other; the former is used."


def of_sharding(options: Options, zero: int | None, taken: Split, replicas: int) -> Iterator[str]:
    """`zero` is the plan's, `replicas` hold the same weights."""
    strategy = _stated(options, switches.STRATEGY)
    reshards = _stated(options, switches.RESHARDS)
    fully = _stated(options, switches.FULLY)
    statements = []
    if reshards is not None:
        keeps = str(reshards[1]).lower() in ("false", "never")
        is_meant = taken.zero in ((1, 2) if keeps else (3, None))
        if keeps or str(reshards[1]).lower() != "default":
            why = "weights that stay gathered are not split"
            statements.append(_Statement(*reshards, is_meant, why))
    if zero is not None:
        statements.append(_Statement("plan.zero", zero, taken.zero == zero, _PLAN_FIRST))
    if strategy is not None and (named := switches.strategy_of(options)) is not None:
        why = "a strategy is more exact than the stage"
        statements.append(_Statement(*strategy, taken.zero == named[0], why))
    if fully is not None and switches.is_fully_sharded(options):
        statements.append(_Statement(*fully, taken.zero in (2, 3, None)))
    yield from _named(statements, f"ZeRO {taken.zero}")
    if zero is not None and taken.zero != zero and not any(one.holds for one in statements):
        why = "this software keeps gathered weights for all micro-batches of a pipeline"
        yield f"plan.zero = {zero} is predicted as ZeRO {taken.zero}: {why}."
    yield from _of_groups(options, taken, replicas)


def _of_groups(options: Options, taken: Split, replicas: int) -> Iterator[str]:
    """Over how many ranks states are split."""
    size, copies = switches.shard_size(options), switches.replica_groups(options)
    named = switches.strategy_of(options)
    strategy = _stated(options, switches.STRATEGY)
    over = _stated(options, switches.SHARD_SIZE)
    groups = _stated(options, switches.REPLICAS)
    hybrid = options.get("hsdp") is True
    if taken.zero == 0:
        for option in (over if size else None, groups if copies else None):
            if option is not None and option[1] not in (1, replicas):
                yield f"{option[0]} = {option[1]} has no effect: ZeRO 0 shards nothing."
        return
    if size is not None and over is not None and size > replicas:
        yield f"{over[0]} = {size} exceeds the {replicas} replicas; all of them share the shards."
    elif size is not None and copies is not None and size * copies != replicas:
        conflict = f"{_path_of(over)} = {size} x {_path_of(groups)} = {copies}"
        yield f"{conflict} contradicts the {replicas} replicas; the shard size is used."
    elif size is None and copies is not None and replicas % copies:
        yield f"{_path_of(groups)} = {copies} does not divide the {replicas} replicas; ignored."
    is_full = named is not None and not named[1] and named[0] > 0
    if is_full and strategy is not None and (taken.shard is not None or hybrid):
        conflict = f"{strategy[0]} = {strategy[1]} shards over all replicas"
        yield f"{conflict}, but another option names groups of them; groups of {taken.shard} are used."


def of_recompute(
    options: Options, plan: str | None, taken: str | None, ops: Sequence[str], layers: float
) -> Iterator[str]:
    if taken is None:
        return
    is_part = taken not in ("none", "full")
    levels: dict[str, bool] = {
        "none": taken == "none", "full": taken.startswith("full"), "selective": is_part,
    }  # fmt: skip
    statements = []
    if plan is not None:
        # some of a stage's layers may be none of them
        holds = levels.get(plan, taken == plan) or options.get(switches.AGAIN) is not None
        statements.append(_Statement("plan.recompute", plan, holds, _PLAN_FIRST))
    for key, word in switches.recompute_words(options, ops, layers):
        why = "it is the most exact"
        statements.append(_Statement(_path(key), options[key], taken == word, why))
    mode = _stated(options, switches.CHECKPOINTING)
    level = switches.checkpointing(options)
    if mode is not None and level is not None:
        holds = taken != "none" if mode[1] is True else levels[level]
        statements.append(_Statement(*mode, holds, "it is the first that is stated"))
    yield from _named(statements, f"recompute={taken}")


def of_layers(options: Options, taken: Sequence[int] | None) -> Iterator[str]:
    layout = options.get(switches.LAYOUT)
    if layout is None or not options.get("layers_per_stage"):
        return
    if switches.layers_from({switches.LAYOUT: layout}) != taken:
        both = f"{_path('layers_per_stage')} and {_path(switches.LAYOUT)}"
        yield f"{both} contradict each other; layers_per_stage is used."


def of_batch(
    options: Options, total: int, micro: int | None, replicas: int, *, is_open: bool
) -> Iterator[str]:
    """`micro` as the case says or implies it."""
    option = _stated(options, switches.ACCUMULATED)
    passes = switches.accumulated(options)
    if option is None or passes is None:
        return
    path = option[0]
    if micro is None:
        conflict = (
            f"{path} = {passes} does not divide batch.global = {total} over {replicas} replicas"
        )
        yield f"{conflict}; the micro-batch is chosen instead."
    elif total != micro * replicas * passes and is_open:
        yield f"{path} = {passes} is ignored: batch.global and batch.micro decide, whatever the plan."
    elif total != micro * replicas * passes:
        conflict = f"{path} = {passes} contradicts batch.global = {total} and batch.micro = {micro}"
        yield f"{conflict} over {replicas} replicas; batch.global and batch.micro are used."


def of_precision(options: Options, stated: str | None) -> dict[str, str]:
    """Warnings by switch."""
    try:
        wanted = None if stated is None else precision(stated).name
    except InputError:
        return {}  # told where it is read
    conflicts = {}
    for key in OF_PRECISION:
        named = _format(options.get(key))
        if named is not None and wanted is not None and named != wanted:
            one = f"{_path(key)} = {shown(options[key])}"
            conflicts[key] = f"{one} contradicts precision = {stated}; precision is used."
    return conflicts


def _format(value: Any) -> str | None:
    """The number format that a switch says; None where it says none."""
    if value is None:
        return None
    try:
        return precision(str(value)).name
    except InputError:
        words = re.split(r"[^a-z0-9]+", str(value).lower())
        formats = [_FORMATS[word] for word in words if word in _FORMATS]
        return next((name for name in formats if name != "fp8"), formats[0] if formats else None)


def _named(statements: Sequence[_Statement], taken: str) -> Iterator[str]:
    winner = next((one for one in statements if one.holds), None)
    for one in statements:
        if not one.holds and winner is not None:
            why = f": {winner.why}" if winner.why else ""
            yield f"{one} contradicts {winner}; {taken} is used{why}."


def _folded(keys: Sequence[str], value: Any) -> object:
    if keys == switches.FULLY:  # a degree says yes, too
        return switches.is_fully_sharded({keys[0]: value})
    return str(value).lower().replace("-", "_")


def _stated(options: Options, keys: Sequence[str]) -> tuple[str, Any] | None:
    stated = (key for key in keys if options.get(key) not in (None, -1))
    return next(((_path(key), options[key]) for key in stated), None)


def _path(key: str) -> str:
    return f"runtime_options.{key}"


def _path_of(option: tuple[str, Any] | None) -> str:
    return "" if option is None else option[0]
