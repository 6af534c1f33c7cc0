"""How long items take on a device, for passes that have to know before a graph is there to be costed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from foretrain.cluster.cluster import Cluster
from foretrain.compile.execution import Compute, Item
from foretrain.cost.compute import ComputeModel


def kernel_seconds(
    cluster: Cluster, compute: ComputeModel, items: Sequence[Item]
) -> NDArray[np.float64]:
    """[items] seconds of their kernels on the slowest kind of device; what is no kernel takes none here."""
    seconds = np.zeros(len(items))
    distinct = {item: item.work for item in items if isinstance(item.work, Compute)}
    kernels = [work.kernel for work in distinct.values() if isinstance(work, Compute)]
    each = [compute.seconds(kernels, device).seconds for device in cluster.devices]
    known = dict(zip(distinct, np.max(each, axis=0).tolist(), strict=True)) if kernels else {}
    for row, item in enumerate(items):
        seconds[row] = known.get(item, 0.0)
    return seconds
