"""What collectives between the ranks of a mesh cost, for many sizes at once.

Every group of a communicator moves at the same time, as replicas and pipelines do; the slowest decides. The choice
of algorithm and protocol is the simulator's.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache, lru_cache

import numpy as np

from foretrain.arrays import Floats, Ints
from foretrain.compile.execution import Communicator
from foretrain.compile.passes.fold import ranks_of
from foretrain.cost.collective_costs import contended
from foretrain.cost.network import Network
from foretrain.plan.mesh import Mesh
from foretrain.planning.curves import SizeCurve

_SMALLEST = 4096.0  # bytes: below, latency is all


@dataclass(eq=False, slots=True)
class Exchanges:
    """Collectives on a network; what was asked is remembered by the groups that take part."""

    network: Network
    library: str
    _known: dict[tuple[bytes, str], Exchange] = field(default_factory=dict)
    _by_mesh: dict[tuple[Mesh, Communicator, str, bool], Exchange] = field(default_factory=dict)
    _links: dict[bytes, Floats] = field(default_factory=dict)

    def between(
        self, mesh: Mesh, communicator: Communicator, collective: str, alone: bool = False
    ) -> Exchange:
        """A collective on the groups of a communicator: all of them at once, or those of the first stage alone."""
        asked = (mesh, communicator, collective, alone)
        found = self._by_mesh.get(asked)
        if found is None:
            groups = ranks_of(mesh, communicator)
            if alone:
                groups = groups[mesh.coordinate("pp")[groups[:, 0]] == 0]
            found = self._by_mesh[asked] = self._of(groups, collective)
        return found

    def sends(self, mesh: Mesh) -> list[Exchange]:
        """From each stage to the next, from the last to the first: inside a domain, or between two."""
        ranks = mesh.groups(("pp",))
        domain = self.network.domain_of[ranks]
        is_far = (domain != np.roll(domain, -1, axis=1)).any(axis=0)
        pairs = np.stack([ranks, np.roll(ranks, -1, axis=1)], axis=2)
        ways = [self._of(pairs[:, is_far == far].reshape(-1, 2), "send") for far in (False, True)]
        return [ways[int(far)] for far in is_far]

    def send_links(self, mesh: Mesh) -> Floats:
        """[directions · stages, links] the share of each link between nodes that what a stage sends, forward and back,
        takes of it alone. Links that never have to be shared are left out, one stands for all that are used alike."""
        network, ranks = self.network, mesh.groups(("pp",))
        key = ranks.tobytes() + str(ranks.shape).encode()
        found = self._links.get(key)
        if found is None:
            found = self._links[key] = _shared_links(network, ranks)
        return found

    def _of(self, groups: Ints, collective: str) -> Exchange:
        key = (groups.tobytes() + str(groups.shape).encode(), collective)
        found = self._known.get(key)
        if found is None:
            kept = (groups.tobytes(), groups.shape, collective, self.library)
            found = self._known[key] = exchange_of(self.network, *kept)
        return found


def _shared_links(network: Network, ranks: Ints) -> Floats:
    """`ranks`: [pipelines, stages]"""
    pipelines, stages = ranks.shape
    to = [np.roll(ranks, -1, axis=1), np.roll(ranks, 1, axis=1)]
    pairs = np.stack([np.stack([ranks.T, other.T], axis=2) for other in to]).reshape(-1, 2)
    (algorithm, *_) = network.algorithms("send")
    loads = network.pattern_loads(algorithm, pairs)
    flow = loads.group // pipelines
    load = np.zeros((2 * stages, len(network.capacity)))
    np.add.at(load, (flow, loads.link), loads.weight)
    load = load[:, network.is_network] / network.capacity[network.is_network]
    usage = load / np.maximum(load.max(axis=1, initial=0.0, keepdims=True), 1e-300)
    usage = usage[:, usage.sum(axis=0) > 1.0 + 1e-9]
    return np.unique(usage, axis=1) if usage.size else usage


@lru_cache(maxsize=2048)
def exchange_of(
    network: Network, groups: bytes, shape: tuple[int, int], collective: str, library: str
) -> Exchange:
    """Parts of a space ask for the same groups under other names."""
    return Exchange(
        network, np.frombuffer(groups, dtype=np.int64).reshape(shape), collective, library
    )


class Exchange:
    """Seconds by bytes of one collective on one set of groups."""

    def __init__(self, network: Network, groups: Ints, collective: str, library: str) -> None:
        self.ranks = groups.shape[1] if len(groups) else 1
        if not len(groups):
            self.is_network = False
            return
        slowest = contended(network, groups, collective, library)
        self.is_network = slowest.is_network
        priced = cache(slowest.seconds)
        self._curve = SizeCurve(lambda sizes: [priced(size)[0] for size in sizes], _SMALLEST)
        self._flow = SizeCurve(lambda sizes: [priced(size)[1] for size in sizes], _SMALLEST)

    def seconds(self, sizes: Floats) -> Floats:
        """A rank alone has nobody to wait for."""
        return self._curve(sizes) if self.ranks > 1 else np.zeros_like(sizes)

    def flow(self, sizes: Floats) -> Floats:
        """Those of the seconds in which links are busy: the others, latencies, do not keep anybody else off them."""
        return self._flow(sizes) if self.ranks > 1 else np.zeros_like(sizes)
