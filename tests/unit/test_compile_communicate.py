"""Communication follows from how producer and consumer are cut: nobody names a collective, and the right one comes."""

from __future__ import annotations

from collections import Counter
from math import prod

import pytest
from support.plans import tiny_model

from foretrain.cluster.cluster import Cluster
from foretrain.compile.execution import BACKWARD, FORWARD, UPDATE, Compute
from foretrain.compile.passes.place import place
from foretrain.errors import PlanError
from foretrain.model.graph import Block, Model, Op, Tensor
from foretrain.model.load import load_model
from foretrain.plan.strategy import Schedule
from foretrain.simulate import answer, compile_scenario
from foretrain.testing.asking import ask
from foretrain.testing.parallelism import contraction_flops, message_bytes, messages

S, H, V = 64, 1024, 2048  # of the tiny transformers
LAYERS = 4
TWO_BYTES = 2.0


def devices(count: int) -> Cluster:
    return Cluster.of("1 x dgx-a100-80gb").first(count)


def compiled(model, plan, ranks, *, batch=8, micro=1, **options):
    options = {"pads_vocabulary_to": 1, "clips_gradients": False} | options
    question = ask(
        model, on=devices(ranks), plan=plan, batch=batch, micro_batch=micro, runtime_options=options
    )
    return compile_scenario(question)


def of_purpose(graph, purpose, rank_class=0) -> Counter[tuple[int, str]]:
    found: Counter[tuple[int, str]] = Counter()
    for sent, count in messages(graph, rank_class).items():
        if sent.purpose == purpose:
            found[sent.phase, sent.collective] += count
    return found


def sizes_of(graph, purpose) -> dict[tuple[int, str], float]:
    found: dict[tuple[int, str], float] = {}
    for sent, size in message_bytes(graph).items():
        if sent.purpose == purpose:
            key = sent.phase, sent.collective
            found[key] = found.get(key, 0.0) + size
    return found


# --- tensor parallelism -----------------------------------------------------------------------------------


def test_an_mlp_alone_needs_one_all_reduce_each_way():
    sizes = {"batch": 1, "seq": S, "hidden": H, "ffn": 4 * H}
    x, y = Tensor("x", ("batch", "seq", "hidden")), Tensor("y", ("batch", "seq", "hidden"))
    h = Tensor("h", ("batch", "seq", "ffn"))
    space = tuple(sizes.items())
    up = Op("up", "linear", space, (x,), (h,), (Tensor("weight", ("hidden", "ffn"), "weight"),))
    down = Op("down", "linear", space, (h,), (y,), (Tensor("weight", ("ffn", "hidden"), "weight"),))
    start = Op(
        "start", "elementwise", space[:3], (Tensor("images", x.dims),), (x,), (), (("op", "copy"),)
    )
    end = Op("end", "elementwise", space[:3], (y,), (Tensor("z", y.dims),), (), (("op", "copy"),))
    block = Block("layers", (start, up, down, end), (), (Tensor("z", y.dims),), 1, space[:3])
    graph = compiled(Model("mlp", (block,), S), "tp4", 4, batch=1)
    assert of_purpose(graph, "tensor") == {(FORWARD, "all_reduce"): 1, (BACKWARD, "all_reduce"): 1}
    size = TWO_BYTES * S * H
    assert sizes_of(graph, "tensor") == {
        (FORWARD, "all_reduce"): size,
        (BACKWARD, "all_reduce"): size,
    }


def test_vocabulary_parallel_embedding_and_loss():
    graph = compiled(tiny_model("llama"), "tp2", 2, batch=1)
    found = message_bytes(graph)
    forward = [s for s in found if s.phase == FORWARD and s.collective == "all_reduce"]
    assert [s.axes for s in forward] == [("tp",)]
    # the embedding's partial rows, two per layer, and three numbers per token in fp32 for the loss
    wanted = (1 + 2 * LAYERS) * TWO_BYTES * S * H + 3 * 4.0 * S
    assert found[forward[0]] == pytest.approx(wanted)
    # the logits themselves never travel
    assert not any(size > wanted for size in found.values())


def test_logits_gathered_would_be_far_larger():
    whole = {"mesh": {"tp": 2}, "tree": {"split": {"heads,kv_heads": "tp", "ffn": "tp", "vocab": "tp"},
             "children": {"head.loss": {"split": {"seq": "tp"}}}}}  # fmt: skip
    graph = compiled(tiny_model("llama"), whole, 2, batch=1)
    moved = of_purpose(graph, "tensor")
    assert moved[FORWARD, "all_to_all"] == 1  # vocabulary to tokens
    assert sizes_of(graph, "tensor")[FORWARD, "all_to_all"] == TWO_BYTES * S * V / 2


@pytest.mark.parametrize("plan", ["tp4", "tp8"])
def test_grouped_queries_beyond_their_heads_hold_copies(plan):
    """Two key heads on four or eight ranks: every rank holds one, and no plan error comes of it."""
    ranks = int(plan[2:])
    graph = compiled(tiny_model("llama"), plan, ranks, batch=1)
    shapes = {
        i.work.kernel.shape for i in graph.items
        if isinstance(i.work, Compute) and i.work.kernel.kind == "attention"
    }  # fmt: skip
    assert {(s[1], s[2]) for s in shapes} == {(8 // ranks, 1)}
    assert contraction_flops(graph) > contraction_flops(
        compiled(tiny_model("llama"), "", 1, batch=1)
    )


def test_copies_of_key_heads_travel_whole():
    """With context parallelism beside it, a rank gathers the one head it holds, not a fraction of it."""
    graph = compiled(tiny_model("llama"), "tp4 cp2", 8, batch=1, regathers_sequence=False)
    head = S * 128  # elements of one head of all tokens
    per_layer = 2 * head * TWO_BYTES  # keys and values
    assert sizes_of(graph, "context")[FORWARD, "all_gather"] == LAYERS * per_layer


def test_degrees_that_do_not_divide_are_named():
    with pytest.raises(PlanError, match=r"8 attention heads .* must be divisible by"):
        answer(ask(tiny_model("gpt"), on="3 x dgx-a100-80gb", plan="tp3", batch=8))


def test_gradients_of_several_readers_travel_together():
    """The embedding is read by the first norm and the first residual: its gradient is gathered once."""
    graph = compiled(tiny_model("llama"), "tp4 sp", 4, batch=1, regathers_sequence=False)
    moved = of_purpose(graph, "tensor")
    assert moved[FORWARD, "reduce_scatter"] == moved[BACKWARD, "all_gather"] == 2 * LAYERS + 1
    assert moved[FORWARD, "all_gather"] == moved[BACKWARD, "reduce_scatter"] == 2 * LAYERS + 1


# --- context parallelism ----------------------------------------------------------------------------------


@pytest.mark.parametrize("exchange", ["all-gather", "ring"])
def test_context_parallelism_moves_keys_and_values(exchange):
    graph = compiled(tiny_model("gpt"), f"cp4 cp={exchange}", 4, batch=1, regathers_sequence=False)
    keys_and_values = LAYERS * 2 * TWO_BYTES * S * H
    moved = sizes_of(graph, "context")
    assert moved[FORWARD, "all_gather"] == keys_and_values
    if exchange == "ring":  # once more round the ring, with their gradients behind them
        assert moved[BACKWARD, "all_gather"] == 2 * keys_and_values
    else:
        assert moved[BACKWARD, "reduce_scatter"] == keys_and_values


def test_a_ring_hides_behind_attention_and_a_gather_does_not():
    beside = {}
    for exchange in ("all-gather", "ring"):
        graph = compiled(tiny_model("gpt"), f"cp4 cp={exchange}", 4, batch=1)
        beside[exchange] = [i for i in graph.items if i.beside is not None]
    assert not beside["all-gather"]
    assert {i.work.op for i in beside["ring"]} == {"layers.attention"}


def test_context_parallel_weights_are_reduced_over_the_context_too():
    graph = compiled(tiny_model("gpt"), "cp2 dp2", 4, batch=2)
    axes = {s.axes for s in messages(graph) if s.purpose == "data"}
    assert axes == {("dp", "cp")}


# --- experts ----------------------------------------------------------------------------------------------


def test_experts_exchange_tokens_all_to_all_both_ways():
    graph = compiled(tiny_model("moe"), "ep8", 8)
    assert of_purpose(graph, "expert") == {
        (FORWARD, "all_to_all"): 2 * LAYERS,  # dispatch and combine
        (BACKWARD, "all_to_all"): 2 * LAYERS,
    }
    # a rank's tokens, once per chosen expert: 8 experts of 16 slots of hidden values
    once = 8 * (S * 2 // 8) * H * TWO_BYTES
    moved = sizes_of(graph, "expert")
    assert moved[FORWARD, "all_to_all"] == moved[BACKWARD, "all_to_all"] == 2 * LAYERS * once


def test_expert_weights_are_reduced_among_the_ranks_that_share_them():
    graph = compiled(tiny_model("moe"), "ep4 dp8", 8)
    axes = {s.axes for s in messages(graph) if s.purpose == "data"}
    assert axes == {("dp.out", "dp.in"), ("dp.out",)}
    model = tiny_model("moe")
    experts = LAYERS * 8 * 3 * H * 1408
    moved = {s.axes: size for s, size in message_bytes(graph).items() if s.purpose == "data"}
    assert moved["dp.out",] == pytest.approx(
        4.0 * experts / 4
    )  # fp32 gradients, a quarter of the experts
    assert moved["dp.out", "dp.in"] == pytest.approx(4.0 * (model.parameters - experts))


def test_experts_alone_on_tensor_ranks_send_each_token_once():
    """etp1: tensor ranks hold different experts, so a token's copies are shared out among them."""
    together = sizes_of(compiled(tiny_model("moe"), "tp2 ep4 etp2 sp", 8), "expert")
    apart = sizes_of(compiled(tiny_model("moe"), "tp2 ep8 etp1 sp", 8), "expert")
    assert apart[FORWARD, "all_to_all"] == pytest.approx(together[FORWARD, "all_to_all"])


# --- convolutions -----------------------------------------------------------------------------------------

CNN = "cnn"


def image_plan(mesh: dict[str, int], split: dict[str, str], children=None):
    return {"mesh": mesh, "tree": {"split": split, "children": children or {}}}


def test_samples_need_only_gradients():
    graph = compiled(tiny_model(CNN), image_plan({"dp": 4}, {"batch": "dp"}), 4)
    assert {s.purpose for s in messages(graph)} == {"data"}


def test_rows_exchange_halos_with_their_neighbours():
    graph = compiled(tiny_model(CNN), image_plan({"rows": 4}, {"height": "rows"}), 4, batch=1)
    # seven 3x3 convolutions read what others hold; the first reads images, which are loaded with their halo
    assert of_purpose(graph, "halo") == {
        (FORWARD, "exchange"): 7 + 1,
        (BACKWARD, "exchange"): 7 + 1,
    }
    row = 32 * 64 * TWO_BYTES  # a row of 32 pixels of 64 channels
    # five read 32-pixel rows of 64 channels (one of them strided), three 16-pixel rows of 128
    assert sizes_of(graph, "halo")[FORWARD, "exchange"] == 5 * row + 3 * row
    # the mean over all pixels is a sum over ranks
    assert of_purpose(graph, "reshard") == {(FORWARD, "all_reduce"): 1}


def test_rows_and_columns_go_both_ways():
    graph = compiled(
        tiny_model(CNN), image_plan({"r": 2, "c": 2}, {"height": "r", "width": "c"}), 4, batch=1
    )
    axes = Counter(
        {
            s.axes: n
            for s, n in messages(graph).items()
            if s.collective == "exchange" and not s.phase
        }
    )
    assert axes == {("r",): 8, ("c",): 8}


def test_output_channels_gather_and_output_then_input_channels_add_up():
    out = image_plan({"c": 4}, {"channel_out": "c"})
    graph = compiled(tiny_model(CNN), out, 4, batch=1)
    assert of_purpose(graph, "reshard").keys() == {
        (FORWARD, "all_gather"), (BACKWARD, "all_gather"), (BACKWARD, "reduce_scatter"),
    }  # fmt: skip
    pairs = image_plan({"c": 4}, {"channel_out": "c"}, {"2_conv": {"split": {"channel_in": "c"}}})
    paired = compiled(tiny_model(CNN), pairs, 4, batch=1)
    before, after = of_purpose(graph, "reshard"), of_purpose(paired, "reshard")
    # the second of each pair of convolutions adds up what it contracts instead of gathering it
    assert after[FORWARD, "reduce_scatter"] == 4
    assert after[FORWARD, "all_gather"] == before[FORWARD, "all_gather"] - 4


@pytest.mark.parametrize(
    "plan",
    [
        image_plan({"rows": 4}, {"height": "rows"}),
        image_plan({"r": 2, "c": 2}, {"height": "r", "width": "c"}),
        image_plan({"c": 4}, {"channel_out": "c"}),
        image_plan({"c": 4}, {"channel_out": "c"}, {"2_conv": {"split": {"channel_in": "c"}}}),
        image_plan({"dp": 2, "rows": 2}, {"batch": "dp", "height": "rows"}),
    ],
)
def test_every_split_of_images_conserves_the_convolutions(plan):
    split = compiled(tiny_model(CNN), plan, 4, micro=4)
    whole = compiled(tiny_model(CNN), "", 1, micro=4)
    assert conv_flops(split) == pytest.approx(conv_flops(whole), rel=1e-12)


def conv_flops(graph) -> float:
    total = 0.0
    for task in range(graph.tasks):
        for item in graph.shape(int(graph.task_shape[task])):
            if (
                isinstance(item.work, Compute)
                and item.work.kernel.kind == "conv"
                and graph.task_kind[task] == 0
            ):
                total += item.work.kernel.flops * graph.fold.counts[graph.task_class[task]]
    return total


def test_resnet50_trains_with_its_rows_split():
    plan = image_plan({"dp": 2, "rows": 2}, {"batch": "dp", "height": "rows"})
    ask_for = {"on": devices(4), "batch": 32, "micro_batch": 8, "runtime": "ddp"}
    rows = answer(ask("resnet50", plan=plan, **ask_for))
    samples = answer(ask("resnet50", plan="dp4", **ask_for))
    # halos cost something, and half the image keeps about half the activations of a sample
    assert rows.step_seconds > samples.step_seconds
    assert rows.memory.by_kind["activations"] == pytest.approx(
        samples.memory.by_kind["activations"] / 2, rel=0.1
    )


def test_a_strided_convolution_keeps_its_whole_input():
    """The stem reads 224 x 224 pixels though it makes 112 x 112."""
    from foretrain.compile.passes.communicate import Setting, communicate
    from foretrain.compile.passes.partition import partition
    from foretrain.model.ops.base import KernelChoices
    from foretrain.model.precision import precision
    from foretrain.plan.mesh import Mesh
    from foretrain.plan.strategy import StrategyNode
    from foretrain.runtime import runtime

    mesh = Mesh((("dp", 1),))
    block = load_model("resnet50").blocks[0]
    setting = Setting({"dp": 1}, {}, precision("bf16"), KernelChoices(), runtime("ddp"))
    program = communicate(block, partition(block, 0, StrategyNode(), mesh, 1, 1), (), setting)
    assert dict(program.ops[0].saved)["images"] == 224 * 224 * 3 * TWO_BYTES


# --- stages and updates ------------------------------------------------------------------------------------


def test_tied_embeddings_meet_before_the_update():
    graph = compiled(tiny_model("gpt"), "pp2 tp2", 4)
    for rank_class in range(graph.fold.classes):
        found = [s for s in messages(graph, rank_class) if s.purpose == "embedding"]
        assert [(s.phase, s.collective, s.axes) for s in found] == [(UPDATE, "all_reduce", ("pp",))]
    tied = [size for s, size in message_bytes(graph).items() if s.purpose == "embedding"]
    assert tied == [4.0 * V * H / 2]  # fp32 gradients of half the vocabulary


@pytest.mark.parametrize("plan", ["tp2 pp2 dp2", "dp8", "tp2 cp2 dp2", "pp8"])
def test_the_norm_of_gradients_joins_all_ranks(plan):
    graph = compiled(tiny_model("gpt"), plan, 8, clips_gradients=True)
    (norm,) = [s for s in messages(graph) if s.purpose == "norm"]
    assert (norm.phase, norm.collective) == (UPDATE, "all_reduce")
    degrees = {word[:2]: int(word[2:]) for word in plan.split()}
    assert prod(degrees[axis] for axis in norm.axes) == 8


@pytest.mark.parametrize(
    ("layers", "stages", "counts"),
    [
        (8, 4, [2, 2, 2, 2]),
        (14, 4, [3, 4, 4, 3]),  # embedding and head count as a layer each, as in Llama 3 405B
        (15, 4, [4, 4, 4, 3]),  # … or the head alone
    ],
)
def test_stages_at_the_ends_hold_a_layer_less_where_layers_do_not_divide(layers, stages, counts):
    shape = {"hidden_size": 64, "num_hidden_layers": layers, "num_attention_heads": 2, "vocab_size": 64}  # fmt: skip
    model = load_model({"name": "tall", "transformer": shape, "seq": 8})
    parts = place(model, Schedule("1f1b", 1, stages, 1))
    repeated = next(n for n, block in enumerate(model.blocks) if block.repeat > 1)
    assert [sum(block == repeated for block, _ in part) for part in parts] == counts


def test_a_boundary_is_sent_once_each_way_per_micro_batch():
    graph = compiled(tiny_model("llama"), "pp2", 2, batch=4, scatters_pipeline=False)
    for rank_class, phase in ((0, FORWARD), (1, BACKWARD)):
        found = {s: n for s, n in messages(graph, rank_class).items() if s.collective == "send"}
        assert {(s.phase, s.axes): n for s, n in found.items()} == {(phase, ("pp",)): 4}
        assert [size for s, size in message_bytes(graph, rank_class).items() if s in found] == [
            4 * TWO_BYTES * S * H
        ]


def test_scattered_boundaries_are_gathered_on_arrival():
    graph = compiled(tiny_model("llama"), "pp2 tp2", 4, batch=2, scatters_pipeline=True)
    for rank_class in range(graph.fold.classes):
        found = {
            s.collective: size
            for s, size in message_bytes(graph, rank_class).items()
            if s.purpose == "pipeline"
        }
        assert found["send"] == 2 * TWO_BYTES * S * H / 2
        assert found["all_gather"] == 2 * TWO_BYTES * S * H
