"""Counts and factors beyond any sense are refused at once, with what to do instead."""

from __future__ import annotations

import time
from typing import Any

import pytest

from foretrain.cases import predict_case
from foretrain.cluster.cluster import Cluster
from foretrain.cluster.stragglers import with_stragglers
from foretrain.errors import InputError
from foretrain.forecast import predict
from foretrain.limits import DEVICES, LAYERS, shown
from foretrain.model.load import load_model
from foretrain.whatifs import whatif

ASK: dict[str, Any] = {"on": "1 x dgx-a100-80gb", "plan": "dp8", "batch": 8, "seq": 128}
HUGE = 10**400
"""A whole number that no double can hold."""
SHAPE = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 100}


def _tree(**fields: Any) -> dict[str, Any]:
    return {"mesh": {"dp": 8}, "tree": {"split": {"batch": "dp"}, **fields}}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"batch": 10**9, "micro_batch": 1}, ["micro-batches", "Increase the micro-batch"]),
        ({"batch": 10**12}, ["global batch", "at most"]),
        ({"batch": 0}, ["not a positive whole number"]),
        ({"micro_batch": 10**9}, ["micro-batch", "at most"]),
        ({"micro_batch": -1}, ["micro-batch", "not a positive whole number"]),
        ({"seq": 10**12}, ["sequence length", "at most"]),
        ({"plan": "pp8 vpp99999999"}, ["vpp99999999", "at most"]),
        ({"plan": "tp" + "9" * 5000}, ["too long"]),
        ({"plan": "dp8 micro=" + "9" * 500}, ["is not a positive whole number"]),
        ({"stragglers": "3:1e300"}, ["from 0.01 to 1000"]),
        ({"stragglers": "3:nan"}, ["from 0.01 to 1000"]),
        ({"stragglers": {3: HUGE}}, ["rank 3", "from 0.01 to 1000"]),
        ({"stragglers": {HUGE: 2.0}}, ["ranks are 0 to 7"]),
        ({"batch": HUGE}, ["batch", "at most"]),
        ({"batch": "1e300 tokens"}, ["batch", "at most"]),
        ({"headroom": HUGE}, ["headroom"]),
        ({"steps": 10, "usd_per_hour": HUGE}, ["usd_per_hour"]),
        ({"plan": _tree(bucket_bytes=HUGE)}, ["tree.bucket_bytes"]),
        ({"plan": _tree(children={f"layers[{'9' * 5000}]": {}})}, ["selects nothing"]),
        ({"plan": _tree(recompute="full@" + "9" * 5000)}, ["recompute="]),
        ({"plan": {"mesh": {"dp": 8, **{f"a{n}": 1 for n in range(99)}}}}, ["at most 32 axes"]),
        ({"on": "999,999,999 x dgx-a100-80gb"}, ["devices; at most"]),
    ],
)
def test_a_question_beyond_sense_is_refused_quickly(
    change: dict[str, Any], words: list[str]
) -> None:
    began = time.process_time()
    with pytest.raises(InputError) as refused:
        predict("gpt2", **{**ASK, **change})
    assert time.process_time() - began < 2.0
    for word in words:
        assert word in str(refused.value)
    assert len(str(refused.value)) < 600


@pytest.mark.parametrize(
    "change",
    [
        {"num_hidden_layers": 10**9},
        {"hidden_size": 10**15},
        {"vocab_size": 0},
        {"num_experts": 10**12},
        {"sliding_window": -1},
        {"dropout": float("nan")},
        {"capacity_factor": 1e300},
        {"num_hidden_layers": 10**4000},
    ],
)
def test_a_shape_beyond_sense_names_its_field(change: dict[str, Any]) -> None:
    with pytest.raises(InputError) as refused:
        load_model({"transformer": {**SHAPE, **change}, "seq": 128})
    assert next(iter(change)) in str(refused.value)
    assert len(str(refused.value)) < 300


def test_a_case_beyond_sense_is_no_bug() -> None:
    case = {
        "id": "a",
        "model": {"zoo": "gpt2"},
        "seq_len": 128,
        "cluster": {"device": "a100", "nodes": 1, "devices_per_node": 8},
        "batch": {"global": 10**9, "micro": 1},
    }
    error = predict_case(case)["error"]
    assert error["kind"] == "PlanError"
    assert "Increase the micro-batch" in error["message"]


@pytest.mark.parametrize("factor", ["1e7x", "nan", "inf", "-1x", "0x", "1e-9x", "9" * 5000])
def test_factors_of_a_what_if_are_bounded(factor: str) -> None:
    with pytest.raises(InputError, match="expected a factor such as 2x or 0\\.5x"):
        whatif("gpt2", **ASK, changes={"network.bandwidth": factor})


@pytest.mark.parametrize("rate", ["1e300GB/s", 1e-30, float("inf"), 10**400])
def test_quantities_are_bounded(rate: Any) -> None:
    data = {"nodes": ["2 x dgx-h100"], "network": {"kind": "ib", "bandwidth": rate}}
    with pytest.raises(InputError, match=r"network\.bandwidth"):
        Cluster.from_dict(data)


@pytest.mark.parametrize("count", [HUGE, "1e308", 1e308])
def test_counts_are_bounded(count: Any) -> None:
    with pytest.raises(InputError, match=r"nodes\[0\]\.count: .* is too large") as refused:
        Cluster.from_dict({"nodes": [{"node": "dgx-h100", "count": count}]})
    assert len(str(refused.value)) < 300


@pytest.mark.parametrize("batch", ["1e308", HUGE])
def test_a_batch_of_a_what_if_is_bounded(batch: Any) -> None:
    with pytest.raises(InputError, match=r"batch: .* is too large"):
        whatif("gpt2", **ASK, changes={"batch": batch})


def test_a_straggler_within_bounds_still_counts() -> None:
    assert with_stragglers(Cluster.of("8 H100"), {3: 1000.0}) != Cluster.of("8 H100")


def test_a_limit_says_what_is_wrong() -> None:
    assert DEVICES.allows(1)
    assert DEVICES.allows(DEVICES.most)
    assert not any(map(DEVICES.allows, (0, -1, DEVICES.most + 1, True, 1.0, "8", None)))
    assert LAYERS.fault(10**9) == "1,000,000,000 is too large: at most 10,000 layers."
    assert LAYERS.fault(True) == "True is not a positive whole number."
    assert len(shown(10**5000)) <= 40
    assert len(shown("x" * 5000)) <= 40
