"""One chain of kernels, summed up."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from foretrain.cost.host import chain_summaries


class Chain(NamedTuple):
    """Summary of one chain, seconds."""

    device: float
    host: float
    lead: float

    def device_end(self, device_in: float, host_in: float) -> float:
        return max(device_in, host_in + self.lead) + self.device


def chain_summary(device_seconds: ArrayLike, host_seconds: ArrayLike) -> Chain:
    """`(D, H, lead)` of one chain of kernels."""
    device = np.asarray(device_seconds, dtype=np.float64)
    many = chain_summaries(np.array([0, len(device)]), device, host_seconds)
    return Chain(float(many.device[0]), float(many.host[0]), float(many.lead[0]))
