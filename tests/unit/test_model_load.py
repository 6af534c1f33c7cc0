"""Models from names, Hugging Face configurations, our YAML, and dicts."""

from __future__ import annotations

import doctest
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from foretrain.errors import FileError, ModelError
from foretrain.model import zoo
from foretrain.model.case import model_from_case, shape_from_case
from foretrain.model.document import model_from_document, model_to_dict
from foretrain.model.load import load_model

LLAMA: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256,
    "tie_word_embeddings": False, "hidden_act": "silu", "max_position_embeddings": 8192,
}  # fmt: skip
CONFIGS: dict[str, dict[str, Any]] = {
    "llama3-8b": LLAMA,
    "mixtral-8x7b": {
        **LLAMA, "model_type": "mixtral", "vocab_size": 32000, "num_local_experts": 8,
        "num_experts_per_tok": 2, "sliding_window": None,
    },
    "mistral-7b": {**LLAMA, "model_type": "mistral", "vocab_size": 32000, "sliding_window": 4096},
    "gpt2-xl": {
        "model_type": "gpt2", "n_embd": 1600, "n_layer": 48, "n_head": 25, "n_positions": 1024,
        "vocab_size": 50257, "activation_function": "gelu_new",
    },
    "bert-large": {
        "model_type": "bert", "hidden_size": 1024, "num_hidden_layers": 24,
        "num_attention_heads": 16, "intermediate_size": 4096, "vocab_size": 30522,
        "max_position_embeddings": 512, "type_vocab_size": 2, "hidden_act": "gelu",
    },
    "t5-large": {
        "model_type": "t5", "d_model": 1024, "d_ff": 4096, "d_kv": 64, "num_heads": 16,
        "num_layers": 24, "vocab_size": 32128,
    },
    "deepseek-v3": {
        "model_type": "deepseek_v3", "hidden_size": 7168, "num_hidden_layers": 61,
        "num_attention_heads": 128, "num_key_value_heads": 128, "intermediate_size": 18432,
        "moe_intermediate_size": 2048, "vocab_size": 129280, "n_routed_experts": 256,
        "n_shared_experts": 1, "num_experts_per_tok": 8, "first_k_dense_replace": 3,
        "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
        "v_head_dim": 128, "hidden_act": "silu", "tie_word_embeddings": False,
    },
    "qwen2.5-7b": {
        **LLAMA, "model_type": "qwen2", "hidden_size": 3584, "num_hidden_layers": 28,
        "num_attention_heads": 28, "num_key_value_heads": 4, "intermediate_size": 18944,
        "vocab_size": 152064, "sliding_window": 131072, "use_sliding_window": False,
    },
    "qwen3-8b": {
        **LLAMA, "model_type": "qwen3", "num_hidden_layers": 36, "intermediate_size": 12288,
        "vocab_size": 151936, "head_dim": 128,
    },
    "bloom-176b": {
        "model_type": "bloom", "hidden_size": 14336, "n_layer": 70, "n_head": 112,
        "vocab_size": 250880,
    },
    "vit-b": {
        "model_type": "vit", "hidden_size": 768, "num_hidden_layers": 12,
        "num_attention_heads": 12, "intermediate_size": 3072, "patch_size": 16, "image_size": 224,
    },
    "mpt-7b": {
        "model_type": "mpt", "d_model": 4096, "n_layers": 32, "n_heads": 32, "vocab_size": 50368,
        "expansion_ratio": 4, "max_seq_len": 2048, "no_bias": True, "attn_config": {"alibi": True},
    },
}  # fmt: skip
# Counts of released checkpoints that have no zoo entry.
COUNTED: dict[int, dict[str, Any]] = {
    6_658_473_984: {
        "model_type": "opt", "hidden_size": 4096, "num_hidden_layers": 32, "ffn_dim": 16384,
        "num_attention_heads": 32, "vocab_size": 50272, "max_position_embeddings": 2048,
        "activation_function": "relu",
    },
    20_554_567_680: {
        "model_type": "gpt_neox", "hidden_size": 6144, "num_hidden_layers": 44,
        "num_attention_heads": 64, "intermediate_size": 24576, "vocab_size": 50432,
    },
    6_921_720_704: {
        "model_type": "falcon", "hidden_size": 4544, "num_hidden_layers": 32,
        "num_attention_heads": 71, "vocab_size": 65024, "multi_query": True, "parallel_attn": True,
    },
    2_506_172_416: {
        "model_type": "gemma", "hidden_size": 2048, "num_hidden_layers": 18,
        "num_attention_heads": 8, "num_key_value_heads": 1, "head_dim": 256,
        "intermediate_size": 16384, "vocab_size": 256000, "hidden_act": "gelu_pytorch_tanh",
    },
    3_821_079_552: {
        "model_type": "phi3", "hidden_size": 3072, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 32, "intermediate_size": 8192,
        "vocab_size": 32064, "hidden_act": "silu",
    },
}  # fmt: skip


@pytest.mark.parametrize("name", CONFIGS)
def test_hugging_face_configuration_equals_the_zoo(name: str, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIGS[name]))
    model = load_model(path, 512)
    known = zoo.build(name, 512)
    assert model.parameters == known.parameters
    assert [b.repeat for b in model.blocks] == [b.repeat for b in known.blocks]
    assert [b.ops for b in model.blocks] == [b.ops for b in known.blocks]


@pytest.mark.parametrize("count", COUNTED)
def test_hugging_face_counts(count: int) -> None:
    assert load_model(COUNTED[count], 512).parameters == count


def test_unknown_model_type_names_near_ones() -> None:
    with pytest.raises(ModelError, match="Did you mean 'llama'"):
        load_model({"model_type": "lama"})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_size": None}, "hidden_size is missing"),
        ({"hidden_size": "big"}, "not a whole number"),
        ({"hidden_act": "gelo"}, "Did you mean"),
        ({"num_attention_heads": 30}, "must be divisible by"),
        ({"num_key_value_heads": 5}, "must be divisible by"),
    ],
)
def test_bad_configurations_are_explained(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        load_model({**LLAMA, **change}, 128)


def test_names_and_models_pass_through() -> None:
    model = load_model("gpt2", 256)
    assert model is zoo.build("gpt2", 256)
    assert load_model(model) is model


@pytest.mark.parametrize("name", zoo.names())
def test_document_round_trip(name: str) -> None:
    model = zoo.build(name)
    assert model_from_document(model_to_dict(model)) == model


@pytest.mark.parametrize("name", ["gpt2", "mixtral-8x7b", "resnet50", "dlrm-small", "t5-small"])
def test_yaml_round_trip(name: str, tmp_path: Path) -> None:
    path = tmp_path / "model.yaml"
    path.write_text(yaml.safe_dump(model_to_dict(zoo.build(name)), sort_keys=False))
    assert load_model(path) == zoo.build(name)


def test_zoo_with_overrides(tmp_path: Path) -> None:
    path = tmp_path / "short.yaml"
    path.write_text("name: short\nzoo: llama3-8b\nseq: 4096\noverrides: {num_hidden_layers: 16}\n")
    model = load_model(path)
    assert (model.name, model.seq_len, model.blocks[1].repeat) == ("short", 4096, 16)
    assert load_model(path, 1024).seq_len == 1024


def test_transformer_shape_in_yaml(tmp_path: Path) -> None:
    path = tmp_path / "tiny.yaml"
    path.write_text(
        "seq: 128\ntransformer: {hidden_size: 64, num_hidden_layers: 2, num_attention_heads: 4, "
        "vocab_size: 1000, norm: rmsnorm}\n"
    )
    assert load_model(path).name == "tiny"
    assert load_model(path).layers == 4


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("zoo: gpt2\nblocks: []\n", "exactly one of"),
        ("name: nothing\n", "exactly one of"),
        ("zoo: gpt2\nname: a\nsequence: 5\n", "sequence: unknown key"),
        ("zoo: gpt2\nseq: -5\n", "not a positive whole number"),
        ("zoo: resnet50\noverrides: {hidden_size: 5}\n", "supports no overrides"),
        ("zoo: gpt2\noverrides: {hiden_size: 5}\n", "Did you mean 'hidden_size'"),
        ("zoo: gpt2\noverrides: 5\n", "not a mapping"),
        ("transformer: {hidden_size: 64}\n", "num_hidden_layers: missing"),
        ("transformer: {hidden_size: 64, layers: 3}\n", "layers: unknown key"),
        ("- a\n- b\n", "not a mapping"),
        ("blocks: []\n", "blocks: empty"),
        ("blocks: [{name: a, ops: [{nam: b}]}]\n", r"blocks\[0\].ops\[0\]"),
    ],
)
def test_bad_yaml_is_explained(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    with pytest.raises(ModelError, match=message):
        load_model(path)


def test_missing_file_is_a_file_error(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="does not exist"):
        load_model(tmp_path / "none.json")


def graph(**change: Any) -> dict[str, Any]:
    op = {
        "name": "fc", "kind": "linear", "sizes": {"batch": 1, "hidden": 8, "ffn": 16},
        "inputs": ["x[batch, hidden]"], "outputs": ["y[batch, ffn]"],
        "weights": ["weight[hidden, ffn]"],
    }  # fmt: skip
    return {"name": "small", "blocks": [{"name": "only", "ops": [{**op, **change}]}]}


def test_explicit_graph() -> None:
    model = load_model(graph())
    assert model.parameters == 8 * 16


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "liner"}, "Did you mean 'linear'"),
        ({"sizes": {"batch": 1, "hidden": 8}}, "sizes must include ffn of y"),
        ({"sizes": {"batch": 0, "hidden": 8, "ffn": 16}}, "not a positive whole number"),
        ({"outputs": []}, "has no output"),
        ({"outputs": ["y(batch)"]}, "is not a tensor"),
        ({"outputs": ["y[batch, ffn] fp99"]}, "unknown element type"),
    ],
)
def test_bad_graphs_are_explained(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        load_model(graph(**change))


def test_bad_wiring_is_explained() -> None:
    data = graph()
    first = data["blocks"][0]["ops"][0]
    second = {**first, "name": "fc2", "inputs": ["y[batch, hidden]"], "outputs": ["z[batch, ffn]"]}
    data["blocks"][0]["ops"].append(second)
    with pytest.raises(ModelError, match=r"sees 8 elements of y, but 16 are produced"):
        load_model(data)
    second["outputs"] = ["y[batch, ffn]"]
    with pytest.raises(ModelError, match="produced twice"):
        load_model(data)
    data["tied"] = [["only.fc.weight", "only.fc3.weight"]]
    data["blocks"][0]["ops"].pop()
    with pytest.raises(ModelError, match=r"only.fc3.weight does not exist"):
        load_model(data)


GPT_CASE = {
    "family": "gpt", "hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16,
    "num_key_value_heads": 16, "intermediate_size": 4096, "vocab_size": 51200,
    "tie_word_embeddings": True, "hidden_act": "gelu", "norm": "layernorm", "position": "learned",
}  # fmt: skip


def test_case_shapes() -> None:
    model, assumed = model_from_case(GPT_CASE, 1024)
    assert assumed == ()
    assert model.parameters == pytest.approx(355.9e6, rel=0.001)


def test_case_nulls_take_family_defaults_and_say_so() -> None:
    nulls = {**GPT_CASE, "tie_word_embeddings": None, "intermediate_size": None}
    model, assumed = model_from_case(nulls, 1024)
    assert model.parameters == model_from_case(GPT_CASE, 1024)[0].parameters
    assert any("tie_word_embeddings" in note for note in assumed)
    assert any("intermediate_size" in note for note in assumed)


def test_families_differ_where_architectures_do() -> None:
    base = {k: v for k, v in GPT_CASE.items() if k not in ("position", "norm", "hidden_act")}
    assert shape_from_case({**base, "family": "gpt"})[0].dropout == 0.1
    assert shape_from_case({**base, "family": "llama"})[0].is_gated
    assert shape_from_case({**base, "family": "mpt"})[0].has_norm_bias is False
    assert shape_from_case({**base, "family": "bert"})[0].causal is False
    nemotron = shape_from_case({**base, "family": "gpt", "position": "rope"})[0]
    assert (nemotron.biases, nemotron.has_norm_bias, nemotron.dropout) == ("none", True, 0.0)
    assert shape_from_case({**base, "family": "gpt", "position": "alibi"})[0].embedding_norm


def test_case_faults_are_explained() -> None:
    with pytest.raises(ModelError, match="Known: gpt, llama"):
        model_from_case({"family": "mamba"}, 128)
    with pytest.raises(ModelError, match="vocab_size: missing"):
        model_from_case({**GPT_CASE, "vocab_size": None}, 128)
    with pytest.raises(ModelError, match="needs seq_len"):
        model_from_case(GPT_CASE, None)
    with pytest.raises(ModelError, match="Did you mean 'hidden_act'"):
        model_from_case({**GPT_CASE, "hiden_act": "gelu"}, 128)


def test_windows_every_other_layer_alternate_blocks() -> None:
    llama = {**GPT_CASE, "family": "llama", "sliding_window": 128, "sliding_window_every": 2}
    model, _ = model_from_case({**llama, "position": "rope"}, 1024)
    windows = [
        op.attr["window"] for block in model.blocks for op in block.ops if op.kind == "attention"
    ]
    assert windows == [0, 128] * 12


PAGE = Path(__file__).parents[2] / "docs" / "models.md"


def test_the_page_about_models_is_true() -> None:
    """Its Python examples run and its YAML examples load."""
    assert doctest.testfile(str(PAGE), module_relative=False).failed == 0
    examples = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    models = [load_model(yaml.safe_load(text)) for text in examples]
    assert [len(model.blocks) for model in models] == [3, 3, 1]
    assert models[0].name == "llama3-8b-half"
