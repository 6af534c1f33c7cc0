"""Offload: saved activations leave for host memory after each block and come back before its backward."""

from __future__ import annotations

from collections.abc import Sequence

from foretrain.compile.execution import Copy, Item
from foretrain.compile.segment import Async, Interner


def copies_out(
    sizes: Sequence[float], ends: Sequence[int], interner: Interner
) -> tuple[Async, ...]:
    """A block's activations are copied out while the next block runs."""
    return tuple(
        Async(interner.number(Item(Copy(size, "to_host"))), "copy_out", end)
        for size, end in zip(sizes, ends, strict=True)
        if size > 0
    )


def copies_in(
    sizes: Sequence[float], starts: Sequence[int], interner: Interner
) -> tuple[Async, ...]:
    """A block's activations come back while the block before it (in backward order) runs."""
    return tuple(
        Async(
            interner.number(Item(Copy(size, "to_device"))),
            "copy_in",
            starts[max(0, i - 1)],
            starts[i],
        )
        for i, size in enumerate(sizes)
        if size > 0
    )
