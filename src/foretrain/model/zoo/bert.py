"""BERT with its masked-LM head over all positions, pooler and next-sentence classes."""

from __future__ import annotations

from foretrain.model.shape import TransformerShape
from foretrain.model.zoo.entry import Entry, entries_of


def bert_shape(layers: int, hidden: int, heads: int, vocab: int = 30522) -> TransformerShape:
    return TransformerShape(
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        vocab_size=vocab,
        tie_word_embeddings=True,
        max_position_embeddings=512,
        causal=False,
        dropout=0.1,
        placement="post",
        embedding_norm=True,
        final_norm=False,
        type_vocab_size=2,
        head="mlm",
    )


MODELS: dict[str, Entry] = entries_of(
    {"bert-base": bert_shape(12, 768, 12), "bert-large": bert_shape(24, 1024, 16)},
    512,
    "Devlin et al. 2018, arXiv 1810.04805",
)
