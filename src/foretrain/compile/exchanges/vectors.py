"""Pooled look-ups on their way to the owners of samples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from foretrain.compile.execution import Communication, ExchangeGroup
from foretrain.model.ops.embedding import parts


@dataclass(frozen=True, slots=True)
class Vectors(Communication):
    """Pooled look-ups on their way to the samples' owners, or their gradients on the way back: `each` bytes for every
    vector that a sample gets, from tables with so many look-ups in their `bags`.

    Between nodes partial sums of one node travel as one (HugeCTR's hierarchical exchange).
    """

    each: float = 0.0
    bags: tuple[int, ...] = ()
    is_sized: ClassVar[bool] = False

    def sent(self, places: int) -> float:
        return self.each * sum(parts(self.bags, places))

    def inside(self, places: int, ranks: int) -> float:
        """Bytes of partial sums that a rank has to add up with others at its place, of so many."""
        several = zip(self.bags, parts(self.bags, places), strict=True)
        return self.each * sum(part * min(ranks, bag / part) for bag, part in several)

    def on_the_wire(self, group: ExchangeGroup) -> Communication:
        size = self.sent(group.domains if group.domains > 1 else group.ranks)
        return Communication(self.collective, size, self.group, self.purpose)

    def more_seconds(self, group: ExchangeGroup) -> float:
        """Partial sums of one node meet before they leave it, or gradients go round inside it."""
        ranks = group.ranks // group.domains
        if group.domains == 1 or ranks == 1:
            return 0.0
        return group.inside_seconds(self.inside(group.domains, ranks) * (ranks - 1) / ranks)
