"""Costs: what every task of an execution graph costs alone, in columns, each with source and spread."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from foretrain.cluster.cluster import Cluster
from foretrain.compile.columns import distinct
from foretrain.compile.execution import (
    BACKWARD,
    CHAIN,
    COLLECTIVE,
    COPY,
    FORWARD,
    KIND_NAMES,
    LAUNCH,
    LAUNCH_REST,
    TRANSFER,
    Communication,
    Copy,
    ExecutionGraph,
)
from foretrain.cost import interference
from foretrain.cost.collectives.gossip import holds_domain
from foretrain.cost.compute import ComputeModel
from foretrain.cost.host import chain_summaries
from foretrain.cost.interference import slowdown
from foretrain.cost.items import COMPUTE, ItemCosts, Known, Surroundings
from foretrain.cost.launching import host_seconds
from foretrain.cost.network import EngineRoutes, Network, Routes
from foretrain.model.workload import DataSource
from foretrain.runtime import Runtime

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_COPY_ACTIVITY = {"to_device": interference.COPY_IN, "to_host": interference.COPY_OUT}


@dataclass(frozen=True, eq=False, slots=True)
class Costs:
    """Per task: fixed seconds, volume and route for the engine, and what its seconds are made of."""

    seconds: Floats
    volume: Floats  # bytes, in units of the flow's priority as its route is
    route: NDArray[np.int32]
    is_network: NDArray[np.bool_]  # a flow that crosses the network
    alike: Ints  # of tasks that cost the same, the row in …
    breakdown: Floats  # … [rows, 3] of chains: compute, interconnect, network
    moved: Floats  # … [rows] of flows: bytes that cross links, in units as `volume`
    first_launch: Floats  # … [rows] of chains: host seconds to issue the first kernel alone
    activity: NDArray[np.int8]  # what a task does to its device while it runs (0: nothing)
    sensitivity: Floats  # the share of a task that others on its device can slow
    slowdown: Floats  # [activities, activities] factor on the row's time while the column's runs
    routes: EngineRoutes
    notes: tuple[str, ...]
    sources: tuple[str, ...]
    item_seconds: Floats  # [rank classes, items]: what one item costs alone
    item_spread: Floats  # … one standard deviation of its kernel …
    item_measured: Floats  # … and the part of it that rests on measured tables
    item_left: Floats  # … and that measured curves exist for, but do not hold here
    item_moved: Floats  # [rank classes, items]: bytes a collective of the chain moves …
    item_volume: Floats  # … and how many keep its links busy as long, at their rate …
    item_route: Ints  # … and its route in `network_routes` (-1: none)
    network_routes: Routes
    known: Known


def cost_graph(
    graph: ExecutionGraph,
    cluster: Cluster,
    runtime: Runtime,
    network: Network,
    compute: ComputeModel,
    data: DataSource | None = None,
    known: Known | None = None,
) -> Costs:
    """`known`: what is the same as in other costs of the graph."""
    around = Surroundings(cluster, runtime, network, compute, data)
    return _Costing(graph, around, known).costs()


@dataclass(frozen=True, eq=False, slots=True)
class _Rows:
    """Tasks of one rank class, shape and kind that all have company or none, and a partner or none."""

    pair: Ints  # (rank class · shapes + shape) · 2 + whether it runs without a partner
    kind: Ints
    is_accompanied: NDArray[np.bool_]


class _Costing(ItemCosts):
    """Items of a whole graph, summed up into its tasks."""

    def __init__(
        self, graph: ExecutionGraph, around: Surroundings, known: Known | None = None
    ) -> None:
        super().__init__(graph.items, graph.fold, around, known)
        self.graph = graph
        self._ceilings: dict[
            tuple[int, float, float], int
        ] = {}  # (route, rate ceiling, priority) → route for the engine
        self.priorities = dict(around.runtime.priorities)

    def costs(self) -> Costs:
        graph, classes = self.graph, self.graph.fold.classes
        items = np.zeros((classes, len(graph.items)))
        parts = np.zeros((classes, 3, len(graph.items)))
        extra = np.zeros((3, classes, len(graph.items)))  # measured, spread, curve-less seconds
        for rank_class in range(classes):
            items[rank_class], parts[rank_class], extra[:, rank_class] = self.seconds_of(rank_class)
        self._chain_traffic()
        return self._tasks(items, parts, extra)

    def _chain_traffic(self) -> None:
        """What collectives inside chains put on links; the engine never sees them."""
        shape = (self.graph.fold.classes, len(self.graph.items))
        self.item_volume, self.item_moved = np.zeros(shape), np.zeros(shape)
        self.item_route = np.full(shape, -1, dtype=np.int64)
        for rank_class in range(shape[0]):
            for index in self.other_ids:
                item = self.graph.items[index]
                work = item.work if isinstance(item.work, Communication) else item.beside
                if work is not None and self.takes_part(item, rank_class):
                    cost = self.charge_of(work, rank_class)
                    self.item_volume[rank_class, index] = cost.choice.volume
                    self.item_moved[rank_class, index] = cost.choice.moved
                    self.item_route[rank_class, index] = cost.route

    def _tasks(self, items: Floats, parts: Floats, extra: Floats) -> Costs:
        rows, alike = self._alike()
        pairs, pair = distinct(rows.pair)
        shapes = len(self.graph.shape_ptr) - 1
        table = self._pairs(pairs, items, parts)
        table = {name: column[pair] for name, column in table.items()}
        kind, seconds = rows.kind, table["seconds"]
        seconds = np.where(kind == LAUNCH, table["lead"], seconds)
        seconds = np.where(kind == LAUNCH_REST, table["host"] - table["lead"], seconds)
        flows = (kind == COLLECTIVE) | (kind == TRANSFER)
        seconds = np.where(flows, table["latency"], seconds)
        chains = kind == CHAIN
        is_network = table["is_network"].astype(np.bool_) & flows
        factors = slowdown(self.cluster.devices, self.runtime.overlap_slows)
        activity = self._activity(rows, is_network & ~table["holds_domain"].astype(np.bool_))
        return Costs(
            seconds=seconds[alike],
            volume=np.where(flows, table["volume"], 0.0)[alike],
            route=np.where(flows, table["route"], -1).astype(np.int32)[alike],
            is_network=is_network[alike],
            alike=alike,
            breakdown=np.where(chains[:, None], table["parts"], 0.0),
            moved=np.where(flows, table["moved"], 0.0),
            first_launch=np.where(chains, table["first_launch"], 0.0),
            activity=factors.number(self.devices[rows.pair // 2 // shapes], activity)[alike],
            sensitivity=np.where(chains, table["compute_share"], 1.0)[alike],
            slowdown=factors.table,
            routes=self.routes.with_ceilings(tuple(self._ceilings)),
            notes=tuple(self.notes),
            sources=tuple(self.sources),
            item_seconds=items,
            item_spread=extra[1],
            item_measured=extra[0],
            item_left=extra[2],
            item_moved=self.item_moved,
            item_volume=self.item_volume,
            item_route=self.item_route,
            network_routes=self.routes,
            known=Known(self.kernels, self.charges),
        )

    def _alike(self) -> tuple[_Rows, Ints]:
        """Tasks that cost the same as rows, and which of them each task is."""
        graph = self.graph
        key = graph.task_class.astype(np.int64) * (len(graph.shape_ptr) - 1) + graph.task_shape
        key = key * 2 + self._without_partner()
        key = (key * len(KIND_NAMES) + graph.task_kind) * 2 + graph.task_accompanied
        keys, alike = distinct(key)
        left, accompanied = np.divmod(keys, 2)
        pair, kind = np.divmod(left, len(KIND_NAMES))
        return _Rows(pair, kind, accompanied > 0), alike

    def _without_partner(self) -> NDArray[np.bool_]:
        """[tasks] passes beside which none goes the other way: forward before the first backward pass of a device,
        backward after its last forward pass. Exchanges of experts hide under a partner (DeepSeek-V3, arXiv 2412.19437,
        section 3.2.1; Megatron Core, overlap_moe_expert_parallel_comm), so these wait for theirs."""
        graph = self.graph
        if not self.runtime.expert_overlap:
            return np.zeros(graph.tasks, dtype=np.bool_)
        number, owner = np.arange(graph.tasks), graph.task_class
        works = (graph.task_kind == CHAIN) | (graph.task_kind == COLLECTIVE)
        ahead = works & (graph.task_phase == FORWARD)
        back = works & (graph.task_phase == BACKWARD)
        first = np.full(graph.fold.classes, graph.tasks)
        last = np.full(graph.fold.classes, -1)
        np.minimum.at(first, owner[back], number[back])
        np.maximum.at(last, owner[ahead], number[ahead])
        found = (ahead & (number < first[owner])) | (back & (number > last[owner]))
        return np.asarray(found, dtype=np.bool_)

    def _activity(self, rows: _Rows, is_spanning: NDArray[np.bool_]) -> Ints:
        """What each row does to its device, as far as something may run beside it."""
        graph, kind = self.graph, rows.kind
        activity = np.full(len(kind), interference.NOTHING)
        activity[kind == CHAIN] = interference.COMPUTE
        activity[kind == COLLECTIVE] = interference.COLLECTIVE
        activity[is_spanning] = interference.SPANNING
        # small messages of a pipeline are left out: they are short, and many
        activity[kind == TRANSFER] = interference.NOTHING
        for row in np.flatnonzero(kind == COPY).tolist():
            work = graph.shape(int(rows.pair[row]) // 2 % (len(graph.shape_ptr) - 1))[0].work
            if isinstance(work, Copy):
                activity[row] = _COPY_ACTIVITY.get(work.direction, interference.NOTHING)
        return np.where(rows.is_accompanied, activity, interference.NOTHING)

    def _pairs(self, pairs: Ints, items: Floats, parts: Floats) -> dict[str, NDArray[np.float64]]:
        """Sums over the items of each distinct (rank class, shape, whether it has no partner)."""
        graph = self.graph
        classes, shapes = np.divmod(pairs // 2, len(graph.shape_ptr) - 1)
        hidden = [self.hidden_of(rank_class) for rank_class in range(len(parts))]
        parts = np.stack([parts, parts + np.stack(hidden)])
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
        lone = np.repeat(pairs % 2, lengths)
        device = items[rank_class, item]
        device = device + (parts[lone, rank_class, :, item] - parts[0, rank_class, :, item]).sum(
            axis=1
        )
        host = host_seconds(graph.items, graph.fold, self.cluster, self.runtime)
        chains = chain_summaries(ptr, device, host[item])
        table: dict[str, NDArray[np.float64]] = {
            "seconds": chains.device,
            "host": chains.host,
            "lead": chains.lead,
            "first_launch": host[graph.shape_items[low]],
            "parts": np.stack(
                [_summed(owner, parts[lone, rank_class, p, item], len(shapes)) for p in range(3)],
                axis=1,
            ),
        }
        whole = np.where(chains.device > 0.0, chains.device, 1.0)
        table["compute_share"] = np.minimum(1.0, table["parts"][:, COMPUTE] / whole)
        return table | self._flow_columns(classes, shapes, pairs % 2 > 0)

    def _flow_columns(
        self, classes: Ints, shapes: Ints, is_lone: NDArray[np.bool_]
    ) -> dict[str, NDArray[np.float64]]:
        """Latency, volume and route of shapes that are a single collective."""
        graph, count = self.graph, len(shapes)
        latency, volume, moved = np.zeros(count), np.zeros(count), np.zeros(count)
        route, is_network = np.full(count, -1), np.zeros(count, dtype=np.bool_)
        holds = np.zeros(count, dtype=np.bool_)
        single = graph.shape_ptr[shapes + 1] - graph.shape_ptr[shapes] == 1
        for pair in np.flatnonzero(single).tolist():
            item = graph.items[int(graph.shape_items[graph.shape_ptr[shapes[pair]]])]
            if not isinstance(item.work, Communication):
                continue
            cost = self.charge_of(item.work, int(classes[pair]))
            exposed = 1.0 if is_lone[pair] else self.exposed(item.work)
            latency[pair] = cost.choice.latency * exposed
            priority = self.priorities.get(item.work.purpose, 1.0)
            volume[pair] = cost.choice.volume * exposed / priority
            moved[pair] = cost.choice.moved / priority
            ceiling = (cost.route, cost.choice.max_rate or np.inf, priority)
            route[pair] = self._ceilings.setdefault(ceiling, len(self._ceilings))
            is_network[pair] = cost.is_network
            holds[pair] = holds_domain(item.work.collective)
        return {
            "latency": latency,
            "volume": volume,
            "moved": moved,
            "route": route,
            "is_network": is_network,
            "holds_domain": holds,
        }


def _summed(owner: Ints, values: Floats, count: int) -> Floats:
    return np.bincount(owner, weights=values, minlength=count).astype(np.float64)
