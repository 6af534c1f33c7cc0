"""What is trained: the model as its task and its software have it, and how the machine counts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import ceil
from typing import Any

from foretrain.errors import RuntimePresetError
from foretrain.limits import LAYERS, Range, shown
from foretrain.model.graph import Model
from foretrain.model.transformer import transformer
from foretrain.resolving.request import Notes
from foretrain.runtime import Runtime, preset_file
from foretrain.runtime.features.model_variants import ModelVariants

SQUAD_TOKENS = 384
_CAPACITY = Range(0.0, 1000.0)
_MODULES = "mtp_layers"
MASKED = 0.15  # share of tokens that BERT masks (Devlin et al. 2018)


def as_trained(
    model: Model, stack: Runtime, options: Mapping[str, Any], notes: Notes, *, keeps_dropout: bool
) -> Model:
    """The model with what its task, its stack and the switches of both change in it; `keeps_dropout` where its own is
    stated."""
    _note_without_effect(model, options, notes)
    modules = _modules_asked(options, model.shape.num_nextn_predict_layers if model.shape else 0)
    if model.shape is None or model.seq_len is None:
        if modules:
            raise RuntimePresetError(
                f"{_MODULES} = {modules}: {model.name} is not defined by a transformer shape, "
                "so modules cannot be added. Remove this option."
            )
        return model
    shape, length = model.shape, _mean_length(model.seq_len, options, notes)
    changes: dict[str, Any] = {}
    variants = stack.model_variants or ModelVariants()
    if shape.dropout and not variants.has_dropout and not keeps_dropout:
        changes["dropout"] = 0.0
    capacity = _capacity(options, notes) if shape.num_experts else None
    if capacity:
        changes["capacity_factor"] = max(1.0, capacity)
    if modules is not None:
        changes["num_nextn_predict_layers"] = modules
    if shape.head == "mlm":
        changes |= _masked(length, stack, options, notes)
    changes = {name: value for name, value in changes.items() if getattr(shape, name) != value}
    if not changes and length == model.seq_len:
        return model
    return transformer(replace(shape, **changes), length, model.name, model.source, model.details)


def _note_without_effect(model: Model, options: Mapping[str, Any], notes: Notes) -> None:
    shape = model.shape
    predicts = shape is not None and shape.head == "mlm" and model.seq_len != SQUAD_TOKENS
    reasons = {
        "moe_capacity_factor": "" if shape and shape.num_experts else "has no experts",
        "max_predictions": "" if predicts else "is not trained to predict masked tokens",
    }
    for key, reason in reasons.items():
        if reason and options.get(key) is not None:
            warning = f"{key} = {shown(options[key])} has no effect: {model.name} {reason}."
            notes.warn(warning)


def _capacity(options: Mapping[str, Any], notes: Notes) -> float | None:
    stated = options.get("moe_capacity_factor")
    if stated is None:
        return None
    is_number = isinstance(stated, int | float) and not isinstance(stated, bool)
    if not (is_number and _CAPACITY.allows(stated)):
        raise RuntimePresetError(
            f"moe_capacity_factor = {shown(stated)}: must be a number from 0 to "
            f"{_CAPACITY.most:,.0f}, the tokens an expert takes over its even share."
        )
    if 0 < stated < 1:
        notes.warn(f"moe_capacity_factor = {stated} is predicted as 1: no token is dropped.")
    return float(stated)


def _predictions(length: int, options: Mapping[str, Any]) -> int | None:
    stated = options.get("max_predictions")
    if stated is None:
        return None
    if isinstance(stated, bool) or not isinstance(stated, int) or not 1 <= stated <= length:
        raise RuntimePresetError(
            f"max_predictions = {shown(stated)}: must be a whole number from 1 to the sequence "
            f"length ({length:,})."
        )
    return stated


def _modules_asked(options: Mapping[str, Any], usual: int) -> int | None:
    """Modules of multi-token prediction: as many as a switch counts, the model's `usual` ones or one where a switch
    says no more than yes, None where none says anything."""
    asked, count = options.get("mtp"), options.get(_MODULES)
    if asked is not None and not isinstance(asked, bool):
        raise RuntimePresetError(f"mtp = {asked!r}: must be true or false.")
    if count is not None and not (LAYERS.allows(count) or (count == 0 and type(count) is int)):
        raise RuntimePresetError(
            f"{_MODULES} = {count!r}: must be a whole number of modules up to {LAYERS.most:,}, 0 for none."
        )
    if asked is not None and count is not None and asked != bool(count):
        raise RuntimePresetError(
            f"mtp = {str(asked).lower()} and {_MODULES} = {count}: these contradict each "
            "other. Specify only one of them."
        )
    if count is not None or asked is None:
        return count
    return max(1, usual) if asked else 0


def _mean_length(length: int, options: Mapping[str, Any], notes: Notes) -> int:
    """Tokens per sample, or their mean where the software sorts samples by length instead of padding them."""
    tasks = {task.lower(): means for task, means in preset_file()["lengths"].items()}
    known = tasks.get(str(options.get("task")).lower(), {})
    mean = int(known.get(length, length))
    if mean != length:
        notes.assume(f"{mean} tokens", f"the mean of sorted batches of up to {length}", "--seq")
    return mean


def _masked(
    length: int, stack: Runtime, options: Mapping[str, Any], notes: Notes
) -> dict[str, Any]:
    """A BERT as its task has it. 384 tokens are SQuAD's (Devlin et al. 2018, run_squad), pre-training has 128 or 512;
    the masked tokens alone reach the head where a switch or the stack says so."""
    predictions = _predictions(length, options)
    if length == SQUAD_TOKENS:
        notes.assume(f"{length} tokens", "fine-tuning for question answering, as on SQuAD", "--seq")
        return {"head": "span"}
    variants = stack.model_variants
    if predictions is None and variants is not None and variants.gathers_masked:
        predictions = ceil(MASKED * length)
    return {} if predictions is None else {"predicted_positions": predictions}
