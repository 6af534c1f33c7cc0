"""Columns that the estimator reads off compiled blocks, beside what is counted by hand for tiny models."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from estimated_plan import estimated, fleet
from support.plans import tiny_model

from foretrain.arrays import Floats
from foretrain.compile.execution import Communicator
from foretrain.compile.passes.fold import ranks_of
from foretrain.cost import interference
from foretrain.cost.calibration.efficiencies import table
from foretrain.cost.collective_costs import contended
from foretrain.plan.schedules.pieces import looped
from foretrain.planning.contention import timed
from foretrain.planning.document import pruned
from foretrain.planning.layers import CONTEXT, DATA, EXPERT, TENSOR, _kind
from foretrain.planning.part_tables import PartTables, Ties
from foretrain.planning.plan_batch import PlanBatch
from foretrain.planning.replicas import INSIDE, NETWORK, Replicas
from foretrain.planning.sends import sends
from foretrain.planning.steps import _between_copies
from foretrain.planning.updates import update
from foretrain.testing.asking import ask

NODE, TWO_NODES = "1 x dgx-a100-80gb", "2 x dgx-a100-80gb"
MIXED = {
    "name": "mixed",
    "nodes": [{"node": "gcp:a2-highgpu-4g"}, {"node": "aws:p3.8xlarge"}],
    "network": {"topology": "star"},
}


def batch_of(plan: str, model: str = "gpt", *, on: object = NODE, stack: str = "megatron", **options: object) -> PlanBatch:  # fmt: skip
    words = {"on": on, "plan": plan, "batch": 32, "runtime": stack, "runtime_options": options}
    return fleet(ask(tiny_model(model), **words))


@pytest.mark.parametrize(
    ("plan", "on", "way"),
    [("tp2 dp4", NODE, INSIDE), ("tp2 dp8 order=dp-tp-pp", TWO_NODES, NETWORK)],
)
def test_links_are_busy_while_tensor_parallel_ranks_add_up(plan: str, on: str, way: int) -> None:
    """64 tokens of 1024 in bf16: once for the embedding, twice for each layer and once for the head, which adds up
    its gradient alone; latencies do not keep links busy."""
    f = batch_of(plan, on=on)
    groups = ranks_of(f.mesh, Communicator(("tp",)))
    _, once = contended(f.task.network, groups, "all_reduce", "nccl").seconds(64 * 1024 * 2.0)
    ahead, back = (column[f.rows[0]] for column in (f.layers.wire_forward, f.layers.wire_backward))
    assert ahead[:3, way] == pytest.approx([once, 2 * once, 2 * once])
    assert back[:, way] == pytest.approx([0.0, 2 * once, 2 * once, once])
    assert not ahead[:, 1 - way].any()
    assert not back[:, 1 - way].any()


@pytest.mark.parametrize(
    ("copies", "kind"),
    [
        (("dp", "cp", "tp"), DATA + CONTEXT + TENSOR),
        (("dp", "cp"), DATA + CONTEXT),
        (("dp", "tp"), DATA + TENSOR),
        (("dp",), DATA),
        ((), 0),
    ],
)
def test_weights_are_of_a_kind_by_who_holds_copies(copies: tuple[str, ...], kind: int) -> None:
    assert _kind(copies, batch_of("tp2 cp2 dp4", on=TWO_NODES).mesh) == kind


def test_weights_that_some_replicas_hold_are_experts() -> None:
    f = batch_of("tp2 dp4 ep2", "moe")
    outer, inner = f.mesh.expand("dp")
    assert _kind((outer,), f.mesh) == EXPERT
    assert _kind((outer, inner), f.mesh) == DATA + CONTEXT, (
        "of one context-parallel rank all hold it"
    )
    assert f.kinds_held == [DATA + CONTEXT, EXPERT]
    assert [f.axes_of(kind) for kind in f.kinds_held] == [(outer, inner), (outer,)]


@pytest.mark.parametrize("plan", ["dp8", "pp2 dp4", "pp2 dp4 order=pp-tp-dp"])
def test_the_stage_with_the_least_room_has_that_of_its_smallest_device(plan: str) -> None:
    """A node of A100s with 40 GB and one of V100s with 16 GB, side by side or one for each stage."""
    found = estimated(ask(tiny_model("gpt"), on=MIXED, plan=plan, batch=32, runtime="megatron"))
    large, small = batch_of("dp8", on=MIXED).task.usable_bytes
    assert 15e9 < small < 16e9 < 39e9 < large
    assert found.usable[0] == small


def test_a_stage_runs_on_the_devices_it_has() -> None:
    assert batch_of("pp2 dp4", on=MIXED).kinds.tolist() == [[True, False], [False, True]]
    assert batch_of("pp2 dp4 order=pp-tp-dp", on=MIXED).kinds.all()
    assert batch_of("pp2 dp4").kinds.tolist() == [[True], [True]]


def filled(f: PlanBatch, share: Floats) -> tuple[float, float]:
    """Buckets of what lies on a part, and bytes of the last."""
    (kind,) = (kind for kind in f.kinds_held if f.axes_of(kind))
    pieces, last = Replicas(f).buckets(kind, share)
    return float(pieces[0, 0]), float(last[0, 0])


def test_gradients_that_nobody_reduces_early_are_one_bucket() -> None:
    f = batch_of("dp8 buckets=1MB", overlaps_gradients=False)
    (kind,) = (kind for kind in f.kinds_held if f.axes_of(kind))
    whole = f.elements("reduced", kind)[f.rows] @ f.share.T * f.task.states.reduced_bytes
    assert filled(f, f.share) == (1.0, pytest.approx(whole[0, 0]))
    assert filled(f, np.zeros_like(f.share)) == (0.0, 0.0)


TIED = Ties(
    is_stored_before=np.array([True, False, True]),
    block=np.array([[0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [0.0, 0.0, 1.0]]),
    origin=np.array([0, 0, 1]),
    is_trained=np.array([True, True, False]),
)
"""Three copies of two weights: one of the second block, which the first has on the same stage; two of the last block, of
which the trained one is alone on its stage and the frozen one is not."""


@pytest.mark.parametrize(
    ("name", "left"),
    [
        ("elements", [20.0, 12.0, 15.0]), ("gathered", [20.0, 12.0, 15.0]),
        ("trained", [20.0, 12.0, 20.0]), ("tensors", [20.0, 19.0, 20.0]),
    ],
)  # fmt: skip
def test_of_tied_weights_a_stage_has_one(name: str, left: list[float]) -> None:
    """Eight elements of the first, five of the other; what is not trained is nothing that is reduced or updated."""
    column = np.full((1, 3, 1), 20.0)
    tied = np.array([[[8.0], [8.0], [5.0]]])
    layers: Any = SimpleNamespace(tied=tied, **{name: column})
    tables = PartTables(layers, np.ones((1, 3)), TIED, looped(1, 1))
    assert tables.elements(name, 0).tolist() == [left]
    assert tables.by_stage(name, 0).tolist() == [[sum(left)]]


def test_stages_exchange_the_tied_weights_that_they_train_apart() -> None:
    tied = (
        np.array([[[8.0, 1.0], [8.0, 2.0], [5.0, 0.0]]] * 2) * np.array([1.0, 3.0])[:, None, None]
    )
    stub = SimpleNamespace(ties=TIED, layers=SimpleNamespace(tied=tied), rows=np.array([1, 0]))
    assert PlanBatch.tied_between(stub).tolist() == [30.0, 10.0]  # type: ignore[arg-type]
    apart = replace(TIED, is_stored_before=np.zeros(3, np.bool_), is_trained=np.ones(3, np.bool_))
    stub = SimpleNamespace(ties=apart, layers=SimpleNamespace(tied=tied), rows=np.array([0]))
    assert PlanBatch.tied_between(stub).tolist() == [10.0 + 5.0], "the largest copy of each"  # type: ignore[arg-type]


def test_a_pipeline_that_turns_sends_back_over_the_same_hops() -> None:
    """Two of four stages on each node, down and up again: nothing is sent at the turn."""
    f = fleet(ask("gpt2", on=TWO_NODES, plan="pp4 dp4 zb-v", batch=64, micro_batch=1))
    found = sends(f)
    assert (found.size[0] / found.size[0, 0]).tolist() == [1.0, 1.0, 1.0, 0.0, 1.0, 1.0, 1.0]
    assert (found.flow[0] > 0.0).tolist() == [False, True, False, False, False, True, False]
    assert found.seconds[0].tolist() == found.seconds[0, ::-1].tolist()
    assert found.seconds[0, 1] > found.seconds[0, 0] > found.seconds[0, 3] == 0.0


def test_a_stage_that_trains_nothing_updates_nothing() -> None:
    f = batch_of("pp2 dp4", adds_gradients=False)
    both = update(f)[0]
    is_behind = f.share[1] > 0
    frozen = np.where(is_behind[None, :, None], 0.0, f.layers.trained)
    frozen_f = replace(f, layers=replace(f.layers, trained=frozen))
    assert both.min() > 0.0
    assert update(frozen_f)[0].tolist() == [both[0], 0.0]


def test_copies_slow_each_other_as_on_the_device_where_they_do_so_most() -> None:
    """V100s stop copies in while others go out, A100s slow those that go out by more."""
    mixed = batch_of("dp8", on=MIXED, overlap_slows=True).task
    into, out = interference.COPY_IN, interference.COPY_OUT
    large, small = (interference.factors(device, False) for device in mixed.cluster.devices)
    assert small[into, out] > large[into, out] > 1.0
    assert large[out, into] > small[out, into] > 1.0
    assert _between_copies(mixed) == (small[into, out], large[out, into])
    assert _between_copies(batch_of("dp8", on=MIXED, overlap_slows=False).task) == (1.0, 1.0)


# --- what replicas exchange -------------------------------------------------------------------------------


@pytest.mark.parametrize("zero", [1, 2])
def test_gradients_of_every_micro_batch_are_scattered_where_they_are_split(zero: int) -> None:
    """In one piece, as nothing overlaps: to the owners among four replicas, over the links of the node."""
    f = batch_of(f"pp2 dp4 zero{zero}", stack="fsdp", overlaps_gradients=False, scatters_gradients=True)  # fmt: skip
    (kind,) = (kind for kind in f.kinds_held if f.axes_of(kind))
    moved, inside, network = Replicas(f).scatters()
    size = (f.elements("reduced", kind)[f.rows] @ f.share.T * f.task.states.reduced_bytes)[0]
    alone = f.exchange(f.owners_of(kind), "reduce_scatter")
    assert size.min() > 0.0
    assert moved[0] == pytest.approx(alone.seconds(size) if zero == 2 else [0.0, 0.0])
    assert inside[0] == pytest.approx(alone.flow(size) if zero == 2 else [0.0, 0.0])
    assert not network.any()


def test_split_gradients_go_in_as_many_buckets_as_they_fill() -> None:
    f = batch_of("dp8 zero2 buckets=4MB", stack="ddp", overlaps_gradients=True)
    (kind,) = (kind for kind in f.kinds_held if f.axes_of(kind))
    moved, inside, _ = Replicas(f).scatters()
    pieces, _ = filled(f, f.share)
    assert pieces > 2
    size = (f.elements("reduced", kind)[f.rows] @ f.share.T * f.task.states.reduced_bytes)[
        0
    ] / pieces
    one = Replicas(f)._reduced(kind, size[None], False)
    assert moved[0] == pytest.approx(one[0] * pieces)
    busy = Replicas(f)._reduced(kind, size[None], False, INSIDE)
    assert inside[0] == pytest.approx(busy[0] * pieces)
    assert 0.0 < inside[0, 0] < moved[0, 0], "latencies do not keep links busy"


@pytest.mark.parametrize(("on", "devices"), [(NODE, 1), (MIXED, 2)])
def test_tensors_are_copied_into_a_buffer_and_out_of_it_on_the_slowest_device(on: object, devices: int) -> None:  # fmt: skip
    """Each way every tensor starts a kernel, and what it moves is read and written."""
    f = batch_of("dp8", on=on)
    each = []
    for device in f.task.cluster.devices:
        reached, _ = table().of(device)
        moved = 2.0 * 1e9 / (device.memory_bandwidth * reached.memory)
        each.append(2.0 * (30.0 * reached.start_seconds + moved))
    assert len(each) == devices
    found = Replicas(f)._fused(np.array([[30.0]]), np.array([[1e9]]))
    assert found[0, 0] == pytest.approx(max(each))


def test_a_thread_fuses_the_gradients_of_every_chunk_by_themselves() -> None:
    """About 109 MB of a stage, half of them for each of two chunks: they fit one buffer, and go when it is full."""
    f = batch_of("pp2 vpp2 dp4", stack="horovod")
    (kind,) = (kind for kind in f.kinds_held if f.axes_of(kind))
    found = timed(f).replicas.reductions(kind)
    assert found is not None
    size = f.by_stage(f.elements("reduced", kind))[0] * f.task.states.reduced_bytes
    assert found.pieces.tolist() == [[2.0, 2.0]]
    assert (found.each[0] > f.exchange(f.axes_of(kind), "all_reduce").seconds(size / 2)).all()


def test_updated_weights_are_gathered_once() -> None:
    f = batch_of("dp8 zero1")
    (kind,) = (kind for kind in f.kinds_held if f.axes_of(kind))
    size = f.task.states.refreshed(f.weights_of(kind))
    gather = f.exchange(f.owners_of(kind), "all_gather").seconds(np.asarray(size)[0])
    assert size[0, 0] > 1e6
    assert Replicas(f).parameters()[0] == pytest.approx(gather)
    assert not Replicas(batch_of("dp8")).parameters().any()


@pytest.mark.parametrize("clips", [True, False])
@pytest.mark.parametrize("plan", ["dp8", "pp2 dp4"])
def test_ends_of_a_pipeline_agree_on_tied_weights_and_all_ranks_on_the_norm(plan: str, clips: bool) -> None:  # fmt: skip
    """Vocabulary times hidden size, in as many bytes as gradients have; the norm is one number of fp32."""
    f = batch_of(plan, clips_gradients=clips)
    axes = tuple(axis for axis, size in f.mesh.axes if size > 1)
    expected = 0.0
    if plan == "pp2 dp4":
        (tied,) = f.tied_between()
        block = f.task.workload.model.blocks[0]
        (weight,) = (op for op in block.ops if "vocab" in op.size)
        assert tied == weight.size["vocab"] * weight.size["hidden"]
        ends = f.exchanges.between(f.mesh, Communicator(("pp",), "ends"), "all_reduce")
        expected += float(ends.seconds(np.array([tied * f.task.states.gradient_bytes]))[0])
    else:
        assert not f.tied_between().any()
    if clips:
        expected += float(f.exchange(axes, "all_reduce").seconds(np.array([4.0]))[0])
    assert Replicas(f).barriers()[0] == pytest.approx(expected)
    assert Replicas(f).joins_stages == (clips and f.stages > 1)


def test_reasons_are_listed_by_how_many_plans_they_cost() -> None:
    found = pruned({"late": 5, "none": 0, "early": 5, "most :": 6, "few": 1, "most": 2})
    assert list(found.items()) == [("most", 8), ("early", 5), ("late", 5), ("few", 1)]
