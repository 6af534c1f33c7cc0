"""Costs: what every task of an execution graph costs alone, in columns, each with source and spread."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from foretrain.cluster.cluster import Cluster
from foretrain.compile.execution import (
    CHAIN,
    COLLECTIVE,
    COPY,
    LAUNCH,
    LAUNCH_REST,
    TRANSFER,
    Communication,
    Compute,
    Copy,
    ExecutionGraph,
    Item,
    Load,
)
from foretrain.compile.passes.fold import Use
from foretrain.cost import interference
from foretrain.cost.collectives.gossip import holds_domain
from foretrain.cost.compute import ComputeModel
from foretrain.cost.compute.boards import latest, slowest
from foretrain.cost.data import load_seconds
from foretrain.cost.host import chain_summaries
from foretrain.cost.interference import slowdown
from foretrain.cost.launching import host_seconds
from foretrain.cost.network import Charge, EngineRoutes, Network, Routes, charge, routes_of
from foretrain.errors import Bug
from foretrain.model.ops.base import LAUNCHES, Kernel
from foretrain.model.workload import DataSource
from foretrain.runtime import Runtime

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_COPY_ACTIVITY = {"to_device": interference.COPY_IN, "to_host": interference.COPY_OUT}

# Columns of a breakdown: where the seconds of a chain go.
COMPUTE, INTERCONNECT, NETWORK = range(3)


@dataclass(frozen=True, eq=False, slots=True)
class Costs:
    """Per task: fixed seconds, volume and route for the engine, and what its seconds are made of."""

    seconds: Floats
    volume: Floats  # bytes, in units of the flow's priority as its route is
    route: NDArray[np.int32]
    breakdown: Floats  # [tasks, 3] of chains: compute, interconnect, network
    is_network: NDArray[np.bool_]  # a flow that crosses the network
    first_launch: Floats  # of chains: host seconds to issue the first kernel alone
    activity: NDArray[np.int8]  # what a task does to its device while it runs (0: nothing)
    sensitivity: Floats  # the share of a task that others on its device can slow
    slowdown: Floats  # [activities, activities] factor on the row's time while the column's runs
    routes: EngineRoutes
    notes: tuple[str, ...]
    sources: tuple[str, ...]
    item_seconds: Floats  # [rank classes, items]: what one item costs alone
    item_spread: Floats  # … one standard deviation of its kernel …
    item_measured: Floats  # … and the part of it that rests on measured tables
    item_volume: Floats  # [rank classes, items]: bytes a collective of the chain moves …
    item_route: Ints  # … and its route in `network_routes` (-1: none)
    network_routes: Routes


def uses_of(graph: ExecutionGraph) -> tuple[Use, ...]:
    """Communicators and collectives of a graph, in order of first use."""
    uses: dict[Use, None] = {}
    for item in graph.items:
        for work in (item.work, item.beside):
            if isinstance(work, Communication):
                uses[work.group, work.collective] = None
    return tuple(uses)


def cost_graph(
    graph: ExecutionGraph,
    cluster: Cluster,
    runtime: Runtime,
    network: Network,
    compute: ComputeModel,
    data: DataSource | None = None,
) -> Costs:
    return _Costing(graph, cluster, runtime, network, compute, data).costs()


class _Costing:
    def __init__(
        self,
        graph: ExecutionGraph,
        cluster: Cluster,
        runtime: Runtime,
        network: Network,
        compute: ComputeModel,
        data: DataSource | None,
    ) -> None:
        self.graph, self.cluster, self.runtime = graph, cluster, runtime
        self.network, self.compute, self.data = network, compute, data
        self.routes = routes_of(network, graph.fold, uses_of(graph))
        self.kernel_ids = [
            i for i, item in enumerate(graph.items) if isinstance(item.work, Compute)
        ]
        self.other_ids = [
            i for i, item in enumerate(graph.items)
            if not isinstance(item.work, Compute) or item.beside is not None
        ]  # fmt: skip
        self.devices = np.asarray(cluster.device_kind)[graph.fold.examples]
        self.notes: dict[str, None] = {}
        self.sources: dict[str, None] = {}
        self._kernels: dict[int, tuple[Floats, Floats, Floats]] = {}
        self._charges: dict[tuple[Communication, int], Charge] = {}
        self._ceilings: dict[
            tuple[int, float, float], int
        ] = {}  # (route, rate ceiling, priority) → route for the engine
        self.priorities = dict(runtime.priorities)

    def costs(self) -> Costs:
        graph, classes = self.graph, self.graph.fold.classes
        items = np.zeros((classes, len(graph.items)))
        parts = np.zeros((classes, 3, len(graph.items)))
        extra = np.zeros((2, classes, len(graph.items)))  # measured seconds, spread
        for rank_class in range(classes):
            items[rank_class], parts[rank_class], extra[:, rank_class] = self._items(rank_class)
        self._chain_traffic()
        return self._tasks(items, parts, extra)

    def _chain_traffic(self) -> None:
        """What collectives inside chains put on links; the engine never sees them."""
        shape = (self.graph.fold.classes, len(self.graph.items))
        self.item_volume, self.item_route = np.zeros(shape), np.full(shape, -1, dtype=np.int64)
        for rank_class in range(shape[0]):
            for index in self.other_ids:
                item = self.graph.items[index]
                work = item.work if isinstance(item.work, Communication) else item.beside
                if work is not None and self._takes_part(item, rank_class):
                    cost = self._charge(work, rank_class)
                    self.item_volume[rank_class, index] = cost.choice.volume
                    self.item_route[rank_class, index] = cost.route

    def _device_kernels(self, kind: int) -> tuple[Floats, Floats, Floats]:
        """Seconds, measured seconds and spread of every item's kernel on one kind of device."""
        found = self._kernels.get(kind)
        if found is None:
            works = [self.graph.items[i].work for i in self.kernel_ids]
            kernels = [work.kernel for work in works if isinstance(work, Compute)]
            answer = self.compute.seconds(kernels, self.cluster.devices[kind])
            columns = np.zeros((3, len(self.graph.items)))
            tensors = _tensors(kernels)
            issued = tensors * self.runtime.kernels_per_tensor
            delay = self.runtime.jitter_seconds * latest(self.cluster.device_count)
            seconds = np.where(tensors > 0, 0.0, answer.seconds * self.runtime.kernel_pace)
            seconds += issued * self.runtime.host_seconds_per_kernel + (tensors > 0) * delay
            seconds *= slowest(self.cluster.devices[kind].name, self.cluster.device_count)
            answer = replace(answer, seconds=seconds)
            columns[0, self.kernel_ids] = answer.seconds
            columns[1, self.kernel_ids] = np.where(answer.measured, answer.seconds, 0.0)
            columns[2, self.kernel_ids] = answer.spread * answer.seconds
            self.notes.update(dict.fromkeys(answer.notes))
            self.sources.update(dict.fromkeys(answer.source))
            found = self._kernels[kind] = (columns[0], columns[1], columns[2])
        return found

    def _items(self, rank_class: int) -> tuple[Floats, Floats, Floats]:
        """Every item's seconds alone, their parts, and (measured seconds, spread seconds)."""
        seconds, measured, spread = self._device_kernels(int(self.devices[rank_class]))
        total = seconds.copy()
        parts = np.zeros((3, len(total)))
        parts[COMPUTE] = seconds
        extra = np.stack([measured, spread])
        for index in self.other_ids:
            item = self.graph.items[index]
            if not self._takes_part(item, rank_class):
                continue
            if item.beside is not None:
                # it runs inside the item, where no other flow can be met: all groups are taken to move at once
                charged = self._charge(item.beside, rank_class)
                hidden, is_network = (
                    charged.crowd_seconds * self._exposed(item.beside),
                    charged.is_network,
                )
                kernel = seconds[index] * self._hiding(item)
                exposed = self._beside(kernel, hidden, rank_class, charged, item.beside.purpose)
                total[index] += exposed
                parts[NETWORK if is_network else INTERCONNECT, index] += exposed
            elif isinstance(item.work, Communication):
                alone, is_network = self._communication(item.work, rank_class)
                total[index] = alone
                parts[NETWORK if is_network else INTERCONNECT, index] = alone
                extra[0, index] = alone if self._charge(item.work, rank_class).is_measured else 0.0
            else:
                total[index] = self._host_side(item, rank_class)
                parts[INTERCONNECT, index] = total[index]
        return total, parts, extra

    def _hiding(self, item: Item) -> float:
        """The share of a kernel that can hide what runs beside it: in pieces, all but the first or last."""
        if not item.in_pieces or item.beside is None:
            return 1.0
        ranks = self.graph.fold.groups[item.beside.group].groups.shape[1]
        return 1.0 - 1.0 / float(ranks)

    def _beside(
        self, kernel: float, moving: float, rank_class: int, charged: Charge, purpose: str
    ) -> float:
        """What a communication started with a kernel adds to it: what outlasts it, and what it slows."""
        if not self.runtime.overlap_slows:
            return max(0.0, moving - kernel)
        share = self.runtime.exchange_share
        if purpose == "tensor" and 0.0 < share < 1.0 and not charged.is_network:
            return interference.pair(kernel, moving, 1.0 / (1.0 - share), 1.0) - kernel
        device = self.cluster.devices[int(self.devices[rank_class])]
        table = interference.factors(device, charged.is_network)
        kernel_slowed = float(table[interference.COMPUTE, interference.COLLECTIVE])
        moving_slowed = float(table[interference.COLLECTIVE, interference.COMPUTE])
        return interference.pair(kernel, moving, kernel_slowed, moving_slowed) - kernel

    def _takes_part(self, item: Item, rank_class: int) -> bool:
        """Items are pooled over stages; a class is only asked about groups it is in."""
        for work in (item.work, item.beside):
            if isinstance(work, Communication):
                found = self.graph.fold.groups[work.group]
                if found.group_of[self.graph.fold.examples[rank_class]] < 0:
                    return False
        return True

    def _communication(self, work: Communication, rank_class: int) -> tuple[float, bool]:
        cost = self._charge(work, rank_class)
        return cost.seconds * self._exposed(work), cost.is_network

    def _charge(self, work: Communication, rank_class: int) -> Charge:
        fold = self.graph.fold
        key = (work, fold.mover_class(work.group, work.collective, rank_class))
        found = self._charges.get(key)
        if found is None:
            found = charge(self.network, fold, self.routes, *key, self.runtime.library)
            self._charges[key] = found
        return found

    def _exposed(self, work: Communication) -> float:
        """The share of a blocking collective that the runtime does not hide under its neighbours."""
        if work.purpose == "expert":
            return 1.0 - self.runtime.expert_overlap
        return 1.0

    def _host_side(self, item: Item, rank_class: int) -> float:
        device = self.cluster.devices[int(self.devices[rank_class])]
        node = self.cluster.node(int(self.cluster.node_of[self.graph.fold.examples[rank_class]]))
        work = item.work
        if isinstance(work, Load):
            if self.data is None:
                raise Bug("a load without a data source.")
            return load_seconds(work, self.data, node.host, node.device_count)
        assert isinstance(work, Copy)
        if work.direction == "host_memory":
            rate = node.host.memory_bandwidth or device.pcie_bandwidth
            return work.bytes / (rate / node.device_count)
        return work.bytes / device.pcie_bandwidth

    def _tasks(self, items: Floats, parts: Floats, extra: Floats) -> Costs:
        graph = self.graph
        kind, shape = graph.task_kind, graph.task_shape.astype(np.int64)
        shapes = len(graph.shape_ptr) - 1
        key = graph.task_class.astype(np.int64) * shapes + shape
        pairs, inverse = np.unique(key, return_inverse=True)
        table = self._pairs(pairs // shapes, pairs % shapes, items, parts)
        seconds = table["seconds"][inverse].copy()
        seconds[kind == LAUNCH] = table["lead"][inverse][kind == LAUNCH]
        rest = kind == LAUNCH_REST
        seconds[rest] = table["host"][inverse][rest] - table["lead"][inverse][rest]
        flows = (kind == COLLECTIVE) | (kind == TRANSFER)
        volume = np.where(flows, table["volume"][inverse], 0.0)
        route = np.where(flows, table["route"][inverse], -1).astype(np.int32)
        seconds = np.where(flows, table["latency"][inverse], seconds)
        chains = kind == CHAIN
        is_network = table["is_network"][inverse] & flows
        factors = slowdown(self.cluster.devices, self.runtime.overlap_slows)
        return Costs(
            seconds=seconds,
            volume=volume,
            route=route,
            breakdown=np.where(chains[:, None], table["parts"][inverse], 0.0),
            is_network=is_network,
            first_launch=np.where(chains, table["first_launch"][inverse], 0.0),
            activity=factors.number(
                self.devices[graph.task_class],
                self._activity(is_network & ~table["holds_domain"][inverse].astype(np.bool_)),
            ),
            sensitivity=np.where(chains, table["compute_share"][inverse], 1.0),
            slowdown=factors.table,
            routes=self.routes.with_ceilings(tuple(self._ceilings)),
            notes=tuple(self.notes),
            sources=tuple(self.sources),
            item_seconds=items,
            item_spread=extra[1],
            item_measured=extra[0],
            item_volume=self.item_volume,
            item_route=self.item_route,
            network_routes=self.routes,
        )

    def _activity(self, is_spanning: NDArray[np.bool_]) -> Ints:
        """What each task does to its device, as far as something may run beside it."""
        graph, kind = self.graph, self.graph.task_kind
        activity = np.full(graph.tasks, interference.NOTHING)
        activity[kind == CHAIN] = interference.COMPUTE
        activity[kind == COLLECTIVE] = interference.COLLECTIVE
        activity[is_spanning] = interference.SPANNING
        # small messages of a pipeline are left out: they are short, and many
        activity[kind == TRANSFER] = interference.NOTHING
        for task in np.flatnonzero(kind == COPY).tolist():
            work = graph.shape(int(graph.task_shape[task]))[0].work
            if isinstance(work, Copy):
                activity[task] = _COPY_ACTIVITY.get(work.direction, interference.NOTHING)
        return np.where(graph.task_accompanied, activity, interference.NOTHING)

    def _pairs(
        self, classes: Ints, shapes: Ints, items: Floats, parts: Floats
    ) -> dict[str, NDArray[np.float64]]:
        """Sums over the items of each distinct (rank class, shape)."""
        graph = self.graph
        low, high = graph.shape_ptr[shapes], graph.shape_ptr[shapes + 1]
        lengths = (high - low).astype(np.int64)
        ptr = np.concatenate([[0], np.cumsum(lengths)])
        where = (
            np.arange(ptr[-1])
            - np.repeat(ptr[:-1], lengths)
            + np.repeat(low.astype(np.int64), lengths)
        )
        item = graph.shape_items[where].astype(np.int64)
        owner = np.repeat(np.arange(len(shapes)), lengths)
        rank_class = np.repeat(classes, lengths)
        device = items[rank_class, item]
        host = host_seconds(graph, self.cluster, self.runtime)
        chains = chain_summaries(ptr, device, host[item])
        table: dict[str, NDArray[np.float64]] = {
            "seconds": chains.device,
            "host": chains.host,
            "lead": chains.lead,
            "first_launch": host[graph.shape_items[low]],
            "parts": np.stack(
                [_summed(owner, parts[rank_class, p, item], len(shapes)) for p in range(3)], axis=1
            ),
        }
        whole = np.where(chains.device > 0.0, chains.device, 1.0)
        table["compute_share"] = np.minimum(1.0, table["parts"][:, COMPUTE] / whole)
        return table | self._flow_columns(classes, shapes)

    def _flow_columns(self, classes: Ints, shapes: Ints) -> dict[str, NDArray[np.float64]]:
        """Latency, volume and route of shapes that are a single collective."""
        graph, count = self.graph, len(shapes)
        latency, volume = np.zeros(count), np.zeros(count)
        route, is_network = np.full(count, -1), np.zeros(count, dtype=np.bool_)
        holds = np.zeros(count, dtype=np.bool_)
        single = graph.shape_ptr[shapes + 1] - graph.shape_ptr[shapes] == 1
        for pair in np.flatnonzero(single).tolist():
            item = graph.items[int(graph.shape_items[graph.shape_ptr[shapes[pair]]])]
            if not isinstance(item.work, Communication):
                continue
            cost = self._charge(item.work, int(classes[pair]))
            exposed = self._exposed(item.work)
            latency[pair] = cost.choice.latency * exposed
            priority = self.priorities.get(item.work.purpose, 1.0)
            volume[pair] = cost.choice.volume * exposed / priority
            ceiling = (cost.route, cost.choice.max_rate or np.inf, priority)
            route[pair] = self._ceilings.setdefault(ceiling, len(self._ceilings))
            is_network[pair] = cost.is_network
            holds[pair] = holds_domain(item.work.collective)
        return {
            "latency": latency,
            "volume": volume,
            "route": route,
            "is_network": is_network,
            "holds_domain": holds,
        }


def _summed(owner: Ints, values: Floats, count: int) -> Floats:
    return np.bincount(owner, weights=values, minlength=count).astype(np.float64)


def _tensors(kernels: Sequence[Kernel]) -> Floats:
    """For how many tensors the host issues kernels while the device waits, where a kernel stands for that."""
    return np.array([k.shape[0] if k.kind == LAUNCHES else 0.0 for k in kernels])
