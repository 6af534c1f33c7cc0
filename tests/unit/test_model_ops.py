"""Op formulas against closed forms from the literature."""

from __future__ import annotations

from dataclasses import replace

import pytest

from foretrain.errors import ModelError
from foretrain.model import zoo
from foretrain.model.graph import Block, Model, Op, Tensor
from foretrain.model.ops import KernelChoices, family, forward_flops, training_flops, workspace
from foretrain.model.ops.base import WEIGHT_GRADIENT, saved_bytes
from foretrain.model.precision import precision
from foretrain.model.shape import TransformerShape
from foretrain.model.transformer import transformer

BF16 = precision("bf16")
FLASH, UNFUSED = KernelChoices("flash", True), KernelChoices("unfused", True)
EAGER = KernelChoices("unfused", False)


def op_named(model: Model, name: str) -> Op:
    return next(op for _, op in model.ops() if op.name == name)


def kept(
    block: Block, choices: KernelChoices, batch: int = 1, dtype: str = "fp16"
) -> dict[str, float]:
    """Saved bytes by tensor name: a tensor counts once however many ops keep it."""
    found: dict[str, float] = {}
    for op in block.ops:
        local = op.local({}, batch)
        tensors = family(op).saved(local, precision(dtype), choices)
        found.update(saved_bytes(local, tensors, precision(dtype)))
    return found


@pytest.mark.parametrize(("s", "b", "h", "a"), [(2048, 1, 6144, 64), (512, 4, 1024, 16)])
@pytest.mark.parametrize("choices", [UNFUSED, EAGER])
def test_saved_activations_of_a_layer(
    s: int, b: int, h: int, a: int, choices: KernelChoices
) -> None:
    """sbh(34 + 5as/h) bytes per layer: Korthikanti et al. 2022 (arXiv 2205.05198), equation 1."""
    model = transformer(TransformerShape(h, 2, a, 51200, dropout=0.1), s, "gpt")
    assert sum(kept(model.blocks[1], choices, b).values()) == 34 * s * b * h + 5 * a * s * s * b


def test_flash_keeps_no_scores() -> None:
    """Without the 5as/h term but with one fp32 log-sum-exp per head and token."""
    s, b, h, a = 2048, 2, 4096, 32
    model = transformer(TransformerShape(h, 2, a, 51200, dropout=0.1), s, "gpt")
    found = kept(model.blocks[1], FLASH, b)
    assert sum(found.values()) == s * b * h * 34 + 4 * s * b * a
    assert found["attention.logsumexp"] == 4 * s * b * a


def test_unfused_gating_keeps_the_activated_half_too() -> None:
    block = zoo.build("llama3-8b").blocks[1]
    more = sum(kept(block, KernelChoices("flash", False)).values()) - sum(
        kept(block, FLASH).values()
    )
    assert more == 8192 * 14336 * 2


def test_resnet_keeps_conv_and_activation_results() -> None:
    """conv-bn-relu keeps the convolution's result (for the norm) and the activation's."""
    block = next(b for b in zoo.build("resnet50").blocks if b.name == "stage1")
    found = kept(block, FLASH, dtype="fp32")
    assert set(found) == {
        "x", "1_conv", "1_act", "2_conv", "2_act", "3_conv", "y",
    }  # fmt: skip
    assert found["1_conv"] == 64 * 56 * 56 * 4


def test_strided_input_counts_at_its_own_size() -> None:
    block = next(b for b in zoo.build("resnet50").blocks if b.name == "stage2_first")
    op = next(o for o in block.ops if o.name == "skip_conv")
    tensors = family(op).saved(op, BF16, FLASH)
    assert dict(saved_bytes(op, tensors, BF16))["x"] == 256 * 56 * 56 * 2


def test_linear_backward_is_twice_forward() -> None:
    op = op_named(zoo.build("gpt2"), "fc1")
    forward = sum(k.flops for k in family(op).forward(op, BF16, FLASH))
    backward = family(op).backward(op, BF16, FLASH)
    assert forward == 2 * 1024 * 768 * 3072
    assert sum(k.flops for k in backward) == 2 * forward
    weight = next(k for k in backward if k.phase == WEIGHT_GRADIENT)
    assert weight.shape == (1, 768, 3072, 1024)


def test_qkv_is_one_gemm() -> None:
    op = op_named(zoo.build("llama3-8b"), "qkv")
    (kernel,) = family(op).forward(op, BF16, FLASH)
    assert kernel.shape == (1, 8192, (32 + 2 * 8) * 128, 4096)


def test_low_precision_reads_fewer_operand_bytes() -> None:
    op = op_named(zoo.build("llama3-8b"), "fc2")
    m, n, k = 8192, 4096, 14336
    (kernel,) = family(op).forward(op, precision("fp8"), FLASH)
    assert kernel.dtype == "fp8"
    assert kernel.bytes == m * k + k * n + 2 * m * n


def test_raw_data_gets_no_gradient() -> None:
    for name, op_name in (
        ("resnet50", "stem_conv"),
        ("dlrm-mlperf", "bottom1"),
        ("vit-b", "patches"),
    ):
        op = op_named(zoo.build(name), op_name)
        assert {k.phase for k in family(op).backward(op, BF16, FLASH)} == {WEIGHT_GRADIENT}


def test_flash_backward_makes_five_products_of_two() -> None:
    op = op_named(zoo.build("bert-base"), "attention")
    (forward,) = family(op).forward(op, BF16, FLASH)
    (backward,) = family(op).backward(op, BF16, FLASH)
    assert forward.flops == 4 * 512 * 512 * 768
    assert backward.flops == 2.5 * forward.flops


def test_causal_flash_does_half_the_work() -> None:
    op = op_named(zoo.build("gpt2"), "attention")
    (kernel,) = family(op).forward(op, BF16, FLASH)
    assert kernel.flops == family(op).flops(op) / 2
    unfused = sum(k.flops for k in family(op).forward(op, BF16, UNFUSED) if k.kind == "gemm")
    assert unfused == family(op).flops(op)


def test_window_limits_the_work() -> None:
    """Mistral at 32k tokens sees 4k each: the causal band's area, exactly counted."""
    op = op_named(zoo.build("mistral-7b", 32768), "attention")
    (kernel,) = family(op).forward(op, BF16, FLASH)
    band = sum(min(i + 1, 4096) for i in range(32768))
    assert kernel.flops == pytest.approx(4 * 32 * 128 * band, rel=1e-3)


def test_grouped_heads_read_fewer_keys() -> None:
    op = op_named(zoo.build("llama3-8b"), "attention")
    (kernel,) = family(op).forward(op, BF16, FLASH)
    query, key = 8192 * 32 * 128 * 2, 8192 * 8 * 128 * 2
    assert kernel.bytes == 2 * query + 2 * key + 8192 * 32 * 4


def test_latent_attention_has_two_head_widths() -> None:
    op = op_named(zoo.build("deepseek-v3"), "attention")
    assert family(op).flops(op) == 2 * 128 * 4096 * 4096 * (192 + 128)
    assert op.outputs[0].dims == ("batch", "seq", "heads", "v_dim")


def test_fused_elementwise_moves_less() -> None:
    for name in ("act", "residual1", "rope"):
        model = zoo.build("llama3-8b" if name == "rope" else "gpt2")
        op = op_named(model, name)
        fused = family(op).forward(op, BF16, FLASH)
        apart = family(op).forward(op, BF16, EAGER)
        assert len(fused) == 1 < len(apart)
        assert sum(k.bytes for k in fused) < sum(k.bytes for k in apart)


def test_loss_keeps_fp32_and_needs_another_copy() -> None:
    op = op_named(zoo.build("llama3-8b"), "loss")
    (tensor,) = family(op).saved(op, BF16, FLASH)
    assert dict(saved_bytes(op, [tensor], BF16)) == {tensor.name: 8192 * 128256 * 4}
    assert workspace(op, BF16, FLASH) == 8192 * 128256 * 4
    assert workspace(op_named(zoo.build("gpt2"), "fc1"), BF16, FLASH) == 0


def test_balanced_experts_do_top_k_work() -> None:
    """The experts of a token cost as much as top_k dense MLPs."""
    model = zoo.build("mixtral-8x7b", 4096)
    work = sum(family(op).flops(op) for _, op in model.ops() if op.kind == "grouped_gemm")
    assert work == 2 * (3 * 2 * 4096 * 4096 * 14336)


def test_dense_model_flops_are_two_per_parameter_and_token() -> None:
    """6·P·tokens for training, plus attention's 12·l·h·s (Narayanan et al. 2021, appendix)."""
    model = zoo.build("gpt3-175b")
    tokens, hidden, layers = 2048, 12288, 96
    matrices = layers * 12 * hidden**2 + 50257 * hidden
    expected = 6 * matrices * tokens + 12 * layers * hidden * tokens**2
    assert training_flops(model) == pytest.approx(expected, rel=1e-9)


def test_resnet50_is_4_09_gigamacs() -> None:
    assert forward_flops(zoo.build("resnet50")) / 2e9 == pytest.approx(4.09, rel=0.01)


def test_dlrm_lookups() -> None:
    model = zoo.build("dlrm-dcnv2")
    groups = [op for _, op in model.ops() if op.kind == "embedding_bag"]
    assert sum(op.size["bag"] for op in groups) == 214
    assert sum(op.size["table"] for op in groups) == 26
    assert op_named(zoo.build("dlrm-mlperf"), "top1").size["hidden"] == 479
    assert op_named(model, "cross1_down").size["feature"] == 3456


def test_batch_norm_makes_a_pass_for_statistics() -> None:
    """Read twice and write once; backward reads input and gradient twice and writes once."""
    op = op_named(zoo.build("resnet50"), "stem_bn")
    one_pass = 64 * 112 * 112 * 2
    (forward,) = family(op).forward(op, BF16, FLASH)
    assert forward.bytes == 3 * one_pass
    assert family(op).backward(op, BF16, FLASH)[0].bytes == 5 * one_pass
    layer_norm = op_named(zoo.build("gpt2"), "ln1")
    assert family(layer_norm).forward(layer_norm, BF16, FLASH)[0].bytes == 2 * 1024 * 768 * 2


def test_dot_interaction_multiplies_all_pairs() -> None:
    """27 vectors of 128: the full square, of which libraries keep one triangle."""
    op = op_named(zoo.build("dlrm-mlperf"), "interaction")
    assert family(op).flops(op) == 2 * 27 * 27 * 128
    assert family(op).forward(op, BF16, FLASH)[0].shape == (1, 27, 27, 128)


def test_unknown_kind_and_elementwise_op_are_explained() -> None:
    op = Op("a", "liner", (("batch", 1),), (), (Tensor("y", ("batch",)),))
    with pytest.raises(ModelError, match="Did you mean 'linear'"):
        family(op)
    attention = op_named(zoo.build("gpt2"), "attention")
    with pytest.raises(ModelError, match="Did you mean 'flash'"):
        family(attention).forward(attention, BF16, KernelChoices("flsh"))
    wrong = replace(op, kind="elementwise", attrs=(("op", "gelo"),), inputs=op.outputs)
    with pytest.raises(ModelError, match="Did you mean 'gelu'"):
        family(wrong).forward(wrong, BF16, FLASH)
