"""What is known of a model besides its graph: where it comes from, where it goes, and that no answer has it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from foretrain.errors import ModelError
from foretrain.model import zoo
from foretrain.model.details import NO_DETAILS, Details, RopeScaling
from foretrain.model.document import model_from_document, model_to_dict
from foretrain.model.huggingface import model_from_config
from foretrain.model.load import load_model
from foretrain.resolving import ask

SMALL = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 100}


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [
        ("llama3-8b", "rope_theta", 500_000.0),
        ("llama2-7b", "rope_theta", 10_000.0),
        ("mixtral-8x7b", "rope_theta", 1_000_000.0),
        ("qwen3-8b", "rope_theta", 1_000_000.0),
        ("qwen3-8b", "norm_eps", 1e-6),
        ("qwen2.5-72b", "norm_eps", 1e-5),
        ("bert-base", "norm_eps", 1e-12),
        ("nemotron4-15b", "partial_rotary_factor", 0.5),
        ("deepseek-v3", "scoring_func", "sigmoid"),
        ("deepseek-v3", "routed_scaling_factor", 2.5),
        ("deepseek-v2-lite", "scoring_func", "softmax"),
        ("deepseek-v2-lite", "bias_update_rate", None),
    ],
)
def test_the_zoo_has_what_was_released(name: str, field: str, value: Any) -> None:
    assert getattr(zoo.build(name).details, field) == value


def test_llama_stretches_positions_from_3_1_on() -> None:
    assert zoo.build("llama3-8b").details.rope_scaling is None
    scaling = zoo.build("llama3.1-8b").details.rope_scaling
    assert scaling == RopeScaling(
        "llama3", 8.0, original_max_position_embeddings=8192, low_freq_factor=1.0, high_freq_factor=4.0
    )  # fmt: skip
    assert zoo.build("llama3.2-1b").details.rope_scaling == replace(scaling, factor=32.0)


def test_every_model_with_rotary_positions_has_their_base() -> None:
    for name in zoo.names():
        shape = zoo.shape(name)
        if shape is not None and shape.position == "rope":
            assert zoo.build(name).details.rope_theta is not None, name
        if shape is not None and shape.num_experts:
            assert zoo.build(name).details.scoring_func is not None, name


# --- files ------------------------------------------------------------------------------------------------


def test_configurations_say_them_in_older_and_newer_words() -> None:
    scaling = {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    older = {
        "rope_theta": 500000.0,
        "rms_norm_eps": 1e-5,
        "rope_scaling": {"type": "llama3", **scaling},
    }
    newer = {
        "rms_norm_eps": 1e-5,
        "rope_parameters": {"rope_type": "llama3", "rope_theta": 500000.0, **scaling},
    }
    made = [
        model_from_config(
            {"model_type": "llama", "intermediate_size": 128, **SMALL, **words}
        ).details
        for words in (older, newer)
    ]
    assert made[0] == made[1]
    assert made[0].rope_scaling is not None
    assert (made[0].rope_theta, made[0].rope_scaling.rope_type) == (500000.0, "llama3")
    plain = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}
    details = model_from_config(
        {"model_type": "llama", "intermediate_size": 128, **SMALL, **plain}
    ).details
    assert (details.rope_theta, details.rope_scaling) == (1e6, None)


def test_routing_of_deepseek_is_read() -> None:
    config = {
        "model_type": "deepseek_v3", "intermediate_size": 128, **SMALL, "n_routed_experts": 8, "num_experts_per_tok": 2,
        "moe_intermediate_size": 32, "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 8,
        "scoring_func": "sigmoid", "norm_topk_prob": True, "n_group": 4, "topk_group": 2, "routed_scaling_factor": 2.5,
        "topk_method": "noaux_tc", "aux_loss_alpha": 0.001, "seq_aux": True,
    }  # fmt: skip
    details = model_from_config(config).details
    assert (details.n_group, details.topk_group, details.bias_update_rate) == (4, 2, 0.001)
    assert (details.balance, details.router_aux_loss_coef) == ("seq_aux_loss", 0.001)


def test_a_shape_of_ones_own_has_them(tmp_path: Path) -> None:
    own = {**SMALL, "position": "rope", "rope_theta": 5e5, "norm_eps": 1e-6}
    (tmp_path / "own.yaml").write_text(yaml.safe_dump({"seq": 128, "transformer": own}))
    model = load_model(tmp_path / "own.yaml")
    assert (model.details.rope_theta, model.details.norm_eps) == (5e5, 1e-6)
    changed = {
        "zoo": "llama3-8b",
        "overrides": {"rope_theta": 1e6, "num_hidden_layers": 16},
        "seq": 1024,
    }
    (tmp_path / "changed.yaml").write_text(yaml.safe_dump(changed))
    model = load_model(tmp_path / "changed.yaml")
    assert (model.details.rope_theta, model.details.norm_eps) == (1e6, 1e-5)


@pytest.mark.parametrize("name", ["deepseek-v3", "llama3.1-8b", "gpt2", "resnet50"])
def test_documents_keep_them(name: str, tmp_path: Path) -> None:
    model = zoo.build(name)
    assert model_from_document(model_to_dict(model)).details == model.details
    (tmp_path / "model.yaml").write_text(yaml.safe_dump(model_to_dict(model)))
    assert load_model(tmp_path / "model.yaml").details == model.details


def test_wrong_ones_are_named_all_at_once() -> None:
    wrong = {
        "norm_eps": True, "n_group": 0, "rope_theta": 10**400, "scoring_func": "tanh", "partial_rotary_factor": 2,
        "rope_scaling": {"factr": 3}, "norm_topk_prob": 1,
    }  # fmt: skip
    with pytest.raises(ModelError) as refusal:
        Details.of(wrong)
    named = {fault.split(":")[0] for fault in refusal.value.faults}
    assert named == {*wrong, "rope_scaling.factr", "rope_scaling.rope_type"} - {"rope_scaling"}
    graph = model_to_dict(zoo.build("gpt2")) | {"details": {"rope_tetha": 1.0}}
    with pytest.raises(
        ModelError, match=r"details\.rope_tetha: unknown key\. Did you mean 'rope_theta'"
    ):
        model_from_document(graph)


# --- no answer has them -----------------------------------------------------------------------------------


def test_neither_equality_nor_hash_knows_them() -> None:
    model = zoo.build("llama3-8b")
    other = replace(model, details=NO_DETAILS)
    assert model == other
    one, two = (
        ask(each, on="1 x dgx-h100", plan="zero3", batch=8, micro_batch=1)
        for each in (model, other)
    )
    assert one.sha256 == two.sha256


def test_they_outlive_what_a_task_changes() -> None:
    asked = ask("bert-large", on="1 x dgx-h100", plan="zero1", batch=8, seq=384, micro_batch=1)
    assert asked.workload.model.details.norm_eps == 1e-12
