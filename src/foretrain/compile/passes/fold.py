"""Fold: ranks that provably behave alike become one rank class, simulated once.

Colour refinement: ranks start with the colour of their program (stage) and device; groups take the colours
of their members, links the colours and loads of the groups that cross them, groups again those of the links
they cross, and ranks those of their groups, until nothing new is told apart. The partition is then
*equitable*: every rank of a class sees the same classes around it and the same loads on the links it uses,
so all of them run in lockstep and one stands for all. With `is_folded=False` every rank is its own class.

Where members of a group do not move together (gossip), its *subgroups* load links in its place: each sends by
itself, and takes besides the colours of those it receives from.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from foretrain.arrays import Bools, Floats, Ints
from foretrain.compile.columns import count_distinct
from foretrain.compile.execution import Communicator, Item
from foretrain.plan.mesh import Mesh
from foretrain.units import counted

Colors = NDArray[np.uint64]
Use = tuple[Communicator, str]  # a communicator and a collective run on it
Mover = Communicator | Use  # groups by their communicator, subgroups by their use


def uses_of(items: Iterable[Item]) -> tuple[Use, ...]:
    """Communicators and collectives of items, in order of first use."""
    moves = (item.communication for item in items)
    return tuple(dict.fromkeys((move.group, move.collective) for move in moves if move))


@dataclass(frozen=True, eq=False, slots=True)
class Loads:
    """Entry i: group (or subgroup) `group[i]` puts `weight[i]` units on link `link[i]` per unit it moves."""

    group: Ints
    link: Ints
    weight: Floats


@dataclass(frozen=True, eq=False, slots=True)
class Subgroups:
    """Parts of groups that send by themselves: subgroup `dst[i]` needs what subgroup `src[i]` sends."""

    of: Ints  # rank → its subgroup
    src: Ints
    dst: Ints

    @property
    def count(self) -> int:
        return int(self.of.max()) + 1


class Traffic(Protocol):
    """The network as folding sees it: who loads which link. The cost layer implements it."""

    def __hash__(self) -> int: ...  # folds are remembered per network

    def link_colors(self) -> Colors:
        """Equal for links that are alike by themselves."""

    def rank_colors(self) -> Colors:
        """Equal for ranks on devices that are alike by themselves."""

    def loads(self, collective: str, groups: Ints) -> tuple[Loads, ...]:
        """Link loads of every algorithm that may carry this collective out on these groups."""

    def subgroups(self, collective: str, groups: Ints) -> Subgroups | None:
        """Who loads links and is waited for by itself; None where a group moves as one."""


@dataclass(frozen=True, eq=False, slots=True)
class GroupClasses:
    """What moves as one, groups or subgroups of them, and their classes."""

    group_of: Ints  # rank → its group (as the sender, where groups are pairs), -1 if none
    group_class: Ints  # group → group class
    examples: Ints  # group class → one group
    first: Ints  # group class → the first rank of that group
    members: tuple[tuple[int, ...], ...]  # group class → rank classes taking part
    class_of: tuple[int, ...]  # rank class → its group class, -1 if it has no part


@dataclass(frozen=True, eq=False, slots=True)
class GroupFold(GroupClasses):
    """The groups of one communicator and their classes."""

    groups: Ints  # one row of ranks per group


@dataclass(frozen=True, eq=False, slots=True)
class SubgroupFold(GroupClasses):
    """The subgroups of a communicator's groups under one collective and their classes."""

    sources: tuple[tuple[int, ...], ...]  # subgroup class → other classes whose sends it waits for


@dataclass(frozen=True, eq=False, slots=True)
class Fold:
    """Rank classes and the group classes of every communicator in use."""

    rank_class: Ints
    examples: Ints  # class → one rank
    counts: Ints  # class → how many ranks
    stage_of: Ints  # class → pipeline stage
    device_of: Colors  # class → equal where devices are alike
    groups: Mapping[Communicator, GroupFold]
    shared: Mapping[Communicator, Bools]  # group class → its links carry other ranks' traffic
    subgroups: Mapping[Use, SubgroupFold]  # of collectives whose groups do not move as one

    def __repr__(self) -> str:
        ranks = counted(int(self.counts.sum()), "rank")
        return f"<Fold: {ranks} in {counted(self.classes, 'class', 'classes')}>"

    @property
    def classes(self) -> int:
        return len(self.examples)

    def group_class(self, communicator: Communicator, rank_class: int) -> int:
        """The group class a rank class belongs to (as the sender, for pairs)."""
        return self.groups[communicator].class_of[rank_class]

    def movers(self, communicator: Communicator, collective: str) -> GroupClasses:
        """What moves as one when a collective runs: the groups, or subgroups of them."""
        return self.subgroups.get((communicator, collective)) or self.groups[communicator]

    def mover_class(self, communicator: Communicator, collective: str, rank_class: int) -> int:
        """The class of group or subgroup with which a rank class moves."""
        return self.movers(communicator, collective).class_of[rank_class]

    def sources(
        self, communicator: Communicator, collective: str, mover_class: int
    ) -> tuple[int, ...]:
        """The other classes of subgroups that a subgroup waits for (none where groups move as one)."""
        found = self.subgroups.get((communicator, collective))
        return found.sources[mover_class] if found else ()

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
    asked = {use: traffic.subgroups(use[1], groups[use[0]]) for use in uses}
    subgroups = {use: found for use, found in asked.items() if found is not None}
    loads = {use: traffic.loads(use[1], groups[use[0]]) for use in uses}
    if is_folded:
        base = mix(traffic.rank_colors() + mix(stages.astype(np.uint64)))
        rank_colors, colors = _refine(traffic, base, groups, subgroups, loads)
    else:
        rank_colors = np.arange(mesh.ranks, dtype=np.uint64)
        counted = {c: len(g) for c, g in groups.items()} | {
            u: p.count for u, p in subgroups.items()
        }
        colors = {mover: np.arange(n, dtype=np.uint64) for mover, n in counted.items()}
    rank_class, examples, counts = _numbered(rank_colors)
    folded = {c: _group_fold(g, colors[c], rank_class, examples) for c, g in groups.items()}
    apart = {
        use: _subgroup_fold(p, colors[use], rank_class, examples) for use, p in subgroups.items()
    }
    links = len(traffic.link_colors())
    crowding = {use: found for use, found in loads.items() if use[0] not in solitary}
    return Fold(
        rank_class=rank_class,
        examples=examples,
        counts=counts,
        stage_of=stages[examples],
        device_of=traffic.rank_colors()[examples],
        groups=folded,
        shared=_shared(folded, apart, crowding, links, rank_class),
        subgroups=apart,
    )


def _refine(
    traffic: Traffic,
    colors: Colors,
    groups: Mapping[Communicator, Ints],
    subgroups: Mapping[Use, Subgroups],
    loads: Mapping[Use, tuple[Loads, ...]],
) -> tuple[Colors, dict[Mover, Colors]]:
    told_apart = count_distinct(colors)
    links = traffic.link_colors()
    patterns = _salted(
        [(use if use in subgroups else use[0], found) for use, found in loads.items()]
    )
    while True:
        movers: dict[Mover, Colors] = {
            c: _of_members(c, rows, colors) for c, rows in groups.items()
        }
        movers |= {use: _of_parts(found, colors) for use, found in subgroups.items()}
        link_colors = _of_loads(links, movers, patterns)
        movers = _of_links(link_colors, movers, patterns)
        for use, found in subgroups.items():
            movers[use] = _of_sources(found, movers[use])
        colors = _of_groups(colors, movers, groups)
        for index, (use, found) in enumerate(subgroups.items()):
            colors = mix(colors + mix(movers[use][found.of] + np.uint64(index)))
        now = count_distinct(colors)
        if now == told_apart:
            return colors, movers
        told_apart = now


def _of_members(communicator: Communicator, rows: Ints, colors: Colors) -> Colors:
    if communicator.kind == "group":  # members of a collective are interchangeable …
        return mix(mix(colors)[rows].sum(axis=1, dtype=np.uint64))
    return mix(colors[rows[:, 0]] + mix(colors[rows[:, 1]]))  # … sender and receiver are not


def _of_parts(subgroups: Subgroups, colors: Colors) -> Colors:
    total = np.zeros(subgroups.count, dtype=np.uint64)
    np.add.at(total, subgroups.of, mix(colors))
    return mix(total)


def _of_sources(subgroups: Subgroups, colors: Colors) -> Colors:
    total = colors.copy()
    np.add.at(total, subgroups.dst, mix(colors)[subgroups.src])
    return mix(total)


def _salted(
    loads: Sequence[tuple[Mover, tuple[Loads, ...]]],
) -> list[tuple[Mover, Loads, Colors]]:
    """Every pattern of loads, and what its weights add to the colours of those on either side of it."""
    return [
        (mover, pattern, mix(_bits(pattern.weight) + np.uint64(1 + index * 64 + part)))
        for index, (mover, patterns) in enumerate(loads)
        for part, pattern in enumerate(patterns)
    ]


def _of_loads(
    links: Colors, movers: Mapping[Mover, Colors], loads: Sequence[tuple[Mover, Loads, Colors]]
) -> Colors:
    total = links.copy()
    for mover, pattern, salt in loads:
        np.add.at(total, pattern.link, mix(movers[mover][pattern.group] + salt))
    return mix(total)


def _of_links(
    links: Colors, movers: Mapping[Mover, Colors], loads: Sequence[tuple[Mover, Loads, Colors]]
) -> dict[Mover, Colors]:
    total = {mover: colors.copy() for mover, colors in movers.items()}
    for mover, pattern, salt in loads:
        np.add.at(total[mover], pattern.group, mix(links[pattern.link] + salt))
    return {mover: mix(colors) for mover, colors in total.items()}


def _of_groups(
    colors: Colors, movers: Mapping[Mover, Colors], groups: Mapping[Communicator, Ints]
) -> Colors:
    out = mix(colors)
    for index, (communicator, ranks) in enumerate(groups.items()):
        # a rank is in one group of a communicator per role, so plain indexed addition is safe
        if communicator.kind == "group":
            out[ranks] += _in_role(movers[communicator], index + 1)[:, None]
            continue
        for column in range(ranks.shape[1]):
            out[ranks[:, column]] += _in_role(movers[communicator], index + 1001 + column)
    return mix(out)


def _in_role(movers: Colors, role: int) -> Colors:
    return mix(movers + mix(np.array([role], dtype=np.uint64)))


def mix(values: Colors) -> Colors:
    """splitmix64's finaliser: every input bit changes every output bit. Overflow is meant."""
    x: Colors = np.atleast_1d(values) + np.uint64(0x9E3779B97F4A7C15)
    shifted = np.empty_like(x)  # in place: of a million ranks, new arrays cost more than the sums
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x ^= np.right_shift(x, np.uint64(shift), out=shifted)
        x *= np.uint64(factor)
    x ^= np.right_shift(x, np.uint64(31), out=shifted)
    return x


def _bits(values: Floats) -> Colors:
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


def _group_fold(groups: Ints, colors: Colors, rank_class: Ints, ranks: Ints) -> GroupFold:
    """`ranks`: one of each rank class."""
    group_class, examples, _ = _numbered(colors)
    group_of = np.full(len(rank_class), -1, dtype=np.int64)
    if groups.shape[1] == 2:
        group_of[groups[:, 1]] = np.arange(len(groups))
        group_of[groups[:, 0]] = np.arange(len(groups))
    else:
        group_of[groups] = np.arange(len(groups))[:, None]
    members = tuple(tuple(sorted(set(rank_class[groups[g]].tolist()))) for g in examples)
    class_of = _classes_of(group_of[ranks], group_class)
    first = groups[examples, 0]
    return GroupFold(group_of, group_class, examples, first, members, class_of, groups)


def _classes_of(groups: Ints, group_class: Ints) -> tuple[int, ...]:
    return tuple(np.where(groups < 0, -1, group_class[groups]).tolist())


def _subgroup_fold(
    subgroups: Subgroups, colors: Colors, rank_class: Ints, ranks: Ints
) -> SubgroupFold:
    subgroup_class, examples, _ = _numbered(colors)
    first = np.unique(subgroups.of, return_index=True)[1][examples]
    members = tuple(tuple(np.unique(rank_class[subgroups.of == p]).tolist()) for p in examples)
    sources = []
    for number, subgroup in enumerate(examples):
        found = np.unique(subgroup_class[subgroups.src[subgroups.dst == subgroup]])
        sources.append(tuple(found[found != number].tolist()))
    class_of = _classes_of(subgroups.of[ranks], subgroup_class)
    return SubgroupFold(
        subgroups.of, subgroup_class, examples, first, members, class_of, tuple(sources)
    )


def _shared(
    groups: Mapping[Communicator, GroupFold],
    subgroups: Mapping[Use, SubgroupFold],
    loads: Mapping[Use, tuple[Loads, ...]],
    links: int,
    rank_class: Ints,
) -> dict[Communicator, Bools]:
    """Which group classes cross a link that somebody else loads too.

    Other collectives of one's own rank class do not count, because a chain runs them one after the other, and
    is cut at all of them where something runs beside it.
    """
    low = np.full(links, np.iinfo(np.int64).max)
    high = np.full(links, -1)
    offset = 0
    labels: dict[Mover, Ints] = {use: rank_class[found.first] for use, found in subgroups.items()}
    for communicator, found in groups.items():
        if communicator.kind == "group":
            labels[communicator] = rank_class[found.first]
        else:
            labels[communicator] = (
                int(rank_class.max()) + 1 + offset + np.arange(len(found.examples))
            )
            offset += len(found.examples)
    for use, patterns in loads.items():
        mover: Mover = use if use in subgroups else use[0]
        which = subgroups[use].group_class if use in subgroups else groups[use[0]].group_class
        for pattern in patterns:
            label = labels[mover][which[pattern.group]]
            np.minimum.at(low, pattern.link, label)
            np.maximum.at(high, pattern.link, label)
    crowded = high > low
    out = {c: np.zeros(len(found.examples), dtype=np.bool_) for c, found in groups.items()}
    for use, patterns in loads.items():
        if use in subgroups:
            continue  # subgroups run beside the chain, which is cut for them
        found = groups[use[0]]
        for pattern in patterns:
            hit = found.group_class[pattern.group[crowded[pattern.link]]]
            out[use[0]][hit] = True
    return out
