"""The host that issues kernels and the device that runs them, as max-plus algebra.

The host issues kernel i at the end of h_1 + … + h_i; the device runs kernels in order, each no earlier than
it was issued. A whole chain then needs three numbers:

    device_end = max(device_in + D, host_in + lead + D),    host_end = host_in + H

with D and H the sums of device and host times and `lead` = max over i of (h_1 + … + h_i) - (d_1 + … + d_(i-1)):
how far the host has to be ahead for the device never to starve. 0 ≤ lead ≤ H. An empty chain has three zeros
and takes no part in the recursion.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from foretrain.arrays import Floats
from foretrain.cluster.cluster import Cluster
from foretrain.compile.execution import Compute, Item
from foretrain.compile.passes.fold import Fold
from foretrain.cost.compute import ComputeModel
from foretrain.runtime import Runtime


class Chains(NamedTuple):
    """Summaries of chains, one row each: D, H and lead."""

    device: Floats
    host: Floats
    lead: Floats


def chain_summaries(
    ptr: NDArray[np.integer], device_seconds: ArrayLike, host_seconds: ArrayLike
) -> Chains:
    """Of the chains `[ptr[c], ptr[c + 1])` of two long columns.

    Chains of similar length are laid side by side, so that sums run within a chain only: a chain's summary
    is the same to the last bit whatever else is in the columns.
    """
    device = np.asarray(device_seconds, dtype=np.float64)
    host = np.asarray(host_seconds, dtype=np.float64)
    lengths = np.diff(ptr)
    summaries = Chains(*(np.zeros(len(lengths)) for _ in range(3)))
    octave = np.frexp(lengths.astype(np.float64))[1]  # lengths 2^(e-1) … 2^e - 1 share e; 0 has 0
    for exponent in sorted(set(octave[lengths > 0].tolist())):
        rows = np.flatnonzero(octave == exponent)
        d = _side_by_side(ptr, lengths, rows, device)
        h = _side_by_side(ptr, lengths, rows, host)
        for column, values in zip(summaries, _summarise(d, h), strict=True):
            column[rows] = values
    return summaries


def _side_by_side(
    ptr: NDArray[np.integer], lengths: NDArray[np.integer], rows: NDArray[np.intp], column: Floats
) -> Floats:
    """One row per chain, filled up with zeros."""
    place = np.arange(lengths[rows].max())
    index = ptr[rows][:, None] + place[None, :]
    inside = place[None, :] < lengths[rows][:, None]
    return np.where(inside, column[np.minimum(index, len(column) - 1)], 0.0)


def _summarise(device: Floats, host: Floats) -> tuple[Floats, Floats, Floats]:
    ran = np.cumsum(device, axis=1)
    issued = np.cumsum(host, axis=1)
    before = np.zeros_like(ran)
    before[:, 1:] = ran[:, :-1]
    ahead = issued - before
    # Past a chain's end `issued` stays and `before` only grows, so the maximum is not touched.
    return ran[:, -1], issued[:, -1], ahead.max(axis=1)


def host_seconds(items: Sequence[Item], fold: Fold, cluster: Cluster, runtime: Runtime) -> Floats:
    """Host seconds of every item."""
    kernel, collective = (
        runtime.host.host_seconds_per_kernel,
        runtime.host.host_seconds_per_collective,
    )
    plain = np.array([
        (kernel if isinstance(item.work, Compute) else collective)
        + (collective if item.beside is not None else 0.0)
        for item in items
    ])  # fmt: skip
    if runtime.network_polling is None or not _is_polling(items, fold, cluster):
        return plain
    return plain + late_seconds(items, fold, runtime)


def _is_polling(items: Sequence[Item], fold: Fold, cluster: Cluster) -> bool:
    """Whether pipelines cross the network."""
    works = (item.communication for item in items)
    pipelines = {work.group for work in works if work and work.purpose == "pipeline"}
    node_of = np.asarray(cluster.node_of)
    homes = [node_of[fold.groups[group].groups] for group in pipelines]
    return any((nodes != nodes[:, :1]).any() for nodes in homes)


def late_seconds(items: Sequence[Item], fold: Fold, runtime: Runtime) -> Floats:
    """How late the hosts of a tensor-parallel group are together at every item, where pipelines cross the network.

    Threads that wait for the network keep the host's cores busy, so that now and then one that launches kernels has
    to wait for its turn. A collective starts when the last of its ranks has come. Such waits are rare and
    seldom meet, so they add up over the ranks.
    """
    delays = np.zeros(len(items))
    polling = runtime.network_polling
    if polling is None:
        return delays
    for index, work in enumerate(item.communication for item in items):
        if work and work.purpose == "tensor":
            ranks = fold.groups[work.group].groups.shape[1]
            delays[index] = polling.host_delay_on_network * ranks
    return delays


def chain_clock(
    cluster: Cluster, runtime: Runtime, compute: ComputeModel, items: Sequence[Item]
) -> Floats:
    """[items + 1] seconds after which so many items of a chain are done, on the slowest kind of device.

    Kernels count as soon as the host has issued them, which begins with the chain; what is no kernel takes none here.
    """
    device = _kernel_seconds(cluster, compute, items) * runtime.kernels.kernel_slowdown
    ran: Floats = np.concatenate([[0.0], np.cumsum(device)])
    if runtime.host.uses_cuda_graphs:
        return ran
    is_kernel = np.array([isinstance(item.work, Compute) for item in items], dtype=np.bool_)
    issued = np.cumsum(np.where(is_kernel, runtime.host.host_seconds_per_kernel, 0.0))
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
