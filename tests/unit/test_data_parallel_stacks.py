"""What stacks for CNNs and BERT do besides their products: layouts, fused norms, heads, pods, slow hosts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from stack_words import stack_of_run

from foretrain import predict
from foretrain.cases import scenario_from_case
from foretrain.cost.collectives.selector import GroupTopology, select
from foretrain.cost.compute.base import latest, slowest
from foretrain.model import zoo
from foretrain.model.graph import Op
from foretrain.model.ops import family
from foretrain.model.ops.base import KernelChoices
from foretrain.model.precision import precision
from foretrain.resolving import ask


def op_of(model: str, block: str, name: str) -> Op:
    found = next(b for b in zoo.build(model).blocks if b.name == block)
    return next(op for op in found.ops if op.name == name)


def moved(op: Op, choices: KernelChoices, number: str) -> float:
    formula, known = family(op), precision(number)
    kernels = (*formula.forward(op, known, choices), *formula.backward(op, known, choices))
    return sum(kernel.bytes for kernel in kernels)


def test_only_matrix_units_need_channels_last() -> None:
    conv = op_of("resnet50", "stage1", "2_conv")
    plain, turned = KernelChoices(channels_last=True), KernelChoices(channels_last=False)
    assert moved(conv, turned, "fp32") == moved(conv, plain, "fp32")
    assert moved(conv, turned, "fp16") > 2 * moved(conv, plain, "fp16")


def test_a_norm_takes_the_activation_after_it_along() -> None:
    for name in ("1_act", "y"):
        act = op_of("resnet50", "stage1", name)
        fused, apart = (
            moved(act, KernelChoices(fuses_elementwise=f), "fp16") for f in (True, False)
        )
        assert fused < 0.1 * apart


def test_a_blocks_result_is_kept_once() -> None:
    """Conv outputs and activations of ResNet-50 are 21.3 million numbers a sample, besides pooling indices."""
    kept = predict("resnet50", on="a100-sxm4-80gb", batch=256, precision="fp16", runtime="ddp")
    activations = kept.to_dict()["memory"]["by_kind"]["activations"]
    assert activations < 256 * 2.0 * 21.3e6 * 1.2


def test_bert_at_384_tokens_finds_answers() -> None:
    asked = ask("bert-base", on="1 x a100-80gb", seq=384, batch=8, runtime="ddp")
    model = asked.workload.model
    assert model.shape is not None
    assert model.shape.head == "span"
    assert any("SQuAD" in line for line in asked.assumptions)
    masked = zoo.build("bert-base", 384)
    assert sum(family(op).flops(op) for _, op in model.ops()) < 0.9 * sum(
        family(op).flops(op) for _, op in masked.ops()
    )
    assert model.parameters < masked.parameters


def test_a_head_of_predicted_positions_is_small() -> None:
    def head(positions: int | None) -> float:
        options = {} if positions is None else {"max_predictions": positions}
        asked = ask(
            "bert-base",
            on="1 x a100-80gb",
            seq=128,
            batch=8,
            runtime="ddp",
            runtime_options=options,
        )
        model = asked.workload.model
        block = next(b for b in model.blocks if b.name == "head")
        return next(family(op).flops(op) for op in block.ops if op.name == "logits")

    assert head(20) == pytest.approx(head(None) * 20 / 128)


def test_frameworks_compared_in_2020_are_those_of_2020() -> None:
    then, _, _ = stack_of_run("oneflow", {"framework": "OneFlow W/O clip"})
    later, _, _ = stack_of_run("oneflow", {"framework": None})
    assert (then.name, later.name) == ("oneflow-2020", "oneflow")
    assert then.gemm_alignment.aligned_to == 8
    act = op_of("resnet50", "stage1", "1_act")  # its batch norms took activations along already
    choices = KernelChoices(
        fuses_elementwise=then.kernels.fuses_elementwise,
        fuses_behind_norms=then.special_fusions.fuses_behind_norms,
    )
    assert moved(act, choices, "fp16") == moved(act, KernelChoices(), "fp16")


def test_placements_are_those_of_an_elastic_scheduler() -> None:
    assert stack_of_run("ddp", {"placement": [2, 2]})[0].name == "adaptdl"
    assert stack_of_run("ddp", {})[0].name == "ddp"
    assert stack_of_run("horovod", {"placement": [2, 2]})[0].name == "horovod"


def test_binned_samples_are_shorter() -> None:
    case = {
        "model": {"zoo": "bert-large"},
        "seq_len": 512,
        "cluster": {"device": "a100-sxm4-80gb", "devices_per_node": 1, "nodes": 1},
        "batch": {"global": 16, "micro": 16},
        "runtime": "ddp",
        "runtime_options": {"task": "MLM+NSP pretraining"},
    }
    asked = scenario_from_case(case)
    assert asked.workload.seq_len == 288
    assert any("288" in line for line in asked.assumptions)
    assert scenario_from_case(case | {"seq_len": 128}).workload.seq_len == 128


def test_pods_have_one_connection_per_channel() -> None:
    four = GroupTopology(
        ranks=4, domains=4, link_family="pcie", rate=3.6e9, architecture="turing", transport="tcp"
    )
    size = 100e6
    free, pods = (select("all_reduce", size, four, lib) for lib in ("nccl", "nccl-pods"))
    assert free.max_rate is None or free.max_rate > 5e9
    assert pods.max_rate is not None
    assert pods.max_rate < 1e9
    assert pods.seconds(four.rate) > 3 * free.seconds(four.rate)
    two = select("all_reduce", size, replace(four, ranks=2, domains=2), "nccl-pods")
    assert two.max_rate is not None
    assert two.max_rate < pods.max_rate
    inside = select("all_reduce", size, replace(four, domains=1), "nccl-pods")
    assert inside.max_rate is None or inside.max_rate > 5e9


def test_the_latest_of_more_is_later() -> None:
    values = [latest(count) for count in (1, 2, 4, 16, 1024)]
    assert values[0] == 0.0
    assert values == sorted(values)
    assert latest(2) == pytest.approx(0.564, abs=0.03)  # 1/sqrt(pi)
    assert slowest("t4", 1) == 1.0 < slowest("t4", 16)
    assert slowest("h100-sxm5-80gb", 16) == 1.0


def test_weight_by_weight_steps_take_the_hosts_time() -> None:
    question: dict[str, Any] = {"on": "t4", "batch": 32, "runtime": "ddp"}
    plain = predict("resnet18-cifar", **question)
    single = predict("resnet18-cifar", **question, runtime_options={"kernels_per_tensor": 50})
    assert single.step_seconds > plain.step_seconds + 62 * 40 * 8e-6
