"""Gossip: every rank sends its parameters to some neighbours and takes a weighted mean of what it hears.

alpha + degree·M·beta on one port. What that means for convergence is the graph's spectral gap (`graphs`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from foretrain.arrays import Ints
from foretrain.cost.collectives.base import (
    Edges,
    FromProgram,
    OneExchange,
    Steps,
    in_order,
    levels,
    members,
    one_exchange,
)
from foretrain.cost.collectives.graphs import ONE_PEER, graph
from foretrain.cost.collectives.program import CollectiveProgram, Round, along, side_by_side
from foretrain.cost.collectives.ring import Ring


@dataclass(frozen=True)
class Gossip(OneExchange):
    """Neighbour all-reduce over any static graph, or over the one-peer exponential graph.

    `one_peer_exponential2@t` is its iteration t; without @t the mean over its period: every iteration sends
    one buffer from every rank, to partners at distances 1, 2, 4 … in turn.
    """

    graph: str = "exponential2"
    name = "gossip"
    senders = "ranks"
    collectives = ("neighbour_all_reduce",)

    @property
    def pattern(self) -> str:
        return f"neighbour_all_reduce({self.graph})"

    def fan_in(self, ranks: int) -> float:
        if self.graph.startswith(ONE_PEER):
            return 1.0
        found = graph(self.graph, ranks)
        offered = np.bincount(found.dst, 1.0 / found.out_degree[found.src], minlength=ranks)
        return max(1.0, float(offered.max()))

    def edges(self, ranks: int) -> Edges:
        if self.graph != ONE_PEER:
            found = graph(self.graph, ranks)
            return found.src, found.dst, np.ones(len(found.src))
        period = max(1, levels(ranks))
        parts = [graph(f"{ONE_PEER}@{turn}", ranks) for turn in range(period)]
        src = np.concatenate([part.src for part in parts])
        return src, np.concatenate([part.dst for part in parts]), np.full(len(src), 1.0 / period)


@dataclass(frozen=True)
class InnerOuter(FromProgram):
    """BlueFog's inner-outer exponential graph: one rank of every domain sends out, the others inside.

    `iteration` chooses who goes out and how far; a domain's port carries one buffer per exchange.
    """

    iteration: int = 0
    name = "inner_outer"
    senders = "ranks"
    collectives = ("inner_outer_all_reduce",)

    @property
    def pattern(self) -> str:
        return f"inner_outer_all_reduce({self.iteration})"

    def steps(self, collective: str, ranks: int, domains: int) -> Steps:
        return one_exchange(domains)

    def program(
        self, collective: str, size: float, layout: Ints, chunks: int = 1
    ) -> CollectiveProgram:
        domains = members(in_order(layout))
        src = np.arange(len(layout))
        dst = np.array([self._partner(domains, int(rank), in_order(layout)) for rank in src])
        moves = src != dst
        return CollectiveProgram(len(layout), (Round.of(src[moves], dst[moves], size),))

    def _partner(self, domains: list[Ints], rank: int, layout: Ints) -> int:
        own = domains[layout[rank]]
        local, count = int(np.flatnonzero(own == rank)[0]), len(own)
        if len(domains) == 1:  # nowhere to go out to: plain one-peer exponential inside
            return int(own[(local + (1 << self.iteration % max(1, levels(count)))) % count])
        leaver = self.iteration % count
        if local == leaver:
            turns = max(1, (len(domains) - 1).bit_length())
            there = domains[(layout[rank] + (1 << self.iteration % turns)) % len(domains)]
            return int(there[local % len(there)])
        far = 1 << (self.iteration % max(1, (count - 2).bit_length()))
        if count > 2:
            far += far >= (leaver - local) % count  # step over the one that is away
        return int(own[(local + far) % count])


@dataclass(frozen=True)
class HierarchicalGossip(FromProgram):
    """All-reduce inside every domain, its first rank exchanges with neighbour domains, broadcast of all it heard.

    BlueFog calls the three one after another (bluefog/common/nccl_controller.cc). While the first ranks exchange, the
    others' broadcast kernels wait on their devices: to the work beside it all of this is a collective of the domain.
    """

    graph: str = "exponential2"
    name = "hierarchical_gossip"
    senders = "domains"
    collectives = ("hierarchical_neighbour_all_reduce",)

    @property
    def pattern(self) -> str:
        return f"hierarchical_neighbour_all_reduce({self.graph})"

    def steps(self, collective: str, ranks: int, domains: int) -> Steps:
        inside = -(-ranks // domains) - 1
        return Steps(3 * inside, 1) if domains > 1 else Steps(2 * inside, 0)

    def program(
        self, collective: str, size: float, layout: Ints, chunks: int = 1
    ) -> CollectiveProgram:
        domains = members(in_order(layout))
        rounds = side_by_side([_ring(own, size) for own in domains if len(own) > 1])
        if len(domains) > 1:
            name = f"{ONE_PEER}@0" if self.graph == ONE_PEER else self.graph
            found = graph(name, len(domains))
            heads = np.array([own[0] for own in domains])
            rounds.append(Round.of(heads[found.src], heads[found.dst], size))
            heard = found.in_degree
            rounds += side_by_side(
                [along(own, size * n) for own, n in zip(domains, heard.tolist(), strict=True) if n]
            )
        return CollectiveProgram(len(layout), tuple(rounds))


def holds_domain(collective: str) -> bool:
    """Whether kernels of a collective inside the domain wait on every device for what crosses the network."""
    return collective.startswith("hierarchical_neighbour_all_reduce")


def _ring(own: Ints, size: float) -> list[Round]:
    inside = Ring().program("all_reduce", size, np.zeros(len(own), dtype=np.int64))
    return [Round(own[r.src], own[r.dst], r.bytes) for r in inside.rounds]
