"""Recipe and Rotation: how a call is repeated as a training step would make it.

As in a step, some tensors were just made by the op before (`flowing`: one set, so that they are in the cache as far
as they fit) and others were last used a step ago (`lasting`: weights, what forward kept; a set for every turn of a
`Rotation`, so that a large model's are not in the cache).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from foretrain.measurement.backend import torch_module

Tensors = tuple[Any, ...]


def nothing() -> Tensors:
    return ()


@dataclass(frozen=True, slots=True)
class Recipe:
    call: Callable[..., Any]
    flowing: Callable[[], Tensors] = nothing
    lasting: Callable[[], Tensors] = nothing
    keeps: bool = False  # the result lasts: forward's outputs, gradients of weights
    records: bool = False  # for going back, as forward does


class Rotation:
    """The call of a recipe, each time on the next set of lasting tensors. Made when first called."""

    def __init__(self, recipe: Recipe, copies: int) -> None:
        self._recipe, self.copies = recipe, copies
        self._flowing: Tensors = ()
        self._sets: list[Tensors] = []
        self._kept: list[Any] = []
        self._turn = 0

    @property
    def records(self) -> bool:
        return self._recipe.records

    def _make(self) -> None:
        recipe = self._recipe
        with torch_module().enable_grad():
            self._flowing = recipe.flowing()
            self._sets = [(*self._flowing, *recipe.lasting()) for _ in range(self.copies)]
        if recipe.records:
            for tensor in (t for one in self._sets for t in one if t.is_floating_point()):
                tensor.requires_grad_()
        self._kept = [None] * self.copies
        with torch_module().set_grad_enabled(recipe.records):
            for _ in range(self.copies):  # memory comes page by page when it is first used
                self()

    def refresh(self) -> None:
        """Write what flows in anew, in place, as the op before would have."""
        if not self._sets:
            self._make()
        with torch_module().no_grad():
            for tensor in self._flowing:
                _rewrite(tensor)

    def __call__(self, _: int = 0) -> None:
        if not self._sets:
            self._make()
        turn = self._turn
        result = self._recipe.call(*self._sets[turn])
        if self._recipe.keeps:
            self._kept[turn] = result
        self._turn = (turn + 1) % self.copies


def _rewrite(value: Any) -> None:
    if isinstance(value, tuple):
        for one in value:
            _rewrite(one)
    elif hasattr(value, "mul_"):
        value.mul_(1)
