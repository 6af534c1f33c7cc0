"""The networks of the testbed: hosts and switches, cables with rates, as a cluster document."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from foretrain.cluster.cluster import Cluster

End = int | str  # a host's number or a switch's name


@dataclass(frozen=True, slots=True)
class Cable:
    """A cable, the same both ways. `width` multiplies the rate of the whole network."""

    one: End
    other: End
    width: float = 1.0


@dataclass(frozen=True, slots=True)
class Graph:
    """A network before its rate is chosen. Hosts are numbered from 0, and so are their ranks."""

    name: str
    hosts: int
    cables: tuple[Cable, ...]

    @property
    def vertices(self) -> tuple[End, ...]:
        """Hosts, then switches in the order of cables: the numbering of the cluster's own graph."""
        switches = dict.fromkeys(
            end for cable in self.cables for end in (cable.one, cable.other) if isinstance(end, str)
        )
        return (*range(self.hosts), *switches)

    @property
    def has_switches(self) -> bool:
        return len(self.vertices) > self.hosts

    def document(self, rate: float, latency: float) -> dict[str, Any]:
        """A cluster of one CPU rank per host. `rate` in bytes/s and `latency` are of a cable of width 1."""
        edges = [
            [c.one, c.other, f"{rate * c.width}B/s", f"{latency * 1e6}us"] for c in self.cables
        ]
        network = {"topology": "graph", "routing": "shortest", "kind": "ethernet", "edges": edges}
        return {"name": self.name, "nodes": f"{self.hosts} x cpu-host", "network": network}

    def ways(self) -> dict[tuple[int, int], tuple[int, ...]]:
        """(from, to) → the vertices passed, ends included, as the cluster routes them."""
        fabric = Cluster.of(self.document(1e6, 0.0)).network_fabric
        assert fabric is not None  # several hosts are always joined
        import numpy as np

        pairs = [(s, d) for s in range(self.hosts) for d in range(self.hosts) if s != d]
        routes = fabric.routes(np.array([s for s, _ in pairs]), np.array([d for _, d in pairs]))
        head = fabric.head.tolist()
        return {
            pair: (pair[0], *(head[link] for link in routes[number].tolist()))
            for number, pair in enumerate(pairs)
        }


def star(hosts: int) -> Graph:
    return Graph("star", hosts, tuple(Cable(host, "switch") for host in range(hosts)))


def ring(hosts: int) -> Graph:
    return Graph("ring", hosts, tuple(Cable(host, (host + 1) % hosts) for host in range(hosts)))


def binary_tree(hosts: int) -> Graph:
    cables = tuple(Cable((host - 1) // 2, host) for host in range(1, hosts))
    return Graph("binary-tree", hosts, cables)


def hierarchical(hosts: int) -> Graph:
    """Two racks, hosts dealt out in turn, each with a switch; between these a cable of twice the rate."""
    racks = [Cable(host, "left" if host % 2 == 0 else "right") for host in range(hosts)]
    return Graph("hierarchical", hosts, (*racks, Cable("left", "right", 2.0)))


def exponential(hosts: int) -> Graph:
    """Every host to those 1, 2, 4 … further on."""
    pairs: dict[tuple[int, int], None] = {}
    far = 1
    while far < hosts:
        for host in range(hosts):
            one, other = sorted((host, (host + far) % hosts))
            pairs[one, other] = None
        far *= 2
    return Graph("exponential", hosts, tuple(Cable(one, other) for one, other in pairs))


def random_graph(hosts: int, share: float = 0.1, seed: int = 0) -> Graph:
    """A random tree, so that it is whole, and every other pair with probability `share`."""
    draw = random.Random(seed)
    pairs = {(draw.randrange(host), host) for host in range(1, hosts)}
    for one in range(hosts):
        for other in range(one + 1, hosts):
            if draw.random() < share:
                pairs.add((one, other))
    return Graph("random", hosts, tuple(Cable(one, other) for one, other in sorted(pairs)))


TOPOLOGIES: Mapping[str, Callable[[int], Graph]] = {
    "star": star,
    "ring": ring,
    "binary-tree": binary_tree,
    "hierarchical": hierarchical,
    "exponential": exponential,
    "random": random_graph,
}
