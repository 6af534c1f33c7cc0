"""Adapters on frozen weights: what is trained, computed, kept and reduced, and the switches that ask for them."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from estimate_gaps import gaps
from support.plans import tiny_model
from support.verify import verify_all

from foretrain import export
from foretrain.analysis.goodput import checkpoint_bytes
from foretrain.cases import scenario_from_case
from foretrain.cli import run
from foretrain.cluster.cluster import Cluster
from foretrain.compile.execution import Compute, ExecutionGraph
from foretrain.errors import InputError, ModelError, RuntimePresetError
from foretrain.model.graph import Model
from foretrain.model.load import load_model
from foretrain.model.lora import TARGETS, Adapters, with_adapters
from foretrain.model.ops import family, forward_flops, training_flops
from foretrain.model.ops.base import WEIGHT_GRADIENT
from foretrain.model.verify import model_faults
from foretrain.planning.task import Task
from foretrain.resolving import ask
from foretrain.scenario import Scenario
from foretrain.simulate import answer, compile_scenario
from foretrain.testing.parallelism import contraction_flops, message_bytes

S, H, V = 64, 1024, 2048  # of the tiny transformers
LORA = {"peft": "lora", "lora_rank": 8, "lora_targets": ["linear_qkv", "linear_proj"]}


def asked(
    plan: str = "dp8", model: str | Model = "llama", ranks: int = 8, **options: Any
) -> Scenario:
    options = {"pads_vocabulary_to": 1, "clips_gradients": False} | options
    on = Cluster.of("1 x dgx-a100-80gb").first(ranks)
    of = tiny_model(model) if model in ("llama", "gpt", "moe") else model  # type: ignore[arg-type]
    return ask(of, on=on, plan=plan, batch=16, micro_batch=1, runtime="megatron", precision="bf16",
               optimizer="adam", runtime_options=options)  # fmt: skip


def compiled(*args: Any, **options: Any) -> ExecutionGraph:
    return compile_scenario(asked(*args, **options))


def trained(model: str, rank: int, *targets: str) -> int:
    adapted = with_adapters(load_model(model), Adapters(rank, targets))
    assert model_faults(adapted) == []
    assert adapted.parameters == load_model(model).parameters + adapted.trained_parameters
    return adapted.trained_parameters


# --- the model ----------------------------------------------------------------------------------------


def test_parameters_of_adapters() -> None:
    # MLPerf Training's Llama 2 70B LoRA: 44,564,480 trainable parameters
    assert trained("llama2-70b", 16, "linear_qkv", "linear_proj") == 44_564_480
    # PEFT on Llama 2 7B, r = 8, q_proj and v_proj: "trainable params: 4,194,304"
    assert trained("llama2-7b", 8, "q_proj", "v_proj") == 4_194_304
    # … and r = 16 on all linear layers: 39,976,960
    assert trained("llama2-7b", 16, "all-linear") == 39_976_960
    apart = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    assert trained("llama2-7b", 16, *apart) == 39_976_960
    assert trained("llama2-7b", 4, "linear_fc1", "linear_fc2") == 32 * 4 * (
        (4096 + 2 * 11008) + (11008 + 4096)
    )


@pytest.mark.parametrize("target", TARGETS)
def test_every_target_draws_a_legal_model(target: str) -> None:
    for name in ("gpt", "llama"):
        model = with_adapters(tiny_model(name), Adapters(4, (target,)))
        assert model_faults(model) == []
        assert 0 < model.trained_parameters < model.parameters


def test_arithmetic_counts_no_gradients_of_frozen_weights() -> None:
    plain = tiny_model("llama")
    model = with_adapters(plain, Adapters(8, ("linear_qkv",)))
    products = sum(block.repeat * family(op).flops(op) for block, op in plain.ops() if op.weights)
    rest = forward_flops(plain) - products
    adapters = forward_flops(model) - forward_flops(plain)
    assert training_flops(plain) == 3 * forward_flops(plain)
    assert training_flops(model) == pytest.approx(2 * products + 3 * rest + 3 * adapters)


# --- compiled -----------------------------------------------------------------------------------------


def weight_gradients(graph: ExecutionGraph) -> set[str]:
    works = (work for item in graph.items for work in (item.work,) if isinstance(work, Compute))
    return {w.op for w in works if w.kernel.phase == WEIGHT_GRADIENT}


def test_only_adapters_have_weight_gradients() -> None:
    assert {name.rpartition("_")[2] for name in weight_gradients(compiled(**LORA))} == {"a", "b"}
    assert "layers.qkv" in weight_gradients(compiled())


def test_states_are_of_adapters_alone() -> None:
    scenario = asked("tp2 dp4 zero0", **LORA)
    stage = compile_scenario(scenario).stages[0]
    full = compile_scenario(asked("tp2 dp4 zero0")).stages[0]
    elements = stage.parameters - full.parameters  # of adapters, as a rank holds them
    assert stage.gradients == 4.0 * elements  # Megatron adds gradients up in fp32
    assert stage.optimizer == (8.0 + 4.0) * elements
    assert stage.weights == 2.0 * stage.parameters
    assert full.optimizer == (8.0 + 4.0) * full.parameters


@pytest.mark.parametrize(("stored", "each"), [(None, 2.0), ("bf16", 2.0), ("fp8", 1.0), ("nf4", 0.515875)])  # fmt: skip
def test_frozen_weights_of_products_are_kept_as_said(stored: str | None, each: float) -> None:
    graph = compiled("dp8", frozen_weights_dtype=stored, **LORA)
    model = asked(**LORA).workload.model
    products = sum(
        block.repeat * op.parameters
        for block, op in model.ops()
        if op.is_frozen and op.kind == "linear" and op.name != "logits"
    )
    whole = model.parameters - products
    assert graph.stages[0].weights == pytest.approx(each * products + 2.0 * whole)


def test_only_adapters_are_reduced_and_gathered() -> None:
    model = asked(**LORA).workload.model
    for plan in ("dp8 zero0", "dp8 zero1"):
        found = message_bytes(compiled(plan, **LORA))
        sums = {s.collective: n for s, n in found.items() if s.purpose in ("data", "weights")}
        assert sums.get("all_reduce", 0) + sums.get("reduce_scatter", 0) == 4.0 * model.trained_parameters  # fmt: skip
        assert sums.get("all_gather", 0) in (0, 2.0 * model.trained_parameters)
    # fully sharded, frozen weights are gathered twice for every micro-batch and adapters with them
    found = message_bytes(compiled("dp8 zero3", frozen_weights_dtype="fp8", **LORA))
    gathered = sum(n for s, n in found.items() if s.collective == "all_gather")
    full = message_bytes(compiled("dp8 zero3"))
    assert gathered < 0.75 * sum(n for s, n in full.items() if s.collective == "all_gather")


def test_no_gradients_below_the_first_adapter() -> None:
    """Beside the frozen products' gradients, the first layer's qkv has nothing to hand on to."""
    graph, plain = compiled(**LORA), tiny_model("llama")
    model = asked(**LORA).workload.model
    qkv = next(op for _, op in plain.ops() if op.name == "qkv")
    down = next(op for _, op in model.ops() if op.name == "qkv_lora_a")
    full = contraction_flops(compiled())
    frozen = sum(b.repeat * family(op).flops(op) for b, op in plain.ops() if op.weights)
    adapters = 3 * (forward_flops(model) - forward_flops(plain))
    unasked = family(qkv).flops(qkv) + family(down).flops(down)
    assert contraction_flops(graph) == pytest.approx(full + 16 * (adapters - frozen - unasked))


def test_inputs_of_frozen_products_are_not_kept() -> None:
    """What a layer keeps: the inputs of both norms, of attention and the activation, and those of adapters."""
    graph = compiled("dp8", attention="flash", **LORA)
    kept = answer(asked("dp8", attention="flash", **LORA)).memory.by_kind["activations"]
    without = answer(asked("dp8", attention="flash")).memory.by_kind["activations"]
    assert kept < without
    assert graph.stages[0].gradients < 1e-2 * compiled("dp8").stages[0].gradients


@pytest.mark.parametrize(
    "plan",
    ["tp8 sp", "tp4 no-sp", "tp2 cp2 sp zero1", "pp4 dp2 zero1", "pp2 vpp2 dp4", "pp2 dp4 zb-h1", "dp8 zero3",
     "dp8 zero2 recompute=full", "pp2 tp2 sp recompute=selective", "pp4 dp2 gpipe recompute=fc1,act"],
)  # fmt: skip
@pytest.mark.parametrize("model", ["gpt", "llama"])
def test_every_split_compiles(plan: str, model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    verify_all(monkeypatch)
    for targets in (["linear_qkv"], "all-linear"):
        words = LORA | {"lora_targets": targets}
        found, full = (answer(asked(plan, model, **options)) for options in (words, {}))
        assert found.memory.peak_bytes < full.memory.peak_bytes


def test_a_stage_without_anything_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first holds the table alone: there is nothing to go back to."""
    verify_all(monkeypatch)
    model = load_model({"zoo": "gpt2", "seq": 64})
    assert answer(asked("pp4 dp2 layers=0,4,4,4", model, **LORA)).step_seconds > 0


def test_stored_in_four_bits_weights_are_unpacked_for_every_product() -> None:
    plain, packed = (answer(asked(**LORA | {"peft": word})) for word in ("lora", "qlora"))
    assert packed.memory.by_kind["weights"] < 0.5 * plain.memory.by_kind["weights"]
    assert packed.step_seconds > plain.step_seconds


def test_experts_stay_frozen() -> None:
    found = weight_gradients(compiled("dp8 ep4", "moe", **LORA))
    assert all("lora" in name for name in found)
    with pytest.raises(ModelError, match="experts"):
        asked("dp8", "moe", **LORA | {"lora_targets": ["mlp"]})


def test_a_checkpoint_holds_adapters_alone() -> None:
    scenario = asked(**LORA)
    trained = scenario.workload.model.trained_parameters
    assert checkpoint_bytes(scenario.workload) == trained * (2.0 + 8.0 + 4.0)


def test_searches_estimate_adapters_as_they_are_simulated() -> None:
    """Estimates take the first layer for one like the others; it has no gradient to hand on, and there are four."""
    task = Task.of(asked("dp8", frozen_weights_dtype="fp8", **LORA))
    found = gaps(task, ["micro=1", "cp=1", "offload=none", "order=default"], 16, seed=0)
    assert median(abs(gap.time) for gap in found) < 0.06
    assert max(abs(gap.memory) for gap in found) < 0.05


# --- switches -----------------------------------------------------------------------------------------


def test_what_is_left_open_is_assumed_and_told() -> None:
    scenario = asked(peft="lora")
    told = [line for line in scenario.assumptions if "adapters" in line]
    assert [line.rpartition("--set ")[2] for line in told] == ["lora_rank=…)", "lora_targets=…)"]
    assert scenario.to_dict()["trained_parameters"] == scenario.workload.model.trained_parameters
    assert "trained_parameters" not in asked().to_dict()


def test_no_adapters_where_none_are_asked_for() -> None:
    for options in ({"peft": "none"}, {"peft": False}, {"training": "sft"}, {"base_weights_frozen": False}):  # fmt: skip
        assert asked(**options).workload == asked().workload


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"peft": "ptuning"}, "lora and qlora"),
        ({"lora_rank": 8}, "peft = lora"),
        ({"frozen_weights_dtype": "fp8"}, "peft = lora"),
        (LORA | {"lora_rank": 0}, "lora_rank = 0"),
        (LORA | {"lora_rank": "many"}, "many"),
        (LORA | {"lora_rank": 10**15}, "too large"),
        (LORA | {"lora_targets": ["qkv_proj"]}, "q_proj"),
        (LORA | {"lora_targets": []}, "not a list"),
        (LORA | {"lora_targets": 3}, "not a list"),
        (LORA | {"base_weights_frozen": False}, "base_weights_frozen"),
        (LORA | {"frozen_weights_dtype": "fp7"}, "fp7"),
    ],
)
def test_switches_that_cannot_be_followed(options: dict[str, Any], told: str) -> None:
    with pytest.raises((RuntimePresetError, ModelError), match=told):
        asked(**options)


def test_models_without_such_products() -> None:
    for name in ("resnet50", "deepseek-v2-lite"):
        with pytest.raises(InputError, match="lora_targets: linear_qkv"):
            ask(name, on="1 x dgx-h100", plan="dp8", batch=64, runtime_options=LORA)


def test_a_case_says_it_with_any_of_its_words() -> None:
    case: dict[str, Any] = {
        "id": "x", "model": {"zoo": "llama2-7b"}, "seq_len": 64,
        "cluster": {"device": "h100", "devices_per_node": 8, "nodes": 1}, "devices": 8,
        "plan": {"dp": 8}, "batch": {"global": 8, "micro": 1}, "precision": "bf16",
        "runtime": "nemo",
    }  # fmt: skip
    words = {"lora_rank": 8, "lora_alpha": 32, "lora_targets": ["q_proj", "v_proj"], "base_weights_frozen": True}  # fmt: skip
    for key in ("peft", "training"):
        found = scenario_from_case(case | {"runtime_options": words | {key: "lora"}})
        assert found.workload.model.trained_parameters == 4_194_304
        assert not found.warnings


def test_the_command_line(tmp_path: Path) -> None:
    words = ["predict", "gpt2", "--on", "1 x dgx-h100", "--plan", "dp8", "--batch", "64"]
    out = tmp_path / "p.json"
    sets = ["--set", "peft=lora", "--set", "lora_rank=16", "--set", "lora_targets=q_proj,v_proj"]
    assert run([*words, *sets, "-o", str(out)]) == 0
    question = json.loads(out.read_text())["question"]
    assert question["trained_parameters"] == 12 * 2 * 16 * (768 + 768)
    assert run([*words, *sets[:-1], "lora_targets=everything"]) == 2


def test_launch_files_are_not_written_for_adapters() -> None:
    with pytest.raises(ModelError, match="frozen"):
        export("gpt2", to="torchrun", on="1 x dgx-h100", plan="dp8", batch=64, runtime_options=LORA)
