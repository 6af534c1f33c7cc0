"""Mixtures of experts: Mixtral, Grok, DeepSeek, Qwen3."""

from __future__ import annotations

from dataclasses import replace

from foretrain.model.shape import TransformerShape
from foretrain.model.zoo.entry import Entry, entry_of

_BASE = TransformerShape(
    hidden_size=4096,
    num_hidden_layers=32,
    num_attention_heads=32,
    num_key_value_heads=8,
    intermediate_size=14336,
    vocab_size=32000,
    hidden_act="silu-gated",
    norm="rmsnorm",
    position="rope",
    biases="none",
    num_experts=8,
    num_experts_per_tok=2,
)
_LARGE = replace(
    _BASE,
    hidden_size=6144,
    num_hidden_layers=56,
    num_attention_heads=48,
    intermediate_size=16384,
    vocab_size=32768,
)
_GROK = replace(
    _BASE,
    hidden_size=6144,
    num_hidden_layers=64,
    num_attention_heads=48,
    intermediate_size=32768,
    vocab_size=131072,
    head_dim=128,
    hidden_act="gelu-gated",
    tie_word_embeddings=True,
)
# The main model, 671B as the report counts; its module of multi-token prediction is num_nextn_predict_layers = 1.
_DEEPSEEK = replace(
    _BASE,
    hidden_size=7168,
    num_hidden_layers=61,
    num_attention_heads=128,
    num_key_value_heads=128,
    intermediate_size=18432,
    vocab_size=129280,
    num_experts=256,
    num_experts_per_tok=8,
    moe_intermediate_size=2048,
    num_shared_experts=1,
    first_dense_layers=3,
    q_lora_rank=1536,
    kv_lora_rank=512,
    qk_nope_head_dim=128,
    qk_rope_head_dim=64,
    v_head_dim=128,
)
_DEEPSEEK_LITE = replace(
    _DEEPSEEK,
    hidden_size=2048,
    num_hidden_layers=27,
    num_attention_heads=16,
    num_key_value_heads=16,
    intermediate_size=10944,
    vocab_size=102400,
    num_experts=64,
    num_experts_per_tok=6,
    moe_intermediate_size=1408,
    num_shared_experts=2,
    first_dense_layers=1,
    q_lora_rank=None,
)
_QWEN3 = replace(
    _BASE,
    hidden_size=2048,
    num_hidden_layers=48,
    num_attention_heads=32,
    num_key_value_heads=4,
    intermediate_size=6144,
    vocab_size=151936,
    head_dim=128,
    qk_norm=True,
    num_experts=128,
    num_experts_per_tok=8,
    moe_intermediate_size=768,
)
_QWEN3_LARGE = replace(
    _QWEN3,
    hidden_size=4096,
    num_hidden_layers=94,
    num_attention_heads=64,
    intermediate_size=12288,
    moe_intermediate_size=1536,
)

_ROWS = (
    ("mixtral-8x7b", _BASE, 8192, "Jiang et al. 2024, arXiv 2401.04088, table 1"),
    ("mixtral-8x22b", _LARGE, 8192, "Mistral AI 2024, released configuration"),
    ("grok-1", _GROK, 8192, "xAI 2024, released configuration (xai-org/grok-1)"),
    ("deepseek-v3", _DEEPSEEK, 4096, "DeepSeek-AI 2024, arXiv 2412.19437, section 4.2"),
    ("deepseek-v2-lite", _DEEPSEEK_LITE, 4096, "DeepSeek-AI 2024, arXiv 2405.04434, appendix B"),
    ("qwen3-30b-a3b", _QWEN3, 4096, "Qwen team 2025, arXiv 2505.09388, table 2"),
    ("qwen3-235b-a22b", _QWEN3_LARGE, 4096, "Qwen team 2025, arXiv 2505.09388, table 2"),
)

MODELS: dict[str, Entry] = {
    name: entry_of(name, shape, seq, source) for name, shape, seq, source in _ROWS
}
