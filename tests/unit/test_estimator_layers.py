"""Columns that the estimator reads off compiled blocks, beside what is counted by hand for tiny models."""

from __future__ import annotations

import numpy as np
import pytest
from estimated_plan import estimated, fleet
from support.plans import tiny_model

from foretrain.arrays import Floats
from foretrain.compile.execution import Communicator
from foretrain.compile.passes.fold import ranks_of
from foretrain.cost.collective_costs import contended
from foretrain.planning.document import pruned
from foretrain.planning.layers import CONTEXT, DATA, EXPERT, TENSOR, _kind
from foretrain.planning.plan_batch import PlanBatch
from foretrain.planning.replicas import INSIDE, NETWORK, Replicas
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


def test_reasons_are_listed_by_how_many_plans_they_cost() -> None:
    found = pruned({"late": 5, "none": 0, "early": 5, "most :": 6, "few": 1, "most": 2})
    assert list(found.items()) == [("most", 8), ("early", 5), ("late", 5), ("few", 1)]
