"""Fold: ranks that provably behave alike become one rank class, simulated once.

Colour refinement: ranks start with the colour of their program (stage) and device; groups take the colours
of their members, links the colours and loads of the groups that cross them, groups again those of the links
they cross, and ranks those of their groups, until nothing new is told apart. The partition is then
*equitable*: every rank of a class sees the same classes around it and the same loads on the links it uses,
so all of them run in lockstep and one stands for all. With `is_folded=False` every rank is its own class.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from foretrain.compile.execution import Communicator
from foretrain.plan.mesh import Mesh

Ints = NDArray[np.int64]
Colors = NDArray[np.uint64]


@dataclass(frozen=True, eq=False, slots=True)
class Loads:
    """Entry i: group `group[i]` puts `weight[i]` units on link `link[i]` per unit it moves."""

    group: Ints
    link: Ints
    weight: NDArray[np.float64]


class Traffic(Protocol):
    """The network as folding sees it: who loads which link. The cost layer implements it."""

    def __hash__(self) -> int: ...  # folds are remembered per network

    def link_colors(self) -> Colors:
        """Equal for links that are alike by themselves."""

    def rank_colors(self) -> Colors:
        """Equal for ranks on devices that are alike by themselves."""

    def loads(self, collective: str, groups: Ints) -> tuple[Loads, ...]:
        """Link loads of every algorithm that may carry this collective out on these groups."""


@dataclass(frozen=True, eq=False, slots=True)
class GroupFold:
    """The groups of one communicator and their classes."""

    groups: Ints  # one row of ranks per group
    group_of: Ints  # rank → its group (as the sender, where groups are pairs), -1 if none
    group_class: Ints  # group → group class
    examples: Ints  # group class → one group
    members: tuple[tuple[int, ...], ...]  # group class → rank classes taking part


@dataclass(frozen=True, eq=False, slots=True)
class Fold:
    """Rank classes and the group classes of every communicator in use."""

    rank_class: Ints
    examples: Ints  # class → one rank
    counts: Ints  # class → how many ranks
    stage_of: Ints  # class → pipeline stage
    groups: Mapping[Communicator, GroupFold]
    shared: Mapping[
        Communicator, NDArray[np.bool_]
    ]  # group class → its links carry other ranks' traffic

    @property
    def classes(self) -> int:
        return len(self.examples)

    def group_class(self, communicator: Communicator, rank_class: int) -> int:
        """The group class a rank class belongs to (as the sender, for pairs)."""
        found = self.groups[communicator]
        return int(found.group_class[found.group_of[self.examples[rank_class]]])

    def partner(self, communicator: Communicator, rank_class: int) -> int:
        """The rank class at the other end of a pair."""
        found = self.groups[communicator]
        row = found.groups[found.group_of[self.examples[rank_class]]]
        return int(self.rank_class[row[1]])


def ranks_of(mesh: Mesh, communicator: Communicator) -> Ints:
    """One row of ranks per group of a communicator."""
    rows = mesh.groups(communicator.axes)
    if communicator.kind == "group":
        return rows
    if communicator.kind == "ends":
        return np.ascontiguousarray(rows[:, [0, -1]])
    if communicator.offset < 0:
        rows = rows[:, ::-1]
    step = abs(communicator.offset)
    pairs = [np.stack([rows[:, :-step].ravel(), rows[:, step:].ravel()], axis=1)]
    if communicator.wraps:
        pairs.append(np.stack([rows[:, -step:].ravel(), rows[:, :step].ravel()], axis=1))
    return np.concatenate(pairs)


Use = tuple[Communicator, str]  # a communicator and a collective run on it


@lru_cache(maxsize=128)
def fold(
    traffic: Traffic,
    mesh: Mesh,
    uses: tuple[Use, ...],
    solitary: frozenset[Communicator],
    is_folded: bool,
) -> Fold:
    """Rank classes of a mesh under the communication it will do.

    `solitary` communicators join all ranks at a moment when nothing else runs: nobody shares links with them.
    """
    stages = (
        mesh.coordinate("pp")
        if any(a == "pp" for a, _ in mesh.axes)
        else np.zeros(mesh.ranks, np.int64)
    )
    groups = {use[0]: ranks_of(mesh, use[0]) for use in uses}
    loads = {use: traffic.loads(use[1], groups[use[0]]) for use in uses}
    if is_folded:
        base = _mix(traffic.rank_colors() + _mix(stages.astype(np.uint64)))
        rank_colors, group_colors = _refine(traffic, base, groups, loads)
    else:
        rank_colors = np.arange(mesh.ranks, dtype=np.uint64)
        group_colors = {c: np.arange(len(g), dtype=np.uint64) for c, g in groups.items()}
    rank_class, examples, counts = _numbered(rank_colors)
    folded = {c: _group_fold(g, group_colors[c], rank_class, mesh.ranks) for c, g in groups.items()}
    links = len(traffic.link_colors())
    crowding = {use: found for use, found in loads.items() if use[0] not in solitary}
    return Fold(
        rank_class=rank_class,
        examples=examples,
        counts=counts,
        stage_of=stages[examples],
        groups=folded,
        shared=_shared(folded, crowding, links, rank_class),
    )


def _refine(
    traffic: Traffic,
    colors: Colors,
    groups: Mapping[Communicator, Ints],
    loads: Mapping[Use, tuple[Loads, ...]],
) -> tuple[Colors, dict[Communicator, Colors]]:
    told_apart = len(np.unique(colors))
    links = traffic.link_colors()
    while True:
        group_colors = {c: _of_members(c, rows, colors) for c, rows in groups.items()}
        link_colors = _of_loads(links, group_colors, loads)
        group_colors = _of_links(link_colors, group_colors, loads)
        colors = _of_groups(colors, group_colors, groups)
        now = len(np.unique(colors))
        if now == told_apart:
            return colors, group_colors
        told_apart = now


def _of_members(communicator: Communicator, rows: Ints, colors: Colors) -> Colors:
    if communicator.kind == "group":  # members of a collective are interchangeable …
        return _mix(_mix(colors)[rows].sum(axis=1, dtype=np.uint64))
    return _mix(colors[rows[:, 0]] + _mix(colors[rows[:, 1]]))  # … sender and receiver are not


def _of_loads(
    links: Colors, groups: Mapping[Communicator, Colors], loads: Mapping[Use, tuple[Loads, ...]]
) -> Colors:
    total = links.copy()
    for index, ((communicator, _), patterns) in enumerate(loads.items()):
        for part, pattern in enumerate(patterns):
            salt = np.uint64(1 + index * 64 + part)
            colors = groups[communicator][pattern.group] + _mix(_bits(pattern.weight) + salt)
            np.add.at(total, pattern.link, _mix(colors))
    return _mix(total)


def _of_links(
    links: Colors, groups: Mapping[Communicator, Colors], loads: Mapping[Use, tuple[Loads, ...]]
) -> dict[Communicator, Colors]:
    total = {c: colors.copy() for c, colors in groups.items()}
    for index, ((communicator, _), patterns) in enumerate(loads.items()):
        for part, pattern in enumerate(patterns):
            salt = np.uint64(1 + index * 64 + part)
            colors = links[pattern.link] + _mix(_bits(pattern.weight) + salt)
            np.add.at(total[communicator], pattern.group, _mix(colors))
    return {c: _mix(colors) for c, colors in total.items()}


def _of_groups(
    colors: Colors, groups: Mapping[Communicator, Colors], rows: Mapping[Communicator, Ints]
) -> Colors:
    out = _mix(colors)
    for index, (communicator, group_colors) in enumerate(groups.items()):
        ranks = rows[communicator]
        for column in range(ranks.shape[1]):
            role = (
                np.uint64(index + 1)
                if communicator.kind == "group"
                else np.uint64(index + 1001 + column)
            )
            # a rank is in one group of a communicator per role, so plain indexed addition is safe
            out[ranks[:, column]] += _mix(group_colors + _mix(np.array([role])))
    return _mix(out)


def _mix(values: Colors) -> Colors:
    """splitmix64's finaliser: every input bit changes every output bit. Overflow is meant."""
    x = np.atleast_1d(values) + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _bits(values: NDArray[np.float64]) -> Colors:
    return np.ascontiguousarray(values, dtype=np.float64).view(np.uint64)


def _numbered(colors: Colors) -> tuple[Ints, Ints, Ints]:
    """Classes numbered by their first member, so that numbering does not depend on hash values."""
    _, first, inverse, counts = np.unique(
        colors, return_index=True, return_inverse=True, return_counts=True
    )
    order = np.argsort(first)
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    return rank[inverse], first[order], counts[order]


def _group_fold(groups: Ints, colors: Colors, rank_class: Ints, ranks: int) -> GroupFold:
    group_class, examples, _ = _numbered(colors)
    group_of = np.full(ranks, -1, dtype=np.int64)
    if groups.shape[1] == 2:
        group_of[groups[:, 1]] = np.arange(len(groups))
        group_of[groups[:, 0]] = np.arange(len(groups))
    else:
        group_of[groups] = np.arange(len(groups))[:, None]
    members = tuple(tuple(np.unique(rank_class[groups[g]]).tolist()) for g in examples)
    return GroupFold(groups, group_of, group_class, examples, members)


def _shared(
    groups: Mapping[Communicator, GroupFold],
    loads: Mapping[Use, tuple[Loads, ...]],
    links: int,
    rank_class: Ints,
) -> dict[Communicator, NDArray[np.bool_]]:
    """Which group classes cross a link that somebody else loads too.

    Other collectives of one's own rank class do not count, because a chain runs them one after the other, and
    is cut at all of them where it has company.
    """
    low = np.full(links, np.iinfo(np.int64).max)
    high = np.full(links, -1)
    offset = 0
    labels: dict[Communicator, Ints] = {}
    for communicator, found in groups.items():
        if communicator.kind == "group":
            labels[communicator] = rank_class[found.groups[found.examples, 0]]
        else:
            labels[communicator] = (
                int(rank_class.max()) + 1 + offset + np.arange(len(found.examples))
            )
            offset += len(found.examples)
    for (communicator, _), patterns in loads.items():
        found = groups[communicator]
        for pattern in patterns:
            label = labels[communicator][found.group_class[pattern.group]]
            np.minimum.at(low, pattern.link, label)
            np.maximum.at(high, pattern.link, label)
    crowded = high > low
    out = {c: np.zeros(len(found.examples), dtype=np.bool_) for c, found in groups.items()}
    for (communicator, _), patterns in loads.items():
        found = groups[communicator]
        for pattern in patterns:
            hit = found.group_class[pattern.group[crowded[pattern.link]]]
            out[communicator][hit] = True
    return out
