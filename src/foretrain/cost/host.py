"""The host that issues kernels and the device that runs them, as max-plus algebra.

The host issues kernel i at the end of h_1 + … + h_i; the device runs kernels in order, each no earlier than
it was issued. A whole chain then needs three numbers:

    device_end = max(device_in + D, host_in + lead + D),    host_end = host_in + H

with D and H the sums of device and host times and `lead` = max over i of (h_1 + … + h_i) - (d_1 + … + d_(i-1)):
how far the host has to be ahead for the device never to starve. 0 ≤ lead ≤ H. An empty chain has three zeros
and takes no part in the recursion.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from foretrain.arrays import Floats


class Chain(NamedTuple):
    """Summary of one chain, seconds."""

    device: float
    host: float
    lead: float

    def device_end(self, device_in: float, host_in: float) -> float:
        return max(device_in, host_in + self.lead) + self.device


class Chains(NamedTuple):
    """Summaries of many chains, one row each."""

    device: Floats
    host: Floats
    lead: Floats


def chain_summary(device_seconds: ArrayLike, host_seconds: ArrayLike) -> Chain:
    """`(D, H, lead)` of one chain of kernels."""
    device = np.asarray(device_seconds, dtype=np.float64)
    many = chain_summaries(np.array([0, len(device)]), device, host_seconds)
    return Chain(float(many.device[0]), float(many.host[0]), float(many.lead[0]))


def chain_summaries(
    ptr: NDArray[np.integer], device_seconds: ArrayLike, host_seconds: ArrayLike
) -> Chains:
    """The same for the chains `[ptr[c], ptr[c + 1])` of two long columns.

    Chains of similar length are laid side by side, so that sums run within a chain only: a chain's summary
    is the same to the last bit whatever else is in the columns.
    """
    device = np.asarray(device_seconds, dtype=np.float64)
    host = np.asarray(host_seconds, dtype=np.float64)
    lengths = np.diff(ptr)
    summaries = Chains(*(np.zeros(len(lengths)) for _ in range(3)))
    octave = np.frexp(lengths.astype(np.float64))[1]  # lengths 2^(e-1) … 2^e - 1 share e; 0 has 0
    for exponent in sorted(set(octave[lengths > 0].tolist())):
        rows = np.flatnonzero(octave == exponent)
        d = _side_by_side(ptr, lengths, rows, device)
        h = _side_by_side(ptr, lengths, rows, host)
        for column, values in zip(summaries, _summarise(d, h), strict=True):
            column[rows] = values
    return summaries


def _side_by_side(
    ptr: NDArray[np.integer], lengths: NDArray[np.integer], rows: NDArray[np.intp], column: Floats
) -> Floats:
    """One row per chain, filled up with zeros."""
    place = np.arange(lengths[rows].max())
    index = ptr[rows][:, None] + place[None, :]
    inside = place[None, :] < lengths[rows][:, None]
    return np.where(inside, column[np.minimum(index, len(column) - 1)], 0.0)


def _summarise(device: Floats, host: Floats) -> tuple[Floats, Floats, Floats]:
    ran = np.cumsum(device, axis=1)
    issued = np.cumsum(host, axis=1)
    before = np.zeros_like(ran)
    before[:, 1:] = ran[:, :-1]
    ahead = issued - before
    # Past a chain's end `issued` stays and `before` only grows, so the maximum is not touched.
    return ran[:, -1], issued[:, -1], ahead.max(axis=1)
