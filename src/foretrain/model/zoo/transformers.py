"""GPT, Llama, mixtures of experts, BERT and their like: all that a `TransformerShape` describes completely, from a table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from foretrain.loading import load_own_yaml
from foretrain.model.shape import TransformerShape
from foretrain.model.transformer import transformer
from foretrain.model.zoo import Entry


def _entry(name: str, shape: TransformerShape, seq: int, source: str) -> Entry:
    return Entry(lambda length: transformer(shape, length, name, source), seq, source, shape)


def _shape(family: dict[str, Any], row: list[Any]) -> TransformerShape:
    own = row[-1] if isinstance(row[-1], dict) else {}
    fields = dict(zip(family["columns"], row, strict=False))
    return TransformerShape(**{**family["shared"], **fields, **own})


MODELS: dict[str, Entry] = {
    name: _entry(name, _shape(family, row), family["seq"], family["source"])
    for family in load_own_yaml(Path(__file__).with_name("transformers.yaml"))
    for name, row in family["models"].items()
}
