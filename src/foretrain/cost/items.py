"""Costs of items: kernels, collectives and copies of a program before it is cut into tasks.

The simulator asks for the items of a whole graph, the estimator for those of single blocks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from foretrain.arrays import Floats
from foretrain.cluster.cluster import Cluster
from foretrain.cluster.device import Device
from foretrain.cluster.node import Host, Node
from foretrain.compile.execution import Communication, Compute, Copy, Item, Load, Work
from foretrain.compile.passes.fold import Fold, Use, uses_of
from foretrain.cost import interference
from foretrain.cost.collective_costs import CollectiveCost, cost_of, movers
from foretrain.cost.compute import ComputeModel, KernelCosts
from foretrain.cost.compute.base import latest, slowest
from foretrain.cost.network import Network, routes_of
from foretrain.cost.rows import Rows
from foretrain.errors import Bug
from foretrain.model.ops.base import LAUNCHES, Kernel
from foretrain.model.workload import DataSource
from foretrain.runtime import Runtime
from foretrain.runtime.features.per_tensor_update import PerTensorUpdate

Kernels = dict[int, tuple[Floats, Floats, Floats]]
"""By kind of device: seconds, measured seconds and spread of every item's kernel."""
CollectiveCosts = dict[tuple[Communication, int], CollectiveCost]
"""By collective and class of those that move together."""

# Columns of a breakdown: where the seconds of a chain go.
PARTS = COMPUTE, INTERCONNECT, NETWORK, HOST = range(4)


@dataclass(frozen=True, eq=False, slots=True)
class Surroundings:
    """Where items run: the cluster under a runtime, timed by a compute model."""

    cluster: Cluster
    runtime: Runtime
    network: Network
    compute: ComputeModel
    data: DataSource | None = None


@dataclass(frozen=True, eq=False, slots=True)
class Other:
    """An item that is more than a kernel, as one rank class runs it."""

    index: int
    item: Item
    work: Communication | None  # that it is or has beside it …
    mover_class: int  # … and with whom the class moves in it


@dataclass(frozen=True, eq=False, slots=True)
class Roles:
    """What the items of a program are, whatever they cost."""

    uses: tuple[Use, ...]
    kernels: list[int]
    waits_for_host: list[int]  # those of the kernels that stand for what hosts take meanwhile
    others: tuple[tuple[Other, ...], ...]  # by rank class: those it has a part in


def roles_of(items: Sequence[Item], fold: Fold) -> Roles:
    kernels = [i for i, item in enumerate(items) if isinstance(item.work, Compute)]
    others = [
        (i, item, item.communication)
        for i, item in enumerate(items)
        if not isinstance(item.work, Compute) or item.beside is not None
    ]
    return Roles(
        uses_of(items),
        kernels,
        [i for i in kernels if _issues(items[i].work)],
        tuple(tuple(_taken(others, fold, c)) for c in range(fold.classes)),
    )


def _issues(work: Work) -> bool:
    return isinstance(work, Compute) and work.kernel.kind == LAUNCHES


def _taken(
    others: Sequence[tuple[int, Item, Communication | None]], fold: Fold, rank_class: int
) -> Iterator[Other]:
    """Items are pooled over stages; a class has a part only in those of groups it is in."""
    for index, item, work in others:
        if work is None:
            yield Other(index, item, None, -1)
        elif fold.group_class(work.group, rank_class) >= 0:
            mover = fold.mover_class(work.group, work.collective, rank_class)
            yield Other(index, item, work, mover)


@dataclass(frozen=True, eq=False, slots=True)
class CostedItems:
    """What items are and cost, as far as it was worked out: kernels on devices, and collectives on links."""

    roles: Roles
    kernels: Kernels
    collective_costs: CollectiveCosts
    rows: Rows | None = None  # of the graph they are items of, where it is known

    def without(self, links: str) -> CostedItems:
        """What holds when those links change; a collective inside a domain knows nothing of the network."""
        is_far = links.startswith("network")
        collective_costs = {
            k: c for k, c in self.collective_costs.items() if is_far and not c.is_network
        }
        return CostedItems(self.roles, self.kernels, collective_costs, self.rows)


class ItemCosts:
    """What items cost alone on the rank classes of a fold."""

    def __init__(
        self,
        items: Sequence[Item],
        fold: Fold,
        around: Surroundings,
        known: CostedItems | None = None,
    ) -> None:
        """`known`: what is the same as before, where the items were costed already."""
        self.items, self.fold, self.around = items, fold, around
        self.cluster, self.runtime, self.network = around.cluster, around.runtime, around.network
        self.compute, self.data = around.compute, around.data
        self.roles = roles_of(items, fold) if known is None else known.roles
        self.routes = routes_of(self.network, fold, self.roles.uses)
        self.devices = np.asarray(self.cluster.device_kind)[fold.examples]
        self.notes: dict[str, None] = {}
        self.sources: dict[str, None] = {}
        self.kernels: Kernels = {} if known is None else dict(known.kernels)
        self.collective_costs: CollectiveCosts = (
            {} if known is None else dict(known.collective_costs)
        )

    def _device_kernels(self, kind: int) -> tuple[Floats, Floats, Floats]:
        """Seconds, measured seconds and spread of every item's kernel on one kind of device."""
        found = self.kernels.get(kind)
        if found is None:
            works = [self.items[i].work for i in self.roles.kernels]
            kernels = [work.kernel for work in works if isinstance(work, Compute)]
            answer = kernel_costs(kernels, kind, self.around)
            columns = np.zeros((3, len(self.items)))
            columns[0, self.roles.kernels] = answer.seconds
            columns[1, self.roles.kernels] = np.where(answer.measured, answer.seconds, 0.0)
            columns[2, self.roles.kernels] = answer.spread * answer.seconds
            self.notes.update(dict.fromkeys(answer.notes))
            self.sources.update(dict.fromkeys(answer.source))
            found = self.kernels[kind] = (columns[0], columns[1], columns[2])
        return found

    def seconds_of(self, rank_class: int) -> tuple[Floats, Floats, Floats]:
        """Every item's seconds alone, their parts, and (measured, spread, curve-less) seconds."""
        seconds, measured, spread = self._device_kernels(int(self.devices[rank_class]))
        total = seconds.copy()
        parts = np.zeros((len(PARTS), len(total)))
        parts[COMPUTE] = seconds
        waits = self.roles.waits_for_host
        parts[HOST, waits], parts[COMPUTE, waits] = seconds[waits], 0.0
        extra = np.stack([measured, spread, np.zeros_like(total)])
        for other in self.roles.others[rank_class]:
            index, item = other.index, other.item
            cost = self.collective_cost(other)
            if cost is None:
                total[index] = self._host_side(item, rank_class)
                parts[INTERCONNECT, index] = total[index]
                continue
            where = NETWORK if cost.is_network else INTERCONNECT
            if item.beside is not None:
                # it runs inside the item, where no other flow can be met: all groups are taken to move at once
                hidden = cost.contended_seconds * self.exposed(item.beside)
                kernel = seconds[index] * self._hiding(item)
                exposed = self._beside(kernel, hidden, rank_class, cost, item.beside.purpose)
                total[index] += exposed
                parts[where, index] += exposed
            elif other.work is not None:
                alone = cost.seconds * self.exposed(other.work)
                total[index] = alone
                parts[where, index] = alone
                extra[0, index] = alone if cost.is_measured else 0.0
                extra[2, index] = alone if cost.left else 0.0
        return total, parts, extra

    def _hiding(self, item: Item) -> float:
        """The share of a kernel that can hide what runs beside it: in pieces, all but the first or last."""
        if not item.in_pieces or item.beside is None:
            return 1.0
        ranks = self.fold.groups[item.beside.group].groups.shape[1]
        return 1.0 - 1.0 / float(ranks)

    def _beside(
        self, kernel: float, moving: float, rank_class: int, cost: CollectiveCost, purpose: str
    ) -> float:
        """What a communication started with a kernel adds to it: what outlasts it, and what it slows."""
        if not self.runtime.communication.overlap_slows:
            return max(0.0, moving - kernel)
        share = self.runtime.tensor_parallel.exchange_share
        if purpose == "tensor" and 0.0 < share < 1.0 and not cost.is_network:
            return interference.pair(kernel, moving, 1.0 / (1.0 - share), 1.0) - kernel
        device = self.cluster.devices[int(self.devices[rank_class])]
        table = interference.factors(device, cost.is_network)
        kernel_slowed = float(table[interference.COMPUTE, interference.COLLECTIVE])
        moving_slowed = float(table[interference.COLLECTIVE, interference.COMPUTE])
        return interference.pair(kernel, moving, kernel_slowed, moving_slowed) - kernel

    def collective_cost(self, other: Other) -> CollectiveCost | None:
        """What the communication of an item costs, where it has any."""
        return None if other.work is None else self._cost_of(other.work, other.mover_class)

    def class_cost(self, work: Communication, rank_class: int) -> CollectiveCost:
        return self._cost_of(work, self.fold.mover_class(work.group, work.collective, rank_class))

    def _cost_of(self, work: Communication, mover_class: int) -> CollectiveCost:
        key = (work, mover_class)
        found = self.collective_costs.get(key)
        if found is None:
            use = (work.group, work.collective)
            who = movers(self.network, self.fold, self.routes, use, mover_class)
            found = cost_of(
                self.network, who, self.routes, work, self.runtime.communication.library
            )
            self.collective_costs[key] = found
            if found.left:
                self.notes[found.left] = None
        return found

    def exposed(self, work: Communication) -> float:
        """The share of a blocking collective that the runtime does not hide under its neighbours."""
        if work.purpose == "expert":
            return 1.0 - self.runtime.expert_parallel.expert_overlap
        return 1.0

    def hidden_of(self, rank_class: int) -> Floats:
        """[parts, items] seconds of exchanges of experts that hide under a partner, in a pass that has one."""
        hidden = np.zeros((len(PARTS), len(self.items)))
        for other in (
            self.roles.others[rank_class] if self.runtime.expert_parallel.expert_overlap else ()
        ):
            cost, work = self.collective_cost(other), other.item.work
            if cost is not None and isinstance(work, Communication):
                way = NETWORK if cost.is_network else INTERCONNECT
                hidden[way, other.index] = cost.seconds * (1.0 - self.exposed(work))
        return hidden

    def _host_side(self, item: Item, rank_class: int) -> float:
        device = self.cluster.devices[int(self.devices[rank_class])]
        node = self.cluster.node(int(self.cluster.node_of[self.fold.examples[rank_class]]))
        work = item.work
        if isinstance(work, Load):
            if self.data is None:
                raise Bug("a load without a data source.")
            return load_seconds(work, self.data, node.host, node.device_count)
        assert isinstance(work, Copy)
        return work.bytes / copy_rate(device, node, work.direction)


def load_seconds(load: Load, source: DataSource, host: Host, devices: int = 1) -> float:
    """Fetching moves bytes, preparing takes CPU time (Mohan et al. VLDB 2021).

    `load.samples` are those of one device. The node's `devices` load at the same time and share its disk
    and cores; a host that does not state them does not bound the loading.
    """
    match load.kind:
        case "fetch":
            if host.storage_bandwidth is None:
                return 0.0
            return load.samples * source.bytes_per_sample * devices / host.storage_bandwidth
        case "prep":
            return (
                load.samples * source.prep_seconds_per_sample / _busy_cores(source, host, devices)
            )
    raise Bug(f"unknown kind of load {load.kind!r}.")


def _busy_cores(source: DataSource, host: Host, devices: int) -> float:
    """Workers of one device, as far as there are cores for all of them."""
    if host.cpu_cores is None:
        return float(source.workers)
    return min(float(source.workers), host.cpu_cores / devices)


def copy_rate(device: Device, node: Node, direction: str) -> float:
    """Bytes per second that a device copies to and from its host, or that its share of host memory moves."""
    wiring = node.interconnect  # devices joined by PCIe copy over the same slots
    slot = device.pcie_bandwidth * (wiring.scale if wiring.topology == "pcie_tree" else 1.0)
    if direction == "host_memory":
        return (node.host.memory_bandwidth or slot) / node.device_count
    return slot


def kernel_costs(kernels: Sequence[Kernel], kind: int, around: Surroundings) -> KernelCosts:
    """What kernels cost on one kind of a cluster's devices under a stack, the slowest of so many devices."""
    cluster, runtime = around.cluster, around.runtime
    device = cluster.devices[kind]
    alone = around.compute.seconds(kernels, device)
    tensors = _tensors(kernels)
    update = runtime.per_tensor_update or PerTensorUpdate()
    issued = tensors * update.kernels_per_tensor
    delay = runtime.host.jitter_seconds * latest(cluster.device_count)
    seconds = np.where(tensors > 0, 0.0, alone.seconds * runtime.kernels.kernel_slowdown)
    seconds += issued * runtime.host.host_seconds_per_kernel + (tensors > 0) * delay
    return replace(alone, seconds=seconds * slowest(device.identity, cluster.device_count))


def _tensors(kernels: Sequence[Kernel]) -> Floats:
    """For how many tensors the host issues kernels while the device waits, where a kernel stands for that."""
    return np.array([k.shape[0] if k.kind == LAUNCHES else 0.0 for k in kernels])
