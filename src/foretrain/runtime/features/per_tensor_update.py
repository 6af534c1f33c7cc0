"""Updates weight by weight, issued while devices have nothing else to do (AdaptDL, loops over tensors on CPUs)."""

from __future__ import annotations

from dataclasses import dataclass

from foretrain.runtime.features.option import OptionalFeature, number


@dataclass(frozen=True, slots=True)
class PerTensorUpdate(OptionalFeature):
    """Kernels issued for a weight and each fp32 value kept of it once the host has its gradients."""

    kernels_per_tensor: float = number(0.0, 0.0, 10_000.0)
