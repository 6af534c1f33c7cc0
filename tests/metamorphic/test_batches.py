"""Larger batches take longer, and never train fewer samples in a second."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from foretrain.forecast import predict
from foretrain.simulate import simulate_scenario

from .cases import ROUNDING, Case, allowance, every, hold

LOSS = 0.01
"""Of samples/s: micro-batches have sizes that kernels fill devices with more or less well (wave quantisation)."""


def longer(case: Case) -> Iterator[str]:
    workload = case.scenario.workload
    twice = replace(workload, global_batch=2 * workload.global_batch)
    ratio = simulate_scenario(replace(case.scenario, workload=twice)).step_seconds / case.step
    if ratio < 1 - ROUNDING:
        yield f"twice the batch: {ratio:.9f} of the step"
    if ratio > 2 * (1 + allowance(case)):
        yield f"twice the batch: {ratio:.9f} times the step"


def faster(case: Case) -> Iterator[str]:
    """Only model and machines are said, and the batch; then twice of it."""
    words = {key: case.words[key] for key in ("on", "seq") if key in case.words}
    batch = 2 * case.cluster.device_count
    one, two = (predict(case.model, **words, batch=n) for n in (batch, 2 * batch))
    gain = two.samples_per_second / one.samples_per_second
    if gain < 1 - LOSS:
        yield f"batch {batch} and twice of it, all else open: {gain:.6f} of the samples/s"


def test_twice_the_batch_takes_longer(cases):
    hold(every(cases, 8, 2), longer)


def test_twice_the_batch_trains_no_fewer_samples(cases):
    hold(every(cases, 32, 6), faster)
