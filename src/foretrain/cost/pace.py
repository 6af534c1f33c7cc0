"""When a device is done with the items of a chain, for passes that have to know before a graph is there to be costed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from foretrain.arrays import Floats
from foretrain.cluster.cluster import Cluster
from foretrain.compile.execution import Compute, Item
from foretrain.cost.compute import ComputeModel
from foretrain.runtime import Runtime


def chain_clock(
    cluster: Cluster, runtime: Runtime, compute: ComputeModel, items: Sequence[Item]
) -> Floats:
    """[items + 1] seconds after which so many items of a chain are done, on the slowest kind of device.

    Kernels count as soon as the host has issued them, which begins with the chain; what is no kernel takes none here.
    """
    device = _kernel_seconds(cluster, compute, items) * runtime.kernel_pace
    ran: Floats = np.concatenate([[0.0], np.cumsum(device)])
    if runtime.uses_cuda_graphs:
        return ran
    is_kernel = np.array([isinstance(item.work, Compute) for item in items], dtype=np.bool_)
    issued = np.cumsum(np.where(is_kernel, runtime.host_seconds_per_kernel, 0.0))
    # as in `cost.host`: a kernel is late by the most that the host was behind before it
    late = np.maximum.accumulate(np.maximum(issued - ran[:-1], 0.0))
    return np.asarray(ran + np.concatenate([[0.0], late]))


def _kernel_seconds(cluster: Cluster, compute: ComputeModel, items: Sequence[Item]) -> Floats:
    """[items] seconds of their kernels on the slowest kind of device."""
    seconds = np.zeros(len(items))
    distinct = {item: item.work for item in items if isinstance(item.work, Compute)}
    kernels = [work.kernel for work in distinct.values() if isinstance(work, Compute)]
    each = [compute.seconds(kernels, device).seconds for device in cluster.devices]
    known = dict(zip(distinct, np.max(each, axis=0).tolist(), strict=True)) if kernels else {}
    for row, item in enumerate(items):
        seconds[row] = known.get(item, 0.0)
    return seconds
