"""Collective algorithms, a file for each family; which one runs is the selector's choice.

A collective may carry an argument in brackets: `all_to_all_v(0.5)` is skewed by a half, `parameter_server(4)` has
four servers, `neighbour_all_reduce(torus2d)` runs over that graph.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache

from foretrain.cost.collectives.base import Algorithm, Flows, Steps
from foretrain.cost.collectives.constants import library_row
from foretrain.cost.collectives.direct import (
    AllPairs,
    Direct,
    Matrix,
    Neighbours,
    Pairwise,
    Send,
    Variable,
)
from foretrain.cost.collectives.doubling import (
    Binomial,
    Bruck,
    HalvingDoubling,
    Pat,
    RecursiveDoubling,
    RecursiveHalves,
    ScatterGather,
    Swing,
)
from foretrain.cost.collectives.gossip import Gossip, HierarchicalGossip, InnerOuter
from foretrain.cost.collectives.legal import check_algorithm
from foretrain.cost.collectives.nvls import Nvls, NvlsTree
from foretrain.cost.collectives.parameter_server import ParameterServer
from foretrain.cost.collectives.program import CollectiveProgram, Round
from foretrain.cost.collectives.ring import ChainAlgorithm, Hierarchical, Ring
from foretrain.cost.collectives.tree import DoubleTree, Tree
from foretrain.errors import InputError, did_you_mean, hint
from foretrain.registering import expect_variant, once

ALGORITHMS: list[Algorithm] = [
    Ring(),
    Tree(),
    DoubleTree(),
    HalvingDoubling(),
    RecursiveDoubling(),
    RecursiveHalves(),
    Swing(),
    Hierarchical("all_reduce"),
    Hierarchical("reduce_scatter"),
    Hierarchical("all_gather"),
    AllPairs(),
    Nvls(),
    NvlsTree(),
    Pat(),
    ChainAlgorithm("broadcast"),
    ChainAlgorithm("reduce"),
    Binomial("broadcast"),
    Binomial("reduce"),
    Binomial("all_reduce"),
    ScatterGather(),
    Direct(),
    Pairwise(),
    Bruck(),
    Variable(),
    ParameterServer(),
    Gossip(),
    InnerOuter(),
    HierarchicalGossip(),
    Neighbours(),
    Send(),
]
_OURS = frozenset(algorithm.name for algorithm in ALGORITHMS)

# Collectives with an argument, and what makes their algorithm from it.
WITH_ARGUMENT: Mapping[str, Callable[[str], Algorithm]] = {
    "all_to_all_v": lambda text: Variable(float(text)),
    "parameter_server": lambda text: ParameterServer(int(text)),
    "neighbour_all_reduce": Gossip,
    "inner_outer_all_reduce": lambda text: InnerOuter(int(text)),
    "hierarchical_neighbour_all_reduce": HierarchicalGossip,
}

__all__ = [
    "ALGORITHMS",
    "Algorithm",
    "Chosen",
    "CollectiveProgram",
    "Flows",
    "Matrix",
    "Round",
    "Steps",
    "algorithms_for",
    "chosen",
    "name_of",
    "register",
]

Chosen = tuple[tuple[str, str], ...]  # collective → algorithm or algorithm/protocol


@cache
def algorithms_for(
    collective: str, library: str = "nccl", choose: Chosen = ()
) -> tuple[Algorithm, ...]:
    """What may carry a collective out: the library's candidates, or the one the user chose."""
    name = name_of(collective)
    if name != collective:
        return (_with_argument(name, collective[len(name) + 1 : -1]),)
    known = {a.name: a for a in ALGORITHMS if name in a.collectives}
    wanted = dict(choose).get(name)
    if wanted is not None:
        return (known[wanted.partition("/")[0]],)
    candidates = library_row(library)["candidates"].get(name, known)
    return tuple(known[a] for a in candidates)


def register(algorithm: Algorithm) -> Callable[[], None]:
    """Add an algorithm of one's own to the table, for this process. Its answers are tried on a few small groups; what
    comes back takes it out again.

    Libraries do not choose it by themselves: name it in `algorithms`.
    """
    expect_variant(algorithm, Algorithm, "a collective algorithm")
    check_algorithm(algorithm)
    known = {(a.name, collective) for a in ALGORITHMS for collective in a.collectives}
    if any((algorithm.name, collective) in known for collective in algorithm.collectives):
        raise InputError(f"algorithm {algorithm.name!r} is in the table already. Use another name.")
    ALGORITHMS.append(algorithm)
    algorithms_for.cache_clear()

    def undo() -> None:
        ALGORITHMS.remove(algorithm)
        algorithms_for.cache_clear()

    return once(undo)


def is_outside(name: str) -> bool:
    """Whether an algorithm was registered for this process alone."""
    return name not in _OURS


def name_of(collective: str) -> str:
    """A collective without its argument."""
    return collective.partition("(")[0] if collective.endswith(")") else collective


def chosen(wishes: Mapping[str, str]) -> Chosen:
    """The user's wishes, collective → algorithm[/protocol], checked."""
    faults = []
    for collective, wish in wishes.items():
        able = [a.name for a in ALGORITHMS if collective in a.collectives]
        every = sorted({c for a in ALGORITHMS for c in a.collectives})
        algorithm = wish.partition("/")[0]
        if not able:
            faults.append(
                f"collectives.{collective}: no such collective.{did_you_mean(collective, every)}"
            )
        elif algorithm not in able:
            faults.append(
                f"collectives.{collective}: {algorithm!r} does not implement "
                f"it.{hint(algorithm, able)}"
            )
    if faults:
        raise InputError(faults[0], faults=faults)
    return tuple(sorted(wishes.items()))


def _with_argument(name: str, text: str) -> Algorithm:
    make = WITH_ARGUMENT.get(name)
    if make is None:
        raise InputError(
            f"{name}({text}): {name} takes no argument.{did_you_mean(name, WITH_ARGUMENT)}"
        )
    try:
        return make(text)
    except ValueError as error:
        raise InputError(f"{name}({text}): {text!r} is not a number.") from error
