"""T5: an encoder whose output every decoder layer attends to, carried beside the decoder's own stream."""

from __future__ import annotations

from dataclasses import replace

from foretrain.model.graph import Block, Model, Tensor
from foretrain.model.shape import TransformerShape
from foretrain.model.sketch import Sketch, view, weight
from foretrain.model.transformer import TOKENS, X, attend, mlp, sketch
from foretrain.model.zoo import Entry

_SOURCE = "Raffel et al. 2019, arXiv 1910.10683, section 3.7"
_BUCKETS = 32  # relative position buckets
MEMORY = Tensor("memory", ("batch", "kv_seq", "hidden"))
_QUERY = ("batch", "seq", "heads", "head_dim")


def t5_shape(
    hidden: int,
    layers: int,
    heads: int,
    head_dim: int,
    ffn: int,
    vocab: int = 32128,
    is_gated: bool = False,
    is_tied: bool = True,
    dropout: float = 0.1,
) -> TransformerShape:
    """The shape of a layer of the encoder; `layers`: of the encoder."""
    return TransformerShape(
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        vocab_size=vocab,
        intermediate_size=ffn,
        tie_word_embeddings=is_tied,
        hidden_act="gelu-gated" if is_gated else "relu",
        norm="rmsnorm",
        position="relative",
        head_dim=head_dim,
        causal=False,
        dropout=dropout,
        biases="none",
    )


def t5(
    body: TransformerShape, decoder_layers: int, seq: int, name: str, source: str = _SOURCE
) -> Model:
    """Encoder inputs of `seq` tokens and targets of a quarter (Megatron-LM trains 512 and 128)."""
    target = max(1, seq // 4)
    blocks = (
        _start(body, seq),
        replace(_encoder_layer(body, seq), repeat=body.num_hidden_layers),
        _bridge(body, seq, target),
        replace(_decoder_layer(body, seq, target), repeat=decoder_layers),
        _head(body, seq, target),
    )
    tied = [("embedding.tokens.weight", "bridge.tokens.weight")]
    if body.tie_word_embeddings:
        tied.append(("embedding.tokens.weight", "head.logits.weight"))
    return Model(name, blocks, seq, tuple(tied), source)


def _norm(s: Sketch, name: str, x: Tensor) -> Tensor:
    return s.norm(name, x, name, "rmsnorm", False)


def _add(s: Sketch, body: TransformerShape, name: str, branch: Tensor, skip: Tensor) -> Tensor:
    return s.elementwise(name, "dropout-add" if body.dropout else "add", [branch, skip], name)


def _look_up(s: Sketch, body: TransformerShape, ids: str) -> Tensor:
    """Token embeddings, and the relative-position table that all layers of a stack share."""
    table = weight("weight", "vocab", "hidden")
    source = Tensor(ids, ("batch", "seq"), "index")
    h = s.op("tokens", "embedding", [source], [Tensor("tokens", TOKENS)], [table])
    buckets = [weight("weight", "bucket", "heads")]
    bias = Tensor("position_bias", ("heads", "seq", "own_seq"))
    sizes = {"bucket": _BUCKETS, "own_seq": s.sizes["seq"]}
    s.op("position_bias", "memory", [], [bias], buckets, sizes)
    if body.dropout:
        h = s.elementwise("dropout", "dropout", [h], "dropped")
    return h


def _start(body: TransformerShape, seq: int) -> Block:
    s = sketch(body, seq)
    return s.block("embedding", [], [_look_up(s, body, "ids")])


def _self_attention(s: Sketch, body: TransformerShape, x: Tensor, causal: bool) -> Tensor:
    key = ("batch", "seq", "kv_heads", "head_dim")
    q, k, v = Tensor("q", _QUERY), Tensor("k", key), Tensor("v", key)
    weights = [weight(f"{t.name}_weight", "hidden", *t.dims[2:]) for t in (q, k, v)]
    s.op("qkv", "linear", [x], [q, k, v], weights)
    h = attend(s, body, q, k, v, causal)
    return s.linear("proj", h, "proj", TOKENS, False)


def _cross_attention(s: Sketch, body: TransformerShape, x: Tensor) -> Tensor:
    q = s.linear("cross_q", x, "cross_q", _QUERY, False)
    key = ("batch", "kv_seq", "kv_heads", "head_dim")
    k, v = Tensor("cross_k", key), Tensor("cross_v", key)
    weights = [weight(f"{n}_weight", "hidden", "kv_heads", "head_dim") for n in ("k", "v")]
    s.op("cross_kv", "linear", [MEMORY], [k, v], weights)
    h = attend(s, body, q, k, v, False, name="cross_attention")
    return s.linear("cross_proj", h, "cross_proj", TOKENS, False)


def _encoder_layer(body: TransformerShape, seq: int) -> Block:
    s = sketch(body, seq)
    r = _add(s, body, "r1", _self_attention(s, body, _norm(s, "ln1", X), False), X)
    y = _add(s, body, "r2", mlp(s, body, _norm(s, "ln2", r)), r)
    return s.block("encoder", [X], [y])


def _bridge(body: TransformerShape, seq: int, target: int) -> Block:
    """Ends the encoder and starts the decoder: gives the decoder's stream and the encoder's memory."""
    s = sketch(body, seq)
    memory = s.norm("encoder_norm", X, "encoder_norm", "rmsnorm", False)
    if body.dropout:
        memory = s.elementwise("encoder_dropout", "dropout", [memory], "memory")
    s.sizes |= {"seq": target, "kv_seq": seq}
    h = _look_up(s, body, "target_ids")
    # the encoder's stream arrives with its own length, which `kv_seq` stands for from here on
    memory = view(memory, *MEMORY.dims)
    return s.block("bridge", [view(X, *MEMORY.dims)], [h, memory])


def _decoder_layer(body: TransformerShape, seq: int, target: int) -> Block:
    s = sketch(body, target)
    r = _add(s, body, "r1", _self_attention(s, body, _norm(s, "ln1", X), True), X)
    s.sizes["kv_seq"] = seq
    r = _add(s, body, "r2", _cross_attention(s, body, _norm(s, "ln2", r)), r)
    y = _add(s, body, "r3", mlp(s, body, _norm(s, "ln3", r)), r)
    return s.block("decoder", [X, MEMORY], [y, MEMORY])


def _head(body: TransformerShape, seq: int, target: int) -> Block:
    s = sketch(body, target)
    s.sizes["kv_seq"] = seq
    h = _norm(s, "final_norm", X)
    if body.dropout:
        h = s.elementwise("dropout", "dropout", [h], "dropped")
    logits = s.linear("logits", h, "logits", ("batch", "seq", "vocab"), False)
    labels = Tensor("labels", ("batch", "seq"), "index")
    s.op("loss", "cross_entropy", [logits, labels], [Tensor("loss", ("batch", "seq"), "fp32")])
    return s.block("head", [X, MEMORY], [])


def _entry(name: str, shape: TransformerShape) -> Entry:
    return Entry(lambda seq: t5(shape, shape.num_hidden_layers, seq, name), 512, _SOURCE)


_ROWS = (
    ("t5-small", t5_shape(512, 6, 8, 64, 2048)),
    ("t5-base", t5_shape(768, 12, 12, 64, 3072)),
    ("t5-large", t5_shape(1024, 24, 16, 64, 4096)),
    ("t5-3b", t5_shape(1024, 24, 32, 128, 16384)),
    ("t5-11b", t5_shape(1024, 24, 128, 128, 65536)),
)

MODELS: dict[str, Entry] = {name: _entry(name, shape) for name, shape in _ROWS}
