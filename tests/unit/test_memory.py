"""Memory: kinds add up, moments are right, and what is split, kept or sent away shows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.plans import tiny_model

from foretrain.analysis.memory import memory
from foretrain.analysis.operators import executed_flops
from foretrain.analysis.prediction import MEMORY_KINDS
from foretrain.cluster.cluster import Cluster
from foretrain.compile.execution import FORWARD
from foretrain.compile.passes.place import _even_shares
from foretrain.simulate import answer, compile_scenario
from foretrain.testing.asking import ask

NODE = "1 x dgx-a100-80gb"
LEAN = {"context_bytes": 0.0, "fragmentation": 0.0}


def predicted(model, plan, on=NODE, batch=16, micro=1, **options):
    return answer(
        ask(
            tiny_model(model),
            on=on,
            plan=plan,
            batch=batch,
            micro_batch=micro,
            runtime_options=options,
        )
    )


PLANS = (
    "dp8",
    "tp8",
    "tp2 pp2 dp2 zero1 sp",
    "pp4 dp2",
    "cp2 dp4 zero3",
    "pp2 vpp2 dp4",
    "pp4 zb-h1 dp2",
)


@pytest.mark.parametrize("plan", PLANS)
def test_kinds_add_up_to_the_peak_on_every_stage(plan):
    memory = predicted("gpt", plan).memory
    assert tuple(memory.by_kind) == MEMORY_KINDS
    assert sum(memory.by_kind.values()) == pytest.approx(memory.peak_bytes, rel=1e-12)
    for stage in memory.by_stage:
        assert sum(stage.by_kind.values()) == pytest.approx(stage.peak_bytes, rel=1e-12)
        assert min(stage.by_kind.values()) >= 0
    assert memory.peak_bytes == max(stage.peak_bytes for stage in memory.by_stage)
    assert memory.by_stage[memory.peak_stage].peak_bytes == memory.peak_bytes


def test_the_allocator_loses_a_share_of_what_comes_and_goes_and_the_context_is_beside_it():
    lean = predicted("gpt", "dp8", **LEAN).memory
    slack = predicted("gpt", "dp8", context_bytes=1e9, fragmentation=0.1).memory
    assert lean.allocated_bytes == lean.peak_bytes == lean.total_bytes
    assert slack.allocated_bytes == lean.peak_bytes
    lost = 0.1 * lean.by_kind["activations"]
    assert slack.peak_bytes == pytest.approx(lean.peak_bytes + lost)
    assert slack.total_bytes == slack.peak_bytes + 1e9
    assert slack.by_stage[0].allocated_bytes == slack.allocated_bytes


def test_what_fits_the_allocator_may_not_fit_beside_the_context():
    lean = predicted("gpt", "dp8", **LEAN).memory
    left = lean.capacity_bytes - lean.peak_bytes
    assert predicted("gpt", "dp8", fragmentation=0.0, context_bytes=left * 0.999).fits
    assert not predicted("gpt", "dp8", fragmentation=0.0, context_bytes=left * 1.001).fits


def test_exchanges_on_a_stream_of_their_own_cost_the_allocator_more():
    options = {"context_bytes": 0.0, "fragmentation": 0.1, "exchange_fragmentation": 0.2}
    for plan, share in (("dp8", 0.1), ("tp2 dp4", 0.3)):
        memory = predicted("gpt", plan, **options).memory
        lost = memory.peak_bytes - memory.allocated_bytes
        assert lost == pytest.approx(share * memory.by_kind["activations"])


def test_the_first_stage_of_1f1b_holds_most_and_gpipe_holds_all():
    one, all_ = (
        predicted("llama", f"pp4 {s}", on=Cluster.of(NODE).first(4), **LEAN).memory
        for s in ("1f1b", "gpipe")
    )
    held = [stage.by_kind["activations"] for stage in one.by_stage[:3]]
    assert held[0] > held[1] > held[2]
    assert all_.by_stage[0].by_kind["activations"] > 2 * held[0]


def test_memory_of_activations_grows_with_the_micro_batch_only():
    small, large = (predicted("gpt", "dp8", batch=64, micro=m, **LEAN).memory for m in (1, 4))
    assert large.by_kind["activations"] == pytest.approx(4 * small.by_kind["activations"])
    assert large.by_kind["weights"] == small.by_kind["weights"]
    more = predicted("gpt", "dp8", batch=128, micro=1, **LEAN).memory
    assert more.peak_bytes == small.peak_bytes


@pytest.mark.parametrize("word", ["recompute=full", "recompute=selective", "offload=activations"])
def test_what_is_not_kept_is_not_counted(word):
    plain = predicted("gpt", "dp8", micro=2, attention="unfused", **LEAN)
    less = predicted("gpt", f"dp8 {word}", micro=2, attention="unfused", **LEAN)
    assert less.memory.by_kind["activations"] < plain.memory.by_kind["activations"]
    assert less.step_seconds > plain.step_seconds


def test_an_optimizer_on_the_host_leaves_the_device():
    away = predicted("gpt", "dp8 offload=optimizer", **LEAN).memory
    assert away.by_kind["optimizer"] == 0
    assert predicted("gpt", "dp8", **LEAN).memory.by_kind["optimizer"] > 0


def test_sharded_weights_need_room_for_what_is_gathered():
    memory = predicted("llama", "dp8 zero3", **LEAN).memory
    layer = (tiny_model("llama").parameters - 2 * 2048 * 1024) / 4 * 2.0
    assert memory.by_kind["buffers"] >= layer
    assert memory.by_kind["weights"] == pytest.approx(tiny_model("llama").parameters * 2.0 / 8)


def test_the_stage_with_the_least_room_decides_on_mixed_machines():
    """Stage 0 of a pipeline holds more bytes, but stage 1 sits on the smaller device."""
    mixed = Cluster.of(
        {"nodes": [{"node": "dgx-a100-80gb", "used": 1}, {"node": "aws:g4dn.12xlarge", "used": 1}]}
    )
    memory = predicted("llama", "pp2", on=mixed).memory
    assert memory.peak_stage == 1
    assert memory.capacity_bytes < 20e9
    assert memory.fits
    shares = [s.peak_bytes / c for s, c in zip(memory.by_stage, (80e9, 16e9), strict=True)]
    assert shares[1] > shares[0]


def test_what_does_not_fit_says_so():
    p = answer(ask("gpt3-175b", on=NODE, plan="tp8", batch=1))
    assert not p.fits
    assert p.memory.peak_bytes > p.memory.capacity_bytes


def test_a_reducer_with_buckets_of_its_own_holds_every_gradient_twice():
    model = tiny_model("gpt")
    plain = predicted("gpt", "dp8", **LEAN).memory
    twice = predicted("gpt", "dp8", reducer_copies=1.0, **LEAN).memory
    assert twice.peak_bytes - plain.peak_bytes == pytest.approx(2.0 * model.parameters)
    alone = Cluster.of(NODE).first(1)
    one, same = (
        predicted("gpt", "", on=alone, reducer_copies=b, **LEAN).memory for b in (0.0, 1.0)
    )
    assert same.peak_bytes == one.peak_bytes  # nobody to reduce with


def test_buckets_are_no_larger_than_the_gradients():
    model = tiny_model("gpt")
    options = {"staging_buckets": 2.0, "gradient_bytes": 2.0, **LEAN}
    small = predicted("gpt", "dp8", bucket_bytes=1e6, **options).memory
    large = predicted("gpt", "dp8", bucket_bytes=1e12, **options).memory
    assert small.by_kind["buffers"] == pytest.approx(2e6)
    assert large.by_kind["buffers"] == pytest.approx(2 * 2.0 * model.parameters)


def test_gradients_reduced_after_backward_are_whole_until_then():
    """ZeRO-2 without overlap: all gradients meet the update unsplit, when no activation is left."""
    options = {"overlaps_gradients": False, "gradient_bytes": 4.0, "bucket_bytes": 1e12, **LEAN}
    memory = predicted("llama", "dp8 zero2", batch=8, **options).memory
    size = 4.0 * tiny_model("llama").parameters
    assert memory.by_kind["gradients"] == pytest.approx(size / 8)
    assert memory.moment == "update"
    assert memory.by_kind["activations"] == pytest.approx(size * 7 / 8)
    beside = predicted("llama", "dp8 zero2", batch=8, **{**options, "overlaps_gradients": True})
    assert beside.memory.moment != "update"
    assert beside.memory.peak_bytes < memory.peak_bytes
    in_buckets = predicted("llama", "dp8 zero2", batch=8, **{**options, "bucket_bytes": 1e8})
    assert in_buckets.memory.by_kind["activations"] == pytest.approx(1e8)  # one bucket is whole


def test_a_fully_sharded_block_is_whole_while_it_is_at_work():
    """Weights of two blocks (one ahead), gradients of one as made and as reduced; the head is the largest."""
    memory = predicted("llama", "dp8 zero3", gradient_bytes=4.0, overlaps_gradients=True, **LEAN)
    blocks = {b.name: b for b in tiny_model("llama").blocks}
    sizes = sorted((sum(o.parameters for o in b.ops) for b in blocks.values()), reverse=True)
    held = 2.0 * (2 * sizes[0]) + (2.0 + 4.0) * sizes[0]  # layers repeat: the second is as large
    assert memory.memory.by_kind["buffers"] == pytest.approx(held)


def test_each_fp32_copy_of_the_logits_counts_once_they_are_what_peaks():
    six, seven = (predicted("llama", "dp8", logits_copies=n, **LEAN).memory for n in (6.0, 7.0))
    logits = tiny_model("llama").seq_len * 2048  # positions by vocabulary
    assert seven.peak_bytes - six.peak_bytes == pytest.approx(4.0 * logits)


def test_low_precision_gemms_may_keep_what_they_read():
    def kept(precision, **options):
        question = ask(
            tiny_model("llama"), on=NODE, plan="dp8", batch=8, micro_batch=1, precision=precision,
            runtime_options={**LEAN, **options},
        )  # fmt: skip
        return answer(question).memory.by_kind["activations"]

    whole, quantised = (kept("fp8", keeps_quantised=k) for k in (False, True))
    # ln1, ln2 and the gated activation are read by GEMMs alone; what attention gives it keeps as it is
    per_token = 4 * (1024 + 1024 + 2816)  # four layers; the head stays in 16 bit
    assert whole - quantised == pytest.approx(tiny_model("llama").seq_len * per_token)
    assert kept("bf16", keeps_quantised=True) == kept("bf16", keeps_quantised=False)


def test_a_split_master_copy_may_be_the_weight_itself():
    size = tiny_model("llama").parameters / 8
    for shards_master, weight, state in ((False, 2.0, 12.0), (True, 4.0, 8.0)):
        held = predicted("llama", "dp8 zero3", shards_master=shards_master, **LEAN).memory.by_kind
        assert held["weights"] == pytest.approx(weight * size)
        assert held["optimizer"] == pytest.approx(state * size)


def kept_by_layers(**options):
    """Bytes per token that one of the four layers keeps."""
    question = ask(
        tiny_model("llama"), on=Cluster.of(NODE).first(1), batch=1, micro_batch=1,
        plan="recompute=selective", runtime_options={**LEAN, **options},
    )  # fmt: skip
    graph = compile_scenario(question)
    forward = graph.task_memory[graph.task_phase == FORWARD].sum()
    head = 2.0 * 1024 * 2 + 4.0 * 2048 + 8.0  # norm and its input, probabilities, ids
    return (forward / question.workload.seq_len - head) / 4


def test_selective_recomputation_of_products_keeps_every_second_one_and_attention():
    """Of q, k, v, proj, gate, up, fc2 the first, third, fifth and seventh; the block's input; attention's result
    with its log-sum-exp (fp32, per head)."""
    hidden, keys, ffn, heads = 1024, 256, 2816, 8
    expected = 2.0 * (hidden + hidden + keys + hidden + ffn + hidden) + 4.0 * heads
    assert kept_by_layers(selective="products") == pytest.approx(expected)
    assert kept_by_layers(selective="attention") > 2 * expected


def test_selective_recomputation_of_products_repeats_a_third_of_the_products():
    question = ask(
        tiny_model("llama"), on=Cluster.of(NODE).first(1), batch=1, plan="recompute=selective",
        runtime_options={"selective": "products"},
    )  # fmt: skip
    done, again = executed_flops(compile_scenario(question))
    hidden, keys, ffn = 1024, 256, 2816
    products = 4 * (hidden * (keys + hidden) + hidden * ffn)  # k, proj and up of four layers
    vector = 0.01 * products
    seq = question.workload.seq_len
    assert again == pytest.approx(2.0 * seq * products, abs=2.0 * seq * vector)
    assert done > 9 * again


def test_a_part_ends_with_the_block_that_fills_its_share():
    """nanotron adds up the cost of blocks and opens the next stage after the one that reaches its share."""
    assert _even_shares([0.0, 1.0, 1.0, 1.0, 1.0, 1.0], 2) == [4, 2]  # the third brings 3 > 2.5
    assert _even_shares([0.0, 1.0, 1.0, 1.0, 1.0], 2) == [3, 2]  # exactly half
    assert _even_shares([1.0, 1.0, 8.0], 3) == [1, 1, 1]  # nobody goes empty
    assert _even_shares([1.0, 1.0, 1.0, 1.0, 20.0], 4) == [2, 1, 1, 1]


def test_results_of_listed_ops_are_not_kept_for_their_readers():
    """The activation of four layers is read by fc2 alone, the norm's result by qkv (2 bytes an element)."""

    def kept(word):
        question = ask(
            tiny_model("llama"), on=Cluster.of(NODE).first(1), batch=1, micro_batch=1,
            plan=f"recompute={word}", runtime_options=LEAN,
        )  # fmt: skip
        graph = compile_scenario(question)
        return graph.task_memory[graph.task_phase == FORWARD].sum() / question.workload.seq_len

    plain, hidden, ffn = kept("none"), 1024, 2816
    assert plain - kept("act") == pytest.approx(4 * 2.0 * ffn)
    assert plain - kept("ln1") == pytest.approx(4 * 2.0 * hidden)
    # attention's result stays for the projection: what goes is its log-sum-exp
    assert plain - kept("attention") == pytest.approx(4 * 4.0 * 8)


def test_nothing_is_kept_for_ops_that_need_not_run_again():
    """The last sum of a layer is in the list, but no gradient asks for it or for what it adds."""
    words = ("norm,elementwise,attention,proj,*fc1", "norm,act,rope,residual1,attention,proj,*fc1")
    with_last, without = (
        predicted("llama", f"dp8 recompute={word}", **LEAN).memory.by_kind["activations"]
        for word in words
    )
    assert with_last == pytest.approx(without)


def test_what_a_block_keeps_is_free_before_the_next_one_goes_back():
    """Layers that run again peak when the head's probabilities are gone, not beside them."""
    options = {"logits_copies": 1.0, **LEAN}
    held = predicted("llama", "dp8 recompute=full", micro=1, **options).memory
    tokens = tiny_model("llama").seq_len
    inputs = 4 * 2.0 * 1024 * tokens  # of four layers
    head = tokens * (2.0 * 1024 * 2 + 4.0 * 2048 + 8.0)  # norm and its input, probabilities, ids
    loss = tokens * 2.0 * 2048
    layer = held.by_kind["activations"] - inputs
    assert layer != pytest.approx(head + loss, rel=0.01)  # the layers' work is larger …
    assert layer > head + loss
    more = predicted("llama", "dp8 recompute=full", micro=1, **{**options, "logits_copies": 2.0})
    assert more.memory.peak_bytes == held.peak_bytes  # … and nothing at the loss adds to it


def test_gradients_that_are_freed_are_not_there_in_the_first_forward_pass():
    options = {"overlaps_gradients": True, **LEAN}
    stays, freed = (
        predicted("llama", "dp8 zero3", batch=64, micro=8, frees_gradients=f, **options).memory
        for f in (False, True)
    )
    assert freed.by_kind["gradients"] == 0.0
    assert stays.peak_bytes - freed.peak_bytes == pytest.approx(stays.by_kind["gradients"])
    # added up over micro-batches they are there from the second on
    options["frees_gradients"] = True
    again = predicted("llama", "dp8 zero3", batch=128, micro=8, **options).memory
    assert again.peak_bytes == pytest.approx(stays.peak_bytes)


def test_gradients_are_there_from_the_end_of_the_first_backward_pass():
    """With room needed in forward passes alone: the first has it beside no gradients, the second beside all."""
    stack = ask(tiny_model("llama"), on=NODE, plan="dp8", batch=16, runtime_options=LEAN).runtime
    stack = stack.with_options({"frees_gradients": True})
    for batch, share in ((8, 0.0), (16, 1.0)):
        question = ask(tiny_model("llama"), on=NODE, plan="dp8", batch=batch, runtime_options=LEAN)
        graph = compile_scenario(question)
        room = np.where(graph.task_phase == FORWARD, 1e12, 0.0)
        found = memory(replace(graph, task_workspace=room), stack, np.array([1e15]))
        assert found.moment == f"forward of micro-batch {batch // 8 - 1}"
        assert found.by_kind["gradients"] == share * graph.stages[0].gradients


def test_gradients_larger_than_activations_peak_when_all_are_made():
    options = {"gradient_bytes": 400.0, "frees_gradients": True, **LEAN}
    memory = predicted("llama", "dp8", batch=8, micro=1, **options).memory
    assert memory.by_kind["gradients"] == pytest.approx(400.0 * tiny_model("llama").parameters)


def test_an_update_of_split_states_may_take_blocks_of_its_own():
    plain, more = (
        predicted("gpt", "dp8 zero1", update_copies=n, **LEAN).memory for n in (0.0, 2.0)
    )
    assert more.peak_bytes - plain.peak_bytes == pytest.approx(2.0 * plain.by_kind["optimizer"])
    whole = [predicted("gpt", "dp8", update_copies=n, **LEAN).memory for n in (0.0, 2.0)]
    assert whole[0].peak_bytes == whole[1].peak_bytes


def test_tables_with_sparse_updates_have_gradients_of_what_was_looked_up():
    question = ask("dlrm-mlperf", on=NODE, plan="dp8 tables=rows", batch=65536)
    held = answer(question).memory.by_kind
    assert held["gradients"] < 0.1 * held["weights"]


def test_a_device_that_is_nearly_full_says_what_is_not_counted():
    lean = predicted("gpt", "dp8", **LEAN).memory
    for share, is_noted in ((0.90, False), (0.97, True), (1.02, False)):
        left = share * lean.capacity_bytes - lean.peak_bytes
        found = predicted("gpt", "dp8", fragmentation=0.0, context_bytes=left)
        assert any("% full" in line for line in found.warnings) == is_noted


def test_fp8_weights_lie_there_transposed_as_well_before_blackwell():
    def weights(on, precision):
        question = ask(
            tiny_model("llama"), on=on, plan="dp8 zero1", batch=8, precision=precision,
            runtime="nemo",
        )  # fmt: skip
        return answer(question).memory.by_kind["weights"]

    model = tiny_model("llama")
    layers = next(block for block in model.blocks if block.repeat > 1)
    products = 4 * sum(op.parameters for op in layers.ops if op.kind == "linear")
    hopper, blackwell = (weights(f"1 x {node}", "fp8") for node in ("dgx-h100", "dgx-b200"))
    assert hopper == weights("1 x dgx-h100", "bf16") == pytest.approx(2.0 * model.parameters)
    assert hopper - blackwell == pytest.approx(1.0 * products)  # embedding and head stay wide
    assert weights("1 x dgx-b200", "mxfp8") == hopper  # scaled along rows and along columns
