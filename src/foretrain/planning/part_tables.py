"""What the blocks of a table of layers hold on the parts of a pipeline: worked out once for all plans that share them out
alike, whatever their mesh."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from foretrain.arrays import Bools, Floats, Ints
from foretrain.plan.schedules import Pieces
from foretrain.planning.layers import COUNTED, Layers


@dataclass(frozen=True, eq=False, slots=True)
class Ties:
    """Columns over the weights that share another's storage, in the order of `Model.origins`."""

    is_stored_before: Bools  # on its stage there is another one of them
    block: Floats  # [copies, blocks] 1.0 where it is
    origin: Ints  # equal for copies of one weight
    is_trained: Bools


@dataclass(frozen=True, eq=False)
class PartTables:
    """`share[part, block]`: repetitions of a block in a part."""

    layers: Layers
    share: Floats
    ties: Ties
    pieces: Pieces
    # [parts, 2] how many buckets, and bytes of the last, by the kind of weights, their number, the size asked for and
    # repetitions of blocks in the parts
    buckets: dict[tuple[int, int, float | None, bytes], Floats] = field(default_factory=dict)
    _elements: dict[tuple[str, int], Floats] = field(default_factory=dict)
    _by_stage: dict[tuple[str, int], Floats] = field(default_factory=dict)

    @cached_property
    def stage_share(self) -> Floats:
        """[stages, blocks] repetitions."""
        return np.asarray(self.pieces.by_chunk(self.share, 0).sum(axis=0))

    @cached_property
    def different_parts(self) -> tuple[Floats, Ints]:
        """[different parts, blocks] repetitions, and for each part which of them it is."""
        names = [part.tobytes() for part in self.share]
        numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
        first = [names.index(name) for name in numbers]
        return self.share[first], np.array([numbers[name] for name in names], dtype=np.int64)

    @cached_property
    def is_held(self) -> Bools:
        """[states, kinds] whether there are weights of a kind."""
        return np.asarray(self.layers.elements.any(axis=1))

    def by_stage(self, name: str, kind: int) -> Floats:
        """[states, stages] a column of weights."""
        found = self._by_stage.get((name, kind))
        if found is None:
            found = np.asarray(self.elements(name, kind) @ self.stage_share.T)
            self._by_stage[name, kind] = found
        return found

    def elements(self, name: str, kind: int) -> Floats:
        """[states, blocks] a column of weights; of tied ones each stage has one."""
        found = self._elements.get((name, kind))
        if found is None:
            found = self._elements[name, kind] = self._without_copies(name, kind)
        return found

    def _without_copies(self, name: str, kind: int) -> Floats:
        column = getattr(self.layers, name)[:, :, kind]
        tied = self.layers.tied[:, :, kind]
        if not tied.any() or not self.ties.is_stored_before.any():
            return np.asarray(column)
        each = np.sign(tied) if name in COUNTED else tied
        doubled = self.ties.is_stored_before
        if name not in ("elements", "gathered"):
            doubled = doubled & self.ties.is_trained
        return np.asarray(np.maximum(column - (each * doubled) @ self.ties.block, 0.0))
