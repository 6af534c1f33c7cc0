"""Memory that is held beside what training needs."""

from __future__ import annotations

from dataclasses import dataclass

from foretrain.runtime.features.gradients import LARGEST
from foretrain.runtime.features.option import Feature, number, of_presets, share, switch, text


@dataclass(frozen=True, slots=True)
class MemoryHabits(Feature):
    """What driver, libraries and allocator hold, and copies that stay alive."""

    # driver context, communication buffers, libraries
    context_bytes: float = number(0.0, 0.0, LARGEST)
    # share of what comes and goes that the allocator holds on top …
    fragmentation: float = number(0.0, 0.0, 1.0)
    # … and more of it where tensors are exchanged beside kernels
    exchange_fragmentation: float = number(0.0, 0.0, 1.0)
    # weights in a narrow format lie there twice, as matrix units before Blackwell ask for
    keeps_transposed: bool = switch(True)
    # fp32 copies of the logits alive at the loss, the kept one included
    logits_copies: float = number(1.0, 0.0, 100.0)
    # share of a device that is kept free unless a question says otherwise, by a word of its own …
    headroom: float = of_presets(0.0, share)
    # … and why
    headroom_reason: str = of_presets("", text)

    def held_share(self, exchanges: bool) -> float:
        """Of what comes and goes, what the allocator holds on top; `exchanges`: of tensors, beside kernels. Blocks that
        a second stream uses come back late."""
        return self.fragmentation + (self.exchange_fragmentation if exchanges else 0.0)
