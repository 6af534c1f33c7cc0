"""What a collective costs the groups that run it, by a measured curve where one holds or by the model.

The simulator asks for the groups of a fold (`cost_of`), the estimator for those of a communicator all at work, without
folding ranks first (`contended`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from foretrain.arrays import Ints
from foretrain.cluster.device import Device
from foretrain.compile.execution import Communication, Communicator
from foretrain.compile.passes.fold import Fold, GroupClasses, Use
from foretrain.cost.calibration.efficiencies import table
from foretrain.cost.collectives.base import GroupTopology
from foretrain.cost.collectives.constants import constants
from foretrain.cost.collectives.selector import AlgorithmChoice, protocols, row_of, select
from foretrain.cost.curves import MeasuredSeconds
from foretrain.cost.network import FlowRoutes, LibraryCost, Network, wiring_of


@dataclass(frozen=True, slots=True)
class CollectiveCost:
    """What one collective costs a group class: pay latency, then move volume over a route."""

    choice: AlgorithmChoice
    route: int
    seconds: float  # alone
    contended_seconds: float  # while all groups of its communicator do the same
    is_network: bool
    is_measured: bool = False  # the time alone is that of a measured curve
    left: str = ""  # why measured curves that there are do not hold, for people


@dataclass(frozen=True, eq=False, slots=True)
class CollectiveGroups:
    """Those that move together in a collective, whatever its size: one of their groups, and the ways it may take."""

    members: Ints
    together: GroupClasses
    number: int  # of their class in `together`
    wiring: GroupTopology
    routes: Mapping[str, int]  # pattern → route
    own_rate: Mapping[str, float]  # pattern → bytes/s of the group alone
    known_costs: dict[
        tuple[str, float, str], LibraryCost
    ]  # of (collective, bytes, library), for all alike

    def moving(self) -> Ints:
        """The ranks that begin together. Few ask, and of a large cluster it takes a while."""
        return np.flatnonzero(self.together.group_of == self.together.examples[self.number])


@lru_cache(maxsize=4096)
def movers(
    network: Network, fold: Fold, routes: FlowRoutes, use: Use, mover_class: int
) -> CollectiveGroups:
    """The groups of one class, or the subgroups that move by themselves."""
    group, collective = use
    found, together = fold.groups[group], fold.movers(group, collective)
    members = found.groups[found.group_of[together.first[mover_class]]]
    patterns = dict.fromkeys(a.pattern for a in network.algorithms(collective))
    able = {p: routes.number[group, p, mover_class] for p in patterns}
    rates = tuple((p, float(routes.contended_rate[number])) for p, number in able.items())
    delays = tuple((p, network.reported + float(routes.delay[n])) for p, n in able.items())
    wiring = wiring_of(network, members, rates, delays)
    own = {p: float(routes.own_rate[number]) for p, number in able.items()}
    # classes on like links pay the same
    known_costs = network.known_costs.setdefault(
        (wiring, tuple(own.values()), network.joints.of(members)), {}
    )
    return CollectiveGroups(members, together, mover_class, wiring, able, own, known_costs)


def cost_of(network: Network, who: CollectiveGroups, routes: FlowRoutes, work: Communication, library: str) -> CollectiveCost:  # fmt: skip
    """What a collective costs those that move together."""
    asked = (work, who.members, who.wiring, who.own_rate, library, who.moving)
    if work.is_sized:  # all of a group begin alike
        key = (work.collective, work.bytes, library)
        found = who.known_costs.get(key) or who.known_costs.setdefault(
            key, library_cost(network, *asked)
        )
    else:
        found = library_cost(network, *asked)
    choice = found.choice
    route = who.routes[choice.pattern]
    rate = float(routes.rate[route])
    if np.isinf(rate):  # a subgroup that only receives
        choice = replace(choice, volume=0.0, moved=0.0)
    contended_seconds = choice.seconds(float(routes.contended_rate[route]))
    is_far = bool(routes.is_network[route])
    known = (found.is_measured, found.left)
    return CollectiveCost(choice, route, choice.seconds(rate), contended_seconds, is_far, *known)


def library_cost(
    network: Network,
    work: Communication,
    members: Ints,
    wiring: GroupTopology,
    own_rate: Mapping[str, float],
    library: str,
    moving: Callable[[], Ints],
) -> LibraryCost:
    """How a group's library carries a collective out.

    `own_rate`: bytes/s of each pattern while the group is alone; `moving`: the ranks that begin together.
    """
    collective = network.flow_mapping.named(work.collective)
    group = _Group(network, wiring.ranks, wiring.domains, moving)
    own, work = work.more_seconds(group), work.on_the_wire(group)
    choice = select(collective, work.bytes, wiring, library, network.choose)
    rate = own_rate[choice.pattern]
    timed = _timed(network, work, members, wiring, library)
    if timed.seconds is not None and np.isfinite(rate):
        choice = _lasting(choice, timed.seconds, rate)
        wiring = replace(wiring, domains=1)  # its sockets were measured with it
    waits = own + _waits(network, work, choice, wiring, library)
    is_measured = timed.seconds is not None and np.isfinite(rate)
    return LibraryCost(replace(choice, latency=choice.latency + waits), is_measured, timed.left)


@dataclass(frozen=True, eq=False, slots=True)
class _Group:
    """A group as exchanges with a cost of their own ask about it."""

    network: Network
    ranks: int
    domains: int
    moving: Callable[[], Ints]

    def inside_seconds(self, size: float) -> float:
        inside = self.network.capacity[~self.network.is_network]
        return size / float(inside.min()) if len(inside) else 0.0

    def copy_seconds(self, tensors: int, size: float) -> float:
        cluster = self.network.cluster
        kinds = np.unique(np.asarray(cluster.device_kind)[self.moving()]).tolist()
        return max(_copied(tensors, size, cluster.devices[kind]) for kind in kinds)


def _copied(tensors: int, size: float, device: Device) -> float:
    """Each tensor into the buffer and out of it: read and written, in a kernel of its own."""
    reached, _ = table().of(device)
    moved = 2.0 * size / (device.memory_bandwidth * reached.memory)
    return 2.0 * (tensors * reached.start_seconds + moved)


def _timed(
    network: Network, work: Communication, members: Ints, wiring: GroupTopology, library: str
) -> MeasuredSeconds:
    """What the best of the tables that know the group says."""
    tables = network.curves(library, wiring.domains)
    asked = (
        (network.joints.of(members), len(members), work.collective, work.bytes) if tables else ()
    )
    found = [table.alone(*asked) for table in tables]
    told = [one for one in found if one.seconds is not None] or [one for one in found if one.left]
    return told[0] if told else MeasuredSeconds()


def _lasting(choice: AlgorithmChoice, seconds: float, rate: float) -> AlgorithmChoice:
    """The choice with the time that a measured curve gives to a group alone.

    It is turned into the volume that takes it at the group's own rate; what else is on the links then slows it as
    it would any other flow.
    """
    latency = min(choice.latency, 0.9 * seconds)
    return replace(choice, latency=latency, volume=(seconds - latency) * rate, max_rate=None)


def _waits(
    network: Network,
    work: Communication,
    choice: AlgorithmChoice,
    wiring: GroupTopology,
    library: str,
) -> float:
    """Seconds that a library's tuner does not know of when it chooses. Its latencies are those of network cards that
    reach device memory; through the sockets of a host every hop takes a TCP message."""
    if network.transport != "tcp" or wiring.domains == 1:
        return 0.0
    able = network.algorithms(work.collective)
    algorithm = next(a for a in able if a.name == choice.algorithm)
    known = next(p for p in protocols(library, row_of(algorithm)) if p.name == choice.protocol)
    steps = algorithm.steps(work.collective, wiring.ranks, wiring.domains)
    more = max(0.0, protocols(constants()["tcp"]["library"])[0].between - known.between)
    return steps.between * more * wiring.between_latency


@dataclass(frozen=True, eq=False, slots=True)
class ContendedCollective:
    """The slowest group of a communicator, among all of them at work."""

    network: Network
    collective: str
    library: str
    members: Ints
    wiring: GroupTopology
    rate: dict[str, float]  # pattern → bytes/s among all groups …
    own_rate: dict[str, float]  # … and of the group alone
    is_network: bool

    def seconds(self, size: float) -> tuple[float, float]:
        """Of so many bytes: all of them, and those in which links are busy."""
        work = Communication(self.collective, size, Communicator(()), "data")
        asked = (self.network, work, self.members, self.wiring, self.own_rate, self.library)
        choice = library_cost(*asked, moving=lambda: self.members).choice
        total = choice.seconds(self.rate[choice.pattern])
        return total, total - choice.latency


def contended(network: Network, groups: Ints, collective: str, library: str) -> ContendedCollective:
    """`groups`: one row of ranks per group. Where members send by themselves (gossip), the slowest of them decides."""
    subgroups = network.subgroups(collective, groups)
    movers = len(groups) if subgroups is None else subgroups.count
    rates: dict[str, float] = {}
    own: dict[str, float] = {}
    delays: dict[str, float] = {}
    slowest, home, is_network = 0, 0, False
    for algorithm in {a.pattern: a for a in network.algorithms(collective)}.values():
        loads = network.pattern_loads(algorithm, groups)
        total = np.bincount(loads.link, weights=loads.weight, minlength=len(network.capacity))
        rate = np.full(movers, np.inf)
        np.minimum.at(rate, loads.group, network.capacity[loads.link] / total[loads.link])
        if not rates:
            slowest = home = int(np.argmin(rate))
            if subgroups is not None:
                home = int(np.argmax((subgroups.of[groups] == slowest).any(axis=1)))
        mine = loads.group == slowest
        alone = np.bincount(
            loads.link[mine], weights=loads.weight[mine], minlength=len(network.capacity)
        )
        used = np.flatnonzero(alone)
        rates[algorithm.pattern] = float(rate[slowest])
        own[algorithm.pattern] = float((network.capacity[used] / alone[used]).min(initial=np.inf))
        late = network.flow_mapping.delays(algorithm, groups[home : home + 1])
        delays[algorithm.pattern] = network.reported + float(late[0])
        is_network |= bool(network.is_network[used].any())
    members = groups[home]
    wiring = wiring_of(network, members, tuple(rates.items()), tuple(delays.items()))
    return ContendedCollective(
        network, collective, library, members, wiring, rates, own, is_network
    )
