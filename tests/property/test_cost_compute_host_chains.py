"""Host chains: three numbers stand for the whole recursion."""

from __future__ import annotations

from itertools import accumulate

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from support.chains import chain_summary

from foretrain.cost.host import chain_summaries

Times = st.floats(0.0, 1e-2, allow_nan=False)
ChainTimes = st.lists(st.tuples(Times, Times), min_size=1, max_size=40)


def device_end_op_by_op(
    chain: list[tuple[float, float]], device_in: float, host_in: float
) -> float:
    """Every kernel starts when it has been issued and the one before has ended."""
    device, host = device_in, host_in
    for device_seconds, host_seconds in chain:
        host += host_seconds
        device = max(device, host) + device_seconds
    return device


@given(chain=ChainTimes, device_in=Times, host_in=Times)
def test_a_summary_is_the_recursion(
    chain: list[tuple[float, float]], device_in: float, host_in: float
) -> None:
    summary = chain_summary([d for d, _ in chain], [h for _, h in chain])
    expected = device_end_op_by_op(chain, device_in, host_in)
    assert np.isclose(summary.device_end(device_in, host_in), expected, rtol=1e-12, atol=1e-15)
    assert -1e-15 <= summary.lead <= summary.host * (1 + 1e-12)


@given(chains=st.lists(st.lists(st.tuples(Times, Times), max_size=20), max_size=12))
def test_many_chains_are_each_the_single_one_to_the_last_bit(
    chains: list[list[tuple[float, float]]],
) -> None:
    ptr = np.array([0, *accumulate(len(chain) for chain in chains)])
    device = [d for chain in chains for d, _ in chain]
    host = [h for chain in chains for _, h in chain]
    many = chain_summaries(ptr, device, host)
    for row, chain in enumerate(chains):
        one = chain_summary([d for d, _ in chain], [h for _, h in chain])
        assert (many.device[row], many.host[row], many.lead[row]) == one


@given(first=ChainTimes, second=ChainTimes, device_in=Times, host_in=Times)
def test_chains_compose(
    first: list[tuple[float, float]],
    second: list[tuple[float, float]],
    device_in: float,
    host_in: float,
) -> None:
    """Running one chain after the other is running the joined chain."""
    a, b = (chain_summary([d for d, _ in c], [h for _, h in c]) for c in (first, second))
    joined = chain_summary([d for d, _ in first + second], [h for _, h in first + second])
    apart = b.device_end(a.device_end(device_in, host_in), host_in + a.host)
    assert np.isclose(apart, joined.device_end(device_in, host_in), rtol=1e-12, atol=1e-15)
