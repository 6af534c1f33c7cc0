"""The shape of a transformer, under the names Hugging Face configurations use."""

from __future__ import annotations

from dataclasses import dataclass

from foretrain.errors import ModelError, refuse
from foretrain.limits import DIMENSION, LAYERS, shown

ACTIVATIONS = (
    "gelu", "gelu-tanh", "relu", "squared-relu", "silu", "silu-gated", "gelu-gated", "relu-gated",
)  # fmt: skip
NORMS = ("layernorm", "rmsnorm")
POSITIONS = ("learned", "rope", "alibi", "relative", "none")
BIASES = ("all", "qkv", "none")
PLACEMENTS = ("pre", "post", "parallel")
HEADS = ("lm", "mlm", "span")


@dataclass(frozen=True, slots=True)
class TransformerShape:
    """A decoder- or encoder-only transformer. `None` means: what the other fields imply.

    `biases`: in all linear layers, in q, k and v only, or in none. `placement`: norm before each branch
    (GPT-2), after it (BERT), or attention and MLP side by side (GPT-J, Falcon). `sliding_window_every` n: every
    n-th layer attends within the window, the others to everything. `capacity_factor` pads expert slots. `head`:
    next token, masked tokens, or the ends of an answer; `predicted_positions`: those a masked head sees, None all.
    `num_nextn_predict_layers`: modules that predict tokens beyond the next one (DeepSeek-V3, arXiv 2412.19437, 2.2).
    """

    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    vocab_size: int
    num_key_value_heads: int | None = None
    intermediate_size: int | None = None
    tie_word_embeddings: bool = False
    hidden_act: str = "gelu"
    norm: str = "layernorm"
    position: str = "learned"
    head_dim: int | None = None
    max_position_embeddings: int | None = None
    sliding_window: int | None = None
    sliding_window_every: int | None = None
    causal: bool = True
    dropout: float = 0.0
    biases: str = "all"
    norm_bias: bool | None = None
    placement: str = "pre"
    parallel_norms: int = 1
    embedding_norm: bool = False
    final_norm: bool = True
    qk_norm: bool = False
    type_vocab_size: int = 0
    head: str = "lm"
    predicted_positions: int | None = None
    num_experts: int | None = None
    num_experts_per_tok: int | None = None
    moe_intermediate_size: int | None = None
    num_shared_experts: int | None = None
    first_dense_layers: int | None = None
    capacity_factor: float = 1.0
    q_lora_rank: int | None = None
    kv_lora_rank: int | None = None
    qk_nope_head_dim: int | None = None
    qk_rope_head_dim: int | None = None
    v_head_dim: int | None = None
    num_nextn_predict_layers: int = 0

    def __post_init__(self) -> None:
        faults = _faults(self)
        refuse("invalid transformer shape:", faults, ModelError)

    @property
    def kv_heads(self) -> int:
        return self.num_key_value_heads or self.num_attention_heads

    @property
    def head_width(self) -> int:
        """Width of a query or key head."""
        if self.is_latent:
            return (self.qk_nope_head_dim or 0) + (self.qk_rope_head_dim or 0)
        return self.head_dim or self.hidden_size // self.num_attention_heads

    @property
    def ffn(self) -> int:
        return self.intermediate_size or 4 * self.hidden_size

    @property
    def is_latent(self) -> bool:
        """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434)."""
        return self.kv_lora_rank is not None

    @property
    def is_gated(self) -> bool:
        return self.hidden_act.endswith("-gated")

    @property
    def has_norm_bias(self) -> bool:
        if self.norm_bias is not None:
            return self.norm_bias
        return self.norm == "layernorm" and self.biases == "all"

    @property
    def dense_layers(self) -> int:
        """Layers without experts, which come first."""
        if not self.num_experts:
            return self.num_hidden_layers
        return min(self.first_dense_layers or 0, self.num_hidden_layers)


def _faults(shape: TransformerShape) -> list[str]:
    faults = [
        f"{name}: {getattr(shape, name)!r} is not one of {', '.join(known)}."
        for name, known in (
            ("hidden_act", ACTIVATIONS),
            ("norm", NORMS),
            ("position", POSITIONS),
            ("biases", BIASES),
            ("placement", PLACEMENTS),
            ("head", HEADS),
        )
        if getattr(shape, name) not in known
    ]
    return faults + _number_faults(shape)


_COUNTS = (
    "hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size", "num_key_value_heads",
    "intermediate_size", "head_dim", "moe_intermediate_size", "num_experts_per_tok",
    "sliding_window_every", "q_lora_rank", "kv_lora_rank", "max_position_embeddings",
    "predicted_positions",
)  # fmt: skip
_COUNTS_OR_NONE = (
    "sliding_window", "parallel_norms", "type_vocab_size", "num_experts", "num_shared_experts",
    "first_dense_layers", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim",
    "num_nextn_predict_layers",
)  # fmt: skip
_SHARES = {"dropout": (0.0, 1.0), "capacity_factor": (0.0, 1000.0)}


def _number_faults(shape: TransformerShape) -> list[str]:
    faults = []
    for name in (*_COUNTS, *_COUNTS_OR_NONE):
        value, limit = getattr(shape, name), LAYERS if "layers" in name else DIMENSION
        is_none = name in _COUNTS_OR_NONE and value == 0 and not isinstance(value, bool)
        if value is not None and not is_none and not limit.allows(value):
            faults.append(f"{name}: {limit.fault(value)}")
    for name, (least, most) in _SHARES.items():
        value = getattr(shape, name)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not (is_number and least <= value <= most):
            faults.append(f"{name}: {shown(value)} is not a number from {least:g} to {most:g}.")
    if faults:
        return faults
    heads, kv_heads = shape.num_attention_heads, shape.kv_heads
    if heads % kv_heads:
        faults.append(
            f"num_attention_heads {heads} must be divisible by num_key_value_heads {kv_heads}."
        )
    if shape.head_dim is None and not shape.is_latent and shape.hidden_size % heads:
        faults.append(
            f"hidden_size {shape.hidden_size} must be divisible by num_attention_heads "
            f"{heads}; specify head_dim if heads have another width."
        )
    experts, chosen = shape.num_experts, shape.num_experts_per_tok
    if experts and (chosen or 1) > experts:
        faults.append(f"num_experts_per_tok: {chosen} exceeds num_experts {experts}.")
    if shape.is_latent and None in (
        shape.qk_nope_head_dim,
        shape.qk_rope_head_dim,
        shape.v_head_dim,
    ):
        faults.append("kv_lora_rank needs qk_nope_head_dim, qk_rope_head_dim and v_head_dim too.")
    if shape.num_nextn_predict_layers and not (shape.head == "lm" and shape.causal):
        faults.append("num_nextn_predict_layers: only supported for next-token prediction models.")
    return faults
