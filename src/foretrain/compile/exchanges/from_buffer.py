"""Collectives on a buffer that several tensors are copied into."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from foretrain.compile.execution import Communication, ExchangeGroup


@dataclass(frozen=True, slots=True)
class FromBuffer(Communication):
    """A collective on a fusion buffer: so many tensors are copied in and out. It starts `delay` seconds after all
    else would let it, the buffers before it included, as its coordinator was still at work."""

    tensors: int = 1
    delay: float = 0.0
    is_sized: ClassVar[bool] = False

    def more_seconds(self, group: ExchangeGroup) -> float:
        """Those that move together begin when the slowest has copied."""
        if self.tensors < 2:
            return self.delay
        return self.delay + group.copy_seconds(self.tensors, self.bytes)
