"""The switch `float8` beside a precision: on, off, or a recipe by name (torchtitan's float8 converter, torchao)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from foretrain.errors import RuntimePresetError, did_you_mean
from foretrain.limits import shown
from foretrain.model.precision import Precision, precision
from foretrain.resolving.request import Notes

_OFF = ("false", "off", "no", "none", "0", "")
_ON = ("true", "on", "yes", "1")
_RECIPES = {
    **dict.fromkeys(
        ("tensorwise", "rowwise", "rowwise_with_gw_hp", "dynamic", "delayed", "current", "hybrid",
         "e4m3", "fp8", "float8"),
        "fp8",
    ),
    "mx": "mxfp8",
    "mxfp8": "mxfp8",
}  # fmt: skip


def with_float8(current: Precision, options: Mapping[str, Any], notes: Notes) -> Precision:
    """The precision with what the switch makes of it; where both speak, the precision is the last word unless it is
    bf16, which is what such runs call theirs."""
    stated = options.get("float8")
    if stated is None:
        return current
    word = str(stated).strip().lower().replace("-", "_")
    if word not in (*_OFF, *_ON, *_RECIPES):
        known = ("on", "off", *_RECIPES)
        fault = f"float8 = {shown(stated)}: must be on, off or one of {', '.join(_RECIPES)}."
        notes.unknown_switch(
            f"runtime_options.float8 = {stated}: unknown; ignored.",
            RuntimePresetError(fault + did_you_mean(stated, known)),
        )
        return current
    is_off = word in _OFF
    if is_off == (not current.quantises):
        return current
    if is_off or current.name != "bf16":
        remedy = "Use --precision bf16." if is_off else "Use --precision fp8."
        notes.warn(f"float8 = {stated} has no effect with precision {current.name}. {remedy}")
        return current
    name = _RECIPES.get(word, "fp8")
    notes.assume(f"precision {name}", f"float8 = {stated}", "--precision")
    return precision(name)
