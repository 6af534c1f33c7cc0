"""GPT, Llama, mixtures of experts, BERT and their like: all that a `TransformerShape` describes completely, with their `Details`, from a
table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from foretrain.loading import load_own_yaml
from foretrain.model.details import NAMES, Details
from foretrain.model.shape import TransformerShape
from foretrain.model.transformer import transformer
from foretrain.model.zoo import Entry


def _entry(name: str, family: dict[str, Any], row: list[Any]) -> Entry:
    own = row[-1] if isinstance(row[-1], dict) else {}
    fields = dict(zip(family["columns"], row, strict=False))
    given = {**family["shared"], **fields, **own}
    shape = TransformerShape(**{key: given[key] for key in given if key not in NAMES})
    details, source = Details.of(given, name), family["source"]
    return Entry(
        lambda length: transformer(shape, length, name, source, details),
        family["seq"],
        source,
        shape,
    )


MODELS: dict[str, Entry] = {
    name: _entry(name, family, row)
    for family in load_own_yaml(Path(__file__).with_name("transformers.yaml"))
    for name, row in family["models"].items()
}
