"""The processes of one training job, through torch.distributed where the script has set it up."""

from __future__ import annotations

import os
import statistics
import time
from dataclasses import dataclass
from typing import Any

REPEATS = 7
BUCKET_BYTES = 25 * 2**20
FIRST_BUCKET_BYTES = 2**20
"""What DistributedDataParallel gathers before it reduces (its defaults)."""


@dataclass(frozen=True, slots=True)
class Ranks:
    """This process among those that train together. Without torch.distributed it is alone."""

    rank: int
    world: int
    per_host: int
    is_first_on_host: bool

    @classmethod
    def here(cls) -> Ranks:
        group = _group()
        if group is None:
            return cls(0, 1, 1, True)
        per_host = int(os.environ.get("LOCAL_WORLD_SIZE", group.get_world_size()))
        local = int(os.environ.get("LOCAL_RANK", group.get_rank()))
        return cls(group.get_rank(), group.get_world_size(), per_host, local == 0)

    @property
    def hosts(self) -> int:
        return max(1, self.world // max(1, self.per_host))

    def wait(self) -> None:
        """Until all are here."""
        if self.world > 1:
            _group().barrier()

    def gathered(self, value: Any) -> list[Any]:
        """What each rank tells, on all ranks."""
        if self.world == 1:
            return [value]
        values: list[Any] = [None] * self.world
        _group().all_gather_object(values, value)
        return values

    def largest(self, value: float) -> float:
        return max(float(v) for v in self.gathered(value))

    def reduce_alone(self, model: Any) -> dict[str, Any]:
        """Summing this model's gradients while nothing else runs, in the buckets that DDP would make."""
        weights = [p for p in model.parameters() if p.requires_grad]
        sizes = bucket_sizes([p.numel() * p.element_size() for p in weights])
        facts: dict[str, Any] = {
            "tensors": len(weights),
            "bytes": sum(p.numel() * p.element_size() for p in weights),
            "buckets": len(sizes),
            "seconds": 0.0,
        }
        if self.world > 1 and weights:
            facts["seconds"] = _reduce_seconds(sizes, weights[0])
        return facts

    def leave(self) -> None:
        """Nobody ends before all have told what they saw: the first rank keeps the address book."""
        if self.world > 1:
            self.wait()
            _group().destroy_process_group()


def bucket_sizes(tensors: list[int]) -> list[int]:
    """Bytes of DDP's buckets: tensors in the order backward finishes them, the last layer first."""
    sizes: list[int] = []
    filled, limit = 0, FIRST_BUCKET_BYTES
    for size in reversed(tensors):
        filled += size
        if filled >= limit:
            sizes.append(filled)
            filled, limit = 0, BUCKET_BYTES
    return [*sizes, filled] if filled else sizes


def _reduce_seconds(sizes: list[int], like: Any) -> float:
    import torch

    buffers = [
        torch.zeros(max(1, size // like.element_size()), dtype=like.dtype, device=like.device)
        for size in sizes
    ]
    taken = []
    for _ in range(REPEATS):
        _group().barrier()
        began = time.perf_counter()
        for buffer in buffers:
            _group().all_reduce(buffer)
        if like.device.type == "cuda":
            torch.cuda.synchronize()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken[1:])


def _group() -> Any:
    """torch.distributed when the script has started it, else None."""
    import sys

    torch = sys.modules.get("torch")  # a script that did not load it does not use it
    if torch is None:
        return None
    import torch.distributed as group

    return group if group.is_available() and group.is_initialized() else None
