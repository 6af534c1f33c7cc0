"""What every compute cost model answers: how long kernels take on a device, alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from foretrain.arrays import Bools, Floats
from foretrain.cluster.device import Device
from foretrain.model.ops.base import Kernel


@dataclass(frozen=True, slots=True)
class KernelCosts:
    """Columns over the kernels asked for."""

    seconds: Floats
    spread: Floats  # relative, one standard deviation
    measured: Bools  # rests on measured times of this kind of kernel on this device
    source: tuple[str, ...]
    notes: tuple[str, ...] = ()  # substitutions the user should know of, each once


class ComputeModel(Protocol):
    """Times kernels. The answer for a kernel does not depend on what else is asked for."""

    def seconds(self, kernels: Sequence[Kernel], device: Device) -> KernelCosts: ...
