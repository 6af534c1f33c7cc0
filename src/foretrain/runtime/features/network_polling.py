"""Hosts that poll the network for pipeline transfers (nanotron)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from foretrain.runtime.features.host import SLOWEST_LAUNCH
from foretrain.runtime.features.option import OptionalFeature, seconds


@dataclass(frozen=True, slots=True)
class NetworkPolling(OptionalFeature):
    """While it polls, a host is late at a tensor-parallel collective by so much on average; now one host of the group
    is late, now another, so their delays add up."""

    host_delay_on_network: float = seconds(
        0.0,
        SLOWEST_LAUNCH,
        needs=(
            "tensor parallelism",
            "pipeline parallelism",
        ),
    )

    def scaled(self, factor: float) -> NetworkPolling:
        """The same on hosts that take so many times as long."""
        return replace(self, host_delay_on_network=self.host_delay_on_network * factor)
