"""Costs: what every task of an execution graph costs alone, in columns, each with source and spread."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from foretrain.arrays import Bools, Floats, Ints, Ints32
from foretrain.cluster.cluster import Cluster
from foretrain.compile.execution import (
    CHAIN,
    COLLECTIVE,
    COPY,
    LAUNCH,
    LAUNCH_REST,
    TRANSFER,
    Copy,
    ExecutionGraph,
)
from foretrain.cost import interference
from foretrain.cost.collectives.gossip import holds_domain
from foretrain.cost.compute import ComputeModel
from foretrain.cost.host import chain_summaries, host_seconds
from foretrain.cost.interference import slowdown
from foretrain.cost.items import COMPUTE, HOST, PARTS, CostedItems, ItemCosts, Surroundings
from foretrain.cost.network import EngineRoutes, FlowRoutes, Network
from foretrain.cost.rows import rows_of
from foretrain.model.workload import DataSource
from foretrain.runtime import Runtime

_COPY_ACTIVITY = {"to_device": interference.COPY_IN, "to_host": interference.COPY_OUT}


@dataclass(frozen=True, eq=False, slots=True)
class Costs:
    """Per task: fixed seconds, volume and route for the engine, and what its seconds are made of."""

    seconds: Floats
    volume: Floats  # bytes, in units of the flow's priority as its route is
    route: Ints32
    is_network: Bools  # a flow that crosses the network
    alike: Ints  # of tasks that cost the same, the row in …
    breakdown: Floats  # … [rows, PARTS] of chains
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
    network_routes: FlowRoutes
    known: CostedItems


def cost_graph(
    graph: ExecutionGraph,
    cluster: Cluster,
    runtime: Runtime,
    network: Network,
    compute: ComputeModel,
    data: DataSource | None = None,
    known: CostedItems | None = None,
) -> Costs:
    """`known`: what is the same as in other costs of the graph."""
    around = Surroundings(cluster, runtime, network, compute, data)
    return _Costing(graph, around, known).costs()


class _Costing(ItemCosts):
    """Items of a whole graph, summed up into its tasks."""

    def __init__(
        self, graph: ExecutionGraph, around: Surroundings, known: CostedItems | None = None
    ) -> None:
        super().__init__(graph.items, graph.fold, around, known)
        self.graph = graph
        has_partners = around.runtime.expert_parallel.expert_overlap > 0.0
        known_rows = None if known is None else known.rows
        self.rows = rows_of(graph, has_partners) if known_rows is None else known_rows
        self._ceilings: dict[
            tuple[int, float, float], int
        ] = {}  # (route, rate ceiling, priority) → route for the engine
        self.priorities = dict(around.runtime.communication.priorities)

    def costs(self) -> Costs:
        graph, classes = self.graph, self.graph.fold.classes
        items = np.zeros((classes, len(graph.items)))
        parts = np.zeros((classes, len(PARTS), len(graph.items)))
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
        for rank_class, others in enumerate(self.roles.others):
            for other in others:
                cost = self.collective_cost(other)
                if cost is not None:
                    self.item_volume[rank_class, other.index] = cost.choice.volume
                    self.item_moved[rank_class, other.index] = cost.choice.moved
                    self.item_route[rank_class, other.index] = cost.route

    def _tasks(self, items: Floats, parts: Floats, extra: Floats) -> Costs:
        rows, alike = self.rows, self.rows.alike
        table = {name: column[rows.entry] for name, column in self._entries(items, parts).items()}
        kind, seconds = rows.kind, table["seconds"]
        seconds = np.where(kind == LAUNCH, table["lead"], seconds)
        seconds = np.where(kind == LAUNCH_REST, table["host"] - table["lead"], seconds)
        flows = (kind == COLLECTIVE) | (kind == TRANSFER)
        seconds = np.where(flows, table["latency"], seconds)
        chains = kind == CHAIN
        is_network = table["is_network"].astype(np.bool_) & flows
        factors = slowdown(self.cluster.devices, self.runtime.communication.overlap_slows)
        activity = self._activity(is_network & ~table["holds_domain"].astype(np.bool_))
        return Costs(
            seconds=seconds[alike],
            volume=np.where(flows, table["volume"], 0.0)[alike],
            route=np.where(flows, table["route"], -1).astype(np.int32)[alike],
            is_network=is_network[alike],
            alike=alike,
            breakdown=np.where(chains[:, None], table["parts"], 0.0),
            moved=np.where(flows, table["moved"], 0.0),
            first_launch=np.where(chains, table["first_launch"], 0.0),
            activity=factors.number(self.devices[rows.classes[rows.entry]], activity)[alike],
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
            known=CostedItems(self.roles, self.kernels, self.collective_costs, rows),
        )

    def _activity(self, is_spanning: Bools) -> Ints:
        """What each row does to its device, as far as something may run beside it."""
        graph, rows, kind = self.graph, self.rows, self.rows.kind
        activity = np.full(len(kind), interference.NOTHING)
        activity[kind == CHAIN] = interference.COMPUTE
        activity[kind == COLLECTIVE] = interference.COLLECTIVE
        activity[is_spanning] = interference.SPANNING
        # small messages of a pipeline are left out: they are short, and many
        activity[kind == TRANSFER] = interference.NOTHING
        for row in np.flatnonzero(kind == COPY).tolist():
            work = graph.shape(int(rows.shapes[rows.entry[row]]))[0].work
            if isinstance(work, Copy):
                activity[row] = _COPY_ACTIVITY.get(work.direction, interference.NOTHING)
        return np.where(rows.is_accompanied, activity, interference.NOTHING)

    def _entries(self, items: Floats, parts: Floats) -> dict[str, Floats]:
        """Sums over the items of each distinct (rank class, shape, whether it has no partner)."""
        graph, rows, count = self.graph, self.rows, len(self.rows.shapes)
        device, shares = items[rows.rank_class, rows.item], parts[rows.rank_class, :, rows.item]
        if rows.is_lone.any():
            hidden = np.stack([self.hidden_of(rank_class) for rank_class in range(len(parts))])
            more = hidden[rows.rank_class, :, rows.item] * rows.is_lone[rows.owner][:, None]
            device, shares = device + more.sum(axis=1), shares + more
        host = host_seconds(graph.items, graph.fold, self.cluster, self.runtime)
        chains = chain_summaries(rows.ptr, device, host[rows.item])
        table: dict[str, Floats] = {
            "seconds": chains.device,
            "host": chains.host,
            "lead": chains.lead,
            "first_launch": host[rows.item[rows.ptr[:-1]]],
            "parts": np.stack([_summed(rows.owner, part, count) for part in shares.T], axis=1),
        }
        whole = np.where(chains.device > 0.0, chains.device, 1.0)
        table["compute_share"] = np.minimum(
            1.0, table["parts"][:, [COMPUTE, HOST]].sum(axis=1) / whole
        )
        return table | self._flow_columns(count)

    def _flow_columns(self, count: int) -> dict[str, Floats]:
        """Latency, volume and route of shapes that are a single collective."""
        latency, volume, moved = np.zeros(count), np.zeros(count), np.zeros(count)
        route, is_network = np.full(count, -1), np.zeros(count, dtype=np.bool_)
        holds = np.zeros(count, dtype=np.bool_)
        for entry, work, rank_class in self.rows.single:
            cost = self.class_cost(work, rank_class)
            exposed = 1.0 if self.rows.is_lone[entry] else self.exposed(work)
            latency[entry] = cost.choice.latency * exposed
            priority = self.priorities.get(work.purpose, 1.0)
            volume[entry] = cost.choice.volume * exposed / priority
            moved[entry] = cost.choice.moved / priority
            ceiling = (cost.route, cost.choice.max_rate or np.inf, priority)
            route[entry] = self._ceilings.setdefault(ceiling, len(self._ceilings))
            is_network[entry] = cost.is_network
            holds[entry] = holds_domain(work.collective)
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
