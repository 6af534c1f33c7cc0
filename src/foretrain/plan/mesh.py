"""Ranks as a grid of named axes.

Axes are listed outermost first, so the last one joins neighbouring ranks. A *name* the user says (`dp`,
`ep`) stands for one or more atomic axes: factoring `dp` into an outer and an inner part lets experts or
shards live on the inner part without a second grid.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import prod

import numpy as np

from foretrain.arrays import Ints
from foretrain.errors import PlanError, hint


@dataclass(frozen=True)
class Mesh:
    """`axes`: atomic axes with sizes. `names`: what each spoken name stands for."""

    axes: tuple[tuple[str, int], ...]
    names: tuple[tuple[str, tuple[str, ...]], ...] = ()

    @property
    def ranks(self) -> int:
        return prod(size for _, size in self.axes)

    def expand(self, name: str) -> tuple[str, ...]:
        """The atomic axes a name stands for, outermost first."""
        for known, axes in self.names:
            if known == name:
                return axes
        if any(axis == name for axis, _ in self.axes):
            return (name,)
        known_names = [n for n, _ in self.names] + [a for a, _ in self.axes]
        raise PlanError(f"mesh has no axis {name!r}.{hint(name, known_names)}")

    def size(self, *names: str) -> int:
        """Product of the sizes of the axes the names stand for."""
        sizes = dict(self.axes)
        return prod(sizes[axis] for name in names for axis in self.expand(name))

    def groups(self, axes: tuple[str, ...]) -> Ints:
        """One row per group: the ranks that differ only on `axes`, in the order of those axes."""
        return _groups(self.axes, axes)

    def coordinate(self, axis: str) -> Ints:
        """Every rank's position on one axis."""
        names = [name for name, _ in self.axes]
        sizes = [size for _, size in self.axes]
        shape = [1] * len(sizes)
        index = names.index(axis)
        shape[index] = sizes[index]
        grid = np.broadcast_to(np.arange(sizes[index]).reshape(shape), sizes)
        return grid.reshape(-1)

    def factored(self, name: str, inner: int) -> Mesh:
        """The same ranks with the atomic axes of `name` cut so that an inner part has exactly `inner` ranks."""
        sizes = dict(self.axes)
        left = inner
        for axis in reversed(self.expand(name)):
            if left % sizes[axis] == 0:
                left //= sizes[axis]
            elif sizes[axis] % left == 0:
                return self._cut(axis, left)
            else:
                raise PlanError(
                    f"{name} = {self.size(name)} must be divisible by the group size {inner} "
                    f"(axis {axis} has {sizes[axis]}). Choose a divisor of {self.size(name)}."
                )
            if left == 1:
                return self
        raise PlanError(f"a group of {inner} is larger than {name} = {self.size(name)}.")

    def inner(self, name: str, count: int) -> tuple[str, ...]:
        """The innermost axes of `name` whose sizes multiply to `count` (after `factored`)."""
        sizes = dict(self.axes)
        taken: list[str] = []
        left = count
        for axis in reversed(self.expand(name)):
            if left == 1:
                break
            taken.insert(0, axis)
            left //= sizes[axis]
        return tuple(taken)

    def named(self, name: str, axes: tuple[str, ...]) -> Mesh:
        """The same mesh with one more spoken name."""
        rest = tuple(item for item in self.names if item[0] != name)
        return Mesh(self.axes, (*rest, (name, axes)))

    def _cut(self, axis: str, inner: int) -> Mesh:
        outer_name, inner_name = f"{axis}.out", f"{axis}.in"
        axes: list[tuple[str, int]] = []
        for name, size in self.axes:
            parts = [(outer_name, size // inner), (inner_name, inner)]
            axes += parts if name == axis else [(name, size)]
        names = {name: self._renamed(members, axis) for name, members in self.names}
        names.setdefault(axis, (outer_name, inner_name))
        return Mesh(tuple(axes), tuple(names.items()))

    @staticmethod
    def _renamed(members: tuple[str, ...], axis: str) -> tuple[str, ...]:
        renamed: list[str] = []
        for member in members:
            renamed += [f"{axis}.out", f"{axis}.in"] if member == axis else [member]
        return tuple(renamed)


@lru_cache(maxsize=256)
def _groups(axes: tuple[tuple[str, int], ...], wanted: tuple[str, ...]) -> Ints:
    names = [name for name, _ in axes]
    grid = np.arange(prod(size for _, size in axes)).reshape([size for _, size in axes])
    positions = [names.index(axis) for axis in wanted]
    grid = np.moveaxis(grid, positions, range(-len(positions), 0))
    size = prod(dict(axes)[axis] for axis in wanted)
    groups = np.ascontiguousarray(grid.reshape(-1, size))
    groups.setflags(write=False)
    return groups
