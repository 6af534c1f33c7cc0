"""GPT-2, GPT-3, the Megatron scaling models, BLOOM and Nemotron-4: layer norm, two-matrix MLPs."""

from __future__ import annotations

from foretrain.model.shape import TransformerShape
from foretrain.model.zoo.entry import Entry, entries_of


def _gpt(
    layers: int, hidden: int, heads: int, vocab: int, positions: int, head_dim: int | None = None
) -> TransformerShape:
    return TransformerShape(
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        vocab_size=vocab,
        tie_word_embeddings=True,
        head_dim=head_dim,
        max_position_embeddings=positions,
        dropout=0.1,
    )


def _nemotron(layers: int, hidden: int, heads: int, ffn: int) -> TransformerShape:
    return TransformerShape(
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=8,
        intermediate_size=ffn,
        vocab_size=256000,
        hidden_act="squared-relu",
        position="rope",
        biases="none",
        norm_bias=True,
    )


GPT2 = {
    "gpt2": _gpt(12, 768, 12, 50257, 1024),
    "gpt2-medium": _gpt(24, 1024, 16, 50257, 1024),
    "gpt2-large": _gpt(36, 1280, 20, 50257, 1024),
    "gpt2-xl": _gpt(48, 1600, 25, 50257, 1024),
}
# Heads are chosen so that they divide the width; the paper prints 24 heads of 128 for 1.3B
# and a width of 5,140 for 13B, which do not.
GPT3 = {
    "gpt3-125m": _gpt(12, 768, 12, 50257, 2048),
    "gpt3-350m": _gpt(24, 1024, 16, 50257, 2048),
    "gpt3-760m": _gpt(24, 1536, 16, 50257, 2048),
    "gpt3-1.3b": _gpt(24, 2048, 16, 50257, 2048),
    "gpt3-2.7b": _gpt(32, 2560, 32, 50257, 2048),
    "gpt3-6.7b": _gpt(32, 4096, 32, 50257, 2048),
    "gpt3-13b": _gpt(40, 5120, 40, 50257, 2048),
    "gpt3-175b": _gpt(96, 12288, 96, 50257, 2048),
}
# The vocabulary is padded to 51,200 as in the paper's setup.
MEGATRON = {
    f"megatron-{size}": _gpt(layers, hidden, heads, 51200, 2048)
    for size, layers, hidden, heads in (
        ("1.7b", 24, 2304, 24),
        ("3.6b", 30, 3072, 32),
        ("7.5b", 36, 4096, 32),
        ("18b", 40, 6144, 48),
        ("22b", 48, 6144, 64),
        ("39b", 48, 8192, 64),
        ("76b", 60, 10240, 80),
        ("145b", 80, 12288, 96),
        ("310b", 96, 16384, 128),
        ("530b", 105, 20480, 128),
        ("1t", 128, 25600, 160),
    )
}
BLOOM = {
    "bloom-176b": TransformerShape(
        hidden_size=14336,
        num_hidden_layers=70,
        num_attention_heads=112,
        vocab_size=250880,
        tie_word_embeddings=True,
        position="alibi",
        embedding_norm=True,
    )
}
NEMOTRON = {
    "nemotron4-15b": _nemotron(32, 6144, 48, 24576),
    "nemotron4-340b": _nemotron(96, 18432, 96, 73728),
}

MODELS: dict[str, Entry] = {
    **entries_of(GPT2, 1024, "Radford et al. 2019, GPT-2 (released checkpoints)"),
    **entries_of(GPT3, 2048, "Brown et al. 2020, arXiv 2005.14165, table 2.1"),
    **entries_of(
        MEGATRON,
        2048,
        "Narayanan et al. 2021, arXiv 2104.04473, table 1; 22B: Korthikanti et al. 2022, table 3",
    ),
    **entries_of(BLOOM, 2048, "BigScience 2022, arXiv 2211.05100, table 3"),
    **entries_of(
        NEMOTRON, 4096, "Parmar et al. 2024, arXiv 2402.16819; NVIDIA 2024, arXiv 2406.11704"
    ),
}
