"""A row of the zoo: how a named model is built, and for which sequence length unless said."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from foretrain.model.graph import Model
from foretrain.model.shape import TransformerShape


@dataclass(frozen=True, slots=True)
class Entry:
    """`build(seq)`; `seq` is the default length, None where samples are not sequences."""

    build: Callable[[int], Model]
    seq: int | None
    source: str
    shape: TransformerShape | None = None


def fixed(build: Callable[[], Model], source: str) -> Entry:
    """A model whose samples are not sequences."""
    return Entry(lambda _: build(), None, source)
