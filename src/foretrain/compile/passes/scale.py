"""Scale: the program of a block on a larger micro-batch, from those on two smaller ones.

All sizes of a program are products of dims, of which the batch is one, or sums of such products and of what does not know
the batch (weights that a kernel reads beside its input). A size that is the same on both is the same on all, one that
grows as the micro-batch does goes on to, and bytes of kernels lie on a line. Where anything else is found (rows of tables
that are met more than once, dims that have to be multiples of something), there is no answer, and the block has to be
compiled.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from foretrain.compile.execution import Communication, Compute, Item
from foretrain.compile.passes.communicate import BlockProgram, OpProgram
from foretrain.model.ops.base import Kernel

Sizes = tuple[tuple[str, float], ...]


class Bent(Exception):
    """Something does not grow as the micro-batch does."""


class Line(NamedTuple):
    """From micro-batches of two sizes to a third. Dims that grow are multiples of `aligned` where kernels ask for it."""

    low: int
    high: int
    wanted: int
    aligned: int

    def program(self, low: BlockProgram, high: BlockProgram) -> BlockProgram | None:
        """None where a block has to be compiled."""
        try:
            return self._program(low, high)
        except Bent:
            return None

    def _program(self, low: BlockProgram, high: BlockProgram) -> BlockProgram:
        _expect(low.outgoing == high.outgoing and len(low.ops) == len(high.ops))
        ops = tuple(self._op(a, b) for a, b in zip(low.ops, high.ops, strict=True))
        boundary = self._size(low.boundary_bytes, high.boundary_bytes)
        return replace(low, ops=ops, boundary_bytes=boundary)

    def _op(self, low: OpProgram, high: OpProgram) -> OpProgram:
        _expect(low.weights == high.weights)
        return OpProgram(
            low.path,
            low.kind,
            self._items(low.forward, high.forward),
            self._items(low.backward, high.backward),
            self._items(low.backward_weight, high.backward_weight),
            self._sizes(low.saved, high.saved),
            self._sizes(low.inputs, high.inputs),
            self._sizes(low.outputs, high.outputs),
            low.weights,
        )

    def _items(self, low: tuple[Item, ...], high: tuple[Item, ...]) -> tuple[Item, ...]:
        _expect(len(low) == len(high))
        return tuple(self._item(a, b) for a, b in zip(low, high, strict=True))

    def _item(self, low: Item, high: Item) -> Item:
        a, b, beside = low.work, high.work, None
        if low.beside is not None and high.beside is not None:
            beside = self._exchange(low.beside, high.beside)
        else:
            _expect(low.beside is high.beside)
        _expect(low.in_pieces == high.in_pieces)
        if isinstance(a, Communication) and isinstance(b, Communication):
            return Item(self._exchange(a, b), beside, low.in_pieces)
        _expect(isinstance(a, Compute) and isinstance(b, Compute))
        assert isinstance(a, Compute)
        assert isinstance(b, Compute)
        _expect((a.op, a.is_recomputed) == (b.op, b.is_recomputed))
        return Item(
            Compute(a.op, self._kernel(a.kernel, b.kernel), a.is_recomputed), beside, low.in_pieces
        )

    def _kernel(self, low: Kernel, high: Kernel) -> Kernel:
        if low == high:
            return low
        told = (low.kind, low.phase, low.dtype, len(low.shape))
        _expect(told == (high.kind, high.phase, high.dtype, len(high.shape)))
        shape = tuple(self._dim(a, b) for a, b in zip(low.shape, high.shape, strict=True))
        return Kernel(
            low.kind,
            low.phase,
            self._size(low.flops, high.flops),
            self._sum(low.bytes, high.bytes),
            low.dtype,
            shape,
            self._sum(low.added, high.added),
        )

    def _exchange(self, low: Communication, high: Communication) -> Communication:
        if low == high:
            return low
        size = self._size(low.bytes, high.bytes)
        found = replace(low, bytes=size)
        _expect(replace(high, bytes=size) == found)  # all else is the same
        return found

    def _sizes(self, low: Sizes, high: Sizes) -> Sizes:
        _expect(len(low) == len(high))
        pairs = zip(low, high, strict=True)
        return tuple((a[0], self._size(a[1], b[1])) for a, b in pairs if _expect(a[0] == b[0]))

    def _size(self, low: float, high: float) -> float:
        """What stays as it is, or grows as the micro-batch does."""
        if low == high:
            return low
        _expect(low * self.high == high * self.low)
        return low * self.wanted / self.low

    def _dim(self, low: int, high: int) -> int:
        if low == high:
            return low
        _expect(low * self.high == high * self.low and low % self.aligned == 0)
        whole, rest = divmod(low * self.wanted, self.low)
        _expect(rest == 0)
        return whole

    def _sum(self, low: float, high: float) -> float:
        """… or a sum of both."""
        if low * self.high == high * self.low:
            return low * self.wanted / self.low
        return low + (high - low) * ((self.wanted - self.low) / (self.high - self.low))


def _expect(holds: bool) -> bool:
    if not holds:
        raise Bent
    return True
