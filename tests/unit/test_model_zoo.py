"""Every model of the zoo is a legal graph whose ops conform, is built fast and is cached."""

from __future__ import annotations

from time import perf_counter

import pytest

from foretrain.errors import ModelError
from foretrain.model import zoo
from foretrain.model.graph import Op
from foretrain.model.verify import model_faults
from foretrain.testing.ops import check_model, check_op

CASE_NAMES = (
    "resnet50", "resnet18-cifar", "bert-base", "bert-large", "yolov3", "deepspeech2", "neumf",
    "dlrm-mlperf", "dlrm-dcnv2",
)  # fmt: skip
SPOKEN_DIMS = {
    "batch", "seq", "hidden", "heads", "kv_heads", "head_dim", "v_dim", "ffn", "vocab", "kv_seq",
    "q_rank", "kv_rank", "expert", "slot", "routed", "router", "nope_dim", "rope_dim", "position",
}  # fmt: skip


@pytest.mark.parametrize("name", zoo.names())
def test_graph_is_legal(name: str) -> None:
    assert model_faults(zoo.build(name)) == []


def test_every_distinct_op_conforms() -> None:
    distinct: dict[tuple[object, ...], Op] = {}
    for name in zoo.names():
        for _, op in zoo.build(name).ops():
            distinct.setdefault((op.kind, op.sizes, op.attrs, op.inputs, op.outputs), op)
    for op in distinct.values():
        check_op(op)


def test_kit_runs_on_whole_models() -> None:
    check_model(zoo.build("deepseek-v3"))


@pytest.mark.parametrize("name", CASE_NAMES)
def test_names_of_the_published_cases_resolve(name: str) -> None:
    assert zoo.build(name).parameters > 0


@pytest.mark.parametrize("name", ["resnet152", "inception-v3", "llama3.1-405b", "deepseek-v3"])
def test_building_takes_milliseconds(name: str) -> None:
    row = zoo.entry(name)
    best = min(_seconds(row) for _ in range(5))
    assert best < 0.020


def _seconds(row: zoo.Entry) -> float:
    start = perf_counter()
    row.build(row.seq or 0)
    return perf_counter() - start


def test_building_twice_gives_the_same_object() -> None:
    assert zoo.build("gpt2") is zoo.build("gpt2", 1024)
    assert zoo.build("GPT2") is zoo.build("gpt2-small")
    assert zoo.build("resnet50", 512) is zoo.build("resnet50")


def test_unknown_name_suggests() -> None:
    with pytest.raises(ModelError, match="Did you mean 'llama3-8b'"):
        zoo.build("llama3-8bb")
    with pytest.raises(ModelError, match=r"Did you mean 'dlrm-.*' or 'dlrm-.*' or 'dlrm-"):
        zoo.build("dlrm")
    with pytest.raises(ModelError, match="foretrain catalog list models"):
        zoo.build("zzzzzzzzz")
    with pytest.raises(ModelError, match="-1 is not positive"):
        zoo.build("gpt2", -1)


@pytest.mark.parametrize("name", ["gpt3-175b", "llama3-8b", "mixtral-8x7b", "deepseek-v3"])
def test_transformers_speak_the_agreed_dims(name: str) -> None:
    model = zoo.build(name)
    assert {dim for _, op in model.ops() for dim in op.dims} <= SPOKEN_DIMS
    first, last = model.blocks[0], model.blocks[-1]
    assert (first.name, last.name) == ("embedding", "head")
    assert first.inputs == ()
    assert last.outputs == ()
    assert all(b.inputs[0].dims == ("batch", "seq", "hidden") for b in model.blocks[1:])


def test_deepseek_starts_with_dense_layers() -> None:
    blocks = [(b.name, b.repeat) for b in zoo.build("deepseek-v3").blocks]
    assert blocks == [("embedding", 1), ("dense_layers", 3), ("layers", 58), ("head", 1)]


def test_wide_experts_are_seen_by_position() -> None:
    ops = {op.name: op for _, op in zoo.build("mixtral-8x7b", 4096).ops()}
    assert ops["dispatch"].outputs[0].dims == ("routed", "batch", "slot", "hidden")
    assert ops["experts_fc1"].inputs[0].dims == ("expert", "batch", "slot", "hidden")
    assert ops["combine"].inputs[0].dims == ("routed", "batch", "slot", "hidden")
    assert not ops["dispatch"].reduces
    assert not ops["combine"].reduces
    assert ops["dispatch"].size["slot"] == 4096 * 2 // 8


def test_sources_are_given() -> None:
    assert all(zoo.entry(name).source for name in zoo.names())
