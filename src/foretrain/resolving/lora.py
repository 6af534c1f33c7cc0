"""What is trained of a model: all of it, or adapters beside frozen weights (`peft`, `lora_rank`, `lora_targets` …)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from foretrain.errors import RuntimePresetError
from foretrain.limits import DIMENSION, shown
from foretrain.model.graph import Model
from foretrain.model.precision import Precision, frozen_as
from foretrain.resolving.defaults import defaults
from foretrain.resolving.request import Notes

METHODS = ("lora", "qlora")
NEED_ADAPTERS = (
    "lora_rank", "lora_alpha", "lora_targets", "base_weights_frozen", "frozen_weights_dtype",
)  # fmt: skip
SWITCHES = ("peft", *NEED_ADAPTERS)
QUANTISED = "nf4"  # what QLoRA keeps frozen weights in (Dettmers et al. 2023)

Options = Mapping[str, Any]


def tuned(
    model: Model, precision: Precision, options: Options, notes: Notes
) -> tuple[Model, Precision]:
    """The model as a run tunes it, and its formats: with adapters where the switches say so."""
    method = _method(options, notes)
    if method is None:
        return model, precision
    # loaded by those who tune: most train all weights
    from foretrain.model.lora import TARGETS, Adapters, with_adapters

    _expect_scale(options)
    adapters = Adapters(_rank(options, notes), _targets(options, notes, TARGETS))
    stored = options.get("frozen_weights_dtype") or (QUANTISED if method == "qlora" else None)
    if stored is not None:
        precision = frozen_as(precision, str(stored))
    return with_adapters(model, adapters), precision


def _method(options: Options, notes: Notes) -> str | None:
    """lora, qlora, or None where all weights are trained."""
    said = {
        word
        for word in (str(options.get(key)).lower() for key in ("peft", "training"))
        if word in METHODS
    }
    given = [key for key in NEED_ADAPTERS if options.get(key) not in (None, False)]
    if given and not said:
        raise RuntimePresetError(
            f"{given[0]} = {options[given[0]]}: this option is for adapters, but adapter "
            "training is not enabled. Add peft = lora."
        )
    if said and options.get("base_weights_frozen") is False:
        raise RuntimePresetError(
            "base_weights_frozen = false: adapters with trainable base weights are not "
            "supported. Remove peft, or freeze the weights."
        )
    if not said:
        return None
    _compare(options, notes)
    return "qlora" if "qlora" in said else "lora"


def _compare(options: Options, notes: Notes) -> None:
    """peft and training, where one says adapters and the other all weights."""
    whole = {"training": ("full", "full_finetuning"), "peft": ("false", "none", "off")}
    for key, words in whole.items():
        stated = options.get(key)
        if str(stated).lower().replace("-", "_") not in words or stated is None:
            continue
        other = "peft" if key == "training" else "training"
        one, used = f"{key} = {stated}", str(options[other])
        notes.contradiction(one, f"{other} = {used}", used)


def _expect_scale(options: Options) -> None:
    """lora_alpha only scales the adapters' result: any positive number takes the same time."""
    alpha = options.get("lora_alpha")
    is_number = isinstance(alpha, int | float) and not isinstance(alpha, bool)
    if alpha is not None and not (is_number and 0 < alpha < float("inf")):
        raise RuntimePresetError(f"lora_alpha = {shown(alpha)}: must be a positive number.")


def _rank(options: Options, notes: Notes) -> int:
    rank = options.get("lora_rank")
    if rank is None:
        usual = int(defaults()["lora"]["rank"])
        notes.assume(
            f"adapters of rank {usual}", defaults()["lora"]["because"], "--set lora_rank=…"
        )
        return usual
    if not DIMENSION.allows(rank):
        raise RuntimePresetError(f"lora_rank = {shown(rank)}: {DIMENSION.fault(rank)}")
    return int(rank)


def _targets(options: Options, notes: Notes, known: Sequence[str]) -> tuple[str, ...]:
    stated = options.get("lora_targets")
    if stated is None:
        usual = tuple(defaults()["lora"]["targets"])
        what, why = f"adapters on {', '.join(usual)}", defaults()["lora"]["because"]
        notes.assume(what, why, "--set lora_targets=…")
        return usual
    words = stated.split(",") if isinstance(stated, str) else stated
    if not isinstance(words, list | tuple) or not words:
        raise RuntimePresetError(
            f"lora_targets = {shown(stated)}: not a list of projections. Known: {', '.join(known)}."
        )
    return tuple(dict.fromkeys(_spelled(str(word), known) for word in words))


def _spelled(word: str, known: Sequence[str]) -> str:
    name = word.strip(" []\"'").lower()
    return name.replace("_", "-") if name.replace("_", "-") in known else name
