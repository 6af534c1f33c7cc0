"""A slow device slows a step, by no more than it is slow and without a jump."""

from __future__ import annotations

from collections.abc import Iterator

from foretrain.cluster.stragglers import with_stragglers

from .cases import Case, allowance, every, hold

LEAST = 1 + 1e-6
CONTINUITY = 1e-4
"""Of a step, for a device that is a millionth slower: what it does is a hundredth of that, should the step be all its."""
FACTORS = (LEAST, 1.2, 2.0)


def slower(case: Case) -> Iterator[str]:
    rank = case.number // 8 % case.cluster.device_count
    before = case.step
    for factor in FACTORS:
        found = case.step_on(with_stragglers(case.cluster, {rank: factor}))
        told = f"rank {rank} {factor:.9g} times slower"
        if factor == LEAST and abs(found / case.step - 1) > CONTINUITY:
            yield f"{told}: {found / case.step:.9f} of the step"
        if found < before * (1 - allowance(case)):
            yield f"{told}: {found / before:.9f} of the step before"
        if found > factor * case.step * (1 + allowance(case)):
            yield f"{told}: {found / case.step:.9f} times the step"
        before = found


def test_slow_devices_slow_steps(cases):
    hold(every(cases, 8, 2), slower)
