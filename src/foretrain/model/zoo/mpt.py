"""MPT: ALiBi positions, no biases anywhere, tied embeddings."""

from __future__ import annotations

from foretrain.model.shape import TransformerShape
from foretrain.model.zoo.entry import Entry, entries_of

_ROWS = (
    ("125m", 12, 768, 12),
    ("350m", 24, 1024, 16),
    ("760m", 24, 1536, 12),
    ("1b", 24, 2048, 16),
    ("3b", 32, 2560, 20),
    ("7b", 32, 4096, 32),
    ("13b", 40, 5120, 40),
    ("30b", 48, 7168, 56),
    ("70b", 80, 8192, 64),
)

MODELS: dict[str, Entry] = entries_of(
    {
        f"mpt-{size}": TransformerShape(
            hidden_size=hidden,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            vocab_size=50368,
            tie_word_embeddings=True,
            position="alibi",
            biases="none",
        )
        for size, layers, hidden, heads in _ROWS
    },
    2048,
    "MosaicML llm-foundry pretraining configurations",
)
