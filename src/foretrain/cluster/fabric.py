"""Fabric: directed links and a vectorised route function between ports. What every topology builder returns.

A builder in `topologies/` receives a `Site` (the ports to join and how fast each is) and returns a
`Fabric`. Devices are the ports of an interconnect; network ports of nodes are the ports of a network.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from foretrain.arrays import Bools, Floats, Ints
from foretrain.errors import ClusterError

MOST_LINKS = 2**22
"""Directed links of one fabric: 2,048 fully connected nodes just fit."""
MOST_ENTRIES = 2**27
"""Links of all routes of one question; a gigabyte of numbers."""


@dataclass(frozen=True, eq=False, slots=True)
class Routes:
    """Links of many routes in one array: route `i` crosses `links[ptr[i]:ptr[i + 1]]` in that order.

    `share` is the part of the route's traffic that crosses each entry: 1 everywhere for single paths. A
    route over several equal-cost paths lists the links of all of them, nearest to the sender first.
    """

    ptr: Ints
    links: Ints
    share: Floats = field(default_factory=lambda: np.empty(0))

    def __post_init__(self) -> None:
        if len(self.share) != len(self.links):
            object.__setattr__(self, "share", np.ones(len(self.links)))

    def __len__(self) -> int:
        return len(self.ptr) - 1

    def __getitem__(self, route: int) -> Ints:
        return self.links[self.ptr[route] : self.ptr[route + 1]]

    @property
    def owner(self) -> Ints:
        """The route each entry of `links` belongs to."""
        return np.repeat(np.arange(len(self), dtype=np.int64), np.diff(self.ptr))


@dataclass(frozen=True, eq=False, slots=True)
class Site:
    """What a builder joins: ports with their one-direction rate, latency and the host each sits in."""

    bandwidth: Floats
    latency: Floats
    host: Ints

    @property
    def ports(self) -> int:
        return len(self.bandwidth)


@dataclass(frozen=True, eq=False, slots=True)
class Fabric:
    """Links with their ends as vertices, and how traffic finds its way.

    `route(src, dst)` takes equal-length port arrays and gives one row of link ids per pair, in the order
    crossed, padded with -1 on the right. `port_vertex[p]` is the vertex where port `p` is plugged in.
    `spread`, where there is one, gives the routes over all equal-cost paths and is what traffic follows.
    """

    capacity: Floats
    latency: Floats
    tail: Ints
    head: Ints
    port_vertex: Ints
    route: Callable[[Ints, Ints], Ints]
    vertex_name: Callable[[int], str]
    spread: Callable[[Ints, Ints], Routes] | None = None
    link_port: Ints | None = None
    """A port of the host that owns each link; -1 for links between switches. None: all of switches."""
    diameter: int | None = None
    """Links of the longest route, if the builder knows."""

    @property
    def links(self) -> int:
        return len(self.capacity)

    @property
    def vertices(self) -> int:
        ends = (self.tail, self.head, self.port_vertex)
        return 1 + max((int(end.max()) for end in ends if len(end)), default=-1)

    def routes(self, src: Ints, dst: Ints) -> Routes:
        """The routes that traffic follows: spread over equal paths or one path each."""
        if self.diameter is not None and len(src) * self.diameter > MOST_ENTRIES:
            raise ClusterError(
                f"{len(src):,} routes of up to {self.diameter:,} links each are too many to "
                "trace. Use a topology with shorter paths (fat-tree, torus) or fewer nodes."
            )
        return compressed(self.route(src, dst)) if self.spread is None else self.spread(src, dst)

    def link_name(self, link: int) -> str:
        return f"{self.vertex_name(int(self.tail[link]))}->{self.vertex_name(int(self.head[link]))}"


def compressed(rows: Ints, share: Floats | None = None, used: Bools | None = None) -> Routes:
    """Rows of link ids as routes; -1 is skipped wherever it stands, or what is not `used`. `share` has the shape of a
    row or of all."""
    used = rows >= 0 if used is None else used
    ptr = np.zeros(len(rows) + 1, dtype=np.int64)
    np.cumsum(used.sum(axis=1), out=ptr[1:])
    if share is None:
        return Routes(ptr, rows[used])
    return Routes(ptr, rows[used], np.broadcast_to(share, rows.shape)[used])


def left_packed(rows: Ints) -> Ints:
    """The same rows with all -1 on the right."""
    used = rows >= 0
    counts = used.sum(axis=1)
    packed = np.full((len(rows), int(counts.max(initial=0))), -1, dtype=np.int64)
    packed[np.arange(packed.shape[1]) < counts[:, None]] = rows[used]
    return packed


def expect_links(links: float, what: str) -> None:
    """Refuse a fabric that would not fit the memory, before anything is laid out."""
    if links > MOST_LINKS:
        raise ClusterError(
            f"{what} would have {links:,.0f} links; at most {MOST_LINKS:,}. Use a sparser "
            "topology or fewer nodes."
        )


def no_route(src: Ints, dst: Ints) -> Ints:
    """Stands in a fabric until a routing is chosen."""
    raise ClusterError("The fabric has no routing yet.")
