"""Llama, Mistral and dense Qwen: RMS norm, rotary positions, gated MLPs, grouped heads."""

from __future__ import annotations

from foretrain.model.shape import TransformerShape
from foretrain.model.zoo.entry import Entry, entries_of


def _llama(
    layers: int,
    hidden: int,
    heads: int,
    kv_heads: int,
    ffn: int,
    vocab: int,
    *,
    tied: bool = False,
    biases: str = "none",
    head_dim: int | None = None,
    qk_norm: bool = False,
    window: int | None = None,
) -> TransformerShape:
    return TransformerShape(
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        intermediate_size=ffn,
        vocab_size=vocab,
        tie_word_embeddings=tied,
        hidden_act="silu-gated",
        norm="rmsnorm",
        position="rope",
        head_dim=head_dim,
        biases=biases,
        qk_norm=qk_norm,
        sliding_window=window,
    )


LLAMA2 = {
    "llama2-7b": _llama(32, 4096, 32, 32, 11008, 32000),
    "llama2-13b": _llama(40, 5120, 40, 40, 13824, 32000),
    "llama2-70b": _llama(80, 8192, 64, 8, 28672, 32000),
}
LLAMA3 = {
    "llama3-8b": _llama(32, 4096, 32, 8, 14336, 128256),
    "llama3-70b": _llama(80, 8192, 64, 8, 28672, 128256),
    "llama3.1-8b": _llama(32, 4096, 32, 8, 14336, 128256),
    "llama3.1-70b": _llama(80, 8192, 64, 8, 28672, 128256),
    "llama3.1-405b": _llama(126, 16384, 128, 8, 53248, 128256),
    "llama3.2-1b": _llama(16, 2048, 32, 8, 8192, 128256, tied=True),
    "llama3.2-3b": _llama(28, 3072, 24, 8, 8192, 128256, tied=True),
}
MISTRAL = {"mistral-7b": _llama(32, 4096, 32, 8, 14336, 32000, window=4096)}


def _qwen2(layers: int, hidden: int, heads: int, kv: int, ffn: int, vocab: int) -> TransformerShape:
    return _llama(layers, hidden, heads, kv, ffn, vocab, tied=hidden < 3000, biases="qkv")


def _qwen3(layers: int, hidden: int, heads: int, ffn: int, tied: bool = False) -> TransformerShape:
    return _llama(layers, hidden, heads, 8, ffn, 151936, tied=tied, head_dim=128, qk_norm=True)


QWEN2 = {
    "qwen2.5-0.5b": _qwen2(24, 896, 14, 2, 4864, 151936),
    "qwen2.5-1.5b": _qwen2(28, 1536, 12, 2, 8960, 151936),
    "qwen2.5-3b": _qwen2(36, 2048, 16, 2, 11008, 151936),
    "qwen2.5-7b": _qwen2(28, 3584, 28, 4, 18944, 152064),
    "qwen2.5-14b": _qwen2(48, 5120, 40, 8, 13824, 152064),
    "qwen2.5-32b": _qwen2(64, 5120, 40, 8, 27648, 152064),
    "qwen2.5-72b": _qwen2(80, 8192, 64, 8, 29568, 152064),
}
QWEN3 = {
    "qwen3-0.6b": _qwen3(28, 1024, 16, 3072, tied=True),
    "qwen3-1.7b": _qwen3(28, 2048, 16, 6144, tied=True),
    "qwen3-4b": _qwen3(36, 2560, 32, 9728, tied=True),
    "qwen3-8b": _qwen3(36, 4096, 32, 12288),
    "qwen3-14b": _qwen3(40, 5120, 40, 17408),
    "qwen3-32b": _qwen3(64, 5120, 64, 25600),
}

MODELS: dict[str, Entry] = {
    **entries_of(LLAMA2, 4096, "Touvron et al. 2023, arXiv 2307.09288"),
    **entries_of(
        LLAMA3, 8192, "Llama team 2024, arXiv 2407.21783, table 3; released configurations"
    ),
    **entries_of(MISTRAL, 8192, "Jiang et al. 2023, arXiv 2310.06825, table 1"),
    **entries_of(QWEN2, 4096, "Qwen team 2024, arXiv 2412.15115; released configurations"),
    **entries_of(QWEN3, 4096, "Qwen team 2025, arXiv 2505.09388; released configurations"),
}
