"""What a collective costs while every group of a communicator runs it, without folding ranks first."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from foretrain.arrays import Ints
from foretrain.compile.execution import Communication, Communicator
from foretrain.cost.charging import priced
from foretrain.cost.collectives.base import GroupTopology
from foretrain.cost.network import Network, wiring_of


@dataclass(frozen=True, eq=False, slots=True)
class ContendedCollective:
    """The slowest group of a communicator, among all of them at work."""

    network: Network
    collective: str
    library: str
    members: Ints
    wiring: GroupTopology
    rate: dict[str, float]  # pattern → bytes/s in the crowd …
    own_rate: dict[str, float]  # … and of the group alone
    is_network: bool

    def seconds(self, size: float) -> tuple[float, float]:
        """Of so many bytes: all of them, and those in which links are busy."""
        work = Communication(self.collective, size, Communicator(()), "data")
        asked = (self.network, work, self.members, self.wiring, self.own_rate, self.library)
        choice = priced(*asked, moving=lambda: self.members).choice
        total = choice.seconds(self.rate[choice.pattern])
        return total, total - choice.latency


def contended(network: Network, groups: Ints, collective: str, library: str) -> ContendedCollective:
    """`groups`: one row of ranks per group. Where members send by themselves (gossip), the slowest of them decides."""
    parties = network.parties(collective, groups)
    movers = len(groups) if parties is None else parties.count
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
            if parties is not None:
                home = int(np.argmax((parties.of[groups] == slowest).any(axis=1)))
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
