"""Faster hardware is faster, and no more so than it is."""

from __future__ import annotations

from collections.abc import Iterator

from .cases import ROUNDING, Case, allowance, every, hold

RATES = ("network", "interconnect", "compute", "memory_bandwidth")


def rate_of(case: Case) -> str:
    """One of the rates that the step can depend on, in turn."""
    cluster = case.cluster
    has = {"network": cluster.node_count > 1, "interconnect": cluster.device_count > 1}
    rates = [rate for rate in RATES if has.get(rate, True)]
    return rates[case.number // 2 % len(rates)]


def doubling(case: Case) -> Iterator[str]:
    rate = rate_of(case)
    faster = case.step / case.step_on(case.cluster.scaled(**{rate: 2.0}))
    if not 1 - allowance(case) <= faster <= 2 + ROUNDING:
        yield f"twice the {rate}: {faster:.9f} times as fast"


def slowing(case: Case) -> Iterator[str]:
    factor = (0.9, 0.5, 0.1)[case.number // 4 % 3]
    slower = case.cluster.scaled(compute=factor, memory_bandwidth=factor, interconnect=factor)
    found = case.step_on(slower) / case.step
    if found < 1 - allowance(case):
        yield f"devices {factor} times as fast: {found:.9f} of the step"
    if found > (1 + ROUNDING) / factor:
        yield f"devices {factor} times as fast: {found:.9f} times the step"


def test_twice_a_rate_is_at_most_twice_as_fast(cases):
    hold(every(cases, 2), doubling)


def test_slower_devices_never_help(cases):
    hold(every(cases, 4, 1), slowing)
