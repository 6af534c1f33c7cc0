"""What every collective algorithm answers.

An algorithm is a *pattern* of steady flows (who sends to whom, in which share) and the *volume* that each
unit of that pattern carries, plus the *steps* whose latencies add up. The pipelined form is exact for long
messages on its ideal topology; latency is paid once in front. Its *program* is the same thing round by
round: too long to simulate every time, and the oracle the flows are tested against.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from foretrain.arrays import Floats, Ints
from foretrain.cost.collectives.program import CollectiveProgram, Round

Edges = tuple[Ints, Ints, Floats]  # places in a group: from, to, weight


@dataclass(frozen=True, eq=False, slots=True)
class Flows:
    """Flow i of group `group[i]` sends `weight[i]` of the algorithm's volume from rank `src[i]` to `dst[i]`."""

    group: Ints
    src: Ints
    dst: Ints
    weight: Floats

    @staticmethod
    def joined(parts: Sequence[Flows]) -> Flows:
        return Flows(
            np.concatenate([part.group for part in parts]),
            np.concatenate([part.src for part in parts]),
            np.concatenate([part.dst for part in parts]),
            np.concatenate([part.weight for part in parts]),
        )


@dataclass(frozen=True, slots=True)
class Steps:
    """Hops that follow one another, inside a domain and between domains."""

    inside: float
    between: float


@dataclass(frozen=True, slots=True)
class GroupTopology:
    """A group as the selector sees it. What is not known is left at its default."""

    ranks: int
    domains: int
    link_family: str  # nvlink | pcie | … inside a domain
    rate: float  # bytes/s of the pattern's slowest link when the group is alone
    architecture: str = ""  # of the devices: volta | ampere | hopper | blackwell | …
    has_switch: bool = False  # domains are joined by a switch that can reduce
    channels: int = 0  # 0: what the library takes on such devices
    transport: str = ""  # rdma | tcp between domains; "": the library's
    rates: tuple[
        tuple[str, float], ...
    ] = ()  # pattern → bytes/s; empty: `rate` for the default ones
    delays: tuple[tuple[str, float], ...] = ()  # pattern → seconds that a hop between domains adds
    inside_latency: float = 1.0  # factors of a what-if on hops inside a domain …
    between_latency: float = 1.0  # … and between domains


class Algorithm:
    """One way to carry out some collectives, with what most of them answer alike. `pattern` names the flows, so that
    equal ones are shared."""

    is_bound = False
    """The flows load no port less than the program does, but some more: equal ranks stay equal."""
    senders = "all"
    """`all`: everybody moves together. `ranks`, `domains`: each of them sends by itself once it is ready, and only those
    it sends to wait for it."""
    tuned_as = ""
    """The algorithm whose rows of a library's tables it is timed by, where it has none under its own name."""
    is_ring = False
    """Whether what NCCL's tuner adds to long rings over several nodes is added to it."""
    has_own_lane = False
    """Whether it hardly meets other traffic on a switched interconnect, being short against the compute between."""

    @property
    def name(self) -> str:
        raise NotImplementedError

    @property
    def pattern(self) -> str:
        return self.name

    @property
    def collectives(self) -> tuple[str, ...]:
        raise NotImplementedError

    def flows(self, groups: Ints, domain_of: Ints) -> Flows:
        raise NotImplementedError

    def volume(self, collective: str, size: float, ranks: int) -> float:
        return size

    def steps(self, collective: str, ranks: int, domains: int) -> Steps:
        raise NotImplementedError

    def program(
        self, collective: str, size: float, layout: Ints, chunks: int = 1
    ) -> CollectiveProgram:
        """Round by round for ranks 0 … n-1, rank i in domain `layout[i]`; pipelined ones cut into chunks."""
        raise NotImplementedError

    def fan_in(self, ranks: int) -> float:
        """How many senders' full rate meets in one port at the same moment: what a TCP network suffers from."""
        return 1.0

    def why_not(self, group: GroupTopology) -> str | None:
        """Why it cannot run on a group, None if it can."""
        return None

    def streams(self, group: GroupTopology) -> int:
        """Connections that carry one unit of its pattern side by side: the k of the max-rate model."""
        return max(1, group.ranks // group.domains) if group.domains > 1 else 1


class FromProgram(Algorithm):
    """Flows read off the program of a unit buffer: for patterns that have no shorter description.

    `volume` may exceed the buffer where phases follow one another over different directions of a port: a
    steady flow would overlap them, the program does not.
    """

    def flows(self, groups: Ints, domain_of: Ints) -> Flows:
        return by_layout(groups, domain_of, self._edges)

    def _edges(self, layout: Ints) -> Edges:
        return self.program(self.collectives[0], 1.0, layout).edges()


@dataclass(frozen=True)
class PerCollective(FromProgram):
    """One whose flows differ from collective to collective: an object for each."""

    collective: str

    @property
    def pattern(self) -> str:
        return f"{self.name} {self.collective}"

    @property
    def collectives(self) -> tuple[str, ...]:
        return (self.collective,)


class OneExchange(Algorithm):
    """Everything is posted at once: the whole program is one round."""

    def edges(self, ranks: int) -> Edges:
        """Who sends to whom, and which part of the buffer."""
        raise NotImplementedError

    def flows(self, groups: Ints, domain_of: Ints) -> Flows:
        return everywhere(groups, self.edges(groups.shape[1]))

    def steps(self, collective: str, ranks: int, domains: int) -> Steps:
        return one_exchange(domains)

    def program(
        self, collective: str, size: float, layout: Ints, chunks: int = 1
    ) -> CollectiveProgram:
        src, dst, share = self.edges(len(layout))
        return CollectiveProgram(len(layout), (Round.of(src, dst, share * size),))


def everywhere(groups: Ints, edges: Edges) -> Flows:
    """The same edges in every group."""
    src, dst, weight = edges
    count = len(groups)
    return Flows(
        group=np.repeat(np.arange(count), len(src)),
        src=groups[:, src].ravel(),
        dst=groups[:, dst].ravel(),
        weight=np.tile(weight, count),
    )


def by_layout(groups: Ints, domain_of: Ints, template: Callable[[Ints], Edges]) -> Flows:
    """Edges that depend on how a group lies over domains: once per layout, then for all groups alike."""
    domains = domain_of[groups]
    layouts, kind = np.unique(domains - domains[:, :1], axis=0, return_inverse=True)
    kind = kind.ravel()
    parts = []
    for index, layout in enumerate(layouts):
        rows = np.flatnonzero(kind == index)
        found = everywhere(groups[rows], template(in_order(layout)))
        parts.append(Flows(rows[found.group], found.src, found.dst, found.weight))
    return Flows.joined(parts)


def in_order(layout: Ints) -> Ints:
    """Domains renumbered in the order in which a group meets them."""
    _, first, inverse = np.unique(layout, return_index=True, return_inverse=True)
    rank = np.empty(len(first), dtype=np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    return rank[inverse]


def members(layout: Ints) -> list[Ints]:
    """Places of a group, domain by domain."""
    return [np.flatnonzero(layout == domain) for domain in range(int(layout.max()) + 1)]


def one_exchange(domains: int) -> Steps:
    """Everything is posted at once."""
    return Steps(1, 1) if domains > 1 else Steps(1, 0)


def log_steps(rounds: int, ranks: int, domains: int, per_level: int = 1) -> Steps:
    """`rounds` hops over doubling distances: the far ones, one set per doubling of domains, go between."""
    between = min(rounds, per_level * levels(domains))
    return Steps(rounds - between, between)


def levels(count: int) -> int:
    """⌈log₂ count⌉."""
    return max(0, count - 1).bit_length()
