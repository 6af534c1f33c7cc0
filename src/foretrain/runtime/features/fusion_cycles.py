"""A background thread that fuses tensors by time (Horovod, BlueFog), and the agreement of ranks it asks for."""

from __future__ import annotations

from dataclasses import dataclass

from foretrain.runtime.features.host import SLOWEST_LAUNCH
from foretrain.runtime.features.option import OptionalFeature, number, seconds


@dataclass(frozen=True, slots=True)
class FusionCycles(OptionalFeature):
    """Gradients that are ready when the thread looks go together, up to a bucket."""

    # how often it looks; 0: there is none, buckets fill up
    cycle_seconds: float = seconds(0.0, 60.0)
    # times a tensor stands in the buffer, with what it receives
    fusion_copies: float = number(1.0, 0.0, 100.0, needs=("fusion cycles",))
    # trips over a binary tree of the ranks in a cycle
    negotiation_rounds: float = number(0.0, 0.0, 1000.0, needs=("fusion cycles",))
    negotiation_seconds_per_hop: float = seconds(0.0, SLOWEST_LAUNCH, needs=("fusion cycles",))
    # the coordinator's own time
    negotiation_seconds_per_rank: float = seconds(0.0, SLOWEST_LAUNCH, needs=("fusion cycles",))

    @property
    def is_idle(self) -> bool:
        return not self.cycle_seconds

    def negotiation_seconds(self, ranks: int) -> float:
        """Until so many ranks agree on what they reduce in a cycle: small messages over a tree, and a
        coordinator that reads what each of them says."""
        if ranks < 2:
            return 0.0
        hops = self.negotiation_rounds * (ranks - 1).bit_length()
        return (
            hops * self.negotiation_seconds_per_hop
            + (ranks - 1) * self.negotiation_seconds_per_rank
        )
