"""What the CPU of a rank does beside its device: launching, waiting, being late."""

from __future__ import annotations

from dataclasses import dataclass, replace

from foretrain.runtime.features.option import Feature, seconds, switch

SLOWEST_LAUNCH = 1.0
"""Seconds: a thousand times the slowest host there is."""


@dataclass(frozen=True, slots=True)
class HostOverheads(Feature):
    """Launch overheads, and what a host waits for."""

    host_seconds_per_kernel: float = seconds(0.0, SLOWEST_LAUNCH)
    host_seconds_per_collective: float = seconds(0.0, SLOWEST_LAUNCH)
    # spread of what delays a host in a step; all wait for the latest
    jitter_seconds: float = seconds(0.0, 60.0)
    uses_cuda_graphs: bool = switch(False)
    # waits for a received activation before issuing more
    host_blocks_on_pipeline: bool = switch(False, needs=("pipeline parallelism",))

    @property
    def launches_take_time(self) -> bool:
        """Whether kernels wait for a host that issues them one by one."""
        issues = self.host_seconds_per_kernel > 0 or self.host_seconds_per_collective > 0
        return issues and not self.uses_cuda_graphs

    def scaled(self, factor: float) -> HostOverheads:
        """The same on hosts that take so many times as long to issue work."""
        return replace(
            self,
            host_seconds_per_kernel=self.host_seconds_per_kernel * factor,
            host_seconds_per_collective=self.host_seconds_per_collective * factor,
        )
