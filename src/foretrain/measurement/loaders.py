"""What a loader tells of itself, and the same loader with more workers. Nothing here loads torch."""

from __future__ import annotations

import copy
import sys
from typing import Any


def workers_of(loader: Any) -> int:
    """Processes that prepare batches; none where the loader prepares them when it is asked."""
    return int(getattr(loader, "num_workers", 0) or 0)


def prefetched_by(loader: Any) -> int:
    """Batches that its workers prepare ahead."""
    return workers_of(loader) * int(getattr(loader, "prefetch_factor", None) or 0)


def with_workers(loader: Any, count: int) -> Any | None:
    """The same data, sampler and batches from so many workers; the loader itself stays as it is.

    None unless it is a loader of PyTorch that has workers: only of those is it known that the number takes effect.
    """
    torch = sys.modules.get("torch")  # a script that did not load it has no loader of its
    if torch is None or workers_of(loader) == 0:
        return None
    if not isinstance(loader, torch.utils.data.DataLoader):
        return None
    changed = copy.copy(loader)
    changed.num_workers = count
    changed._iterator = None  # workers that persist are those of the loader it was copied from
    return changed


def batches_of(loader: Any) -> int | None:
    """Batches of an epoch, where the loader knows."""
    try:
        return len(loader)
    except TypeError:
        return None


def samples_of(loader: Any) -> int | None:
    """Samples of an epoch, where the loader knows."""
    try:
        return len(loader.dataset)
    except (AttributeError, TypeError):
        return None
