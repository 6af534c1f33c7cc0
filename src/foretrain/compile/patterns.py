"""Patterns: templates of stages that are alike are lowered once and copied for the classes of the others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from foretrain.compile.lowering import LoweringContext, lower_segment
from foretrain.compile.passes.fold import Use, uses_of
from foretrain.compile.segment import Segment
from foretrain.compile.template import Template

Classes = tuple[int, ...]
_COMMON: Mapping[str, type[np.generic]] = {
    "kind": np.int8,
    "shape": np.int32,
    "memory": np.float64,
    "workspace": np.float64,
}
"""Columns that a template and its copies have in common."""


class Patterns:
    """`streams`: numbers of (rank class, name), which lowering adds to."""

    def __init__(self, context: LoweringContext, streams: Mapping[tuple[int, str], int]) -> None:
        self.context, self.streams = context, streams
        self._lowered: dict[tuple[object, ...], tuple[Template, Classes]] = {}
        self._uses: dict[int, tuple[Segment, tuple[Use, ...]]] = {}
        self._related: dict[tuple[Use, Classes], object] = {}

    def template(self, segment: Segment, classes: Classes, is_accompanied: bool) -> Template:
        """The rows of a segment on the rank classes of a stage."""
        related = tuple(self._relation(use, classes) for use in self._uses_of(segment))
        devices = tuple(self.context.fold.device_of[list(classes)].tolist())
        key = (id(segment), is_accompanied, related, devices)
        found = self._lowered.get(key)
        if found is None:
            made = lower_segment(segment, classes, is_accompanied, self.context)
            self._lowered[key] = made, classes
            return made
        return found[0] if found[1] == classes else self._copied(*found, classes)

    def _uses_of(self, segment: Segment) -> tuple[Use, ...]:
        known = self._uses.get(id(segment))
        if known is None:
            items = self.context.items
            numbers = dict.fromkeys((*segment.chain.tolist(), *(a.item for a in segment.asyncs)))
            uses = uses_of(items[n] for n in numbers)
            known = self._uses[id(segment)] = segment, uses  # keeps it alive: ids stay its
        return known[1]

    def _relation(self, use: Use, classes: Classes) -> object:
        """Equal where the classes of two stages, taken in order, meet in the same way in a collective."""
        found = self._related.get((use, classes))
        if found is None:
            found = self._related[use, classes] = self._relate(use, classes)
        return found

    def _relate(self, use: Use, classes: Classes) -> object:
        fold = self.context.fold
        if use in fold.subgroups:
            return classes  # neighbours hear each other in ways of their own
        groups, place = fold.groups[use[0]], {c: p for p, c in enumerate(classes)}
        met = [fold.group_class(use[0], rank_class) for rank_class in classes]
        return tuple(
            (tuple(place.get(c, -1) for c in groups.members[g]), bool(fold.shared[use[0]][g]))
            for g in met
        )

    def _copied(self, template: Template, old: Classes, new: Classes) -> Template:
        to = dict(zip(old, new, strict=True))
        known = list(self.streams)
        # rows of a template repeat few sets of streams
        copies = {
            streams: tuple(self.context.stream(to[known[n][0]], known[n][1]) for n in streams)
            for streams in dict.fromkeys(template.streams)
        }
        return replace(
            template,
            rank_class=[to[rank_class] for rank_class in template.rank_class],
            streams=[copies[streams] for streams in template.streams],
            columns={name: template.column(name, kind) for name, kind in _COMMON.items()},
        )
