"""Attributes of ops in a graph that somebody wrote: understood or refused, all at once."""

from __future__ import annotations

from typing import Any

import pytest

from foretrain.errors import ModelError
from foretrain.model import zoo
from foretrain.model.document import model_from_document
from foretrain.model.verify import ATTRIBUTES


def graph(**attrs: Any) -> dict[str, Any]:
    op = {
        "name": "n", "kind": "norm", "sizes": {"batch": 1, "hidden": 8}, "inputs": ["x[batch, hidden]"],
        "outputs": ["y[batch, hidden]"], "attrs": attrs,
    }  # fmt: skip
    block = {"name": "b", "ops": [op], "inputs": ["x[batch, hidden]"], "outputs": ["y[batch, hidden]"],
             "sizes": {"batch": 1, "hidden": 8}}  # fmt: skip
    return {"name": "m", "blocks": [block]}


def test_what_an_op_may_say_is_read() -> None:
    assert model_from_document(graph(norm="rmsnorm")).blocks[0].ops[0].attr["norm"] == "rmsnorm"


@pytest.mark.parametrize(
    ("attrs", "told"),
    [
        ({"norm": "laye"}, "b.n: norm: 'laye' is not one of layernorm"),
        ({"nrom": "rmsnorm"}, "b.n: unknown attribute 'nrom'"),
        ({"window": "wide"}, "window: 'wide' is not a whole number"),
        ({"stride": 0}, "stride: 0 is not a positive whole number"),
        ({"dropout": float("nan")}, "dropout: nan"),
        ({"causal": 2}, "causal: 2 is not true or false"),
        ({"tables": "10x"}, "tables: '10x' is not rows and look-ups"),
        ({"input_scale": True}, "input_scale: True"),
    ],
)
def test_what_it_may_not_say_is_refused(attrs: dict[str, Any], told: str) -> None:
    with pytest.raises(ModelError) as refused:
        model_from_document(graph(**attrs))
    assert any(told in fault for fault in refused.value.faults), refused.value.faults


def test_every_attribute_of_the_zoo_is_known() -> None:
    used = {
        name
        for model in ("llama3-8b", "mixtral-8x7b", "resnet50", "dlrm-dcnv2", "t5-small", "deepseek-v3")
        for _, op in zoo.build(model).ops()
        for name, _ in op.attrs
    }  # fmt: skip
    assert used
    assert used <= set(ATTRIBUTES)
