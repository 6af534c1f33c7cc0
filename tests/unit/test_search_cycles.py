"""Gradients fused cycle by cycle: the closed form against the rule it stands for."""

from __future__ import annotations

import numpy as np
import pytest

from foretrain.compile.passes import bucket
from foretrain.planning.cycles import fused
from foretrain.runtime import runtime

HOROVOD = runtime("horovod")
MIB = float(2**20)


@pytest.mark.parametrize("work", [0.001, 0.0049, 0.012, 0.031])
@pytest.mark.parametrize("ranks", [4, 32])
@pytest.mark.parametrize("tensor", [1.0 * MIB, 8.0 * MIB])
def test_buffers_and_delays_are_those_of_the_rule(work: float, ranks: int, tensor: float) -> None:
    count = 60
    clock = np.linspace(0.0, work, count + 1)
    rule = HOROVOD.fusion_cycles
    assert rule is not None
    limit = HOROVOD.gradients.bucket_bytes
    ready = [(place, tensor) for place in range(1, count + 1)]
    buffers = bucket.fused(rule, ready, limit, ranks, clock)
    column = np.ones((1, 1))
    found = fused(
        HOROVOD.fusion_cycles,
        ranks,
        column * tensor * count,
        column * limit,
        column * count,
        column * work,
    )
    late = [buffer for buffer in buffers if buffer.delay > 0.0]
    assert float(found.buffers[0, 0]) == pytest.approx(len(buffers), abs=1.5)
    assert float(found.last[0, 0]) == pytest.approx(len(late), abs=1.0)
    assert float(found.delay[0, 0]) == pytest.approx(max(b.delay for b in late), abs=1e-9)
