"""A row of the zoo: how a named model is built, and for which sequence length unless told."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from foretrain.model.graph import Model
from foretrain.model.shape import TransformerShape
from foretrain.model.transformer import transformer


@dataclass(frozen=True, slots=True)
class Entry:
    """`build(seq)`; `seq` is the default length, None where samples are not sequences."""

    build: Callable[[int], Model]
    seq: int | None
    source: str
    shape: TransformerShape | None = None


def entry_of(name: str, shape: TransformerShape, seq: int, source: str) -> Entry:
    """A transformer that its shape describes completely."""
    return Entry(lambda length: transformer(shape, length, name, source), seq, source, shape)


def entries_of(shapes: Mapping[str, TransformerShape], seq: int, source: str) -> dict[str, Entry]:
    return {name: entry_of(name, shape, seq, source) for name, shape in shapes.items()}


def fixed(build: Callable[[], Model], source: str) -> Entry:
    """A model whose samples are not sequences."""
    return Entry(lambda _: build(), None, source)
