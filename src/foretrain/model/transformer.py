"""Transformers from their shape: embedding, layers × n, head.

Op names inside a layer (plans and recompute rules refer to them): ln1, qkv, rope, attention, proj, residual1,
ln2, fc1, act, fc2, residual2; experts: router, route, dispatch, experts_fc1, experts_act, experts_fc2, combine,
and shared_fc1, shared_act, shared_fc2, shared_add. Latent attention replaces qkv by q_down, q_norm, q_up, kv_down,
kv_norm, kv_up. Modules that predict tokens beyond the next one are two blocks each, mtp and mtp_head, before the head.
"""

from __future__ import annotations

from itertools import groupby
from math import ceil

from foretrain.model.details import NO_DETAILS, Details
from foretrain.model.graph import Block, Model, Tensor
from foretrain.model.shape import TransformerShape
from foretrain.model.sketch import Sketch, view, weight

X = Tensor("x", ("batch", "seq", "hidden"))
H = Tensor("h", ("batch", "seq", "hidden"))  # what a module of multi-token prediction gives
TOKENS = ("batch", "seq", "hidden")
SPAN_ENDS = 2  # where an answer starts and ends


def transformer(
    shape: TransformerShape, seq: int, name: str, source: str = "", details: Details = NO_DETAILS
) -> Model:
    """The whole model for one sample of `seq` tokens."""
    layers = [
        Block(label, block.ops, block.inputs, block.outputs, repeat, block.sizes)
        for label, block, repeat in _layers(shape, seq)
    ]
    modules = [block for depth in _depths(shape) for block in _next_token(shape, seq, depth)]
    blocks = (_embedding(shape, seq), *layers, *modules, _head(shape, seq))
    return Model(name, blocks, seq, _tied(shape), source, shape, details)


def _tied(shape: TransformerShape) -> tuple[tuple[str, str], ...]:
    """Weights that share storage: the head's with the table where the shape says so, those of modules always."""
    table, head = "embedding.tokens.weight", "head.logits.weight"
    is_tied = shape.tie_word_embeddings and shape.head != "span"
    pairs = [(table, head)] if is_tied else []
    for block, ending in (_module_names(shape, depth) for depth in _depths(shape)):
        pairs += [(table, f"{block}.tokens.weight"), (head, f"{ending}.logits.weight")]
    return tuple(pairs)


def _layers(shape: TransformerShape, seq: int) -> list[tuple[str, Block, int]]:
    """Runs of identical layers: (name, block, repetitions)."""
    kinds = _kinds(shape)
    runs = [(kind, len(list(group))) for kind, group in groupby(kinds)]
    blocks = {kind: layer(shape, seq, *kind) for kind in dict.fromkeys(kinds)}
    named: list[tuple[str, Block, int]] = []
    first = 0
    for kind, count in runs:
        is_dense_start = bool(shape.num_experts) and not kind[0] and len(runs) == 2
        label = "dense_layers" if is_dense_start else f"layers_{first}"
        last = first + count == shape.num_hidden_layers
        if len(runs) == 1 or (len(runs) == 2 and last and bool(shape.num_experts)):
            label = "layers"
        named.append((label, blocks[kind], count))
        first += count
    return named


def _kinds(shape: TransformerShape) -> list[tuple[bool, bool]]:
    """Of every layer: whether it has experts, and whether it attends within a window."""
    every = shape.sliding_window_every or 1
    return [
        (index >= shape.dense_layers, bool(shape.sliding_window) and (index + 1) % every == 0)
        for index in range(shape.num_hidden_layers)
    ]


def sketch(shape: TransformerShape, seq: int) -> Sketch:
    """A fresh sketch that knows the sizes of the transformer's dims."""
    return Sketch(
        batch=1,
        seq=seq,
        kv_seq=seq,
        hidden=shape.hidden_size,
        hidden_out=shape.hidden_size,
        heads=shape.num_attention_heads,
        kv_heads=shape.kv_heads,
        head_dim=shape.head_width,
        ffn=shape.ffn,
        vocab=shape.vocab_size,
    )


def layer(
    shape: TransformerShape, seq: int, has_experts: bool = False, is_windowed: bool = False
) -> Block:
    """One transformer layer."""
    s = sketch(shape, seq)
    return s.block("layers", [X], [_body(s, shape, X, has_experts, is_windowed)])


def _body(
    s: Sketch, shape: TransformerShape, x: Tensor, has_experts: bool, is_windowed: bool
) -> Tensor:
    """The ops of a layer that reads `x`."""
    window = (shape.sliding_window or 0) if is_windowed else 0
    body = {"pre": _pre_norm, "post": _post_norm, "parallel": _parallel}[shape.placement]
    return body(s, shape, x, window, has_experts)


def _pre_norm(
    s: Sketch, shape: TransformerShape, x: Tensor, window: int, has_experts: bool
) -> Tensor:
    h = _norm(s, shape, "ln1", x, "ln1")
    h = attention(s, shape, h, window)
    r = _residual(s, shape, "residual1", h, x, "r")
    h = _norm(s, shape, "ln2", r, "ln2")
    h = _experts(s, shape, h) if has_experts else mlp(s, shape, h)
    return _residual(s, shape, "residual2", h, r, "y")


def _post_norm(
    s: Sketch, shape: TransformerShape, x: Tensor, window: int, has_experts: bool
) -> Tensor:
    h = attention(s, shape, x, window)
    h = _residual(s, shape, "residual1", h, x, "r1")
    r = _norm(s, shape, "ln1", h, "ln1")
    h = _experts(s, shape, r) if has_experts else mlp(s, shape, r)
    h = _residual(s, shape, "residual2", h, r, "r2")
    return _norm(s, shape, "ln2", h, "y")


def _parallel(
    s: Sketch, shape: TransformerShape, x: Tensor, window: int, has_experts: bool
) -> Tensor:
    first = second = _norm(s, shape, "ln1", x, "ln1")
    if shape.parallel_norms == 2:
        second = _norm(s, shape, "ln2", x, "ln2")
    a = attention(s, shape, first, window)
    m = _experts(s, shape, second) if has_experts else mlp(s, shape, second)
    r = _residual(s, shape, "residual1", a, x, "r")
    return _residual(s, shape, "residual2", m, r, "y")


def _norm(s: Sketch, shape: TransformerShape, name: str, x: Tensor, out: str) -> Tensor:
    return s.norm(name, x, out, shape.norm, shape.has_norm_bias)


def _residual(
    s: Sketch, shape: TransformerShape, name: str, branch: Tensor, skip: Tensor, out: str
) -> Tensor:
    op = "dropout-add" if shape.dropout else "add"
    return s.elementwise(name, op, [branch, skip], out)


def attention(s: Sketch, shape: TransformerShape, x: Tensor, window: int) -> Tensor:
    """Self-attention with its projections."""
    q, k, v = _latent_qkv(s, shape, x) if shape.is_latent else _qkv(s, shape, x)
    out = attend(s, shape, q, k, v, shape.causal, window)
    return s.linear("proj", out, "proj", TOKENS, shape.biases == "all")


def attend(
    s: Sketch,
    shape: TransformerShape,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    causal: bool,
    window: int = 0,
    name: str = "attention",
) -> Tensor:
    """The attention op proper; k and v are seen with `kv_seq` in place of `seq`."""
    keys = view(k, "batch", "kv_seq", "kv_heads", "head_dim")
    values = view(v, "batch", "kv_seq", "kv_heads", v.dims[-1])
    return s.op(
        name,
        "attention",
        [q, keys, values],
        [Tensor(f"{name}_out", ("batch", "seq", "heads", v.dims[-1]))],
        causal=causal,
        window=window,
        dropout=shape.dropout,
        kv_total=s.sizes["kv_seq"],
    )


def _qkv(s: Sketch, shape: TransformerShape, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    query = ("batch", "seq", "heads", "head_dim")
    key = ("batch", "seq", "kv_heads", "head_dim")
    turned = shape.position == "rope"
    raw = "_projected" if turned or shape.qk_norm else ""
    q, k, v = Tensor(f"q{raw}", query), Tensor(f"k{raw}", key), Tensor("v", key)
    weights = [weight(f"{t.name[0]}_weight", "hidden", *t.dims[2:]) for t in (q, k, v)]
    if shape.biases != "none":
        weights += [weight(f"{t.name[0]}_bias", *t.dims[2:]) for t in (q, k, v)]
    s.op("qkv", "linear", [x], [q, k, v], weights)
    if shape.qk_norm:
        ends = "_normed" if turned else ""
        q = s.norm("q_norm", q, f"q{ends}", shape.norm, False)
        k = s.norm("k_norm", k, f"k{ends}", shape.norm, False)
    if turned:
        before = [q, k]
        q, k = Tensor("q", query), Tensor("k", key)
        s.op("rope", "elementwise", before, [q, k], op="rope")
    return q, k, v


def _latent_qkv(s: Sketch, shape: TransformerShape, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Queries and keys through low ranks (DeepSeek-V2, arXiv 2405.04434, section 2.1)."""
    s.sizes |= {
        "q_rank": shape.q_lora_rank or 0,
        "kv_rank": shape.kv_lora_rank or 0,
        "nope_dim": shape.qk_nope_head_dim or 0,
        "rope_dim": shape.qk_rope_head_dim or 0,
        "v_dim": shape.v_head_dim or 0,
    }
    query = ("batch", "seq", "heads", "head_dim")
    source = x
    if shape.q_lora_rank:
        source = s.linear("q_down", x, "q_latent", ("batch", "seq", "q_rank"), False)
        source = s.norm("q_norm", source, "q_latent_normed", shape.norm, False)
    q = s.linear("q_up", source, "q_projected", query, False)
    latent = Tensor("kv_latent", ("batch", "seq", "kv_rank"))
    shared = Tensor("k_shared", ("batch", "seq", "rope_dim"))
    down = [weight("weight", "hidden", "kv_rank"), weight("rope_weight", "hidden", "rope_dim")]
    s.op("kv_down", "linear", [x], [latent, shared], down)
    latent = s.norm("kv_norm", latent, "kv_latent_normed", shape.norm, False)
    own = Tensor("k_own", ("batch", "seq", "kv_heads", "nope_dim"))
    v = Tensor("v", ("batch", "seq", "kv_heads", "v_dim"))
    up = [weight(f"{t.name[0]}_weight", "kv_rank", *t.dims[2:]) for t in (own, v)]
    s.op("kv_up", "linear", [latent], [own, v], up)
    turned, k = Tensor("q", query), Tensor("k", ("batch", "seq", "kv_heads", "head_dim"))
    s.op("rope", "elementwise", [q, own, shared], [turned, k], op="rope", reduces=False)
    return turned, k, v


def mlp(s: Sketch, shape: TransformerShape, x: Tensor, prefix: str = "", ffn: int = 0) -> Tensor:
    """Two matrices, or three where the activation is gated (gate and up are one GEMM)."""
    inner, bias = ("batch", "seq", "ffn"), shape.biases == "all"
    sizes = {"ffn": ffn or shape.ffn}
    hidden = _expand(s, shape, f"{prefix}fc1", "linear", x, inner, sizes, bias)
    act = s.op(
        f"{prefix}act", "elementwise", hidden, [Tensor(f"{prefix}act", inner)], (), sizes,
        op=shape.hidden_act,
    )  # fmt: skip
    return s.linear(f"{prefix}fc2", act, f"{prefix}fc2", TOKENS, bias, sizes)


def _expand(
    s: Sketch,
    shape: TransformerShape,
    name: str,
    kind: str,
    x: Tensor,
    inner: tuple[str, ...],
    sizes: dict[str, int],
    bias: bool,
) -> list[Tensor]:
    lead = tuple(dim for dim in inner if dim == "expert")
    halves = ("gate", "up") if shape.is_gated else ("",)
    outs, weights = [], []
    for half in halves:
        label = f"{half}_" if half else ""
        outs.append(Tensor(f"{name}_{half}" if half else name, inner))
        weights.append(weight(f"{label}weight", *lead, "hidden", "ffn"))
        if bias:
            weights.append(weight(f"{label}bias", *lead, "ffn"))
    s.op(name, kind, [x], outs, weights, sizes)
    return outs


def _experts(s: Sketch, shape: TransformerShape, x: Tensor) -> Tensor:
    """Routed experts, and shared ones beside them where the shape has any."""
    experts, chosen = shape.num_experts or 1, shape.num_experts_per_tok or 1
    width = shape.moe_intermediate_size or shape.ffn
    slot = ceil(s.sizes["seq"] * chosen * shape.capacity_factor / experts)
    s.sizes |= {"router": experts, "routed": experts, "expert": experts, "slot": slot}
    scores = s.linear("router", x, "router", ("batch", "seq", "router"), False)
    route = s.op("route", "softmax", [scores], [Tensor("route", scores.dims)], top_k=chosen)
    sent = Tensor("dispatched", ("routed", "batch", "slot", "hidden"))
    s.op("dispatch", "dispatch", [x], [sent], reduces=False, top_k=chosen)
    sizes, inner = {"ffn": width}, ("expert", "batch", "slot", "ffn")
    by_slot = view(sent, "expert", "batch", "slot", "hidden")
    hidden = _expand(s, shape, "experts_fc1", "grouped_gemm", by_slot, inner, sizes, False)
    act = s.op(
        "experts_act", "elementwise", hidden, [Tensor("experts_act", inner)], (), sizes,
        op=shape.hidden_act,
    )  # fmt: skip
    back = Tensor("experts_fc2", by_slot.dims)
    s.op(
        "experts_fc2", "grouped_gemm", [act], [back], [weight("weight", "expert", "ffn", "hidden")],
        sizes,
    )  # fmt: skip
    out = s.op(
        "combine", "combine", [view(back, *sent.dims), route], [Tensor("combined", TOKENS)],
        reduces=False, top_k=chosen,
    )  # fmt: skip
    if not shape.num_shared_experts:
        return out
    shared = mlp(s, shape, x, "shared_", shape.num_shared_experts * width)
    return s.elementwise("shared_add", "add", [out, shared], "experts_sum")


def _embedding(shape: TransformerShape, seq: int) -> Block:
    s = sketch(shape, seq)
    ids = Tensor("ids", ("batch", "seq"), "index")
    table = weight("weight", "vocab", "hidden")
    h = s.op("tokens", "embedding", [ids], [Tensor("tokens", TOKENS)], [table])
    if shape.type_vocab_size:
        kinds = Tensor("type_ids", ("batch", "seq"), "index")
        table = weight("weight", "types", "hidden")
        sizes = {"types": shape.type_vocab_size}
        t = s.op("types", "embedding", [kinds], [Tensor("types", TOKENS)], [table], sizes)
        h = s.elementwise("types_add", "add", [h, t], "typed")
    if shape.position == "learned":
        rows = {"position": max(shape.max_position_embeddings or 0, seq)}
        table = weight("weight", "position", "hidden")
        h = s.op("positions", "position", [h], [Tensor("placed", TOKENS)], [table], rows)
    if shape.embedding_norm:
        h = _norm(s, shape, "norm", h, "normed")
    if shape.dropout:
        h = s.elementwise("dropout", "dropout", [h], "dropped")
    return s.block("embedding", [], [h])


def _depths(shape: TransformerShape) -> range:
    return range(1, shape.num_nextn_predict_layers + 1)


def _module_names(shape: TransformerShape, depth: int) -> tuple[str, str]:
    """The blocks of the module of a depth; one that is alone has no number."""
    label = f"_{depth}" if shape.num_nextn_predict_layers > 1 else ""
    return f"mtp{label}", f"mtp_head{label}"


def _next_token(shape: TransformerShape, seq: int, depth: int) -> tuple[Block, Block]:
    """A module of multi-token prediction (DeepSeek-V3, arXiv 2412.19437, section 2.2): what the layers, or the module
    before, give and the embedding of the token that follows are normalised, joined, projected and run through one more
    layer, as the last one is; its own norm and the shared head give another loss. What the layers give is handed on."""
    block, ending = _module_names(shape, depth)
    s, before = sketch(shape, seq), X if depth == 1 else H
    h = _norm(s, shape, "hnorm", before, "hnorm")
    ids = Tensor("ids", ("batch", "seq"), "index")
    table = weight("weight", "vocab", "hidden")
    e = s.op("tokens", "embedding", [ids], [Tensor("tokens", TOKENS)], [table])
    e = _norm(s, shape, "enorm", e, "enorm")
    both = Tensor("joined", ("batch", "seq", "joined"))
    s.op("join", "memory", [e, h], [both], (), {"joined": 2 * shape.hidden_size}, reduces=False)
    # a column-parallel product (Megatron Core, multi_token_prediction.py), so its columns have the name of those
    wide = {"joined": 2 * shape.hidden_size, "ffn": shape.hidden_size}
    x = s.linear("eh_proj", both, "projected", ("batch", "seq", "ffn"), False, wide)
    out = _body(s, shape, view(x, *TOKENS), *_kinds(shape)[-1])
    ends = _norm_and_loss(shape, seq, H)
    is_last = depth == shape.num_nextn_predict_layers
    return (
        s.block(block, [X] if depth == 1 else [X, H], [X, out]),
        ends.block(ending, [X, H], [X] if is_last else [X, H]),
    )


def _head(shape: TransformerShape, seq: int) -> Block:
    return _norm_and_loss(shape, seq, X).block("head", [X], [])


def _norm_and_loss(shape: TransformerShape, seq: int, h: Tensor) -> Sketch:
    """The ops that end a model: from what the layers give to the loss."""
    s = sketch(shape, seq)
    if shape.final_norm:
        h = _norm(s, shape, "final_norm", h, "final_norm")
    if shape.head == "mlm":
        h = _masked_head(s, shape, h)
    sizes = {"vocab": SPAN_ENDS} if shape.head == "span" else None
    places = h.dims[:2]
    logits = s.linear("logits", h, "logits", (*places, "vocab"), shape.head != "lm", sizes)
    labels = Tensor("labels", places, "index")
    s.op("loss", "cross_entropy", [logits, labels], [Tensor("loss", places, "fp32")], (), sizes)
    return s


def _masked_head(s: Sketch, shape: TransformerShape, x: Tensor) -> Tensor:
    """BERT's pooler with next-sentence classes, and the transform before the logits, of all positions or of those
    alone whose tokens are to be predicted."""
    first = s.op(
        "first_token", "memory", [x], [Tensor("first", ("batch", "hidden"))], reduces=False
    )
    pooled = s.linear("pooler", first, "pooler", ("batch", "hidden_out"), True)
    pooled = s.elementwise("pooler_act", "tanh", [pooled], "pooled")
    pooled = view(pooled, "batch", "hidden")
    s.linear("next_sentence", pooled, "next_sentence", ("batch", "classes"), True, {"classes": 2})
    places = ("batch", "seq")
    if shape.predicted_positions:
        places = ("batch", "predicted")
        s.sizes["predicted"] = shape.predicted_positions
        masked = Tensor("masked", (*places, "hidden"))
        x = s.op("predicted", "memory", [x], [masked], reduces=False)
    h = s.linear("transform", x, "transform", (*places, "hidden_out"), True)
    h = s.elementwise("transform_act", shape.hidden_act, [h], "transform_act")
    return _norm(s, shape, "transform_norm", view(h, *places, "hidden"), "transform_norm")
