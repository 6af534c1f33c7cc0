"""Meshes, strategy trees, short forms and plan documents."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.plans import tiny_model

from foretrain import predict
from foretrain.compile.blocks import blocks_of
from foretrain.errors import PlanError
from foretrain.model.graph import Op, Tensor
from foretrain.plan.mesh import Mesh
from foretrain.plan.plan import Plan
from foretrain.plan.short_form import parse
from foretrain.plan.strategy import Cut, StrategyNode, block_choice, leaf, matches
from foretrain.runtime import runtime
from foretrain.simulate import answer, compile_scenario
from foretrain.testing.asking import ask

NODE = "1 x dgx-a100-80gb"


def plan(spec, devices=8, **options) -> Plan:
    return Plan.of(spec, devices=devices, runtime=runtime("megatron"), **options)


# --- meshes -----------------------------------------------------------------------------------------------


def test_groups_are_ranks_that_differ_on_the_axes_alone():
    mesh = Mesh((("pp", 2), ("dp", 2), ("tp", 2)))
    assert mesh.groups(("tp",)).tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert mesh.groups(("pp",)).tolist() == [[0, 4], [1, 5], [2, 6], [3, 7]]
    assert mesh.groups(("pp", "tp")).tolist() == [[0, 1, 4, 5], [2, 3, 6, 7]]
    assert mesh.coordinate("dp").tolist() == [0, 0, 1, 1, 0, 0, 1, 1]


@pytest.mark.parametrize("axes", [("pp",), ("dp", "tp"), ("tp", "pp"), ("pp", "dp", "tp")])
def test_groups_hold_every_rank_once(axes):
    mesh = Mesh((("pp", 2), ("dp", 3), ("tp", 4)))
    groups = mesh.groups(axes)
    assert groups.shape == (24 // mesh.size(*axes), mesh.size(*axes))
    assert np.sort(groups.ravel()).tolist() == list(range(24))


def test_factoring_leaves_ranks_where_they_are():
    mesh = Mesh((("dp", 8), ("tp", 2))).factored("dp", 4)
    assert mesh.axes == (("dp.out", 2), ("dp.in", 4), ("tp", 2))
    assert mesh.expand("dp") == ("dp.out", "dp.in")
    assert mesh.inner("dp", 4) == ("dp.in",)
    assert (
        mesh.groups(mesh.expand("dp")).tolist()
        == Mesh((("dp", 8), ("tp", 2))).groups(("dp",)).tolist()
    )
    again = mesh.factored("dp", 2)
    assert again.expand("dp") == ("dp.out", "dp.in.out", "dp.in.in")
    assert again.size("dp") == 8


def test_factoring_refuses_what_does_not_divide():
    with pytest.raises(PlanError, match="dp = 6 must be divisible by"):
        Mesh((("dp", 6),)).factored("dp", 4)
    with pytest.raises(PlanError, match="larger than dp = 6"):
        Mesh((("dp", 6),)).factored("dp", 12)


def test_an_unknown_axis_is_named_with_a_hint():
    with pytest.raises(PlanError, match="no axis 'dq'"):
        Mesh((("dp", 6),)).expand("dq")


# --- selecting and cutting ----------------------------------------------------------------------------------


def op(name="fc1", kind="linear", dims=("batch", "seq", "hidden", "ffn")) -> Op:
    x, y = Tensor("x", dims[:-1]), Tensor("y", (*dims[:-2], dims[-1]))
    return Op(name, kind, tuple((d, 8) for d in dims), (x,), (y,))


@pytest.mark.parametrize(
    ("select", "index", "hits"),
    [
        ("*", 0, True), ("layers", 5, True), ("layer?", 0, True), ("head", 0, False),
        ("layers[0:8]", 7, True), ("layers[0:8]", 8, False), ("layers[8:]", 8, True),
        ("layers[8:]", 7, False), ("layers[:2]", 1, True), ("layers[3]", 3, True),
        ("layers[3]", 4, False), ("layers[0:8].fc*", 2, True), ("layers[0:8].attn", 2, False),
        ("layers[0:8].fc1", 9, False), ("kind:linear", 0, True), ("kind:norm", 0, False),
        ("fc1", 0, True), ("fc*", 0, True), ("layers.fc1", 0, True), ("head.fc1", 0, False),
    ],
)  # fmt: skip
def test_selects(select, index, hits):
    assert matches(select, "layers", index, op()) is hits


def test_a_select_of_ops_takes_no_block():
    assert not matches("layers[0:8].fc1", "layers", 0, None)
    assert not matches("kind:linear", "layers", 0, None)


@pytest.mark.parametrize(
    "select", ["layers[a:b]", "layers[1:2", "layers[]", "layers[1:2]fc", "[1:2]"]
)
def test_a_range_that_cannot_be_read_is_an_input_error(select):
    with pytest.raises(PlanError, match="selects nothing"):
        matches(select, "layers", 0, None)


def test_an_axis_goes_to_the_first_cut_that_wants_it():
    root = StrategyNode(split=(Cut(("ffn",), ("tp",)), Cut(("seq",), ("tp",))))
    assert leaf(root, "layers", 0, op()).axes == (("ffn", ("tp",)),)
    norm = op("norm", "norm", ("batch", "seq", "hidden"))
    assert leaf(root, "layers", 0, norm).axes == (("seq", ("tp",)),)


def test_deeper_nodes_come_first():
    child = StrategyNode("fc1", split=(Cut(("seq",), ("tp",)),))
    root = StrategyNode(split=(Cut(("ffn",), ("tp",)),), children=(child,))
    assert leaf(root, "layers", 0, op()).axes == (("seq", ("tp",)),)
    assert leaf(root, "layers", 0, op("fc2")).axes == (("ffn", ("tp",)),)


def test_ranges_of_layers_choose_recompute():
    root = StrategyNode(recompute="none", children=(StrategyNode("layers[0:2]", recompute="full"),))
    assert [block_choice(root, "layers", i).recompute for i in range(3)] == ["full", "full", "none"]


# --- short forms ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "tp2 pp2 dp2", "dp8 zero1", "dp8 zero3 shard=4", "tp2 dp4 sp recompute=selective",
        "pp2 dp4 vpp2", "dp4 cp2 cp=ring", "dp8 ep4", "tp2 dp4 ep8 etp1", "pp4 dp2 zb-h1",
        "pp2 dp4 layers=3,1", "dp8 buckets=25MB", "tp2 dp4 order=dp-tp-cp-pp",
        "dp8 offload=optimizer+activations", "dp8 micro=2",
    ],
)  # fmt: skip
def test_the_canonical_spelling_reads_back_as_the_same_plan(text):
    first = plan(text)
    again = plan(first.text)
    assert (again.mesh, again.root, again.text) == (first.mesh, first.root, first.text)
    document = Plan.from_dict(first.to_dict())
    assert (document.mesh, document.root) == (first.mesh, first.root)


def test_data_parallelism_fills_the_devices():
    assert plan("tp2 pp2", 16).replicas == 4
    with pytest.raises(PlanError, match="3 ranks must divide the 8"):
        plan("tp3")
    with pytest.raises(PlanError, match="the plan is for 4 ranks"):
        plan("dp4")


def test_all_faults_of_a_short_form_at_once():
    with pytest.raises(PlanError) as refused:
        parse("tp0 zero4 schedule=zigzag offload=weights tq8 tp2 tp4 recompute=full layers=a")
    text = str(refused.value)
    for words in (
        "tp0",
        "the ZeRO stage must be 0 to 3",
        "zigzag",
        "'weights'",
        "tq8",
        "specified twice",
        "'a' is not a whole",
    ):
        assert words in text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("vpp2", "needs a pipeline"),
        ("pp2 layers=1,2,3", "lists 3 parts"),
        ("order=tp-tp", "each of tp, cp, dp and pp once"),
        ("buckets=0", "buckets of gradients have 1 to"),
        ("buckets=-5MB", "buckets of gradients have 1 to"),
        ("shard=4", "add zero1"),
        ("ep3", "must be divisible by"),
        ("tp2 ep2 etp3", r"etp3: must divide tp \(2\)"),
        ("zero1 shard=3", "must be divisible by"),
    ],
)
def test_impossible_words_are_refused_with_a_remedy(text, message):
    with pytest.raises(PlanError, match=message):
        plan(text)


def test_order_says_who_are_neighbours():
    inner = plan("tp2 dp4").mesh.groups(("tp",)).tolist()
    assert inner == [[0, 1], [2, 3], [4, 5], [6, 7]]
    outer = plan("tp2 dp4 order=dp-tp-cp-pp").mesh.groups(("tp",)).tolist()
    assert outer == [[0, 4], [1, 5], [2, 6], [3, 7]]


# --- documents --------------------------------------------------------------------------------------------


def test_people_may_write_a_mapping_of_dims_to_axes():
    written = plan(
        {"mesh": {"dp": 4, "tp": 2}, "tree": {"split": {"heads,kv_heads": "tp", "batch": "dp"}}}
    )
    assert written.root.split == (Cut(("heads", "kv_heads"), ("tp",)), Cut(("batch",), ("dp",)))
    assert written.replicas == 4


def test_all_faults_of_a_document_at_once():
    bad = {
        "mesh": {"dp": 0, "tp": "two"},
        "names": {"x": ["nowhere"]},
        "tree": {
            "splt": {},
            "split": {"batch": "dq", "seq": ["dp", "dp"]},
            "state": {"momentum": "dp"},
            "offload": "weights",
            "exchange": "rng",
            "bucket_bytes": -1,
            "schedule": {"kind": "zigzag", "stages": 0},
            "children": {"layers[x]": {"recompute": "full", "schedule": {}}},
        },
    }
    with pytest.raises(PlanError) as refused:
        Plan.from_dict(bad)
    text = str(refused.value)
    for words in (
        "mesh.dp", "mesh.tp", "names.x", "tree.splt", "no axis 'dq'", "tree.split.seq", "momentum",
        "tree.offload", "Did you mean 'ring'", "tree.bucket_bytes", "zigzag", "schedule.stages",
        "layers[x]", "children.layers[x].schedule",
    ):  # fmt: skip
        assert words in text, words


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"split": {"batch": "dp,dp"}}, "tree.split.batch: 'dp' is named 2 times"),
        ({"split": {"batch": ["dp", "all"]}}, "tree.split.batch: 'dp' is named 2 times"),
        ({"split": {"batch,batch": "dp"}}, "tree.split: 'batch' is named 2 times"),
        ({"state": {"optimizer": ["dp", "tp", "dp"]}}, "state.optimizer: 'dp' is named 2 times"),
        ({"offload": "optimizer,optimizer"}, "tree.offload: 'optimizer' is named 2 times"),
    ],
)
def test_what_a_document_lists_it_names_once(change, fault):
    document = {"mesh": {"dp": 4, "tp": 2}, "names": {"all": ["dp"]}, "tree": change}
    with pytest.raises(PlanError) as refused:
        Plan.from_dict(document)
    assert fault in str(refused.value)


def test_an_axis_that_two_cuts_give_to_the_batch_counts_once():
    cuts = [{"dims": ["batch"], "axes": ["dp"]}, {"dims": ["batch", "seq"], "axes": ["dp"]}]
    assert Plan.from_dict({"mesh": {"dp": 8}, "tree": {"split": cuts}}).replicas == 8


def test_a_child_may_select_everything():
    document = {"mesh": {"dp": 8}, "tree": {"children": [{"select": "*", "recompute": "full"}]}}
    assert plan(document).root.children == (StrategyNode("*", recompute="full"),)


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({"children": {"layrs": {"recompute": "full"}}}, "Did you mean 'layers'"),
        ({"children": {"layers[9:12]": {"recompute": "full"}}}, "matches no block or op"),
        ({"children": {"layers.fc1": {"recompute": "full"}}}, "applies to a block"),
        ({"children": {"layers": {"split": {"hiden": "dp"}}}}, "Did you mean 'hidden'"),
        ({"recompute": "ful"}, "Did you mean 'full'"),
    ],
)
def test_names_that_mean_nothing_in_the_model_are_refused(tree, message):
    document = {"mesh": {"dp": 8}, "tree": {"split": {"batch": "dp"}, **tree}}
    with pytest.raises(PlanError, match=message):
        compile_scenario(ask(tiny_model("gpt"), on=NODE, plan=document, batch=8))


def test_ranks_that_would_only_repeat_each_other_are_refused():
    with pytest.raises(PlanError, match="split over tp 2"):
        compile_scenario(ask(tiny_model("cnn"), on=NODE, plan="tp2", batch=8))


def test_the_schedule_and_the_mesh_must_agree():
    document = {"mesh": {"pp": 2, "dp": 4}, "tree": {"split": {"batch": "dp"}}}
    with pytest.raises(PlanError, match="1 stages but the mesh has pp = 2"):
        compile_scenario(ask(tiny_model("gpt"), on=NODE, plan=document, batch=8))


def test_a_tree_says_what_the_short_form_says():
    """The document of a short form is the same plan: same prediction to the last bit."""
    short = ask(tiny_model("llama"), on=NODE, plan="tp2 pp2 dp2 zero1 sp", batch=8, micro_batch=1)
    tree = ask(tiny_model("llama"), on=NODE, plan=short.plan.to_dict(), batch=8, micro_batch=1)
    assert answer(tree).step_seconds == answer(short).step_seconds


def test_recompute_of_some_layers_lies_between_none_and_all():
    steps, kept = [], []
    for children in ({}, {"layers[0:2]": {"recompute": "full"}}, {"layers": {"recompute": "full"}}):
        document = {"mesh": {"dp": 8}, "tree": {"split": {"batch": "dp"}, "children": children}}
        p = answer(ask(tiny_model("gpt"), on=NODE, plan=document, batch=16, micro_batch=2))
        steps.append(p.step_seconds)
        kept.append(p.memory.by_kind["activations"])
    assert steps[0] < steps[1] < steps[2]
    assert kept[0] > kept[1] > kept[2]
    assert steps[1] - steps[0] == pytest.approx(steps[2] - steps[1], rel=1e-6)


@pytest.mark.parametrize("word", ["attention", "act", "fc1,act", "kind*", "layers.fc1"])
def test_recompute_by_the_name_of_an_op(word):
    question = ask(tiny_model("gpt"), on=NODE, plan=f"recompute={word}", batch=8)
    if word == "kind*":
        with pytest.raises(PlanError, match="must be none, selective, full or an op"):
            answer(question)
        return
    plain = ask(tiny_model("gpt"), on=NODE, plan="recompute=none", batch=8)
    assert answer(question).step_seconds > answer(plain).step_seconds


def test_layers_named_by_ranges_share_what_is_compiled_for_alike_ones():
    """Ranges that say the same, or differ in what is recomputed alone, are one program; the answer is the same."""
    asked = ask(tiny_model("gpt"), on="1 x dgx-a100-80gb", plan="tp2 pp2 dp2", batch=8)
    block = next(b for b in asked.workload.model.blocks if b.repeat > 1)
    root = asked.plan.root
    ranges = tuple(
        StrategyNode(f"{block.name}[{n}]", recompute="none") for n in range(block.repeat)
    )
    said = replace(
        asked, plan=replace(asked.plan, root=replace(root, children=root.children + ranges))
    )
    blocks = blocks_of(said.workload, said.plan, said.runtime)
    number = said.workload.model.blocks.index(block)
    _, layouts = blocks.block(number, 0, None, "none")
    one, _ = blocks.block(number, 1, layouts, "none")
    assert all(blocks.block(number, n, layouts, "none")[0] is one for n in range(block.repeat))
    assert answer(said).step_seconds == answer(asked).step_seconds


@pytest.mark.parametrize("word", ["dp", "tp", "zero"])
def test_a_degree_without_a_number_says_what_it_needs(word: str) -> None:
    from foretrain.plan.short_form import said

    with pytest.raises(PlanError, match=f"{word}: needs a number, such as {word}"):
        said(f"tp2 {word}")


def test_a_plan_made_of_words_is_what_the_words_are():
    asked = {"on": "2 x dgx-h100", "runtime": "megatron", "batch": 64, "seq": 4096}
    words = "tp4 pp2 zero1 micro=2"
    made = Plan.of(words, devices=16, runtime=runtime("megatron"))
    whole, said = (
        predict("llama3-8b", plan=made, **asked),
        predict("llama3-8b", plan=words, **asked),
    )
    assert whole.provenance["inputs_sha256"] == said.provenance["inputs_sha256"]
    assert whole.step_seconds == said.step_seconds
    assert "micro-batch 2: as in the plan given (--micro-batch)" in whole.assumptions
