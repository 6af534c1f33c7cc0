"""Exchanges with a cost of their own: a `Communication` that says what is sent and what it takes beside.

Tokens on their way to experts, pooled look-ups on their way to the owners of samples, and collectives on a buffer that
several tensors are copied into.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from foretrain.compile.execution import Communication, ExchangeGroup
from foretrain.model.ops.embedding import parts


@dataclass(frozen=True, slots=True)
class Tokens(Communication):
    """An all-to-all of tokens for `copies` experts each, sent once to wherever several of them are."""

    copies: int = 1
    is_sized: ClassVar[bool] = False

    def sent(self, places: int) -> float:
        """Bytes as if each token went once to every one of so many places that has an expert for it.

        Of `copies` experts, each as likely at any place, `places · (1 - (1 - 1/places)^copies)` places have some.
        """
        hit = places * (1.0 - (1.0 - 1.0 / places) ** self.copies)
        return self.bytes * min(1.0, hit / self.copies)

    def on_the_wire(self, group: ExchangeGroup) -> Communication:
        size = self.sent(group.domains if group.domains > 1 else group.ranks)
        return Communication(self.collective, size, self.group, self.purpose)


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


@dataclass(frozen=True, slots=True)
class FromBuffer(Communication):
    """A collective on a fusion buffer: so many tensors are copied in and out. It starts `delay` seconds after all
    else would let it, the buffers before it included, as its coordinator was still at work."""

    tensors: int = 1
    delay: float = 0.0
    is_sized: ClassVar[bool] = False

    @classmethod
    def of(cls, work: Communication, tensors: int, delay: float) -> FromBuffer:
        return cls(work.collective, work.bytes, work.group, work.purpose, tensors, delay)

    def more_seconds(self, group: ExchangeGroup) -> float:
        """Those that move together begin when the slowest has copied."""
        if self.tensors < 2:
            return self.delay
        return self.delay + group.copy_seconds(self.tensors, self.bytes)
