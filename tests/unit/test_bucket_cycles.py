"""Which tensors are reduced together: buckets by size (DDP), and by the ticks of a background thread (Horovod)."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foretrain.compile.exchanges import FromBuffer
from foretrain.compile.execution import Communication, Compute
from foretrain.compile.passes.bucket import (
    Fused,
    Reduction,
    fused,
    gradient_asyncs,
)
from foretrain.compile.passes.communicate import WeightShard
from foretrain.compile.segment import Interner
from foretrain.cost.host import chain_clock
from foretrain.resolving import ask
from foretrain.runtime import runtime
from foretrain.runtime.features.fusion_cycles import FusionCycles
from foretrain.simulate import compile_scenario, compute_of, simulate_scenario

MIB = float(1 << 20)
MS = 1e-3
EVEN = np.arange(11) * MS  # ten items of a millisecond


class Thread(FusionCycles):
    """One that agrees with any number of ranks after a hop."""

    def negotiation_seconds(self, ranks: int) -> float:
        return self.negotiation_seconds_per_hop


def plain(seconds: float = 5 * MS, copies: float = 1.0, negotiation: float = 0.0) -> Thread:
    return Thread(seconds, copies, negotiation_seconds_per_hop=negotiation)


def shard(elements: float) -> WeightShard:
    return WeightShard("w", elements, ("dp",), ())


def asyncs(how: Reduction, ready, end=10, clock=None):
    interner = Interner()
    found = gradient_asyncs(ready, end, how, {"dp": 8}, interner, clock)
    return [(a.after, interner.items[a.item].work) for a in found]


def test_ddp_closes_a_bucket_once_it_is_full_and_the_first_one_early():
    how = Reduction("all_reduce", 4.0, (1 * MIB, 25 * MIB), True)
    sizes = [0.5, 0.5, 20.0, 4.0, 1.0, 3.0]
    ready = [(i + 1, (shard(size * MIB / 4),)) for i, size in enumerate(sizes)]
    found = [(after, work.bytes / MIB) for after, work in asyncs(how, ready)]
    assert found == [(2, 1.0), (5, 25.0), (10, 3.0)]


def test_hybrid_sharding_adds_up_between_its_groups_what_each_owner_is_left_with():
    """Eight replicas, states split over four of them: of 32 bytes an owner has eight, which two groups add up."""
    weight = WeightShard("w", 8.0, ("groups", "owners"), (("optimizer", ("owners",)),))
    interner = Interner()
    how, ranks = Reduction("all_reduce", 4.0, (1.0, 1.0), True), {"groups": 2, "owners": 4}
    found = [interner.items[a.item].work for a in gradient_asyncs([(1, (weight,))], 10, how, ranks, interner)]  # fmt: skip
    assert [(work.collective, work.bytes, work.group.axes) for work in found] == [
        ("reduce_scatter", 32.0, ("owners",)),
        ("all_reduce", 8.0, ("groups",)),
    ]


def test_without_overlap_all_goes_at_the_end_whatever_the_cycle():
    how = Reduction("all_reduce", 4.0, (1.0, 1.0), False, plain())
    found = asyncs(how, [(1, (shard(1),)), (2, (shard(2),))], clock=EVEN)
    assert [(after, work.bytes) for after, work in found] == [(10, 12.0)]


def test_tensors_that_are_ready_at_a_tick_go_together():
    tensors = [(1, 1.0), (5, 2.0), (6, 4.0), (9, 8.0), (10, 16.0)]
    assert fused(plain(), tensors, 1e9, 8, EVEN) == [Fused(5, 3.0, 2), Fused(10, 28.0, 3)]


def test_a_buffer_is_never_overfull_but_a_large_tensor_goes_alone():
    tensors = [(1, 6.0), (2, 6.0), (3, 25.0), (4, 3.0)]
    assert [f.bytes for f in fused(plain(), tensors, 10.0, 8, EVEN)] == [6.0, 6.0, 25.0, 3.0]
    assert [f.bytes for f in fused(plain(copies=2.0), tensors, 24.0, 8, EVEN)] == [12.0, 25.0, 3.0]


def test_what_is_ready_after_the_last_tick_waits_for_the_next():
    (found,) = fused(plain(4 * MS), [(10, 1.0)], 1e9, 8, EVEN)
    assert (found.after, found.bytes) == (10, 1.0)
    assert found.delay == pytest.approx(2 * MS)


def test_a_coordinator_delays_a_cycle_and_a_slow_one_makes_cycles_longer():
    quick = fused(plain(2 * MS, negotiation=1 * MS), [(1, 1.0), (3, 1.0)], 1e9, 8, EVEN)
    assert [f.after for f in quick] == [3, 5]
    slow = fused(plain(2 * MS, negotiation=4 * MS), [(1, 1.0), (3, 1.0)], 1e9, 8, EVEN)
    assert [(f.after, f.bytes) for f in slow] == [(8, 2.0)]


@given(
    st.lists(st.tuples(st.integers(0, 10), st.floats(1.0, 100.0)), max_size=20),
    st.floats(1e-4, 2e-2),
    st.floats(0.0, 1e-2),
    st.floats(1.0, 200.0),
)
def test_cycles_lose_nothing_and_start_nothing_before_it_is_ready(tensors, seconds, late, limit):
    tensors.sort(key=lambda entry: entry[0])
    found = fused(plain(seconds, negotiation=late), tensors, limit, 8, EVEN)
    assert sum(f.tensors for f in found) == len(tensors)
    assert sum(f.bytes for f in found) == pytest.approx(sum(size for _, size in tensors))
    assert all(f.bytes <= limit or f.tensors == 1 for f in found)
    owners = [f for f in found for _ in range(f.tensors)]
    for (position, _), buffer in zip(tensors, owners, strict=True):
        assert buffer.after >= position
        start = EVEN[buffer.after] + buffer.delay
        assert start >= (EVEN[position] + late) * (1 - 1e-9)
        period = max(seconds, late)
        item = 1 * MS  # starts are at ends of items
        assert start <= EVEN[position] + period + late + item + 1e-9


def test_a_collective_on_a_fusion_buffer_knows_its_tensors_and_delay():
    how = Reduction("all_reduce", 4.0, (1e9, 1e9), True, plain(4 * MS))
    ready = [(1, (shard(1), shard(2))), (10, (shard(3),))]
    (first, early), (second, last) = asyncs(how, ready, clock=EVEN)
    assert (first, second) == (4, 10)
    assert isinstance(early, FromBuffer)
    assert (early.bytes, early.tensors, early.delay) == (12.0, 2, 0.0)
    assert isinstance(last, FromBuffer)
    assert last.delay == pytest.approx(2 * MS)


def test_buffers_that_follow_one_another_wait_for_a_cycle_once():
    """Ten tensors that fill a buffer each, nine of them of one late cycle: they go back to back."""
    how = Reduction("all_reduce", 4.0, (4.0, 4.0), True, plain(4 * MS))
    ready = [(1, (shard(1),)), *((10, (shard(1),)) for _ in range(9))]
    found = [work.delay for _, work in asyncs(how, ready, clock=EVEN)]
    assert found == pytest.approx([0.0, 2 * MS, *[0.0] * 8])


def test_buffers_of_a_later_cycle_wait_for_what_is_left_of_it():
    """Ready in cycles that end at 12 and 16 ms, work is done at 10 ms."""
    how = Reduction("all_reduce", 4.0, (4.0, 4.0), True, plain(4 * MS, negotiation=3 * MS))
    ready = [(8, (shard(1),)), (10, (shard(1),))]
    found = [work.delay for _, work in asyncs(how, ready, clock=EVEN)]
    assert found == pytest.approx([1 * MS, 4 * MS])


def test_clocks_go_no_faster_than_the_host_issues():
    asked = ask("resnet18", on="1 x dgx-h100", plan="dp8", batch=8, runtime="horovod")
    items = compile_scenario(asked).items
    clock = partial(chain_clock, asked.cluster, compute=compute_of(None), items=items)
    device, host = clock(asked.runtime.with_options({"host_seconds_per_kernel": 0.0})), clock(asked.runtime)  # fmt: skip
    slow = clock(asked.runtime.with_options({"host_seconds_per_kernel": 1.0}))
    kernels = sum(1 for item in items if isinstance(item.work, Compute))
    assert device[0] == host[0] == 0.0
    assert (np.diff(host) >= 0).all()
    assert (host >= device).all()
    assert slow[-1] == pytest.approx(kernels, rel=1e-3)  # a second each
    assert (clock(asked.runtime.with_options({"uses_cuda_graphs": True})) == device).all()


def test_kernels_that_are_faster_than_their_host_change_nothing():
    """One fused buffer after a host-bound step: its wait is counted from when the work is done, not before."""
    asked = ask("neumf", on="2 x dgx-h100", plan="dp16", batch=16, micro_batch=1, runtime="horovod")
    plain, faster = (
        simulate_scenario(replace(asked, cluster=asked.cluster.scaled(compute=rate))).step_seconds
        for rate in (1.0, 2.0)
    )
    assert faster <= plain * (1 + 1e-9)


def test_without_a_clock_buckets_fill_up():
    how = Reduction("all_reduce", 4.0, (8.0, 8.0), True, plain())
    found = asyncs(how, [(1, (shard(2),)), (2, (shard(1),))])
    assert [(after, type(work), work.bytes) for after, work in found] == [
        (1, Communication, 8.0),
        (10, Communication, 4.0),
    ]


def test_runtimes_with_a_background_thread():
    assert runtime("ddp").fusion_cycles is None
    horovod = runtime("horovod").fusion_cycles
    assert horovod is not None
    assert horovod.cycle_seconds == 5 * MS
    assert horovod.negotiation_seconds(1) == 0.0
    assert horovod.negotiation_seconds(8) == pytest.approx(2 * 3 * 50e-6)
    assert (
        horovod.negotiation_seconds(128)
        > horovod.negotiation_seconds(16)
        > horovod.negotiation_seconds(8)
    )
    bluefog = runtime("bluefog").fusion_cycles
    assert bluefog is not None
    assert bluefog.cycle_seconds == 0.5 * MS
    assert bluefog.negotiation_seconds(128) == pytest.approx(4 * 7 * 50e-6 + 127 * 5e-6)
