"""Reduction inside the switch (NVLink SHARP, "NVLS"): every rank reads sums and writes to all through the switch.

Klenk et al. 2020, "An in-network architecture for accelerating shared-memory multiprocessor collectives": a rank
pulls the sum of its n-th (the switch reads M/n from everyone), then stores it to all at once. Per port
M + M/n each way instead of a ring's 2(n-1)/n·M. Needs a switched domain of Hopper or later.
"""

from __future__ import annotations

import numpy as np

from foretrain.arrays import Ints
from foretrain.cost.collectives.base import Algorithm, Flows, GroupTopology, Steps, in_order, levels
from foretrain.cost.collectives.program import CollectiveProgram, Round
from foretrain.cost.collectives.ring import local_paths, ring_flows
from foretrain.cost.collectives.tree import Tree, reverse, rising
from foretrain.cost.collectives.tuner import reduces_in_switch


def _no_switch(group: GroupTopology) -> str | None:
    """Why no switch reduces for a group."""
    if not group.has_switch:
        return "the devices are not connected by an NVSwitch"
    if reduces_in_switch(group.architecture):
        return None
    return f"NVSwitch supports in-network reduction since Hopper, and the devices are {group.architecture}"


class Nvls(Algorithm):
    """Loads every port of the switch alike, as a ring does."""

    name = "nvls"
    pattern = "ring"
    collectives = ("all_reduce", "reduce_scatter", "all_gather")

    def why_not(self, group: GroupTopology) -> str | None:
        if reason := _no_switch(group):
            return reason
        if group.domains > 1:
            return f"it works within one switch, and the group spans {group.domains} NVLink domains"
        return "two ranks gain nothing from a switch" if group.ranks < 3 else None

    def flows(self, groups: Ints, domain_of: Ints) -> Flows:
        return ring_flows(groups, domain_of)

    def volume(self, collective: str, size: float, ranks: int) -> float:
        return size * (1 + 1 / ranks) if collective == "all_reduce" else size

    def steps(self, collective: str, ranks: int, domains: int) -> Steps:
        return Steps(1, 0)

    def program(
        self, collective: str, size: float, layout: Ints, chunks: int = 1
    ) -> CollectiveProgram:
        ranks = len(layout)
        rank, switch = np.arange(ranks), np.full(ranks, ranks)
        reduce = [Round.of(rank, switch, size), Round.of(switch, rank, size / ranks)]
        spread = [Round.of(rank, switch, size / ranks), Round.of(switch, rank, size)]
        parts = {"all_reduce": [*reduce, *spread], "reduce_scatter": reduce, "all_gather": spread}
        return CollectiveProgram(ranks, tuple(parts[collective]))


class NvlsTree(Tree):
    """Reduction in the switch of every domain, double binary trees between domains."""

    name = "nvls_tree"
    tuned_as = ""

    def why_not(self, group: GroupTopology) -> str | None:
        if reason := _no_switch(group):
            return reason
        if group.domains == 1:
            return "it needs several NVLink domains, and the group is within one"
        return None if group.domains < group.ranks else "every rank is alone in its NVLink domain"

    def steps(self, collective: str, ranks: int, domains: int) -> Steps:
        return Steps(1, 2 * levels(domains))

    def program(
        self, collective: str, size: float, layout: Ints, chunks: int = 1
    ) -> CollectiveProgram:
        ranks, layout = len(layout), in_order(layout)
        rank, switch = np.arange(ranks), ranks + layout
        owners = [np.array([path[0] for path in rail]) for rail in local_paths(layout)]
        each = size / len(owners)
        heads = np.concatenate(owners)
        up = [Round.of(rank, switch, size), Round.of(ranks + layout[heads], heads, each)]
        up += rising(owners, each)
        return CollectiveProgram(ranks, (*up, *reverse(up)))
