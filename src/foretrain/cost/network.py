"""The network as costs see it: which links groups load, what collectives cost alone, routes for the engine.

Folding keeps one flow per class of groups. What that flow meets on a link is the load of *all* groups of its
class together, so the constraint "sum of loads ≤ capacity" on one link of each kind is the same as in the
whole cluster. Links with equal capacity and equal loads are one constraint.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from foretrain.arrays import Bools, Floats, Ints, Ints32
from foretrain.cluster.cluster import Cluster
from foretrain.compile.execution import Communicator
from foretrain.compile.passes.fold import Colors, Fold, Loads, Subgroups, Use, mix
from foretrain.cost.collectives import Chosen, algorithms_for, name_of
from foretrain.cost.collectives.base import Algorithm, GroupTopology
from foretrain.cost.collectives.selector import (
    AlgorithmChoice,
    expect_able,
    has_tuner,
    link_efficiency,
    reported_latency,
)
from foretrain.cost.curves import CurveTable, OwnCurves, shipped
from foretrain.cost.flow_mapping import FlowMapping
from foretrain.cost.joints import Joints

KNOWN_LOADS = 3_000_000
"""Entries of loads that a network remembers, 24 bytes each."""
FAST_FAMILIES = ("nvlink", "xgmi")
Flow = tuple[Communicator, str, int]  # communicator, pattern, class of group or subgroup
ByPattern = tuple[tuple[str, float], ...]


@dataclass(frozen=True, eq=False, slots=True)
class FlowRoutes:
    """Constraints (one per kind of link) and, per flow, the constraints it meets with its load."""

    number: Mapping[Flow, int]
    ptr: Ints32
    link: Ints32
    weight: Floats
    capacity: Floats
    rate: Floats  # per route: bytes/s when only its own class of groups runs
    own_rate: Floats  # … when a single group of it runs
    # … when all groups of its communicator run: what a library's tuner would assume
    contended_rate: Floats
    delay: Floats  # per route: seconds of a hop beyond those between two cards on one switch
    is_network: Bools  # per route: crosses the network
    example: Ints  # per constraint: one link that stands for its kind …
    on_network: Bools  # … and whether it is a link between nodes
    count: Ints  # … and how many links it stands for

    def with_ceilings(self, chosen: tuple[tuple[int, float, float], ...]) -> EngineRoutes:
        """The routes in use, each with the rate ceiling of the protocol that runs on it and its priority.

        A flow of priority p gets p times the share of one of priority 1. Sharing stays max-min fair if volumes,
        rates and ceilings are told in units of p: such a flow then loads its links p times as much per unit.
        """
        lengths = np.diff(self.ptr)[[route for route, _, _ in chosen]]
        ptr = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        parts = [np.arange(self.ptr[route], self.ptr[route + 1]) for route, _, _ in chosen]
        entries = np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)
        priority = np.array([priority for _, _, priority in chosen], dtype=np.float64)
        ceilings = np.array([ceiling for _, ceiling, _ in chosen], dtype=np.float64) / priority
        weight = self.weight[entries] * np.repeat(priority, lengths)
        return EngineRoutes(ptr, self.link[entries], weight, ceilings, self.capacity)


@dataclass(frozen=True, eq=False, slots=True)
class EngineRoutes:
    """Routes as the engine takes them."""

    ptr: Ints32
    link: Ints32
    weight: Floats
    ceiling: Floats
    capacity: Floats


@dataclass(frozen=True, slots=True)
class LibraryCost:
    """How a group's library carries a collective out, and what that rests on."""

    choice: AlgorithmChoice
    is_measured: bool  # a measured curve says how long it takes
    left: str  # why curves that there are do not hold


class Network:
    """The links of a cluster at the bandwidth long messages reach. Implements `Traffic` for the fold pass."""

    def __init__(
        self,
        cluster: Cluster,
        library: str = "nccl",
        choose: Chosen = (),
        own: OwnCurves | None = None,
    ) -> None:
        """`own`: what the user measured of these links; it stands before what ships."""
        self.cluster = cluster
        self.library, self.choose, self.own = library, choose, own
        topology = cluster.topology
        tier = np.asarray(topology.tier)
        capacity = np.asarray(topology.capacity) * _efficiency(cluster)
        self.links = len(capacity)
        self.capacity = np.concatenate([capacity, capacity])  # second half: lanes of sends
        self.is_network = np.concatenate([tier == 1, tier == 1])
        self.domain_of = np.asarray(cluster.domain_of, dtype=np.int64)
        self.link_family = _link_family(cluster)
        nodes = [run.node for run in cluster.runs]
        self.architecture = nodes[0].devices[0].architecture
        self.has_switch = all(node.interconnect.topology == "nvswitch" for node in nodes)
        self.transport = "tcp" if cluster.network.kind.startswith("ethernet") else ""
        self.reported = reported_latency(cluster.network.kind) if has_tuner(library) else 0.0
        nics = nodes[0].nics
        self.inside_latency = nodes[0].interconnect.latency_scale
        self.between_latency = 1.0 if nics is None else nics.latency_scale
        self.reported *= self.between_latency
        self.flow_mapping = FlowMapping(cluster, capacity)
        self.joints = Joints(cluster)
        # what was asked before of groups on like links (`collective_costs`)
        self.known_costs: dict[tuple[object, ...], dict[tuple[str, float, str], LibraryCost]] = {}
        self._known_loads: dict[tuple[object, ...], Loads] = {}
        colors = self.capacity.view(np.uint64) + self.is_network.astype(np.uint64)
        self._link_colors = np.ascontiguousarray(colors)

    def curves(self, library: str, domains: int) -> tuple[CurveTable, ...]:
        """Tables of measured curves that groups in so many domains may be timed by, the best first."""
        if self.choose:
            return ()
        own = None if self.own is None else self.own.of(library, domains)
        ships = domains == 1 and has_tuner(library)
        return (*(() if own is None else (own,)), *((shipped(),) if ships else ()))

    def link_name(self, link: int) -> str:
        """The link as the topology calls it; lanes of sends are named after the link they run beside."""
        name = self.cluster.topology.name(link % self.links)
        return f"{name} (sends)" if link >= self.links else name

    def link_colors(self) -> Colors:
        return self._link_colors

    def rank_colors(self) -> Colors:
        return np.asarray(self.cluster.device_kind, dtype=np.uint64)

    def algorithms(self, collective: str) -> tuple[Algorithm, ...]:
        return algorithms_for(self.flow_mapping.named(collective), self.library, self.choose)

    def loads(self, collective: str, groups: Ints) -> tuple[Loads, ...]:
        patterns = {a.pattern: a for a in self.algorithms(collective)}
        return tuple(self.pattern_loads(a, groups) for a in patterns.values())

    def subgroups(self, collective: str, groups: Ints) -> Subgroups | None:
        return self.flow_mapping.subgroups(self.algorithms(collective)[0], groups)

    def pattern_loads(self, algorithm: Algorithm, groups: Ints) -> Loads:
        """… remembered for a while: folds, routes and other meshes ask for the same groups."""
        key = (algorithm.pattern, algorithm.has_own_lane, groups.shape, groups.tobytes())
        found = self._known_loads.pop(key, None)
        if found is None:
            found = self._pattern_loads(algorithm, groups)
        self._known_loads[key] = found  # the last asked for is the last to go
        while sum(len(each.link) for each in self._known_loads.values()) > KNOWN_LOADS:
            del self._known_loads[next(iter(self._known_loads))]
        return found

    def _pattern_loads(self, algorithm: Algorithm, groups: Ints) -> Loads:
        flows = self.flow_mapping.flows(algorithm, groups)
        routes = self.cluster.topology.routes(flows.src, flows.dst)
        owner = routes.owner
        link = np.asarray(routes.links, dtype=np.int64)
        if algorithm.has_own_lane and self.link_family in FAST_FAMILIES:
            # A send over a switched interconnect and the collectives of the ranks it passes hardly meet:
            # both are short against the compute between them. Sends get a lane of their own there.
            link = np.where(self.is_network[link], link, link + self.links)
        subgroups = self.flow_mapping.subgroups(algorithm, groups)
        mover = flows.group if subgroups is None else subgroups.of[flows.src]
        return Loads(group=mover[owner], link=link, weight=flows.weight[owner] * routes.share)


@lru_cache(maxsize=32)
def network_of(
    cluster: Cluster, library: str = "nccl", choose: Chosen = (), own: OwnCurves | None = None
) -> Network:
    """One network per cluster, so that folds and routes can be remembered."""
    return Network(cluster, library, choose, own)


@lru_cache(maxsize=128)
def routes_of(network: Network, fold: Fold, uses: tuple[Use, ...]) -> FlowRoutes:
    """Constraints and routes of every flow the uses may need."""
    if network.choose:
        expect_able(network.choose, _chosen_uses(network, fold, uses))
    number: dict[Flow, int] = {}
    links, flows = [np.zeros(0, dtype=np.int64)], [np.zeros(0, dtype=np.int64)]
    weights, own, contended, delays = [np.zeros(0)], [np.zeros(0)], [np.zeros(0)], [np.zeros(0)]
    for communicator, collective in uses:
        found, movers = fold.groups[communicator], fold.movers(communicator, collective)
        home = found.group_class[found.group_of[movers.first]]  # the groups that subgroups are of
        for algorithm in {a.pattern: a for a in network.algorithms(collective)}.values():
            if (communicator, algorithm.pattern, 0) in number:
                continue
            first = len(number)
            for mover_class in range(len(movers.examples)):
                number[communicator, algorithm.pattern, mover_class] = first + mover_class
            loads = network.pattern_loads(algorithm, found.groups)
            own.append(_own_rate(network, loads, movers.examples))
            delays.append(
                network.flow_mapping.delays(algorithm, found.groups[found.examples])[home]
            )
            crossed = _crossings(loads, movers.group_class, len(movers.examples))
            links.append(crossed.link)
            flows.append(first + crossed.group)
            weights.append(crossed.weight)
            contended.append(_contended_rate(network, loads, movers.group_class, home))
    columns = (np.concatenate(links), np.concatenate(flows), np.concatenate(weights))
    known = (np.concatenate(own), np.concatenate(contended), np.concatenate(delays))
    return _constraints(network, number, *known, *columns)


def _crossings(loads: Loads, mover_class: Ints, classes: int) -> Loads:
    """What each class loads each link with, all its members together."""
    keys, inverse = np.unique(loads.link * classes + mover_class[loads.group], return_inverse=True)
    total = np.bincount(inverse, weights=loads.weight).astype(np.float64)
    return Loads(group=keys % classes, link=keys // classes, weight=total)


def _own_rate(network: Network, loads: Loads, examples: Ints) -> Floats:
    """Rate of some groups of one pattern, each when it runs alone."""
    number = np.full(int(max(loads.group.max(initial=0), examples.max(initial=0))) + 1, -1)
    number[examples] = np.arange(len(examples))
    group = number[loads.group]
    is_asked = group >= 0
    links = len(network.capacity)
    keys, inverse = np.unique(group[is_asked] * links + loads.link[is_asked], return_inverse=True)
    total = np.bincount(inverse, weights=loads.weight[is_asked])
    rate = np.full(len(examples), np.inf)
    np.minimum.at(rate, keys // links, network.capacity[keys % links] / total)
    return rate


def _contended_rate(network: Network, loads: Loads, mover_class: Ints, home: Ints) -> Floats:
    """Rate of each class of one pattern when all groups of the communicator move at once: a library chooses for
    a group, so all subgroups of one are told that of the slowest."""
    total = np.bincount(loads.link, weights=loads.weight, minlength=len(network.capacity))
    rate = np.full(int(home.max()) + 1, np.inf)
    group_class = home[mover_class[loads.group]]
    with np.errstate(divide="ignore", invalid="ignore"):  # links that nothing crosses
        shared = network.capacity / total
    np.minimum.at(rate, group_class, shared[loads.link])
    return rate[home]


def _constraints(
    network: Network,
    number: dict[Flow, int],
    own: Floats,
    contended: Floats,
    delay: Floats,
    link: Ints,
    flow: Ints,
    total: Floats,
) -> FlowRoutes:
    count = len(number)
    chosen, times = _distinct_rows(network, link, flow, total, count)
    keep = chosen[link] >= 0
    flow, total, constraint = flow[keep], total[keep], chosen[link[keep]]
    order = np.lexsort((constraint, flow))
    flow, total, constraint = flow[order], total[order], constraint[order]
    ptr = np.zeros(count + 1, dtype=np.int32)
    np.cumsum(np.bincount(flow, minlength=count), out=ptr[1:])
    representative = np.flatnonzero(chosen >= 0)
    capacity = np.zeros(len(representative))
    capacity[chosen[representative]] = network.capacity[representative]
    crosses = np.zeros(len(representative), dtype=np.bool_)
    crosses[chosen[representative]] = network.is_network[representative]
    rate = np.full(count, np.inf)
    np.minimum.at(rate, flow, capacity[constraint] / total)
    is_network = np.zeros(count, dtype=np.bool_)
    np.logical_or.at(is_network, flow, crosses[constraint])
    example = np.zeros(len(representative), dtype=np.int64)
    example[chosen[representative]] = representative
    return FlowRoutes(
        number,
        ptr,
        constraint.astype(np.int32),
        total,
        capacity,
        rate,
        own,
        contended,
        delay,
        is_network,
        example,
        crosses,
        times,
    )


def _distinct_rows(
    network: Network, link: Ints, flow: Ints, total: Floats, flows: int
) -> tuple[Ints, Ints]:
    """For each link the number of its constraint if it represents one, else -1; the links of each constraint."""
    # fixed multipliers: the same input gives the same hashes
    salt = mix(np.arange(flows, dtype=np.uint64)) | np.uint64(1)
    terms = np.ascontiguousarray(total).view(np.uint64) ^ (salt >> np.uint64(7))[flow]
    terms *= salt[flow]
    terms ^= terms >> np.uint64(29)
    rows = np.zeros(len(network.capacity), dtype=np.uint64)
    np.add.at(rows, link, terms)
    used = np.zeros(len(rows), dtype=np.bool_)
    used[link] = True
    rows += network.link_colors() * np.uint64(0x9E3779B97F4A7C15)
    where = np.flatnonzero(used)
    _, first, times = np.unique(rows[where], return_index=True, return_counts=True)
    chosen = np.full(len(rows), -1, dtype=np.int64)
    chosen[where[np.sort(first)]] = np.arange(len(first))
    return chosen, times[np.argsort(first)]


def wiring_of(
    network: Network, members: Ints, rates: ByPattern = (), delays: ByPattern = ()
) -> GroupTopology:
    """A group as the selector sees it; without rates and delays as far as the cluster alone says."""
    return GroupTopology(
        ranks=len(members),
        domains=len(set(network.domain_of[members].tolist())),
        link_family=network.link_family,
        rate=rates[0][1] if rates else 0.0,
        architecture=network.architecture,
        has_switch=network.has_switch,
        transport=network.transport,
        rates=rates,
        delays=delays,
        inside_latency=network.inside_latency,
        between_latency=network.between_latency,
    )


def _chosen_uses(
    network: Network, fold: Fold, uses: tuple[Use, ...]
) -> list[tuple[str, GroupTopology]]:
    """Every kind of group on which a collective runs whose algorithm the user chose."""
    names = {collective for collective, _ in network.choose}
    return [
        (collective, wiring_of(network, found.groups[example]))
        for communicator, collective in uses
        if name_of(collective) in names
        for found in (fold.groups[communicator],)
        for example in found.examples.tolist()
    ]


def _efficiency(cluster: Cluster) -> Floats:
    """Share of its rated bandwidth that each link reaches, by its kind."""
    topology = cluster.topology
    kinds = np.asarray(topology.kind)
    inside = np.array([link_efficiency("interconnect", kind) for kind in topology.kinds])
    between = np.array([link_efficiency("network", kind or "default") for kind in topology.kinds])
    return np.where(np.asarray(topology.tier) == 0, inside[kinds], between[kinds])


def _link_family(cluster: Cluster) -> str:
    kind = cluster.runs[0].node.interconnect.kind
    for family in ("nvlink", "pcie", "xgmi"):
        if kind.startswith(family):
            return family
    return "default"
