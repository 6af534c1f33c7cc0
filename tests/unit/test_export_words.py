"""Nothing of a plan is dropped: every word is in the files, or in a line that says why not."""

from __future__ import annotations

import re
from dataclasses import fields, replace
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foretrain.adapters.write import TARGETS, Exported, export
from foretrain.adapters.write.architecture import shape_of
from foretrain.adapters.write.job import Account, ExportJob
from foretrain.errors import Bug
from foretrain.model import zoo
from foretrain.model.load import load_model
from foretrain.model.transformer import transformer
from foretrain.plan.plan import Plan
from foretrain.plan.plan_words import said
from foretrain.plan.short_form import Words
from foretrain.runtime import runtime
from foretrain.testing.asking import ask

DENSE, SPARSE, TABLES = "gpt3-1.3b", "mixtral-8x7b", "dlrm-mlperf"

# word -> (model, plan without it, plan with it, how the word reads)
CHANGES: dict[str, list[tuple[str, str, str, str]]] = {
    "tp": [(DENSE, "", "tp2", "tp2"), (DENSE, "zero3", "tp2 zero3", "tp2")],
    "pp": [(DENSE, "", "pp2", "pp2")],
    "vpp": [(DENSE, "pp2", "pp2 vpp2", "vpp2"), (DENSE, "pp4", "pp4 vpp3", "vpp3")],
    "cp": [(DENSE, "", "cp2", "cp2"), (DENSE, "zero3", "cp2 zero3", "cp2")],
    "ep": [(SPARSE, "", "ep8", "ep8")],
    "dp": [(DENSE, "pp8 dp2", "pp4 dp4", "dp4")],
    "etp": [(SPARSE, "tp2 ep8", "tp2 ep8 etp1", "etp1")],
    "zero": [
        (DENSE, "", "zero1", "zero1"),
        (DENSE, "zero1", "zero2", "zero2"),
        (DENSE, "zero2", "zero3", "zero3"),
    ],
    "shard": [
        (DENSE, "zero1", "zero1 shard=8", "shard=8"),
        (DENSE, "zero3", "zero3 shard=8", "shard=8"),
        (DENSE, "zero3 cp2", "zero3 cp2 shard=2", "shard=2"),
    ],
    "sp": [(DENSE, "tp2", "tp2 sp", "sp"), (DENSE, "tp2 zero3", "tp2 zero3 sp", "sp")],
    "schedule": [
        (DENSE, "pp4", "pp4 gpipe", "gpipe"),
        (DENSE, "pp4", "pp4 zb-h1", "zb-h1"),
    ],
    "recompute": [
        (DENSE, "", "recompute=full", "recompute=full"),
        (DENSE, "zero3", "zero3 recompute=full", "recompute=full"),
        (DENSE, "", "recompute=selective", "recompute=selective"),
        (DENSE, "zero3", "zero3 recompute=selective", "recompute=selective"),
        (DENSE, "", "recompute=full*0.5", "recompute=full*0.5"),
        (DENSE, "pp2", "pp2 recompute=full@0,1,12,13", "recompute=full@0,1,12,13"),
        (DENSE, "", "recompute=ln1,ln2", "recompute=ln1,ln2"),
        (DENSE, "", "recompute=fc1,residual1", "recompute=fc1,residual1"),
    ],
    "offload": [
        (DENSE, "", "offload=optimizer", "offload=optimizer"),
        (DENSE, "zero1", "zero1 offload=optimizer", "offload=optimizer"),
        (DENSE, "zero3", "zero3 offload=optimizer", "offload=optimizer"),
        (DENSE, "", "offload=activations", "offload=activations"),
        (DENSE, "pp2", "pp2 offload=activations", "offload=activations"),
        (DENSE, "zero3 recompute=full", "zero3 recompute=full offload=activations", "offload=activations"),
    ],
    "exchange": [(DENSE, "cp2", "cp2 cp=ring", "cp=ring"), (DENSE, "cp2 zero3", "cp2 zero3 cp=ring", "cp=ring")],
    "tables": [(TABLES, "", "tables=rows", "tables=rows")],
    "buckets": [(DENSE, "", "buckets=64MB", "buckets=64MB"), (DENSE, "zero3", "zero3 buckets=64MB", "buckets=64MB")],
    "layers": [(DENSE, "pp2", "pp2 layers=11,13", "layers=11,13")],
    "order": [
        (DENSE, "tp2 pp2", "tp2 pp2 order=tp-pp-dp", "order=tp-pp-dp"),
        (DENSE, "tp2 zero3", "tp2 zero3 order=dp-tp", "order=dp-tp"),
    ],
    "micro": [(DENSE, "", "micro=2", "micro=2")],
}  # fmt: skip


@cache
def made(model: str, plan: str, target: str) -> Exported:
    batch = 65536 if model == TABLES else 64
    return export(ask(model, on="2 x dgx-h100", plan=plan, batch=batch), target)


def content(exported: Exported) -> dict[str, str]:
    """Files without their comments, which repeat the plan."""
    return {name: re.sub(r"^#.*\n", "", text, flags=re.M) for name, text in exported.files.items()}


def test_every_word_is_changed_by_some_row() -> None:
    assert set(CHANGES) == {field.name for field in fields(Words)}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("word", CHANGES)
def test_a_word_changes_the_files_or_is_named_in_a_line(word: str, target: str) -> None:
    for model, without, with_it, spelled in CHANGES[word]:
        if model == TABLES and target not in ("deepspeed", "torchrun", "accelerate"):
            continue  # they train transformers alone
        before, after = made(model, without, target), made(model, with_it, target)
        is_told = any(line.startswith(f"{spelled}:") for line in after.cannot)
        is_said = content(before) != content(after)
        was_refused = set(before.cannot) - set(
            after.cannot
        )  # the other value was; this one is said
        assert is_told or is_said or was_refused, f"{with_it} for {target}"


@pytest.mark.parametrize("target", TARGETS)
def test_a_plan_that_the_target_has_words_for_leaves_nothing_unsaid(target: str) -> None:
    whole = {
        "megatron": ("llama3-8b", "tp2 pp4 vpp2 cp2 cp=ring sp zero1 recompute=full buckets=64MB micro=2", "megatron"),
        "deepspeed": ("llama3-8b", "zero3 offload=optimizer buckets=64MB micro=2", "deepspeed"),
        "torchrun": ("llama3-8b", "zero3 shard=8 recompute=full*0.5 offload=activations micro=2", "fsdp2"),
        "accelerate": ("llama3-8b", "tp2 cp2 zero3 recompute=full offload=activations micro=2", "fsdp2"),
        "nanotron": ("llama3-8b", "tp2 pp2 cp2 cp=ring sp zero1 recompute=full buckets=64MB micro=2", "nanotron"),
        "torchtitan": ("llama3-8b", "tp2 pp2 vpp2 cp2 cp=ring sp zero1 shard=4 recompute=selective micro=2", "torchtitan"),
        "megatron-bridge": ("llama3-8b", "tp2 pp4 vpp2 cp2 cp=ring sp zero1 recompute=full buckets=64MB micro=2", "megatron-bridge"),
        "maxtext": ("llama3-8b", "tp2 pp2 cp2 cp=ring gpipe sp zero3 recompute=full offload=optimizer micro=2", "maxtext"),
        "axolotl": ("llama3-8b", "tp2 cp2 cp=ring zero3 recompute=full offload=activations micro=2", "fsdp2"),
        "llama-factory": ("llama3-8b", "zero2 recompute=full offload=optimizer buckets=64MB micro=2", "deepspeed"),
    }  # fmt: skip
    model, plan, software = whole[target]
    asked = ask(model, on="4 x dgx-h100", plan=plan, batch=128, runtime=software)
    assert export(asked, target).cannot == ()


def test_refusals_are_plain() -> None:
    lines = made(DENSE, "pp4 zb-h1", "megatron").cannot
    assert lines[0].startswith("zb-h1: Megatron-LM runs 1F1B")
    lines = made(DENSE, "pp2", "accelerate").cannot
    assert (
        "pp2: Accelerate does not support pipeline parallelism; all ranks become replicas"
    ) in lines
    lines = made(DENSE, "zero1", "accelerate").cannot
    assert any(line.startswith("zero1: FSDP always shards gradients") for line in lines)
    lines = made(DENSE, "pp2", "deepspeed").cannot
    assert any("PipelineModule(num_stages=2)" in line for line in lines)


def test_what_megatron_asks_of_experts() -> None:
    """Sequence parallelism beside tensor parallelism, and no fp16 (moe_layer.py, arguments.py)."""
    made_of = made(SPARSE, "tp2 ep8", "megatron")
    assert "--sequence-parallel\n" in made_of.files["megatron_args.txt"]
    assert any(line.startswith("tp2 without sp:") for line in made_of.cannot)
    asked = ask(SPARSE, on="2 x dgx-h100", plan="ep8", batch=64, precision="fp16")
    half = export(asked, "megatron")
    assert "ep8: Megatron-LM does not support expert parallelism in fp16" in half.cannot
    assert "--expert-model-parallel-size" not in half.files["megatron_args.txt"]
    assert "--moe-grouped-gemm" not in half.files["megatron_args.txt"]


def test_nodes_of_unlike_size_are_told() -> None:
    from foretrain.cluster import Cluster

    uneven = Cluster.of("2 x dgx-h100").placed([8, 4])
    lines = export(ask(DENSE, on=uneven, plan="", batch=48), "torchrun").cannot
    assert any(line.startswith("nodes with 8, 4 devices:") for line in lines)


def test_a_word_left_out_is_our_bug() -> None:
    job = ExportJob.of(ask(DENSE, on="2 x dgx-h100", plan="tp2 zero1 sp", batch=64))
    account = Account(job)
    account.says("tp", "dp", "micro", "order")
    with pytest.raises(Bug, match=r"dropped zero, sp without a word"):
        account.close("nowhere")


# --- trees --------------------------------------------------------------------------------------------

TREE: dict[str, Any] = {
    "mesh": {"pp": 2, "dp": 4, "tp": 2},
    "tree": {
        "split": {"heads,kv_heads": "tp", "ffn": "tp", "vocab": "tp", "batch": "dp"},
        "state": {"optimizer": "dp"},
        "schedule": {"kind": "1f1b", "micro_batch": 2, "stages": 2},
        "children": {
            "layers[0:4]": {"recompute": "full"},
            "head": {"state": {"optimizer": "dp", "gradient": "dp", "weight": "dp"}},
        },
    },
}


@pytest.mark.parametrize("target", TARGETS)
def test_choices_for_parts_of_a_model_are_told(target: str) -> None:
    asked = ask(DENSE, on="2 x dgx-h100", plan=TREE, batch=64)
    lines = export(asked, target).cannot
    assert any(line.startswith("layers[0:4]: recompute=full") for line in lines)
    assert any(line.startswith("head: optimizer over dp; gradient over dp") for line in lines)


def test_a_tree_is_read_into_words() -> None:
    asked = ask(DENSE, on="2 x dgx-h100", plan=TREE, batch=64)
    told = said(asked.plan, asked.runtime)
    assert (told.words.tp, told.words.pp, told.words.dp, told.words.zero) == (2, 2, 4, 1)
    assert told.words.micro == 2
    assert told.order == ("tp", "dp", "pp")
    assert len(told.rest) == 2


def test_a_stale_text_is_not_believed() -> None:
    """A tree that was edited under its old text is read from the tree."""
    document = ask(DENSE, on="2 x dgx-h100", plan="tp2 pp2 zero1", batch=64).plan.to_dict()
    document["tree"]["state"] = {}
    asked = ask(DENSE, on="2 x dgx-h100", plan=document, batch=64)
    assert asked.plan.text == "tp2 pp2 dp4 zero1"
    assert said(asked.plan, asked.runtime).words.zero == 0
    assert "--use-distributed-optimizer" not in export(asked, "megatron").files["megatron_args.txt"]


@settings(max_examples=60, deadline=None)
@given(
    tp=st.sampled_from([1, 2, 4]), pp=st.sampled_from([1, 2, 4]), cp=st.sampled_from([1, 2]),
    zero=st.integers(0, 3), sp=st.booleans(), micro=st.sampled_from([1, 2]),
    recompute=st.sampled_from(["none", "full", "selective", "full*0.5"]),
    exchange=st.sampled_from(["ring", "all-gather"]), vpp=st.sampled_from([1, 2]),
    offload=st.sampled_from([(), ("optimizer",), ("activations",), ("optimizer", "activations")]),
)  # fmt: skip
def test_words_survive_their_tree(vpp: int, **given: Any) -> None:
    """What is read from a tree without its text says the same plan again."""
    words = Words(**given, vpp=vpp if given["pp"] > 1 else 1)
    stack = runtime("megatron")
    plan = Plan.of(words, devices=64, runtime=stack)
    spoken, read = said(plan, stack), said(replace(plan, text=""), stack)
    assert read.rest == ()
    assert read.order == spoken.order
    again = Plan.of(replace(read.words, schedule=None), devices=64, runtime=stack)
    assert (again.mesh, again.root) == (plan.mesh, plan.root)


@st.composite
def legal_words(draw: st.DrawFn) -> Words:
    def pick(*values: Any) -> Any:
        return draw(st.sampled_from(values))

    pp, zero = pick(1, 2, 4), pick(0, 1, 2, 3)
    schedule = pick(None, "gpipe", "1f1b", "zb-h1") if pp > 1 else None
    return Words(
        tp=pick(1, 2),
        pp=pp,
        vpp=pick(1, 3) if pp > 1 and schedule is None else 1,
        cp=pick(1, 2),
        zero=zero,
        shard=pick(None, 2) if zero else None,
        sp=pick(False, True),
        schedule=schedule,
        recompute=pick(None, "full", "selective", "full*0.25", "full@0,3", "fc1,act", "ln1,ln2"),
        offload=pick((), ("optimizer",), ("activations",), ("optimizer", "activations")),
        exchange=pick("ring", "all-gather"),
        buckets=pick(None, 1e6),
        order=pick(None, ("tp", "cp", "pp", "dp"), ("dp", "tp", "cp", "pp")),
        micro=pick(1, 2),
    )


@settings(max_examples=50, deadline=None)
@given(words=legal_words(), target=st.sampled_from(sorted(TARGETS)))
def test_no_plan_is_dropped_in_part(words: Words, target: str) -> None:
    """Whatever the words, all are accounted for: a lost one would be a Bug. Their tree alone says as much."""
    plan = Plan.of(words, devices=32, runtime=runtime("megatron"))
    spoken = export(ask("gpt3-125m", on="4 x dgx-h100", plan=plan, batch=64), target)
    bare = replace(plan, text="")
    read = export(ask("gpt3-125m", on="4 x dgx-h100", plan=bare, batch=64), target)
    assert content(spoken) == content(read)
    assert spoken.cannot == read.cannot


# --- models -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [n for n in zoo.names() if zoo.shape(n) is not None])
def test_shapes_are_read_back_from_graphs(name: str) -> None:
    """Under a name the zoo does not know the graph alone must tell: what is read draws the same model."""
    model = replace(load_model(name), name="somebody-else's")
    shape = shape_of(model)
    assert shape is not None
    assert model.seq_len is not None
    again = transformer(shape, model.seq_len, model.name, model.source)
    assert (again.blocks, again.tied) == (model.blocks, model.tied)
    assert again.parameters == model.parameters


@pytest.mark.parametrize("name", ["resnet50", "t5-small", "vit-b", "dlrm-small", "gnmt", "yolov3"])
def test_what_is_no_such_transformer_has_no_shape(name: str) -> None:
    assert shape_of(load_model(name)) is None


def test_the_zoo_knows_more_than_the_graph() -> None:
    shape = shape_of(load_model("bloom-176b"))
    assert shape is not None
    assert shape.position == "alibi"
