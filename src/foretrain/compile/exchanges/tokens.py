"""Tokens on their way to experts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from foretrain.compile.execution import Communication, ExchangeGroup


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
