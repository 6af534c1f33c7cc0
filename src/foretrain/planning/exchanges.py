"""What collectives between the ranks of a mesh cost, for many sizes at once.

Every group of a communicator moves at the same time, as replicas and pipelines do; the slowest decides. The choice
of algorithm and protocol is the simulator's.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache, lru_cache

import numpy as np

from foretrain.arrays import Bools, Floats, Ints
from foretrain.compile.execution import Communicator
from foretrain.compile.passes.fold import ranks_of
from foretrain.cost.collective_costs import contended
from foretrain.cost.network import Network
from foretrain.plan.mesh import Mesh
from foretrain.planning.curves import SizeCurve

_SMALLEST = 4096.0  # bytes: below, latency is all


@dataclass(frozen=True, eq=False, slots=True)
class SendLinks:
    """Pipelines in classes of those that move in step, and the share of each link between nodes that what a stage of a
    class sends, forward and back, takes of it alone while all classes send. Links that never have to be shared are left
    out, one stands for all that are used alike."""

    classes: list[Ints]  # pipelines of each
    usage: Floats  # [classes, directions · stages, links]
    fastest: Floats  # [classes, directions · stages] how much faster than all classes together one is by itself


@dataclass(eq=False, slots=True)
class Exchanges:
    """Collectives on a network; what was asked is remembered by the groups that take part."""

    network: Network
    library: str
    _known: dict[tuple[bytes, str], Exchange] = field(default_factory=dict)
    _by_mesh: dict[tuple[Mesh, Communicator, str, bool], Exchange] = field(default_factory=dict)

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

    def sends(self, mesh: Mesh, among: Ints | None = None) -> list[Exchange]:
        """From each stage to the next, from the last to the first: inside a domain, or between two. `among`: the
        pipelines whose sends inside are asked for, where not all."""
        ranks = mesh.groups(("pp",))
        is_far, pairs = _hops(self.network, ranks)
        near = pairs if among is None else pairs[among]
        inside, between = (
            self._of(some.reshape(-1, 2), "send") for some in (near[:, ~is_far], pairs[:, is_far])
        )
        return [between if far else inside for far in is_far]

    def send_links(self, mesh: Mesh) -> SendLinks:
        """How the sends of a mesh's pipelines load the links between nodes."""
        ranks = mesh.groups(("pp",))
        return _send_links(self.network, ranks.tobytes(), ranks.shape)

    def _of(self, groups: Ints, collective: str) -> Exchange:
        key = (groups.tobytes() + str(groups.shape).encode(), collective)
        found = self._known.get(key)
        if found is None:
            kept = (groups.tobytes(), groups.shape, collective, self.library)
            found = self._known[key] = exchange_of(self.network, *kept)
        return found


def _hops(network: Network, ranks: Ints) -> tuple[Bools, Ints]:
    """[stages] whether each sends the next over the network; [pipelines, stages, 2] ranks that do."""
    following = np.roll(ranks, -1, axis=1)
    is_far = (network.domain_of[ranks] != network.domain_of[following]).any(axis=0)
    return is_far, np.stack([ranks, following], axis=2)


def _alike(network: Network, ranks: Ints) -> list[Ints]:
    """Pipelines whose sends inside domains are equally fast: others get out of step with them."""
    is_far, pairs = _hops(network, ranks)
    near = pairs[:, ~is_far][:, : ranks.shape[1] - 1]
    if not near.size:
        return [np.arange(len(ranks))]
    (algorithm, *_) = network.algorithms("send")
    loads = network.pattern_loads(algorithm, near.reshape(-1, 2))
    rate = np.full(near.shape[0] * near.shape[1], np.inf)
    np.minimum.at(rate, loads.group, network.capacity[loads.link] / loads.weight)
    _, of = np.unique(rate.reshape(near.shape[:2]).round(), axis=0, return_inverse=True)
    return [np.flatnonzero(of.ravel() == number) for number in range(int(of.max()) + 1)]


@lru_cache(maxsize=256)
def _send_links(network: Network, pipelines: bytes, shape: tuple[int, int]) -> SendLinks:
    """`pipelines`: their ranks, of so many pipelines and stages."""
    ranks = np.frombuffer(pipelines, dtype=np.int64).reshape(shape)
    stages, classes = ranks.shape[1], _alike(network, ranks)
    (algorithm, *_) = network.algorithms("send")
    load = np.zeros((len(classes), 2 * stages, len(network.capacity)))
    for mine, alike in zip(load, classes, strict=True):
        some = ranks[alike]
        to = [np.roll(some, -1, axis=1), np.roll(some, 1, axis=1)]
        pairs = np.stack([np.stack([some.T, other.T], axis=2) for other in to]).reshape(-1, 2)
        loads = network.pattern_loads(algorithm, pairs)
        np.add.at(mine, (loads.group // len(some), loads.link), loads.weight)
    load = load[..., network.is_network] / network.capacity[network.is_network]
    most = np.maximum(load.sum(axis=0).max(axis=1, initial=0.0), 1e-300)
    usage = load / most[:, None]
    alone = usage.max(axis=2, initial=0.0)
    is_shared = usage.sum(axis=(0, 1)) > 1.0 + 1e-9
    usage = usage[..., is_shared]
    return SendLinks(
        classes, np.unique(usage, axis=2) if usage.size else usage, 1.0 / np.maximum(alone, 1e-300)
    )


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
        known = cache(slowest.seconds)
        self._curve = SizeCurve(lambda sizes: [known(size)[0] for size in sizes], _SMALLEST)
        self._flow = SizeCurve(lambda sizes: [known(size)[1] for size in sizes], _SMALLEST)

    def seconds(self, sizes: Floats) -> Floats:
        """A rank alone has nobody to wait for."""
        return self._curve(sizes) if self.ranks > 1 else np.zeros_like(sizes)

    def flow(self, sizes: Floats) -> Floats:
        """Those of the seconds in which links are busy: the others, latencies, do not keep anybody else off them."""
        return self._flow(sizes) if self.ranks > 1 else np.zeros_like(sizes)
