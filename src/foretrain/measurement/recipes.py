"""Recipes: which of the framework's own ops runs a kernel."""

from __future__ import annotations

from collections.abc import Callable

from foretrain.measurement import product_recipes as products
from foretrain.measurement.backend import Backend
from foretrain.measurement.needs import CONTEXT, Need
from foretrain.measurement.rotation import Recipe, Rotation
from foretrain.measurement.stream_recipes import BY_OP, stream
from foretrain.model.ops.base import Kernel, kernel_family

MOST_COPIES = 64
MOST_BYTES = 2.0**30  # of tensors kept for other contexts

BY_KERNEL: dict[str, Callable[[Need, Backend], Recipe]] = {
    "gemm": products.gemm,
    "grouped_gemm": products.batched,
    "conv": products.conv,
    "embedding": products.embedding,
    "attention": products.attention,
}


def rotation(need: Need, backend: Backend) -> Rotation:
    """The need's call, over as much memory as a step of its model goes through or twice the cache."""
    span = min(need.footprint, 2 * backend.cache_bytes)
    copies = int(span / need.bytes) if need.bytes else 1
    return Rotation(recipe(need, backend), max(1, min(MOST_COPIES, copies)))


class Rotations:
    """The calls of needs, made once for all the contexts they are in; those not used lately are let go again."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._kept: dict[tuple[Kernel, ...], tuple[Rotation, float]] = {}

    def of(self, need: Need) -> Rotation:
        kept = self._kept.pop(need.kernels, None)
        if kept is None:
            call = rotation(need, self._backend)
            kept = call, call.copies * need.bytes
        self._kept[need.kernels] = kept
        while len(self._kept) > CONTEXT + 1 and sum(b for _, b in self._kept.values()) > MOST_BYTES:
            del self._kept[next(iter(self._kept))]
        return kept[0]


def recipe(need: Need, backend: Backend) -> Recipe:
    """How to run a need; what has no op of its own streams as many bytes."""
    kind = kernel_family(need.kernels[0].kind)
    if kind in BY_KERNEL:
        return BY_KERNEL[kind](need, backend)
    return BY_OP.get(need.what, stream)(need, backend)
