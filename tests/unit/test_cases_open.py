"""What a case does not say is chosen as for every other question, with the same words about it."""

from __future__ import annotations

from typing import Any

import pytest

import foretrain
from foretrain.cases import predict_case, request_from_case, scenario_from_case

LLAMA = {
    "family": "llama", "hidden_size": 2048, "num_hidden_layers": 8, "num_attention_heads": 16,
    "num_key_value_heads": 8, "intermediate_size": 8192, "vocab_size": 32000,
}  # fmt: skip
LARGE = {
    **LLAMA, "hidden_size": 8192, "num_hidden_layers": 80, "num_attention_heads": 64,
    "intermediate_size": 28672,
}  # fmt: skip
DGX = {"device": "h100", "devices_per_node": 8, "nodes": 1, "intra_node": "nvlink4-nvswitch"}
FIGURES = ("step_seconds", "interval", "memory", "assumptions", "warnings", "provenance")


def case(model: dict[str, Any] = LLAMA, nodes: int = 1, **said: Any) -> dict[str, Any]:
    cluster = {**DGX, "nodes": nodes}
    if nodes > 1:
        cluster["network"] = {"kind": "infiniband", "gbps_per_node": 3200}
    lengths = {} if "zoo" in model else {"seq_len": 2048}
    return {"id": "x", "model": model, "cluster": cluster, **lengths, **said}


def asked(one: dict[str, Any], **words: Any) -> foretrain.Prediction:
    return foretrain.predict(one["model"], on=one["cluster"], seq=one.get("seq_len"), **words)


@pytest.mark.parametrize(
    ("one", "words"),
    [
        (case(batch={"global": 64}), {"batch": 64}),
        (case(nodes=2, batch={"global": 64}), {"batch": 64}),
        (case(batch={"global": 64}, runtime="ddp"), {"batch": 64, "runtime": "ddp"}),
        (case(batch={"global": 64}, plan={"tp": 2}), {"batch": 64, "plan": "tp2"}),
        (case(batch={"global": 64}, plan={"zero": 3}), {"batch": 64, "plan": "zero3"}),
        (case(batch={"global": 64, "micro": 2}), {"batch": 64, "micro_batch": 2}),
        (case(batch={"global": 4}), {"batch": 4}),  # less than a sample for every device
        (case(), {}),
        (case({"zoo": "resnet50"}, batch={"global": 512}), {"batch": 512}),
        (case({"zoo": "dlrm-dcnv2"}, batch={"global": 8192}), {"batch": 8192}),
        (case(LARGE, nodes=2, batch={"global": 64}), {"batch": 64}),
    ],
)
def test_an_open_case_is_the_open_question(one: dict[str, Any], words: dict[str, Any]) -> None:
    found, wanted = predict_case(one), asked(one, **words).to_dict(in_full=False)
    assert {key: found[key] for key in FIGURES} == {key: wanted[key] for key in FIGURES}
    assert {**found["question"], "model": ""} == {**wanted["question"], "model": ""}


def test_the_stack_is_chosen_by_situation() -> None:
    found = scenario_from_case(case(batch={"global": 64}))
    assert (found.runtime.name, found.plan.text.split()[0]) == ("fsdp2", "dp8")
    assert any(line.startswith("runtime fsdp2: ") for line in found.assumptions)
    assert any(line.startswith("plan dp8") for line in found.assumptions)


def test_a_plan_of_nulls_says_nothing() -> None:
    nulls = {
        "dp": None, "tp": None, "zero": None, "sequence_parallel": None, "optimizer_offload": False,
    }  # fmt: skip
    assert request_from_case(case(plan=nulls)).plan is None
    assert request_from_case(case(plan={**nulls, "tp": 1})).plan == {"tp": 1}


def test_a_model_too_large_for_replicas_gets_a_plan_that_fits() -> None:
    document = predict_case(case(LARGE, nodes=4, batch={"global": 64}))
    assert document["fits"]
    assert document["question"]["plan"].startswith("tp")


def test_a_batch_that_no_replicas_share_is_rounded_and_told() -> None:
    found = scenario_from_case(case({"zoo": "resnet50"}, batch={"global": 100}))
    assert found.workload.global_batch == 104
    assert any("predicting 104 instead" in line for line in found.warnings)


def test_counted_micro_batches_of_an_open_plan_are_those_of_every_device() -> None:
    options = {"grad_accum": 4}
    found = scenario_from_case(case(batch={"global": 64}, runtime_options=options))
    assert found.plan.schedule.micro_batch == 2
    assert any("4 per step, with a replica on each of the 8 devices" in line for line in found.assumptions)  # fmt: skip
