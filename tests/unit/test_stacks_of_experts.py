"""What stacks of the Megatron family do with experts, weight gradients and narrow weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from foretrain import predict
from foretrain.cases import scenario_from_case
from foretrain.cluster.cluster import Cluster
from foretrain.compile.execution import Communication, Compute, ExecutionGraph, Item
from foretrain.cost.compute import gemm
from foretrain.model.ops.base import WEIGHT_GRADIENT, Kernel
from foretrain.resolving import ask
from foretrain.simulate import compile_scenario


def graph_of(model: str, plan: str, **given: Any) -> ExecutionGraph:
    question = ask(model, on="dgx-h100", plan=plan, batch=16, seq=2048, runtime="nemo", **given)
    return compile_scenario(question)


def exchanges(graph: ExecutionGraph) -> list[tuple[Item, Communication]]:
    """Tensor-parallel gathers and scatters, each with the item it stands in."""
    found = []
    for item in graph.items:
        for work in (item.work, item.beside):
            is_one = isinstance(work, Communication) and work.purpose == "tensor"
            if is_one and work.collective in ("all_gather", "reduce_scatter"):
                found.append((item, work))
    return found


@pytest.mark.parametrize("is_grouped", [True, False])
def test_a_dispatcher_exchanges_tokens_in_kernels_of_its_own(is_grouped: bool) -> None:
    graph = graph_of(
        "mixtral-8x7b", "tp4 dp2 ep2 sp", runtime_options={"groups_experts": is_grouped}
    )
    beside = [
        item.work.op
        for item, _ in exchanges(graph)
        if item.in_pieces and isinstance(item.work, Compute)
    ]
    assert any("qkv" in op for op in beside)
    assert not any("experts" in op for op in beside)


def test_tokens_travel_as_they_are_where_experts_multiply_narrow() -> None:
    """The dispatcher moves what it is given; casting is the experts' own first step."""

    def gathered(precision: str) -> float:
        found = exchanges(graph_of("mixtral-8x7b", "tp4 dp2 ep2 sp", precision=precision))
        return max(work.bytes for _, work in found if work.collective == "all_gather")

    # two copies of each of 2,048 tokens of two replicas, over two ranks
    assert gathered("bf16") == gathered("fp8") == 2 * 2048 * 4096 * 2.0


def test_products_that_add_up_take_the_time_of_the_buffer() -> None:
    (device, *_) = Cluster.of("dgx-h100").devices
    plain = Kernel(
        "gemm", WEIGHT_GRADIENT, 2.0 * 4096**3, 3 * 2.0 * 4096**2, "bf16", (1, 4096, 4096, 4096)
    )
    more = 6.0 * 4096**2
    adding = Kernel(
        "gemm", WEIGHT_GRADIENT, plain.flops, plain.bytes + more, "bf16", plain.shape, more
    )
    found = gemm.estimate([plain, adding], device, "bf16")
    assert found is not None
    alone, both = found.seconds
    assert both - alone == pytest.approx(float(gemm.streamed(np.array([more]), device)[0]))


def test_megatron_adds_gradients_in_products_by_micro_batch() -> None:
    def added(**options: Any) -> float:
        graph = graph_of("llama2-7b", "tp2 dp4 sp", runtime_options=options)
        works = [item.work for item in graph.items]
        return sum(w.kernel.added for w in works if isinstance(w, Compute))

    assert added(wgrad_accumulation_fusion=False) == 0.0
    assert added(gradient_accumulation_fusion=False) == 0.0
    # a buffer of fp32 is read and written as such, one of bf16 is read
    assert added(gradient_bytes=4.0) == pytest.approx(3.0 * added(gradient_bytes=2.0))


def test_gradients_that_gemms_do_not_add_up_are_added_by_kernels_which_take_longer() -> None:
    def seconds(fused: bool) -> float:
        options = {"gradient_accumulation_fusion": fused}
        question = {"on": "1 x dgx-h100", "plan": "tp2 dp4", "batch": 64}
        return predict("llama2-7b", **question, runtime="megatron", runtime_options=options).step_seconds  # fmt: skip

    assert seconds(fused=False) > seconds(fused=True)


def test_weights_are_gathered_as_products_read_them() -> None:
    def gathered(precision: str, **options: Any) -> float:
        graph = graph_of("llama2-7b", "dp8 zero1", precision=precision, runtime_options=options)
        works = [item.work for item in graph.items]  # blocks that are alike have one
        return sum(
            w.bytes for w in works if isinstance(w, Communication) and w.purpose == "weights"
        )

    wide = gathered("bf16")
    assert gathered("fp8", gathers_quantised=[]) == wide
    # embedding and output projection stay in 16 bits, as norms do; block-scaled weights are gathered before the cast
    assert wide - gathered("fp8") == 4 * 4096**2 + 3 * 4096 * 11008
    assert gathered("mxfp8") == wide


def released(container: str, **model: int) -> str:
    case = {
        "id": "x/1",
        "model": {
            "family": "moe", "hidden_size": 2048, "num_hidden_layers": 4, "num_attention_heads": 16,
            "num_key_value_heads": 16, "intermediate_size": 4096, "vocab_size": 32000,
            "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
            "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 1024,
        } | model,
        "seq_len": 2048,
        "cluster": {"device": "gb200-nvl72", "devices_per_node": 4, "nodes": 1,
                    "intra_node": "nvlink5-nvl72", "network": {}},
        "devices": 4,
        "plan": {"dp": 4, "tp": 1, "pp": 1, "ep": 4},
        "batch": {"global": 16, "micro": 1},
        "precision": "bf16",
        "runtime": "nemo",
        "runtime_options": {"attention": "cudnn", "container": container},
    }  # fmt: skip
    return scenario_from_case(case).runtime.kernels.attention


def test_early_releases_had_no_fused_attention_for_unequal_heads() -> None:
    assert released("nvcr.io#nvidia/nemo:25.04.01") == "unfused"
    assert released("nvcr.io#nvidia/nemo:25.09") == "cudnn"
    assert released("nvcr.io#nvidia/nemo:25.04.01", v_head_dim=192) == "cudnn"
