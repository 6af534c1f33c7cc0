"""Grids: nodes at the points of a box with cables to the next point in each dimension, with or without wrap.

Traffic goes dimension by dimension, in each the shorter way round; at equal distance upwards. Node numbers
run fastest in the first dimension.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from foretrain.arrays import Ints
from foretrain.cluster.fabric import Fabric, Site, expect_links, left_packed
from foretrain.cluster.link import ClusterNetwork
from foretrain.cluster.quantities import Bandwidth, Count, Seconds
from foretrain.cluster.topologies.direct import (
    CableParameters,
    Cables,
    RatedCables,
    direct_fabric,
    hosts_of,
)
from foretrain.errors import ClusterError
from foretrain.loading import Strict

MOST_DIMS = 6


@dataclass(frozen=True, slots=True)
class GridParameters(Strict):
    dims: Count = 2
    sizes: tuple[Count, ...] | None = None
    """Nodes along each dimension, fastest first; may leave places empty. Overrides `dims`."""
    link_bandwidth: Bandwidth | None = None
    link_latency: Seconds | None = None


def ring(site: Site, network: ClusterNetwork, given: CableParameters) -> Fabric:
    """Nodes in a ring, each joined to the next; traffic takes the shorter way round."""
    return grid_fabric(site, (len(np.unique(site.host)),), True, given)


def torus(site: Site, network: ClusterNetwork, given: GridParameters) -> Fabric:
    """A grid of one to six dimensions that wraps around (2D and 3D torus, as in TPU pods)."""
    return grid_fabric(
        site, grid_sizes(len(np.unique(site.host)), given.dims, given.sizes), True, given
    )


def mesh(site: Site, network: ClusterNetwork, given: GridParameters) -> Fabric:
    """A grid of one to six dimensions without wrap (2D and 3D mesh)."""
    return grid_fabric(
        site, grid_sizes(len(np.unique(site.host)), given.dims, given.sizes), False, given
    )


def grid_sizes(nodes: int, dims: int, sizes: Sequence[int] | None) -> tuple[int, ...]:
    """The given sizes if they hold all nodes, else the box of exactly `nodes` that is nearest to a cube."""
    count = dims if sizes is None else len(sizes)
    if not 1 <= count <= MOST_DIMS:
        name = "dims" if sizes is None else "sizes"
        raise ClusterError(
            "Invalid network:",
            faults=[f"{name}: {count:,} dimensions; must be 1 to {MOST_DIMS}."],
        )
    if sizes is not None:
        if math.prod(sizes) < nodes:
            shape = " x ".join(str(size) for size in sizes)
            raise ClusterError(
                "Invalid network:",
                faults=[f"sizes: {shape} has {math.prod(sizes):,} positions for {nodes:,} nodes."],
            )
        return tuple(sizes)
    left, factors = nodes, []
    for rest in range(dims, 1, -1):
        root = round(left ** (1 / rest))
        size = next(n for n in range(root + 1, 0, -1) if left % n == 0 and n**rest <= left)
        factors.append(size)
        left //= size
    return (*sorted([*factors, left], reverse=True),)


def grid_fabric(site: Site, sizes: Sequence[int], is_wrapped: bool, given: RatedCables) -> Fabric:
    hosts = hosts_of(site)
    places = math.prod(sizes)
    expect_links(2 * len(sizes) * places, "The network")
    ways = _Ways(sizes, is_wrapped)
    reach = [
        size // 2 if wraps else size - 1 for size, wraps in zip(sizes, ways.wraps, strict=True)
    ]

    def route(src: Ints, dst: Ints) -> Ints:
        return ways.route(hosts.port_vertex[src], hosts.port_vertex[dst])

    return direct_fabric(
        hosts,
        Cables(ways.tail, ways.head),
        given,
        route,
        places=places,
        diameter=sum(reach),
    )


class _Ways:
    """Link numbers by (dimension, direction, point), and dimension-order routes."""

    def __init__(self, sizes: Sequence[int], is_wrapped: bool) -> None:
        self.sizes = tuple(sizes)
        # with two points in a dimension the way round is the same cable
        self.wraps = tuple(is_wrapped and size > 2 for size in sizes)
        self.stride = np.cumprod([1, *self.sizes[:-1]]).tolist()
        places = math.prod(self.sizes)
        point = np.arange(places, dtype=np.int64)
        self.number = np.full((len(sizes), 2, places), -1, dtype=np.int64)
        tails, heads, count = [], [], 0
        for dim, (size, stride, wraps) in enumerate(
            zip(self.sizes, self.stride, self.wraps, strict=True)
        ):
            place = point // stride % size
            for way, step in enumerate((1, -1)):
                there = place + step
                has = np.full(places, size > 1) if wraps else (there >= 0) & (there < size)
                tail = point[has]
                tails.append(tail)
                heads.append(tail + ((there % size) - place)[has] * stride)
                self.number[dim, way, tail] = count + np.arange(len(tail))
                count += len(tail)
        self.tail, self.head = np.concatenate(tails), np.concatenate(heads)

    def route(self, src: Ints, dst: Ints) -> Ints:
        here = src.copy()
        columns = []
        for dim, (size, stride, wraps) in enumerate(
            zip(self.sizes, self.stride, self.wraps, strict=True)
        ):
            start, goal = here // stride % size, dst // stride % size
            delta = goal - start
            if wraps:
                delta = (delta + (size - 1) // 2) % size - (size - 1) // 2
            most = int(np.abs(delta).max(initial=0))
            step = np.sign(delta)[:, None]
            crossed = np.arange(most)[None, :]
            point = (
                here[:, None] + ((start[:, None] + step * crossed) % size - start[:, None]) * stride
            )
            used = crossed < np.abs(delta)[:, None]
            links = self.number[dim, (step < 0).astype(np.int64), np.where(used, point, 0)]
            columns.append(np.where(used, links, -1))
            here += (goal - start) * stride
        return left_packed(np.concatenate(columns, axis=1))
