"""Device: one accelerator (or CPU) as the training software sees it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from foretrain.cluster.quantities import (
    Bandwidth,
    BandwidthOrZero,
    Bytes,
    Count,
    Number,
    expect_quantities,
)
from foretrain.errors import ClusterError, did_you_mean
from foretrain.limits import is_finite, shown
from foretrain.units import show_bandwidth, show_bytes

_SAME_RATE = {"mxfp8": "fp8", "nvfp4": "fp4", "mxfp4": "fp4", "half": "fp16", "float32": "fp32"}
"""Number formats that run at the rate of another: block scaling changes the data, not the peak."""


@dataclass(frozen=True, slots=True)
class Device:
    """One device. Rates are data-sheet peaks without sparsity; what is reached is the cost model's affair.

    `memory_bytes` is what an allocator can get, a little less than the number on the box.
    `link_bandwidth` is one direction, all links of the device together; 0 without such links.
    """

    name: str
    title: str
    vendor: str
    kind: Literal["gpu", "cpu"]
    architecture: str
    memory_bytes: Bytes
    memory_bandwidth: Bandwidth
    peak_flops: tuple[tuple[str, float], ...]
    pcie_bandwidth: Bandwidth
    source: str
    link: str | None = None
    link_bandwidth: BandwidthOrZero = 0.0
    l2_bytes: Bytes | None = None
    compute_units: Count | None = None
    max_clock_hz: Number | None = None
    tdp_watts: Number | None = None
    measured_as: str | None = None
    """The device that measurements know it by, where its own name is another (`like:`, a new name)."""

    def __post_init__(self) -> None:
        expect_quantities(self, f"Device {self.name!r} is invalid:", self._rate_faults())

    def _rate_faults(self) -> Iterator[str]:
        if not self.peak_flops:
            yield "peak_flops: empty; specify at least one dtype, for example fp32."
        for dtype, rate in self.peak_flops:
            if not is_finite(rate) or rate <= 0:
                yield f"peak_flops.{dtype}: {shown(rate)} must be a positive finite number."

    def __repr__(self) -> str:
        memory = f"{show_bytes(self.memory_bytes)} at {show_bandwidth(self.memory_bandwidth)}"
        return f"<Device {self.name}: {self.title}, {memory}>"

    @property
    def identity(self) -> str:
        """What tables of measurements are looked up by: it outlives new names and other rates."""
        return self.measured_as or self.name

    @property
    def peaks(self) -> Mapping[str, float]:
        """Dense peak FLOP/s by dtype."""
        return dict(self.peak_flops)

    def peak(self, dtype: str) -> float | None:
        """Dense peak FLOP/s in `dtype`, or None where the device has no such path.

        Which other dtype the software would then run in is a question of the runtime, so nothing is
        substituted here (a V100 has no bf16 and no tf32; both give None).
        """
        wanted = _SAME_RATE.get(dtype, dtype)
        for name, rate in self.peak_flops:
            if name == wanted:
                return rate
        return None

    def required_peak(self, dtype: str) -> float:
        """`peak`, or a `ClusterError` that lists what the device has."""
        rate = self.peak(dtype)
        if rate is None:
            known = [name for name, _ in self.peak_flops]
            raise ClusterError(
                f"{self.title} does not support {dtype}; supported: "
                f"{', '.join(known)}.{did_you_mean(dtype, known)}"
            )
        return rate

    def scaled(
        self, compute: float = 1.0, memory_bandwidth: float = 1.0, memory: float = 1.0
    ) -> Device:
        """The same device with other rates."""
        return replace(
            self,
            peak_flops=tuple((dtype, rate * compute) for dtype, rate in self.peak_flops),
            memory_bandwidth=self.memory_bandwidth * memory_bandwidth,
            memory_bytes=self.memory_bytes * memory,
        )
