"""How gradients are kept, added up and reduced over the replicas."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from foretrain.errors import InputError, hint
from foretrain.limits import BUCKET, shown
from foretrain.runtime.features.option import Feature, number, read_by, switch, word

LARGEST = BUCKET.most
"""Bytes, or elements, of anything a stack keeps."""
_COLLECTIVES = (
    "all_reduce", "neighbour_all_reduce", "inner_outer_all_reduce",
    "hierarchical_neighbour_all_reduce", "parameter_server",
)  # fmt: skip


def _collective(value: Any) -> str:
    """How replicas agree; an argument in brackets is read by the collective itself."""
    name = str(value).partition("(")[0]
    is_closed = ("(" in str(value)) == str(value).endswith(")")
    if name not in _COLLECTIVES or not is_closed:
        raise InputError(
            f"{shown(value)} is not a collective that replicas agree by.{hint(name, _COLLECTIVES)}"
        )
    return str(value)


@dataclass(frozen=True, slots=True)
class GradientReduction(Feature):
    """When gradients are reduced, in which buckets and format, and what lies there meanwhile."""

    # how replicas agree; a collective, such as neighbour_all_reduce(ring)
    synchronises: str = read_by("all_reduce", _collective)
    # gradient: when backward has it | forward: weights, from the forward pass on | adapted: weights, each once
    # backward has its gradient and it is stepped
    synchronises_at: str = word("gradient", "gradient", "forward", "adapted")
    # buckets are reduced while backward runs …
    overlaps_gradients: bool = switch(True)
    # … also where each is reduced to the rank that owns it
    overlaps_scatters: bool = switch(True, needs=("sharded states",))
    bucket_bytes: float = number(25e6, BUCKET.least, BUCKET.most)
    first_bucket_bytes: float = number(1e6, BUCKET.least, BUCKET.most)
    # a block's gradients go together, whatever their size
    reduces_blocks: bool = switch(False)
    # to who owns them; else they are all-reduced all the same
    scatters_gradients: bool = switch(True, needs=("sharded states",))
    # weight-gradient GEMMs add a micro-batch's gradients to the buffer …
    wgrad_accumulation_fusion: bool = switch(False)
    # … or kernels of their own do
    adds_gradients: bool = switch(False)
    # per element in the accumulation buffer; None: as the precision
    gradient_bytes: float | None = number(None, 0.5, 1000.0)
    # of every gradient as backward makes it, in buckets that stay …
    reducer_copies: float = number(0.0, 0.0, 100.0)
    # … or how many buckets there are besides
    staging_buckets: float = number(0.0, 0.0, 10_000.0)
    # after the update, so that none is there in the first forward pass
    frees_gradients: bool = switch(False)

    def buckets_of(self, size: float) -> dict[str, float]:
        """The options for another bucket size; a smaller first bucket stays as it is."""
        keeps_first = self.first_bucket_bytes < self.bucket_bytes
        first = min(self.first_bucket_bytes, size) if keeps_first else size
        return {"bucket_bytes": size, "first_bucket_bytes": first}
