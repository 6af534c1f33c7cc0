"""How long a host takes to issue each item of a graph, and how late it is at collectives."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from foretrain.arrays import Floats
from foretrain.cluster.cluster import Cluster
from foretrain.compile.execution import Communication, Compute, Item
from foretrain.compile.passes.fold import Fold
from foretrain.runtime import Runtime


def host_seconds(items: Sequence[Item], fold: Fold, cluster: Cluster, runtime: Runtime) -> Floats:
    """Host seconds of every item."""
    kernel, collective = runtime.host_seconds_per_kernel, runtime.host_seconds_per_collective
    plain = np.array([
        (kernel if isinstance(item.work, Compute) else collective)
        + (collective if item.beside is not None else 0.0)
        for item in items
    ])  # fmt: skip
    if not runtime.host_delay_on_network:
        return plain
    return plain + _delays(items, fold, cluster, runtime.host_delay_on_network)


def _delays(items: Sequence[Item], fold: Fold, cluster: Cluster, each: float) -> Floats:
    """How late the hosts of a tensor-parallel group are together, where pipelines cross the network.

    Threads that wait for the network keep the host's cores busy, so that now and then one that launches kernels has
    to wait for its turn. A collective starts when the last of its ranks has come. Such waits are rare and
    seldom meet, so they add up over the ranks.
    """
    delays = np.zeros(len(items))
    works = [_communication(item) for item in items]
    pipelines = {work.group for work in works if work and work.purpose == "pipeline"}
    node_of = np.asarray(cluster.node_of)
    homes = [node_of[fold.groups[group].groups] for group in pipelines]
    if not any((nodes != nodes[:, :1]).any() for nodes in homes):
        return delays
    for index, work in enumerate(works):
        if work and work.purpose == "tensor":
            delays[index] = each * fold.groups[work.group].groups.shape[1]
    return delays


def _communication(item: Item) -> Communication | None:
    return item.work if isinstance(item.work, Communication) else item.beside
