"""Communication graphs of decentralised training: who sends its parameters to whom, and how fast they mix.

Weights are those of BlueFog's `topology_util`: uniform 1/(degree+1) for rings, exponential and full graphs, 1/n
for the star, Metropolis–Hastings 1/(1 + max(degree)) for meshes, trees and random graphs. One exchange maps the
ranks' parameters x to W·x; `rho` is the second largest modulus of W's eigenvalues and 1 - rho the spectral gap
(Ying et al. 2021).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from math import isqrt

import numpy as np

from foretrain.arrays import Floats, Ints
from foretrain.errors import InputError, did_you_mean

ONE_PEER = "one_peer_exponential2"
DRAWN = "edges:"


@dataclass(frozen=True, eq=False, slots=True)
class Graph:
    """Directed edges among `ranks` and the weights `mixing[i, j]` that rank i gives to what j sent."""

    ranks: int
    src: Ints
    dst: Ints
    mixing: Floats

    @property
    def out_degree(self) -> Ints:
        return np.bincount(self.src, minlength=self.ranks)

    @property
    def in_degree(self) -> Ints:
        return np.bincount(self.dst, minlength=self.ranks)

    @property
    def bytes_per_rank(self) -> int:
        """Parameters' sizes that leave the busiest rank in one exchange."""
        return int(self.out_degree.max())

    @property
    def rho(self) -> float:
        values = np.sort(np.abs(np.linalg.eigvals(self.mixing)))
        return float(values[-2])


def _from_weights(mixing: Floats) -> Graph:
    """`mixing[i, j]`: the weight with which i takes what j sends."""
    dst, src = np.nonzero(mixing * (1.0 - np.eye(len(mixing))))
    return Graph(len(mixing), src.astype(np.int64), dst.astype(np.int64), mixing)


def _circulant(ranks: int, shifts: list[int]) -> Graph:
    """Everybody sends to i + shift and weighs all it hears, itself included, alike."""
    mixing = np.zeros((ranks, ranks))
    rank = np.arange(ranks)
    for shift in (0, *shifts):
        mixing[(rank + shift) % ranks, rank] = 1.0 / (len(shifts) + 1)
    return _from_weights(mixing)


def _undirected(ranks: int, edges: list[tuple[int, int]]) -> Graph:
    """Metropolis–Hastings weights (Policy 1 of Sayed, arXiv 1702.05122)."""
    joined = np.zeros((ranks, ranks))
    for a, b in edges:
        joined[a, b] = joined[b, a] = 1.0
    degree = joined.sum(axis=1)
    mixing = joined / (1.0 + np.maximum(degree[:, None], degree[None, :]))
    mixing[np.arange(ranks), np.arange(ranks)] = 1.0 - mixing.sum(axis=1)
    return _from_weights(mixing)


def _star(ranks: int) -> Graph:
    mixing = np.diag(np.full(ranks, 1.0 - 1.0 / ranks))
    mixing[0, :] = mixing[:, 0] = 1.0 / ranks
    return _from_weights(mixing)


def _powers(ranks: int, base: int) -> list[int]:
    out = [1]
    while out[-1] * base < ranks:
        out.append(out[-1] * base)
    return [shift for shift in out if shift < ranks]


def _symmetric_exponential(ranks: int, base: int) -> Graph:
    powers = _powers(ranks, base)
    return _circulant(ranks, [s for s in range(1, ranks) if min(s, ranks - s) in powers])


def _grid(ranks: int, wraps: bool) -> Graph:
    """The most square grid that has exactly so many places."""
    rows = next(r for r in range(isqrt(ranks), 0, -1) if ranks % r == 0)
    columns = ranks // rows
    edges = []
    for row in range(rows):
        for column in range(columns):
            here = row * columns + column
            if column + 1 < columns or wraps:
                edges.append((here, row * columns + (column + 1) % columns))
            if row + 1 < rows or wraps:
                edges.append((here, (row + 1) % rows * columns + column))
    return _undirected(ranks, [(a, b) for a, b in edges if a != b])


def _binary_tree(ranks: int) -> Graph:
    return _undirected(ranks, [(child, (child - 1) // 2) for child in range(1, ranks)])


def _erdos_renyi(ranks: int, probability: float = 0.5, seed: int = 0) -> Graph:
    """A pair is joined where the upper triangle of an n × n table of draws lies below the probability."""
    joined = np.random.default_rng(seed).random((ranks, ranks)) < probability
    low, high = np.nonzero(np.triu(joined, 1))
    return _undirected(ranks, list(zip(low.tolist(), high.tolist(), strict=True)))


def _drawn(text: str, ranks: int) -> Graph:
    """`0>1,1>0,1>2`: who sends to whom; a rank weighs all it hears, itself included, alike."""
    mixing, faults = np.eye(ranks), []
    for word in text.split(","):
        ends = word.strip().split(">")
        if len(ends) != 2 or not all(end.strip().isdecimal() for end in ends):
            faults.append(f"{word.strip()!r} is not an edge; write for example 0>1.")
            continue
        src, dst = int(ends[0]), int(ends[1])
        if src == dst or max(src, dst) >= ranks:
            faults.append(
                f"{word.strip()!r}: ends must be two different ranks from 0 to {ranks - 1}."
            )
            continue
        mixing[dst, src] = 1.0
    if faults:
        raise InputError("invalid communication graph:", faults=faults[:20])
    return _from_weights(mixing / mixing.sum(axis=1, keepdims=True))


def one_peer(ranks: int, iteration: int) -> Graph:
    """Iteration t: everybody sends to i + 2^(t mod ⌈log₂ n⌉) only, and takes the mean of two."""
    return _circulant(ranks, [1 << (iteration % max(1, (ranks - 1).bit_length()))])


GRAPHS: Mapping[str, Callable[[int], Graph]] = {
    "star": _star,
    "ring_bidirectional": lambda n: _circulant(n, sorted({1, n - 1})),
    "ring_left": lambda n: _circulant(n, [n - 1]),
    "mesh2d": lambda n: _grid(n, wraps=False),
    "torus2d": lambda n: _grid(n, wraps=True),
    "binary_tree": _binary_tree,
    "exponential2": lambda n: _circulant(n, _powers(n, 2)),
    "exponential_base4": lambda n: _circulant(n, _powers(n, 4)),
    "symmetric_exponential4": lambda n: _symmetric_exponential(n, 4),
    "fully_connected": lambda n: _circulant(n, list(range(1, n))),
    "erdos_renyi": _erdos_renyi,
}


@cache
def graph(name: str, ranks: int) -> Graph:
    """A graph by name; `one_peer_exponential2@3` is the dynamic one in its iteration 3, `edges:0>1,1>0` is drawn."""
    kind, _, iteration = name.partition("@")
    if kind == ONE_PEER and (not iteration or iteration.isdigit()):
        return one_peer(ranks, int(iteration or 0))
    if name.startswith(DRAWN):
        return _whole(_drawn(name.removeprefix(DRAWN), ranks), "drawn")
    if name not in GRAPHS:
        known = (*GRAPHS, ONE_PEER, DRAWN + "0>1,1>0")
        raise InputError(f"no communication graph {name!r}.{did_you_mean(name, known)}")
    return _whole(GRAPHS[name](ranks), name)


def _whole(found: Graph, name: str) -> Graph:
    if len(np.union1d(found.src, found.dst)) < found.ranks:
        raise InputError(
            f"graph {name!r} leaves one of {found.ranks} ranks isolated; use another graph."
        )
    return found
