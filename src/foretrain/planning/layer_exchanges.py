"""What replicas exchange for a block by what ZeRO splits of it, and how much of that nothing hides."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from foretrain.arrays import Floats
from foretrain.compile.execution import Item
from foretrain.compile.passes.bucket import reduced, sharding_axes
from foretrain.compile.passes.communicate import WeightShard
from foretrain.compile.passes.recompute import BlockPass
from foretrain.compile.passes.shard import gather_items
from foretrain.plan.mesh import Mesh
from foretrain.planning.layers import chain_seconds
from foretrain.planning.task import Task


class BlockExchanges(NamedTuple):
    """Chains of collectives."""

    gathers: tuple[Item, ...]  # of weights, for every way through the block
    often: tuple[Item, ...]  # reductions of gradients of every micro-batch …
    once: tuple[Item, ...]  # … and of all of them together
    refresh: tuple[Item, ...]  # gathers of weights after the update


def exposed(
    task: Task, mesh: Mesh, passes: Sequence[Sequence[BlockPass]], work: Floats, steps: int
) -> Floats:
    """[kinds, blocks, tp before, states] seconds of a micro-batch of a block's exchanges, beyond those of the work that
    they run beside. `work`: [… , 2] seconds forward and backward; `steps`: micro-batches."""
    chains = [chain for row in passes for one in row for chain in _exchanges(task, mesh, one)]
    device, *_ = chain_seconds(task, mesh, chains)
    blocks, states, each = len(passes), len(passes[0]), len(BlockExchanges._fields)
    seconds = np.stack(device).reshape(len(device), blocks, 1, states, each)
    gather, often, once, refresh = np.moveaxis(seconds, -1, 0)
    forward, backward = work[..., 0], work[..., 1]
    # what is due for every micro-batch moves beside this one or the next, what is due for all of them beside the last
    is_ahead = task.runtime.sharding.prefetched_blocks > 0
    moving = often + (2.0 * gather if is_ahead else 0.0)
    found = _beyond(moving, forward + backward) + (0.0 if is_ahead else 2.0 * gather)
    late = _beyond(once, backward) if task.runtime.gradients.overlaps_gradients else once
    return np.asarray(found + (late + refresh) / steps)


def _beyond(seconds: Floats, work: Floats) -> Floats:
    return np.maximum(seconds - work, 0.0)


def _exchanges(task: Task, mesh: Mesh, block: BlockPass) -> BlockExchanges:
    size = task.states.weight_bytes
    whole = [w for w in block.pooled if not sharding_axes(w, "weight")]
    trained = [w for w in block.pooled if not w.is_frozen]
    often = [w for w in trained if sharding_axes(w, "gradient")]
    once = [w for w in trained if not sharding_axes(w, "gradient")]
    return BlockExchanges(
        tuple(gather_items(block.pooled, "weight", size)),
        _reductions(task, mesh, often),
        _reductions(task, mesh, once),
        tuple(gather_items(whole, "optimizer", size)),
    )


def _reductions(task: Task, mesh: Mesh, weights: Sequence[WeightShard]) -> tuple[Item, ...]:
    sizes: dict[tuple[tuple[str, ...], tuple[str, ...]], float] = {}
    for w in weights:
        if w.reduce_axes:
            way = (w.reduce_axes, sharding_axes(w, "optimizer"))
            elements = w.elements if w.reduced is None else w.reduced
            sizes[way] = sizes.get(way, 0.0) + elements * task.states.reduced_bytes
    ranks, collective = dict(mesh.axes), task.runtime.gradients.synchronises
    return tuple(
        item
        for (axes, owners), size in sizes.items()
        for item in reduced(size, axes, owners, ranks, collective)
    )
