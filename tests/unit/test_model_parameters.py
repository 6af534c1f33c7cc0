"""Parameter counts against the counts of the released checkpoints and reference implementations."""

from __future__ import annotations

import pytest

from foretrain.model import zoo

# torchvision's documented counts for the CNNs and ViT, released checkpoints for the language models.
EXACT = {
    "resnet18": 11_689_512,
    "resnet34": 21_797_672,
    "resnet50": 25_557_032,
    "resnet101": 44_549_160,
    "resnet152": 60_192_808,
    "wide-resnet50-2": 68_883_240,
    "wide-resnet101-2": 126_886_696,
    "resnet18-cifar": 11_173_962,
    "vgg11": 132_863_336,
    "vgg13": 133_047_848,
    "vgg16": 138_357_544,
    "vgg19": 143_667_240,
    "alexnet": 61_100_840,
    "inception-v3": 23_834_568,  # without the auxiliary classifier
    "vit-b": 86_567_656,
    "vit-l": 304_326_632,
    "gpt2": 124_439_808,
    "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
    "bloom-176b": 176_247_271_424,
    "llama2-7b": 6_738_415_616,
    "llama2-13b": 13_015_864_320,
    "llama2-70b": 68_976_648_192,
    "llama3-8b": 8_030_261_248,
    "llama3-70b": 70_553_706_496,
    "llama3.1-405b": 405_853_388_800,
    "llama3.2-1b": 1_235_814_400,
    "llama3.2-3b": 3_212_749_824,
    "mistral-7b": 7_241_732_096,
    "mixtral-8x7b": 46_702_792_704,
    "mixtral-8x22b": 140_630_071_296,
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-7b": 7_615_616_512,
    "qwen2.5-72b": 72_706_203_648,
    "qwen3-8b": 8_190_735_360,
    "bert-large": 336_226_108,  # with pooler, masked-LM and next-sentence heads
    "t5-large": 737_668_096,
    "t5-11b": 11_307_321_344,
}
NEAR = {
    "bert-large": 335.1e6,
    "gpt3-175b": 175e9,
    "deepseek-v3": 671e9,
    "deepseek-v2-lite": 15.7e9,
    "qwen3-30b-a3b": 30.5e9,
    "qwen3-235b-a22b": 235e9,
    "nemotron4-340b": 340e9,
    "grok-1": 314e9,
    "megatron-1t": 1008e9,
    "megatron-530b": 529.6e9,
    "megatron-22b": 22e9,
    "megatron-1.7b": 1.7e9,
    "dlrm-mlperf": 204_184_588 * 128,
}


@pytest.mark.parametrize(("name", "count"), EXACT.items())
def test_count_is_exact(name: str, count: int) -> None:
    assert zoo.build(name).parameters == count


@pytest.mark.parametrize(("name", "count"), NEAR.items())
def test_count_is_near_the_published_one(name: str, count: float) -> None:
    within = {"megatron-1.7b": 0.03, "grok-1": 0.006, "dlrm-mlperf": 0.001}.get(name, 0.005)
    assert zoo.build(name).parameters == pytest.approx(count, rel=within)


def test_megatron_formula() -> None:
    """P = 12·l·h²·(1 + 13/(12h) + (V + s)/(12·l·h)), Narayanan et al. 2021, equation 2."""
    layers, hidden, vocab, seq = 96, 16384, 51200, 2048
    formula = 12 * layers * hidden**2 * (
        1 + 13 / (12 * hidden) + (vocab + seq) / (12 * layers * hidden)
    )  # fmt: skip
    assert zoo.build("megatron-310b").parameters == pytest.approx(formula, rel=1e-6)


def test_tied_weights_count_once() -> None:
    model = zoo.build("gpt2")
    untied = sum(block.parameters * block.repeat for block in model.blocks)
    assert untied - model.parameters == 50257 * 768


def test_positions_grow_with_the_sequence_but_never_shrink() -> None:
    assert zoo.build("gpt2", 512).parameters == zoo.build("gpt2", 1024).parameters
    extra = zoo.build("gpt2", 2048).parameters - zoo.build("gpt2", 1024).parameters
    assert extra == 1024 * 768
