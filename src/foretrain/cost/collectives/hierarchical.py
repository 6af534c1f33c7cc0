"""Hierarchical: reduce-scatter inside every domain, all-reduce of 1/g between domains on g rails, all-gather inside.

T_RS(g, M) + T_AR(m, M/g) + T_AG(g, M): all rails of a domain together carry 2(m-1)/m of the buffer.
Rails are as many as the smallest domain has ranks; in a larger one several ranks share a rail.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from foretrain.arrays import Ints
from foretrain.cost.collectives.base import FromProgram, Steps, in_order
from foretrain.cost.collectives.channels import local_paths
from foretrain.cost.collectives.program import CollectiveProgram, Round
from foretrain.cost.collectives.ring import halves


@dataclass(frozen=True)
class Hierarchical(FromProgram):
    """As steady flows the phases overlap (chunks follow one another); the program runs one after the other."""

    collective: str = "all_reduce"
    name = "hierarchical"

    @property
    def pattern(self) -> str:
        return f"hierarchical {self.collective}"

    @property
    def collectives(self) -> tuple[str, ...]:  # type: ignore[override]
        return (self.collective,)

    def steps(self, collective: str, ranks: int, domains: int) -> Steps:
        times = halves(collective)
        return Steps(times * (-(-ranks // domains) - 1), times * (domains - 1))

    def program(
        self, collective: str, size: float, layout: Ints, chunks: int = 1
    ) -> CollectiveProgram:
        paths = local_paths(in_order(layout))
        gather = _inside(paths, size)
        scatter = [Round(r.dst, r.src, r.bytes) for r in reversed(gather)]
        between = _between(paths, size) * halves(collective)
        parts = {
            "all_reduce": [*scatter, *between, *gather],
            "reduce_scatter": [*scatter, *between],
            "all_gather": [*between, *gather],
        }
        return CollectiveProgram(len(layout), tuple(parts[collective]))


def _inside(paths: list[list[Ints]], size: float) -> list[Round]:
    """Every rail's part runs from its owner, the first of its path, around the domain."""
    each = size / len(paths)
    longest = max(len(path) for path in paths[0])
    rounds: list[list[Round]] = [[] for _ in range(longest - 1)]
    for rail in paths:
        for path in rail:
            for hop in range(len(path) - 1):
                one = Round.of(path[hop : hop + 1], path[hop + 1 : hop + 2], each)
                rounds[hop].append(one)
    return [Round.joined(parts) for parts in rounds]


def _between(paths: list[list[Ints]], size: float) -> list[Round]:
    """Half a ring all-reduce among the owners of every rail."""
    domains = len(paths[0])
    owners = [np.array([path[0] for path in rail]) for rail in paths]
    each = size / (len(paths) * domains)
    one = [Round.of(ring, np.roll(ring, -1), each) for ring in owners]
    return [Round.joined(one)] * (domains - 1)
