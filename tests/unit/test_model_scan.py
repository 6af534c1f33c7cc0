"""The chunked scan of Mamba-2: its products by hand, what it keeps, and a model of such layers under plans."""

from __future__ import annotations

from dataclasses import replace

import pytest

from foretrain import Model, compile_graph, predict
from foretrain.compile.execution import Communication
from foretrain.errors import ModelError
from foretrain.model.graph import Op, Tensor
from foretrain.model.ops import FAMILIES, forward_flops
from foretrain.model.ops.base import KernelChoices, saved_bytes
from foretrain.model.precision import precision
from foretrain.testing.ops import check_model, check_op
from tests.support.mamba import CHUNK, GROUPS, SIZES, TOKENS, mamba

T, Q = SIZES["scan"], CHUNK
H, P, G, N = (SIZES[dim] for dim in ("heads", "head_dim", "kv_heads", "state"))
CHOICES = KernelChoices()


def scan(chunk: int = Q) -> Op:
    values, shared = ("batch", "scan", "heads", "head_dim"), ("batch", "scan", "kv_heads", "state")
    inputs = (
        Tensor("x", values),
        Tensor("dt", values[:3]),
        Tensor("b", shared),
        Tensor("c", shared),
    )
    weights = (Tensor("decay", ("heads",), "weight"), Tensor("skip", ("heads",), "weight"))
    ends = (inputs, (Tensor("y", values),), weights)
    return Op("scan", "scan", tuple(SIZES.items()), *ends, (("chunk", chunk),))


def test_it_conforms():
    check_op(scan())


def test_flops_are_those_of_the_paper():
    """Section 6.3 of arXiv 2405.21060: with Q = N = P all four products are T·N² per head, times two."""
    expected = 2 * T * (Q * G * N + Q * H * P + 2 * H * N * P)
    assert FAMILIES["scan"].flops(scan()) == expected
    # longer chunks multiply more within them, and not more across them
    more = FAMILIES["scan"].flops(scan(2 * Q)) - expected
    assert more == 2 * T * Q * (G * N + H * P)
    # and work grows with the sequence, not with its square
    double = replace(scan(), sizes=tuple({**SIZES, "scan": 2 * T}.items()))
    assert FAMILIES["scan"].flops(double) == 2 * expected


def test_backward_is_two_products_for_one_and_what_is_made_again():
    op, number = scan(), precision("bf16")
    products = [k for k in FAMILIES["scan"].backward(op, number, CHOICES) if k.kind == "gemm"]
    scores, states, decays = 2 * T * Q * G * N, 2 * T * H * N * P, 2 * T * Q * H * P
    run = sum(kernel.flops for kernel in products)
    assert run == 2 * FAMILIES["scan"].flops(op) + scores + states + decays


def test_states_are_not_kept():
    op, number = scan(), precision("bf16")
    kept = dict(saved_bytes(op, FAMILIES["scan"].saved(op, number, CHOICES), number))
    assert kept == {
        "x": 2 * T * H * P, "dt": 2 * T * H, "b": 2 * T * G * N, "c": 2 * T * G * N,
        "y": 2 * T * H * P, "scan.decays": 4 * T * H,
    }  # fmt: skip


def test_a_model_of_such_layers_conforms():
    check_model(mamba())
    assert forward_flops(mamba(16)) == 2 * forward_flops(mamba(8))


def test_layers_run_again_as_others_do():
    asked = {"on": "1 x dgx-h100", "plan": "dp8", "batch": 8, "runtime": "megatron"}
    kept_all = predict(mamba(), **asked)
    again = predict(mamba(), **{**asked, "plan": "dp8 recompute=full"})
    assert again.memory.peak_bytes < kept_all.memory.peak_bytes
    assert again.step_seconds > kept_all.step_seconds


def test_heads_are_split_and_a_cut_sequence_is_put_together():
    asked = {"on": "1 x dgx-h100", "batch": 8, "runtime": "megatron"}

    def exchanged(plan: str) -> set[tuple[str, str]]:
        works = (item.work for item in compile_graph(mamba(), plan=plan, **asked).items)
        return {(w.collective, w.purpose) for w in works if isinstance(w, Communication)}

    assert ("all_reduce", "tensor") in exchanged("tp8")
    assert ("all_gather", "context") in exchanged("cp2 dp4")


def test_chunks_are_checked():
    data = {"name": "m", "seq": T, "blocks": [{"name": "b", "ops": [
        {"name": "scan", "kind": "scan", "sizes": SIZES, "attrs": {"chunk": 0},
         "inputs": [f"x{TOKENS}", "dt[batch, scan, heads]", f"b{GROUPS}", f"c{GROUPS}"], "outputs": [f"y{TOKENS}"]}
    ]}]}  # fmt: skip
    with pytest.raises(ModelError, match="chunk: 0 is not a positive whole number"):
        Model.of(data)
