"""Named models. One file per family with its table `MODELS`, one row per file in `_FAMILIES`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module

from foretrain.errors import ModelError, hint
from foretrain.limits import shown
from foretrain.model.graph import Model
from foretrain.model.shape import TransformerShape

# Files in the order in which they are looked through; those after the one that has a name are not loaded.
_FAMILIES = (
    "transformers",
    "t5",
    "vit",
    "resnet",
    "vgg",
    "inception",
    "yolo",
    "recurrent",
    "dlrm",
)
_ALIASES = {
    "gpt2-small": "gpt2",
    "gpt3": "gpt3-175b",
    "llama3-405b": "llama3.1-405b",
    "mixtral": "mixtral-8x7b",
    "deepseek-v3-671b": "deepseek-v3",
    "grok1": "grok-1",
    "vit-b-16": "vit-b",
    "vit-l-16": "vit-l",
    "vit-h-14": "vit-h",
    "inception_v3": "inception-v3",
    "wide_resnet50_2": "wide-resnet50-2",
    "wide_resnet101_2": "wide-resnet101-2",
}


@dataclass(frozen=True, slots=True)
class Entry:
    """A row of the zoo: `build(seq)`; `seq` is the default length, None where samples are not sequences."""

    build: Callable[[int], Model]
    seq: int | None
    source: str
    shape: TransformerShape | None = None


def fixed(build: Callable[[], Model], source: str) -> Entry:
    """A model whose samples are not sequences."""
    return Entry(lambda _: build(), None, source)


def names() -> tuple[str, ...]:
    """Every model of the zoo."""
    return tuple(name for family in _FAMILIES for name in _models(family))


def entry(name: str) -> Entry:
    """The row of a model; unknown names are refused with the nearest known ones."""
    key = _ALIASES.get(name.lower(), name.lower())
    for family in _FAMILIES:
        if key in _models(family):
            return _models(family)[key]
    remedy = hint(name, (*names(), *_ALIASES), "foretrain catalog list models")
    raise ModelError(f"unknown model {shown(name, 80)}.{remedy}")


def _models(family: str) -> dict[str, Entry]:
    table: dict[str, Entry] = import_module(f"{__name__}.{family}").MODELS
    return table


def shape(name: str) -> TransformerShape | None:
    """The shape of a zoo transformer; None for models that no shape describes."""
    return entry(name).shape


def build(name: str, seq: int | None = None) -> Model:
    """A model by name; `seq` is ignored where samples are not sequences."""
    row = entry(name)
    if seq is not None and seq < 1:
        raise ModelError(f"sequence length {seq} is not positive.")
    return _build(
        _ALIASES.get(name.lower(), name.lower()), 0 if row.seq is None else seq or row.seq
    )


@cache
def _build(name: str, seq: int) -> Model:
    return entry(name).build(seq)
