"""Where the pieces of a model lie: the stage and the chunk of each, and the way from one to the next."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from foretrain.arrays import Ints


@dataclass(frozen=True, eq=False)
class Pieces:
    """`of[chunk, stage]`: the piece of the model that a chunk of a stage is. Each piece lies on the stage of the one
    before it or next to that; `wraps`: the last stage and the first are next to each other too."""

    of: Ints
    wraps: bool = False

    @property
    def stages(self) -> int:
        return int(self.of.shape[1])

    @property
    def count(self) -> int:
        return int(self.of.size)

    @cached_property
    def stage_of(self) -> Ints:
        """[pieces]"""
        return np.argsort(self.of, axis=None) % self.stages

    @cached_property
    def chunk_of(self) -> Ints:
        """[pieces]"""
        return np.argsort(self.of, axis=None) // self.stages

    @cached_property
    def hops(self) -> Ints:
        """[pieces - 1] stages from each piece to the next: 1 or -1, 0 where both lie on one stage."""
        step = np.diff(self.stage_of)
        if not self.wraps:
            return step
        around = step % self.stages
        return np.where(2 * around <= self.stages, around, around - self.stages)

    def by_chunk(self, pieces: np.ndarray, axis: int = -1) -> np.ndarray:
        """[…, pieces, …] → […, chunks, stages, …]"""
        shape = list(pieces.shape)
        axis %= pieces.ndim
        shape[axis : axis + 1] = self.of.shape
        if self.is_looped:
            return pieces.reshape(shape)
        return np.take(pieces, self.of.reshape(-1), axis=axis).reshape(shape)

    @cached_property
    def is_looped(self) -> bool:
        """Whether pieces follow the chunks, and stage after stage in each."""
        return bool((self.of.reshape(-1) == np.arange(self.of.size)).all())


@lru_cache(maxsize=256)
def looped(stages: int, chunks: int) -> Pieces:
    """Round and round: chunk c of stage s is piece c · stages + s."""
    return Pieces(np.arange(stages * chunks).reshape(chunks, stages), wraps=chunks > 1)


@lru_cache(maxsize=256)
def folded(stages: int, chunks: int) -> Pieces:
    """To and fro: every other chunk runs from the last stage to the first. Two of them make a V, which begins and ends
    on the first stage and turns on the last."""
    table = np.arange(stages * chunks).reshape(chunks, stages)
    table[1::2] = table[1::2, ::-1].copy()
    return Pieces(table)
