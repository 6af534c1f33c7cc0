"""What a plan has to beat to be told of: plans that cannot are not timed.

No step is faster than its slowest stage is through with all micro-batches, what comes before its first and after its last
one included: forward passes of the parts before it and, unless weight gradients are steps of their own that may come last,
backward passes of these. A plan that takes longer by that alone than the best few plans, the best plan of each of its
choices and some plan that needs no more memory is none that a survey keeps, whatever else it takes. So nothing changes in
what is told; which plans are timed depends on the order in which they come.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from foretrain.arrays import Bools, Floats, Ints
from foretrain.planning.choices import Choices
from foretrain.planning.plan_batch import PlanBatch

_SLACK = 1.0 - 1e-9
"""Sums are rounded."""


def least_seconds(f: PlanBatch) -> Floats:
    """[plans] seconds that no step is faster than."""
    layers = f.layers
    forward, backward = (
        f.seconds_by_part(each[f.rows]) for each in (layers.forward, layers.backward)
    )
    splits = np.array(
        [f.schedule(n).splits_backward for n in range(len(f.choices.palette.schedule))]
    )
    around = forward + np.where(splits[f.choices.schedule][:, None], 0.0, backward)
    before = np.cumsum(around, axis=1) - around
    whole = f.counts[:, None] * f.summed(forward + backward)
    first = f.by_chunk(before).min(axis=1)
    return np.asarray((whole + first).max(axis=1) * _SLACK)


@dataclass(eq=False, slots=True)
class Incumbents:
    """The best plans so far: of all, by the value of each of some choices, and by memory."""

    choices: Sequence[str]
    keep: int
    best: Floats = field(default_factory=lambda: np.zeros(0))  # seconds, of so many as are kept
    of_value: dict[tuple[str, str], float] = field(default_factory=dict)
    # [plans, 2] memory, rising, and the least seconds with no more
    front: Floats = field(default_factory=lambda: np.zeros((0, 2)))

    @property
    def fastest(self) -> float:
        return float(self.best.min(initial=np.inf))

    def copy(self) -> Incumbents:
        return replace(self, of_value=dict(self.of_value))

    def wanted(self, choices: Choices, least: Floats, memory: Floats) -> Bools:
        """[plans] which could still be told of. `least`: seconds that they take at least."""
        found = np.asarray(least <= (self.best[-1] if len(self.best) == self.keep else np.inf))
        place = np.searchsorted(self.front[:, 0], memory, side="right") - 1
        beaten = np.where(place >= 0, np.append(self.front[:, 1], np.inf)[place], np.inf)
        found |= least <= beaten
        for name in self.choices:
            values, of = _values(choices, name)
            found |= least <= np.array([self.of_value.get(v, np.inf) for v in values])[of]
        return found

    def add(self, choices: Choices, seconds: Floats, memory: Floats) -> None:
        """Plans that fit, timed."""
        self.best = np.sort(np.concatenate([self.best, seconds]))[: self.keep]
        rows = np.concatenate([self.front, np.stack([memory, seconds], axis=1)])
        rows = rows[np.lexsort((rows[:, 1], rows[:, 0]))]
        least = np.minimum.accumulate(rows[:, 1])
        is_new = np.append(True, least[1:] < least[:-1])
        self.front = np.stack([rows[:, 0], least], axis=1)[is_new]
        for name in self.choices:
            values, of = _values(choices, name)
            fastest = np.full(len(values), np.inf)
            np.minimum.at(fastest, of, seconds)
            for value, found in zip(values, fastest.tolist(), strict=True):
                self.of_value[value] = min(found, self.of_value.get(value, np.inf))


def _values(choices: Choices, name: str) -> tuple[list[tuple[str, str]], Ints]:
    """The values of a choice, and which of them each plan has."""
    codes, of = np.unique(getattr(choices, name), return_inverse=True)
    return [(name, said(choices, name, code)) for code in codes.tolist()], of


def said(choices: Choices, name: str, code: int) -> str:
    """A value as the user would say it."""
    named = choices.palette.values(name)
    value = code if named is None else named[code]
    return ("on" if value else "off") if name == "sp" else str(value)


def in_order(bounds: Sequence[Floats]) -> Ints:
    """Batches of plans, those first that could be fastest."""
    return np.argsort([each.min() for each in bounds], kind="stable")
