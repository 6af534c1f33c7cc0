"""Multi-token prediction: modules behind the layers, what they hold, compute and share, and the switches for them."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from statistics import median
from typing import Any

import pytest
from estimate_gaps import gaps
from support.plans import tiny_model
from support.verify import verify_all

from foretrain.adapters.write import export
from foretrain.adapters.write.architecture import shape_of
from foretrain.cases import scenario_from_case
from foretrain.cases.switches import layers_from
from foretrain.cluster.cluster import Cluster
from foretrain.compile.execution import ExecutionGraph
from foretrain.errors import ModelError, PlanError, RuntimePresetError
from foretrain.model import zoo
from foretrain.model.graph import Model
from foretrain.model.huggingface import model_from_config
from foretrain.model.ops import family, forward_flops
from foretrain.model.transformer import transformer
from foretrain.planning.task import Task
from foretrain.resolving import ask
from foretrain.scenario import Scenario
from foretrain.simulate import answer, compile_scenario
from foretrain.testing.parallelism import contraction_flops, message_bytes

S, H, V = 64, 1024, 2048  # of the tiny transformers
GLM = {
    "model_type": "glm4_moe", "hidden_size": 5120, "num_hidden_layers": 92,
    "num_attention_heads": 96, "num_key_value_heads": 8, "head_dim": 128,
    "intermediate_size": 12288, "moe_intermediate_size": 1536, "n_routed_experts": 160,
    "n_shared_experts": 1, "num_experts_per_tok": 8, "first_k_dense_replace": 3,
    "vocab_size": 151552, "hidden_act": "silu", "tie_word_embeddings": False,
    "attention_bias": True, "use_qk_norm": True, "num_nextn_predict_layers": 1,
}  # fmt: skip


def tiny(modules: int, **changes: Any) -> Model:
    shape = tiny_model("moe").shape
    assert shape is not None
    return transformer(replace(shape, num_nextn_predict_layers=modules, **changes), S, "tiny")


def asked(model: Model, plan: str, ranks: int = 8, **options: Any) -> Scenario:
    options = {"pads_vocabulary_to": 1, "clips_gradients": False} | options
    on = Cluster.of("1 x dgx-a100-80gb").first(ranks)
    return ask(model, on=on, plan=plan, batch=16, micro_batch=1, runtime="megatron",
               runtime_options=options)  # fmt: skip


def compiled(model: Model, plan: str, ranks: int = 8, **options: Any) -> ExecutionGraph:
    return compile_scenario(asked(model, plan, ranks, **options))


# --- the model ----------------------------------------------------------------------------------------


def stored(model: Model) -> int:
    """Parameters of a checkpoint that stores shared weights with each module."""
    return sum(block.parameters * block.repeat for block in model.blocks)


def test_deepseek_v3_has_as_many_parameters_as_its_report_says() -> None:
    """671B, and 685B on disk with a module of 11.5B of its own (DeepSeek-V3, README_WEIGHTS)."""
    main = zoo.build("deepseek-v3")
    shape = zoo.shape("deepseek-v3")
    assert shape is not None
    assert not shape.num_nextn_predict_layers
    whole = transformer(replace(shape, num_nextn_predict_layers=1), 4096, "deepseek-v3")
    assert whole.parameters - main.parameters == pytest.approx(11.5e9, rel=0.015)
    assert stored(whole) == pytest.approx(685e9, rel=0.002)
    assert stored(whole) - whole.parameters == 2 * 129280 * 7168


def test_glm_has_as_many_parameters_as_its_checkpoint() -> None:
    """358B as Hugging Face counts zai-org/GLM-4.5, 355B without the module."""
    assert stored(model_from_config(GLM)) == pytest.approx(358.3e9, rel=0.001)
    alone = model_from_config(GLM | {"num_nextn_predict_layers": 0})
    assert alone.parameters == pytest.approx(355e9, rel=0.01)


@pytest.mark.parametrize("modules", [1, 2])
def test_arithmetic_of_a_module(modules: int) -> None:
    plain, more = tiny(0), tiny(modules)
    layer = sum(family(op).flops(op) for op in plain.blocks[1].ops)
    each = layer + 2.0 * S * 2 * H * H + 2.0 * S * H * V
    assert forward_flops(more) - forward_flops(plain) == pytest.approx(modules * each)


def test_shapes_without_a_next_token_have_no_modules() -> None:
    shape = zoo.shape("bert-base")
    assert shape is not None
    with pytest.raises(ModelError, match="num_nextn_predict_layers"):
        replace(shape, num_nextn_predict_layers=1)


@pytest.mark.parametrize(("modules", "tied"), [*product([0, 1, 3], [False, True])])
def test_shapes_with_modules_are_read_back(modules: int, tied: bool) -> None:
    model = tiny(modules, tie_word_embeddings=tied)
    shape = shape_of(replace(model, name="somebody-else's"))
    assert shape is not None
    assert (shape.num_nextn_predict_layers, shape.tie_word_embeddings) == (modules, tied)


# --- compiled -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "plan", ["tp8 sp", "tp2 dp4 ep4", "pp2 tp2 sp ep2", "pp4 vpp1 dp2 ep2 zero1", "cp2 tp2 ep2 zero3",
             "pp2 dp4 zb-h1 ep4", "pp2 vpp2 dp4 ep4 recompute=full", "tp4 no-sp recompute=selective"],
)  # fmt: skip
def test_every_split_compiles(plan: str, monkeypatch: pytest.MonkeyPatch) -> None:
    verify_all(monkeypatch)
    for modules in (1, 2):
        assert (
            answer(asked(tiny(modules), plan)).step_seconds
            > answer(asked(tiny(0), plan)).step_seconds
        )


def test_modules_are_on_the_last_stage() -> None:
    graph = compiled(tiny(1), "pp4 dp2")
    blocks = [dict(stage.blocks) for stage in graph.stages]
    assert [("mtp" in one, "mtp_head" in one, "head" in one) for one in blocks] == [
        *[(False, False, False)] * 3,
        (True, True, True),
    ]


def test_shared_weights_are_held_once_by_a_stage() -> None:
    """The head is the module's too; the table is on another stage, so the module has a copy."""
    module = tiny(1).parameters - tiny(0).parameters
    for tied in (False, True):
        plain, more = (
            compiled(tiny(n, tie_word_embeddings=tied, num_hidden_layers=12), "pp2 dp4 layers=6,6")
            .stages[-1]
            .parameters
            for n in (0, 1)
        )
        copied = 0 if tied else V * H
        assert more - plain == module + copied
        alone = [
            compiled(tiny(n, tie_word_embeddings=tied), "dp8").stages[0].parameters for n in (0, 1)
        ]
        assert alone[1] - alone[0] == module


@pytest.mark.parametrize(("modules", "tied", "sent"), [(0, False, 0), (1, False, 1), (2, False, 1), (1, True, 1)])  # fmt: skip
def test_copies_of_the_table_meet_before_the_update(modules: int, tied: bool, sent: int) -> None:
    graph = compiled(tiny(modules, tie_word_embeddings=tied), "pp2 tp2 dp2")
    found = [n for s, n in message_bytes(graph).items() if s.purpose == "embedding"]
    assert sum(found) == sent * 4.0 * V * H / 2  # fp32 gradients of half the vocabulary


def test_a_module_runs_again_as_layers_do() -> None:
    """Its projection and its layer, but neither the table nor the head with its loss."""

    def again(modules: int) -> float:
        none, full = (
            contraction_flops(compiled(tiny(modules), f"dp8 recompute={word}"))
            for word in ("none", "full")
        )
        return full - none

    projected = 16 * 2.0 * S * 2 * H * H  # of all samples
    assert again(1) == pytest.approx(again(0) * 5 / 4 + projected)


def test_searches_estimate_modules_as_they_are_simulated() -> None:
    task = Task.of(asked(tiny(1), "dp8"))
    found = gaps(task, ["micro=1", "cp=1", "offload=none", "order=default"], 16, seed=0)
    assert median(abs(gap.time) for gap in found) < 0.04
    assert max(abs(gap.memory) for gap in found) < 0.01


# --- switches -----------------------------------------------------------------------------------------


def modules_of(model: str | Model, **options: Any) -> int:
    shape = ask(model, on="1 x dgx-h100", plan="dp8", batch=8, micro_batch=1, seq=64,
                runtime_options=options).workload.model.shape  # fmt: skip
    assert shape is not None
    return shape.num_nextn_predict_layers


def test_switches_turn_modules_on_and_off() -> None:
    assert modules_of("gpt2") == 0
    assert modules_of("gpt2", mtp=True) == 1
    assert modules_of("gpt2", mtp_layers=3) == 3
    assert modules_of("gpt2", mtp=True, mtp_layers=2) == 2
    assert modules_of(tiny(2)) == 2
    assert modules_of(tiny(2), mtp=True) == 2
    assert modules_of(tiny(2), mtp=False) == 0


@pytest.mark.parametrize(
    ("options", "told"),
    [({"mtp": True, "mtp_layers": 0}, "contradict each other"), ({"mtp": "perhaps"}, "perhaps"),
     ({"mtp_layers": -1}, "-1"), ({"mtp_layers": 1.5}, "1.5"), ({"mtp_layers": True}, "True")],
)  # fmt: skip
def test_switches_that_say_nothing_usable(options: dict[str, Any], told: str) -> None:
    with pytest.raises(RuntimePresetError, match=told):
        modules_of("gpt2", **options)


def test_models_that_have_no_next_token() -> None:
    with pytest.raises(RuntimePresetError, match="resnet50"):
        ask("resnet50", on="1 x dgx-h100", batch=64, runtime_options={"mtp": True})
    with pytest.raises(ModelError, match="next-token prediction models"):
        modules_of("bert-base", mtp=True)


def test_a_case_says_where_modules_are() -> None:
    case = {
        "id": "x", "model": {"zoo": "gpt2"}, "seq_len": 64,
        "cluster": {"device": "h100", "devices_per_node": 8, "nodes": 1}, "devices": 8,
        "plan": {"pp": 4, "dp": 2}, "batch": {"global": 16, "micro": 1}, "precision": "bf16",
        "runtime": "megatron",
        "runtime_options": {"mtp": True, "mtp_layers": 1, "pipeline_layout": "Et*4|(t*4|)*2mL"},
    }  # fmt: skip
    question = scenario_from_case(case)
    assert not question.warnings
    assert question.plan.schedule.layers == (4, 4, 4, 0)
    assert [dict(s.blocks) for s in compile_scenario(question).stages][3] == {
        "mtp": 1, "mtp_head": 1, "head": 1,
    }  # fmt: skip


def test_layouts_of_pipelines() -> None:
    assert layers_from({"pipeline_layout": "Ett|t*3|(tt|)*2tmL"}) == (2, 3, 2, 2, 1)
    assert layers_from({"pipeline_layout": "E,t|t,m|L", "layers_per_stage": None}) == (1, 1, 0)
    for drawn in ("Ett|txL", "(tt|)*9999999L", "Ett|Ltt", "t*" * 50):
        with pytest.raises(PlanError, match="pipeline_layout"):
            layers_from({"pipeline_layout": drawn})


def test_a_part_that_holds_nothing_is_refused() -> None:
    with pytest.raises(PlanError, match="would be empty"):
        compiled(tiny(1, num_hidden_layers=12), "pp4 dp2 layers=6,0,6,0")


def test_megatron_is_told() -> None:
    deep = asked(tiny(1, num_hidden_layers=12), "pp4 dp2 layers=5,5,2,0")
    files = export(deep, "megatron").files
    arguments = files["megatron_args.txt"].splitlines()
    assert "--mtp-num-layers 1" in arguments
    assert "--pipeline-model-parallel-layout Et*5|t*5|tt|mL" in arguments
    plain = export(asked(tiny(0), "pp4 dp2"), "megatron").files["megatron_args.txt"]
    assert "mtp" not in plain
