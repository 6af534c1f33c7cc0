"""Kernels of software that fuses nothing, or not at every width."""

from __future__ import annotations

import pytest

from foretrain.cases import scenario_from_case
from foretrain.model.graph import Op
from foretrain.model.ops import KernelChoices, family
from foretrain.model.ops.base import saved_bytes
from foretrain.model.precision import precision
from foretrain.model.shape import TransformerShape
from foretrain.model.transformer import transformer

FUSED, EAGER = KernelChoices("unfused", True), KernelChoices("unfused", False)


def _op(name: str, act: str = "gelu-tanh", causal: bool = True) -> Op:
    shape = TransformerShape(256, 1, 4, 1000, dropout=0.1, hidden_act=act, causal=causal)
    model = transformer(shape, 128, "gpt")
    return next(op.local({}, 2) for _, op in model.ops() if op.name == name)


def _passes(op: Op, choices: KernelChoices, backward: bool, size: float) -> float:
    fp32 = precision("fp32")
    kernels = (family(op).backward if backward else family(op).forward)(op, fp32, choices)
    return sum(kernel.bytes for kernel in kernels if kernel.kind == "memory") / size


def test_gelu_written_out_is_many_passes() -> None:
    """Hugging Face's NewGELUActivation: ×½, ³, ×d, +x, ×c, tanh, +1, × read and write 2+2+2+3+2+2+2+3 tensors."""
    op = _op("act")
    size = 2 * 128 * 1024 * 4.0
    assert _passes(op, EAGER, False, size) == 18
    assert len(family(op).forward(op, precision("fp32"), EAGER)) == 8
    assert _passes(op, EAGER, True, size) == pytest.approx(28)
    for backward in (False, True):
        plain = _op("act", "gelu")
        assert _passes(op, FUSED, backward, size) == _passes(plain, FUSED, backward, size)


def test_gelu_written_out_keeps_what_is_on_the_way() -> None:
    op = _op("act")
    for choices, tensors in ((FUSED, 1), (EAGER, 4)):
        kept = saved_bytes(op, family(op).saved(op, precision("fp16"), choices), precision("fp16"))
        assert sum(size for _, size in kept) == tensors * 2 * 128 * 1024 * 2


@pytest.mark.parametrize(
    ("dtype", "causal", "choices", "forward", "backward"),
    [
        ("fp16", True, FUSED, 1, 1),
        ("fp32", False, FUSED, 1, 1),
        ("fp32", True, FUSED, 2, 3),  # mask and softmax apart; PyTorch's softmax backward is two
        ("fp16", True, EAGER, 3 + 4, 4 + 4),  # and q, k, v and the output change their layout
    ],
)
def test_softmax_kernels(
    dtype: str, causal: bool, choices: KernelChoices, forward: int, backward: int
) -> None:
    op = _op("attention", causal=causal)
    number = precision(dtype)
    counts = [
        sum(kernel.kind == "memory" for kernel in kernels) - 1  # dropout's
        for kernels in (
            family(op).forward(op, number, choices),
            family(op).backward(op, number, choices),
        )
    ]
    assert counts == [forward, backward]


@pytest.mark.parametrize(("runtime", "dropped"), [("mist", False), ("megatron", True)])
def test_software_that_trains_without_dropout(runtime: str, dropped: bool) -> None:
    case = {
        "id": "x", "model": {
            "family": "gpt", "hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4,
            "vocab_size": 1000,
        }, "seq_len": 128, "cluster": {"device": "l4", "devices_per_node": 1, "nodes": 1},
        "devices": 1, "plan": {}, "batch": {"global": 2, "micro": 1}, "precision": "fp16",
        "optimizer": "adam", "runtime": runtime, "runtime_options": {},
    }  # fmt: skip
    model = scenario_from_case(case).workload.model
    attention = next(op for _, op in model.ops() if op.name == "attention")
    assert bool(attention.attr["dropout"]) is dropped
    own = scenario_from_case(case | {"model": {**case["model"], "dropout": 0.2}})  # type: ignore[dict-item]
    attention = next(op for _, op in own.workload.model.ops() if op.name == "attention")
    assert attention.attr["dropout"] == 0.2


@pytest.mark.parametrize(
    ("device", "dtype", "stated", "chosen"),
    [
        ("v100-sxm2-16gb", "fp16", None, "unfused"),  # no fused kernels before Ampere
        ("h100-sxm5-80gb", "fp32", None, "unfused"),  # nor for wide numbers
        ("a100-sxm4-80gb", "bf16", None, "flash"),
        ("h100-sxm5-80gb", "bf16", None, "cudnn"),  # Transformer Engine takes it since Hopper
        ("b200-sxm", "bf16", "fused", "cudnn"),
        ("a100-sxm4-80gb", "bf16", "fused", "flash"),
        ("v100-sxm2-16gb", "fp16", "flash", "flash"),  # whoever says so must know
    ],
)
def test_attention_left_open(device: str, dtype: str, stated: str | None, chosen: str) -> None:
    case = {
        "id": "x", "model": {"zoo": "gpt2"}, "seq_len": 128,
        "cluster": {"device": device, "devices_per_node": 1, "nodes": 1},
        "devices": 1, "plan": {}, "batch": {"global": 2, "micro": 1}, "precision": dtype,
        "optimizer": "adam", "runtime": "megatron", "runtime_options": {"attention": stated},
    }  # fmt: skip
    question = scenario_from_case(case)
    assert question.runtime.kernels.attention == chosen
    told = any(line.startswith("attention unfused") for line in question.assumptions)
    assert told is (chosen == "unfused")


def test_eager_attention_copies_its_operands() -> None:
    """q, k, v and the output are read and written once more, or their gradients."""
    op = _op("attention")
    size = 2 * 128 * 256 * 4.0
    passes = [
        sum(k.bytes for k in kernels(op, precision("fp32"), EAGER) if k.shape == (2 * 128 * 256,))
        for kernels in (family(op).forward, family(op).backward)
    ]
    assert passes == [4 * 2 * size, 4 * 2 * size]


def test_dropout_of_scores_in_the_pass_of_softmax() -> None:
    """Saves a read and a write of the scores each way, less what the mask takes."""
    op = _op("attention")
    scores = 2 * 4 * 128 * 128
    fused = KernelChoices("unfused", True, fuses_score_dropout=True)
    for kernels, saved in ((family(op).forward, 1 * 2 - 1), (family(op).backward, 2 * 2)):
        apart, joined = (
            sum(k.bytes for k in kernels(op, precision("fp16"), c)) for c in (FUSED, fused)
        )
        assert apart - joined == saved * scores
        assert len(kernels(op, precision("fp16"), fused)) + 1 == len(
            kernels(op, precision("fp16"), FUSED)
        )


def test_products_that_miss_the_matrix_units() -> None:
    """cuBLAS before 11 needs dims that are multiples of 8."""
    shape = TransformerShape(256, 1, 4, 1004)
    ops = {op.name: op.local({}, 2) for _, op in transformer(shape, 128, "gpt").ops()}
    old, new = KernelChoices(aligned_to=8), KernelChoices()
    for name, expected in (("logits", "fp32"), ("fc1", "fp16")):
        op = ops[name]
        for kernels in (family(op).forward, family(op).backward):
            assert {k.dtype for k in kernels(op, precision("fp16"), old) if k.kind == "gemm"} == {
                expected
            }
            assert {k.dtype for k in kernels(op, precision("fp16"), new) if k.kind == "gemm"} == {
                "fp16"
            }
