"""Published closed forms, met through the public path with an idealised stack.

Where a form assumes free communication, compute is slowed a million times so that messages vanish beside it.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from support.plans import tiny_model

from foretrain.cluster.cluster import Cluster
from foretrain.compile.execution import BACKWARD, FORWARD, UPDATE
from foretrain.model.graph import Block, Model, Op, Tensor
from foretrain.model.load import load_model
from foretrain.simulate import answer, compile_scenario
from foretrain.testing.asking import ask
from foretrain.testing.parallelism import contraction_flops, message_bytes, messages

IDEAL = {
    "host_seconds_per_kernel": 0.0,
    "host_seconds_per_collective": 0.0,
    "context_bytes": 0.0,
    "fragmentation": 0.0,
    "overlaps_pipeline": True,
    "host_blocks_on_pipeline": False,
    "scatters_pipeline": False,
    "clips_gradients": False,
    "pads_vocabulary_to": 1,
}
NODE = "1 x dgx-a100-80gb"


def devices(count: int) -> Cluster:
    return Cluster.of(NODE).first(count)


@cache
def uniform(layers: int, width: int = 1024) -> Model:
    """Equal layers and nothing else: no embedding, no loss."""
    x = Tensor("x", ("batch", "seq", "hidden"))
    y = Tensor("y", ("batch", "seq", "hidden_out"))
    sizes = (("batch", 1), ("seq", 128), ("hidden", width), ("hidden_out", width))
    weight = Tensor("weight", ("hidden", "hidden_out"), "weight")
    op = Op("fc", "linear", sizes, (x,), (y,), (weight,))
    return Model("uniform", (Block("layers", (op,), (x,), (y,), layers, sizes),), 128)


def predicted(model, plan, *, on=NODE, batch=8, micro=1, **options):
    question = ask(
        model, on=on, plan=plan, batch=batch, micro_batch=micro, runtime_options=IDEAL | options
    )
    return answer(question)


def compiled(model, plan, *, on=NODE, batch=8, micro=1, **options):
    question = ask(
        model, on=on, plan=plan, batch=batch, micro_batch=micro, runtime_options=IDEAL | options
    )
    return compile_scenario(question)


# --- pipelines (Huang et al. 2019; Narayanan et al. SC21, section 2.2) ---------------------------------


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize(("stages", "micro_batches"), [(2, 2), (2, 8), (4, 4), (4, 16), (8, 8)])
def test_bubble_is_stages_minus_one_over_micro_batches(schedule, stages, micro_batches):
    slow = devices(stages).scaled(compute=1e-6, memory_bandwidth=1e-6)
    question = ask(
        uniform(8), on=slow, plan=f"pp{stages} {schedule}", batch=micro_batches, micro_batch=1,
        optimizer="none", runtime_options=IDEAL,
    )  # fmt: skip
    p = answer(question)
    ratio = p.stalls["bubble"] / p.stalls["compute"]
    assert ratio == pytest.approx((stages - 1) / micro_batches, rel=1e-4)
    assert p.step_seconds == pytest.approx(p.stalls["compute"] * (1 + ratio), rel=1e-4)


@pytest.mark.parametrize(("stages", "chunks", "rounds"), [(2, 2, 1), (2, 4, 2), (4, 2, 2)])
def test_interleaving_divides_the_bubble_by_its_chunks(stages, chunks, rounds):
    slow = devices(stages).scaled(compute=1e-6, memory_bandwidth=1e-6)
    question = ask(
        uniform(8), on=slow, plan=f"pp{stages} vpp{chunks}", batch=rounds * stages, micro_batch=1,
        optimizer="none", runtime_options=IDEAL,
    )  # fmt: skip
    p = answer(question)
    ratio = p.stalls["bubble"] / p.stalls["compute"]
    assert ratio == pytest.approx((stages - 1) / (chunks * rounds * stages), rel=1e-4)


def test_a_lone_device_computes_all_the_time():
    p = predicted(uniform(8), "", on=devices(1))
    busy = p.stalls["compute"] + p.stalls["optimizer"]
    assert busy == pytest.approx(p.step_seconds, rel=1e-12)


@pytest.mark.parametrize(("plan", "again"), [("dp8", 0.0), ("dp8 recompute=full", 1.0)])
def test_utilisation_is_three_passes_over_what_devices_could_do(plan, again):
    """A product of two matrices is two FLOPs a multiply-add; backward takes two of them, and hardware what runs again."""
    p = predicted(uniform(4), plan, batch=16)
    forward = 4 * 2.0 * 128 * 1024 * 1024 * 16
    could = p.step_seconds * 8 * Cluster.of(NODE).devices[0].peak("bf16")
    assert p.mfu == pytest.approx(3 * forward / could)
    assert p.hfu == pytest.approx((3 + again) * forward / could, rel=0.005)  # … and the update


# --- bytes of data parallelism (Rajbhandari et al. 2020, section 7) ------------------------------------


def moved(graph) -> float:
    """Bytes that leave a rank for gradients and weights, by the ring's (n-1)/n and 2(n-1)/n."""
    factors = {"all_reduce": 2.0, "reduce_scatter": 1.0, "all_gather": 1.0}
    found = message_bytes(graph)
    return sum(
        factors[sent.collective] * size
        for sent, size in found.items()
        if sent.purpose in ("data", "weights")
    )


@pytest.mark.parametrize(("zero", "ratio"), [(0, 1.0), (1, 1.0), (2, 1.0), (3, 1.5)])
@pytest.mark.parametrize("overlaps", [True, False])
def test_zero_moves_what_an_all_reduce_moves_and_half_more_at_stage_three(zero, ratio, overlaps):
    options = {
        "overlaps_gradients": overlaps,
        "overlaps_parameter_gather": overlaps,
        "gradient_bytes": 2.0,
    }
    model = tiny_model("llama")
    graph = compiled(model, f"dp8 zero{zero}", **options)
    assert moved(graph) == pytest.approx(ratio * 2.0 * 2.0 * model.parameters, rel=1e-9)


def test_zero_divides_its_state_by_the_replicas():
    model = tiny_model("llama")
    n = model.parameters
    kinds = {}
    for zero in range(4):
        stage = compiled(model, f"dp8 zero{zero}", gradient_bytes=2.0).stages[0]
        kinds[zero] = (stage.weights, stage.gradients, stage.optimizer)
    whole = (2.0 * n, 2.0 * n, 12.0 * n)  # bf16 weights and gradients; fp32 master and two moments
    for zero in range(4):
        split = (zero >= 3, zero >= 2, zero >= 1)
        wanted = [
            size / 8 if is_split else size for size, is_split in zip(whole, split, strict=True)
        ]
        assert kinds[zero] == pytest.approx(wanted, rel=1e-9)


# --- activations (Korthikanti et al. 2022, table 2) ----------------------------------------------------

HIDDEN, HEADS, SEQ = 256, 8, 128


@cache
def gpt(layers: int) -> Model:
    shape = {
        "hidden_size": HIDDEN, "num_hidden_layers": layers, "num_attention_heads": HEADS,
        "vocab_size": 512, "dropout": 0.1,
    }  # fmt: skip
    return load_model({"name": f"gpt-{layers}", "transformer": shape, "seq": SEQ})


def saved_per_layer(plan: str, micro: int, ranks: int) -> float:
    """Bytes that one layer keeps for backward: what a model with one layer more keeps more."""
    kept = []
    for layers in (2, 3):
        graph = compiled(
            gpt(layers), plan, on=devices(ranks), batch=micro, micro=micro, attention="unfused"
        )
        change = graph.task_memory[graph.task_phase == FORWARD]
        kept.append(change.sum() / graph.fold.classes)
    return kept[1] - kept[0]


A, S, H = HEADS, SEQ, HIDDEN


@pytest.mark.parametrize("b", [1, 4])
@pytest.mark.parametrize(
    ("plan", "t", "formula"),
    [
        ("", 1, lambda t: 34 + 5 * A * S / H),
        ("tp2", 2, lambda t: 10 + 24 / t + 5 * A * S / (H * t)),
        ("tp8", 8, lambda t: 10 + 24 / t + 5 * A * S / (H * t)),
        ("tp4 sp", 4, lambda t: 34 / t + 5 * A * S / (H * t)),
        ("tp4 sp recompute=selective", 4, lambda t: 34 / t),
        ("recompute=selective", 1, lambda t: 34),
        ("recompute=full", 1, lambda t: 2),
        ("tp4 recompute=full", 4, lambda t: 2),
        ("tp4 sp recompute=full", 4, lambda t: 2 / t),
    ],
)
def test_activations_of_a_layer_are_those_of_korthikanti(plan, t, formula, b):
    assert saved_per_layer(plan, b, t) == pytest.approx(S * b * H * formula(t), rel=1e-12)


def test_context_parallelism_divides_all_that_a_layer_keeps():
    whole = saved_per_layer("", 1, 1)
    assert saved_per_layer("cp4", 1, 4) == pytest.approx(whole / 4, rel=1e-12)
    assert saved_per_layer("cp4 cp=ring", 1, 4) == pytest.approx(whole / 4, rel=1e-12)


@pytest.mark.parametrize(("schedule", "held"), [("1f1b", 4), ("gpipe", 8), ("zb-h1", 4)])
def test_the_first_stage_holds_as_many_micro_batches_as_its_schedule_has_in_flight(schedule, held):
    graph = compiled(uniform(8), f"pp4 {schedule}", on=devices(4), batch=8)
    change = graph.task_memory[graph.task_class == 0]
    once = change.max()
    assert np.cumsum(change).max() == pytest.approx(held * once, rel=1e-12)


# --- tensor parallelism (Shoeybi et al. 2019, figure 4; Korthikanti et al. 2022, section 4.2) ------------


def test_a_pair_of_linears_costs_one_all_reduce_each_way():
    found = messages(compiled(gpt(3), "tp4", on=devices(4), batch=1))
    tensor = {(s.phase, s.collective): n for s, n in found.items() if s.purpose == "tensor"}
    # per layer attention and MLP; forward also the embedding and three of the loss, backward also the logits
    assert tensor == {(FORWARD, "all_reduce"): 2 * 3 + 1 + 3, (BACKWARD, "all_reduce"): 2 * 3 + 1}


def test_sequence_parallelism_halves_each_all_reduce_into_equal_bytes():
    sizes = {}
    for plan in ("tp4", "tp4 sp"):
        found = message_bytes(
            compiled(gpt(3), plan, on=devices(4), batch=1, regathers_sequence=False)
        )
        sizes[plan] = {
            (s.phase, s.collective): size for s, size in found.items() if s.purpose == "tensor"
        }
    layers = 2 * 3 * 2.0 * S * H  # two per layer of s·b·h elements in 16 bit
    gathered, scattered = (
        sizes["tp4 sp"][FORWARD, "all_gather"],
        sizes["tp4 sp"][FORWARD, "reduce_scatter"],
    )
    assert gathered == scattered  # the embedding scatters once more, the logits gather once more
    assert gathered == pytest.approx(layers + 2.0 * S * H, rel=1e-12)
    assert sizes["tp4"][FORWARD, "all_reduce"] == pytest.approx(layers + 2.0 * S * H + 3 * 4.0 * S)
    assert sizes["tp4 sp"][BACKWARD, "reduce_scatter"] == pytest.approx(layers + 2.0 * S * H)
    assert sizes["tp4 sp"][BACKWARD, "all_gather"] == pytest.approx(layers + 2.0 * S * H)


# --- what must not change anything ----------------------------------------------------------------------


@pytest.mark.parametrize("model", ["gpt", "llama", "moe", "cnn"])
def test_degree_one_is_the_identity(model):
    plain = predicted(tiny_model(model), "", on=devices(1))
    ones = predicted(
        tiny_model(model),
        "tp1 pp1 dp1 cp1 ep1 vpp1 zero3 sp 1f1b cp=ring recompute=none",
        on=devices(1),
    )
    assert ones.step_seconds == plain.step_seconds
    assert ones.stalls == plain.stalls
    assert ones.memory == plain.memory


def test_recomputation_adds_exactly_one_forward_of_the_layers():
    plain = compiled(gpt(3), "recompute=none", on=devices(1))
    again = compiled(gpt(3), "recompute=full", on=devices(1))
    logits = (
        8 * 2.0 * S * H * 512
    )  # of eight samples; neither they nor the embedding are recomputed
    forward = contraction_flops(plain, FORWARD) - logits
    assert contraction_flops(again) - contraction_flops(plain) == pytest.approx(forward, rel=1e-12)


def test_updates_wait_for_nothing_when_alone():
    graph = compiled(uniform(2), "", on=devices(1))
    assert not messages(graph)
    assert (graph.task_phase == UPDATE).sum() == 1
