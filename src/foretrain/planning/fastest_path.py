"""The fastest path through a chain of layers that fits in memory: a state for each layer, exactly.

A layer takes time by its own state and the one before it. It keeps bytes throughout, saves bytes from when it runs, and
needs bytes while it is at work: a path needs at its peak all that is kept and, at some layer, what the layers up to it
save and what that one works with. Nothing here knows what layers, states or seconds stand for.

Suffixes of paths are labels (seconds, bytes kept, peak bytes). Of labels that can be reached alike, one that is no worse
in all three stands for the others. Paths fall in price as a price is put on bytes (Lagrange): a relaxed problem without
limit on memory, whose value is a lower bound for every price. A label that is by this bound no faster than a path already
known is dropped. A first pass with few labels finds that path; the second one is exact unless it reaches `MOST_LABELS`,
and then says by how much it may be off.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

import numpy as np

from foretrain.arrays import Bools, Floats, Ints

FEW_LABELS = 48
MOST_LABELS = 4000
"""Labels of a layer that are kept in the first and in the exact pass."""
_CUTS = 24
"""Prices that are tried at most until the best bound is found."""
_PRICES = 4
"""… of which so many, the last ones, bound labels."""
_AROUND = (0.6, 0.85, 1.2, 1.7)
"""Beside the best price for whole paths, shares of it: for the layers that are left another one may be better."""
_EPSILON = 1e-12


@dataclass(frozen=True, eq=False, slots=True)
class Chain:
    """Layers one after another, each in one of the same number of states."""

    first: Floats  # [states] seconds of the first layer
    through: Floats  # [layers - 1, states before, states] seconds of each of the others
    kept: Floats  # [layers, states] bytes, throughout
    saved: Floats  # … from when the layer runs
    work: Floats  # … while it runs
    room: float

    def seconds(self, states: Ints) -> float:
        return float(
            self.first[states[0]]
            + self.through[np.arange(len(states) - 1), states[:-1], states[1:]].sum()
        )

    def peak(self, states: Ints) -> float:
        """Bytes that a path needs at its fullest."""
        at = np.arange(len(states))
        held = np.cumsum(self.saved[at, states]) + self.work[at, states]
        return float(self.kept[at, states].sum() + held.max())

    def fits(self, states: Ints) -> bool:
        return self.peak(states) <= self.room * (1.0 + _EPSILON)


@dataclass(frozen=True, slots=True)
class Path:
    """The states of the layers, and seconds that no path which fits is below."""

    states: tuple[int, ...]
    seconds: float
    bound: float


def fastest(chain: Chain, labels: int = MOST_LABELS) -> Path | None:
    """The fastest path that fits; None where no path does."""
    prices, paths = _prices(chain)
    fitting = [states for states in paths if chain.fits(states)]
    if not fitting:
        least = least_peak(chain)
        if not chain.fits(least):
            return None
        fitting = [least]
    best = min(fitting, key=chain.seconds)
    if best is paths[0]:  # the fastest of all
        return _path(chain, best, chain.seconds(best))
    relaxed = _relaxed(chain, prices)
    bound = inf
    for most in (min(FEW_LABELS, labels), labels):
        best, bound = _Labels(chain, prices, relaxed, best, most).best()
        if bound >= chain.seconds(best):
            break
    return _path(chain, best, bound)


def least_of(chain: Chain) -> float:
    """Seconds that no path which fits is below: the best of the prices; infinite where no path can fit."""
    need = chain.kept + chain.saved
    prices, paths = _prices(chain)
    if len(paths) == 1:
        return chain.seconds(paths[0]) if chain.fits(paths[0]) else inf
    ends = _relaxed(chain, prices)[-1] + prices[:, None] * (need + chain.work)[-1]
    return float((ends.min(axis=1) - prices * chain.room).max()) * (1.0 - _EPSILON)


def least_peak(chain: Chain) -> Ints:
    """The path with the smallest peak."""
    layers, states = chain.kept.shape
    free = Chain(
        np.zeros(states), np.zeros((layers - 1, states, states)), chain.kept, chain.saved, chain.work, inf
    )  # fmt: skip
    prices = np.zeros(1)
    labels = _Labels(free, prices, _relaxed(free, prices), None, layers * states * MOST_LABELS)
    last = labels.whole()
    return labels.states(int(np.argmin(last.kept + last.ahead)))


def _path(chain: Chain, states: Ints, bound: float) -> Path:
    seconds = chain.seconds(states)
    return Path(tuple(states.tolist()), seconds, min(bound, seconds))


# --- bounds ---------------------------------------------------------------------------------------------


def _relaxed(chain: Chain, prices: Floats) -> Floats:
    """[layers, prices, states] the least that layers before one cost, bytes at a price, and the seconds of that one in
    a state."""
    need = prices[:, None, None] * (chain.kept + chain.saved)[None]
    found = np.empty((len(chain.kept), len(prices), len(chain.first)))
    found[0] = chain.first
    for layer in range(1, len(found)):
        before = found[layer - 1] + need[:, layer - 1]
        found[layer] = (before[:, :, None] + chain.through[layer - 1]).min(axis=1)
    return found


def _prices(chain: Chain) -> tuple[Floats, list[Ints]]:
    """Prices of a byte, up to the one with the best bound, and the paths that are cheapest then: the fastest of all
    first. (Cuts: the next price is the one at which the best paths with too many bytes and with few cost the same.)"""
    need, at = chain.kept + chain.saved, np.arange(len(chain.kept))
    need[-1] += chain.work[-1]

    def spent(states: Ints) -> float:
        return float(need[at, states].sum())

    large, small = _cheapest(chain, need, 0.0, 1.0), _cheapest(chain, need, 1.0, 0.0)
    paths = [large]
    if chain.fits(large) or spent(small) > chain.room * (1.0 + _EPSILON):
        return np.zeros(1), paths
    paths.append(small)
    tried = [0.0]
    for _ in range(_CUTS):
        slower, fewer = chain.seconds(small) - chain.seconds(large), spent(large) - spent(small)
        if slower <= 0.0 or fewer <= 0.0:
            break
        price = slower / fewer
        tried.append(price)
        between = _cheapest(chain, need, price, 1.0)
        least = chain.seconds(between) + price * spent(between)
        if least >= (chain.seconds(large) + price * spent(large)) * (1.0 - _EPSILON):
            break
        paths.append(between)
        if spent(between) <= chain.room:
            small = between
        else:
            large = between
    last = tried[-1]
    return np.array([0.0, *tried[-_PRICES:], *(share * last for share in _AROUND)]), paths


def _cheapest(chain: Chain, need: Floats, price: float, second: float) -> Ints:
    """The path with the least of seconds and bytes, at these prices."""
    value = second * chain.first + price * need[0]
    came = []
    for layer in range(1, len(need)):
        through = value[:, None] + second * chain.through[layer - 1]
        back = through.argmin(axis=0)
        came.append(back)
        value = through[back, np.arange(len(back))] + price * need[layer]
    states = [int(value.argmin())]
    for back in reversed(came):
        states.append(int(back[states[-1]]))
    return np.array(states[::-1], dtype=np.int64)


# --- labels ---------------------------------------------------------------------------------------------


class _Layer(NamedTuple):
    """Labels of the suffixes that begin with a layer."""

    state: Ints
    came: Ints  # label of the next layer
    seconds: Floats  # … of the layers behind the first of them
    kept: Floats
    ahead: Floats  # peak of what they save and work with


class _Labels:
    """Labels of all layers, last layer first. `known`: a path that fits; only faster ones are looked for."""

    def __init__(
        self, chain: Chain, prices: Floats, relaxed: Floats, known: Ints | None, most: int
    ) -> None:
        self.chain, self.prices, self.relaxed = chain, prices, relaxed
        self.known, self.most = known, most
        self.limit = inf if known is None else chain.seconds(known)
        self.dropped = inf
        """The least bound of labels that were left out for their number."""
        self.layers: list[_Layer] = []
        need, kept = (chain.kept + chain.saved).min(axis=1), chain.kept.min(axis=1)
        self.need_before = np.concatenate([[0.0], np.cumsum(need)[:-1]])
        saved = np.cumsum(chain.saved.min(axis=1)) + chain.work.min(axis=1)
        peaks = np.cumsum(kept) + np.maximum.accumulate(saved)
        self.peak_before = np.concatenate([[0.0], peaks[:-1]])

    def best(self) -> tuple[Ints, float]:
        """The best path known, and what no path that fits is below."""
        assert self.known is not None
        last = self.whole()
        if len(last.state):
            seconds = last.seconds + self.chain.first[last.state]
            found = self.states(int(np.argmin(seconds)))
            if self.chain.seconds(found) < self.limit and self.chain.fits(found):
                return found, min(self.dropped, self.chain.seconds(found))
        return self.known, min(self.dropped, self.limit)

    def whole(self) -> _Layer:
        """Labels of whole paths."""
        c = self.chain
        every = np.arange(len(c.first))
        labels = _Layer(every, every, np.zeros(len(every)), c.kept[-1], c.saved[-1] + c.work[-1])
        for layer in range(len(c.kept) - 1, -1, -1):
            if layer < len(c.kept) - 1:
                labels = self._before(layer, labels)
            labels = self._pruned(layer, labels)
            self.layers.append(labels)
        return labels

    def _before(self, layer: int, behind: _Layer) -> _Layer:
        """Every state of a layer before every label of the next."""
        c = self.chain
        states, count = len(c.first), len(behind.state)
        seconds = behind.seconds + c.through[layer][:, behind.state]
        kept = behind.kept + c.kept[layer][:, None]
        ahead = np.maximum(behind.ahead[None], c.work[layer][:, None]) + c.saved[layer][:, None]
        state = np.repeat(np.arange(states), count)
        came = np.tile(np.arange(count), states)
        return _Layer(state, came, seconds.ravel(), kept.ravel(), ahead.ravel())

    def _pruned(self, layer: int, labels: _Layer) -> _Layer:
        """Those that may be part of a path that fits and is faster than the one known, without those that others stand
        for."""
        peak = labels.kept + labels.ahead
        room = self.chain.room * (1.0 + _EPSILON)
        fits = (peak + self.need_before[layer] <= room) & (
            labels.kept + self.peak_before[layer] <= room
        )
        labels = _taken(labels, np.flatnonzero(fits))
        bound = self._bound(layer, labels)
        worth = np.flatnonzero(bound < self.limit * (1.0 - _EPSILON))
        labels, bound = _taken(labels, worth), bound[worth]
        kept = self._undominated(layer, labels)
        if len(kept) > self.most:
            order = kept[np.argsort(bound[kept], kind="stable")]
            kept = np.sort(order[: self.most])
            self.dropped = min(self.dropped, float(bound[order[self.most]]))
        return _taken(labels, kept)

    def _bound(self, layer: int, labels: _Layer) -> Floats:
        """Seconds that no path with such an end is below."""
        if self.limit == inf:
            return np.zeros(len(labels.state))
        over = labels.kept + labels.ahead - self.chain.room
        before = self.relaxed[layer]
        bound = np.full(len(over), -inf)
        for price, least in zip(self.prices, before, strict=True):
            np.maximum(bound, least[labels.state] + price * over, out=bound)
        return np.asarray(bound + labels.seconds)

    def _undominated(self, layer: int, labels: _Layer) -> Ints:
        """Labels that no other one of the same group is at least as good as in all."""
        arrives = self.chain.through[layer - 1] if layer else self.chain.first[None]
        own = arrives.min(axis=0)
        rest = np.round((arrives - own) / max(float(np.abs(arrives).max()), 1e-300), 12)
        _, group_of = np.unique(rest, axis=1, return_inverse=True)
        group = group_of.ravel()[labels.state]
        seconds = labels.seconds + own[labels.state]
        order = np.lexsort((labels.kept + labels.ahead, labels.kept, seconds, group))
        return np.sort(order[_front(group[order], labels.kept[order], labels.ahead[order])])

    def states(self, label: int) -> Ints:
        """The path of a label of the first layer."""
        found = []
        for layer in reversed(self.layers):
            found.append(int(layer.state[label]))
            label = int(layer.came[label])
        return np.array(found, dtype=np.int64)


def _taken(labels: _Layer, rows: Ints) -> _Layer:
    a = labels
    return _Layer(a.state[rows], a.came[rows], a.seconds[rows], a.kept[rows], a.ahead[rows])


def _front(group: Ints, kept: Floats, ahead: Floats) -> Bools:
    """Whether each is better in one than all before it in its group, that are as fast: a staircase of those that keep
    more and have a smaller peak."""
    is_kept = np.zeros(len(group), dtype=np.bool_)
    current = -1
    stairs: list[float] = []
    peaks: list[float] = []
    rows = zip(group.tolist(), kept.tolist(), (kept + ahead).tolist(), strict=True)
    for row, (number, keeps, peak) in enumerate(rows):
        if number != current:
            current, stairs, peaks = number, [], []
        place = bisect_right(stairs, keeps * (1.0 + _EPSILON))
        if place and peaks[place - 1] <= peak * (1.0 + _EPSILON):
            continue
        is_kept[row] = True
        place = bisect_right(stairs, keeps)
        end = place
        while end < len(stairs) and peaks[end] >= peak:
            end += 1
        stairs[place:end], peaks[place:end] = [keeps], [peak]
    return is_kept
