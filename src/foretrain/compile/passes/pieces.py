"""Pieces: a product and the exchange next to it cut into as many pieces as there are ranks, and run as a ring.

A gather in front of a product brings one rank's piece at a time, and each is multiplied when it has arrived; a
reduction behind a product sends each piece as soon as it is multiplied (Wang et al. ASPLOS 2023; the
"tensor-parallel overlap" of Transformer Engine and asynchronous tensor parallelism of PyTorch). All but one piece of
the product can hide the exchange.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from foretrain.compile.execution import Communication, Compute, Item
from foretrain.compile.passes.communicate import OpProgram
from foretrain.model.ops.base import kernel_kind


def in_pieces(ops: tuple[OpProgram, ...]) -> tuple[OpProgram, ...]:
    """The same ops with tensor-parallel exchanges beside the products they stand next to; not where a dispatcher
    exchanges, in kernels of its own, also where experts multiply in turn."""
    forward = _joined([(not op.family.is_dispatched, op.forward) for op in ops])
    # backward runs the ops from last to first
    back = [(not op.family.is_dispatched, op.backward) for op in reversed(ops)]
    backward = _joined(back)[::-1]
    return tuple(
        replace(op, forward=ahead, backward=behind)
        for op, ahead, behind in zip(ops, forward, backward, strict=True)
    )


def _joined(runs: Iterable[tuple[bool, tuple[Item, ...]]]) -> list[tuple[Item, ...]]:
    """Runs of items in the order they are executed, neighbours joined across the runs too, where runs may be."""
    kept: list[list[Item]] = []
    last: tuple[list[Item], int] | None = None  # where the item executed last stands
    for may_join, run in runs:
        if not may_join:
            kept.append(list(run))
            last = None
            continue
        mine: list[Item] = []
        kept.append(mine)
        for item in run:
            before = last[0][last[1]] if last else None
            if last and before and _is_exchange(before, "all_gather") and _is_product(item):
                del last[0][last[1]]
                mine.append(_both(item, before))
            elif last and before and _is_product(before) and _is_exchange(item, "reduce_scatter"):
                last[0][last[1]] = _both(before, item)
                continue
            else:
                mine.append(item)
            last = (mine, len(mine) - 1)
    return [tuple(run) for run in kept]


def _both(product: Item, exchange: Item) -> Item:
    assert isinstance(exchange.work, Communication)
    return Item(product.work, exchange.work, in_pieces=True)


def _is_product(item: Item) -> bool:
    work = item.work
    if not isinstance(work, Compute) or item.beside is not None:
        return False
    return kernel_kind(work.kernel).feeds_in_pieces


def _is_exchange(item: Item, collective: str) -> bool:
    work = item.work
    return (
        isinstance(work, Communication)
        and work.purpose == "tensor"
        and work.collective == collective
    )
