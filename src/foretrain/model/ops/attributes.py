"""Attributes of ops: what a graph that somebody wrote may say beside sizes and tensors."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from foretrain.errors import did_you_mean
from foretrain.limits import DIMENSION, is_finite, shown
from foretrain.model.graph import Attr, Op
from foretrain.model.ops import FAMILIES
from foretrain.model.ops.elementwise import ELEMENTWISE
from foretrain.model.ops.family import Check

_TABLES = re.compile(r"\d{1,12}x\d{1,6}(,\d{1,12}x\d{1,6})*")


def _is_number(value: Attr) -> bool:
    return not isinstance(value, bool | str) and is_finite(value)


def _one_of(*words: str) -> Check:
    return (lambda value: value in words), f"one of {', '.join(words)}"


_FLAG: Check = (lambda value: isinstance(value, bool)), "true or false"
_COUNT: Check = DIMENSION.allows, "a positive whole number"
_COUNT_OR_NONE: Check = (lambda value: value == 0 or DIMENSION.allows(value)), "a whole number"
_SHARE: Check = (lambda value: _is_number(value) and 0 <= float(value) < 1), "a share below 1"
_SKEW: Check = (
    (lambda value: _is_number(value) and 0 <= float(value) <= 10),
    "a number from 0 to 10",
)
_SCALE: Check = (
    (lambda value: _is_number(value) and 0 < float(value) <= 1e6),
    "a positive number up to a million",
)
_LISTED: Check = (
    (lambda value: isinstance(value, str) and _TABLES.fullmatch(value) is not None),
    "rows and look-ups of every table, as in 1000x1,50x3",
)

ATTRIBUTES: Mapping[str, Check] = {
    "causal": _FLAG,
    "dropout": _SHARE,
    "follows_norm": _FLAG,
    "follows_product": _FLAG,
    "groups": _COUNT,
    "halo_h": _COUNT_OR_NONE,
    "halo_w": _COUNT_OR_NONE,
    "input_gradient": _FLAG,
    "input_scale": _SCALE,
    "kernel_h": _COUNT,
    "kernel_w": _COUNT,
    "kv_total": _COUNT,
    "norm": _one_of("layernorm", "rmsnorm", "batchnorm"),
    "op": _one_of(*ELEMENTWISE),
    "pool": _one_of("max", "avg", "global"),
    "reduces": _FLAG,
    "skew": _SKEW,
    "sparse": _FLAG,
    "stride": _COUNT,
    "tables": _LISTED,
    "top_k": _COUNT,
    "wide": _FLAG,
    "window": _COUNT_OR_NONE,
}


def attribute_faults(op: Op) -> Iterator[str]:
    """What is wrong with an op's attributes."""
    formulas = FAMILIES.get(op.kind)
    known = {**ATTRIBUTES, **(formulas.attributes if formulas else {})}
    for name, value in op.attrs:
        if name not in known:
            yield f"unknown attribute {shown(name)}.{did_you_mean(name, known)}"
            continue
        is_allowed, allowed = known[name]
        if not is_allowed(value):
            yield f"{name}: {shown(value)} is not {allowed}."
