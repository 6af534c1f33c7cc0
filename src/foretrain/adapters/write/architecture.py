"""The shape of a transformer, read back from its graph.

A question holds a graph of ops, whatever file or name it came from; configuration files of other tools want widths
and counts. What is read is proven by drawing the model again from it: the same graph, or no shape at all.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from foretrain.errors import InputError
from foretrain.model import zoo
from foretrain.model.graph import Block, Model, Op
from foretrain.model.shape import TransformerShape
from foretrain.model.transformer import SPAN_ENDS, transformer

Ops = Mapping[str, Op]


def shape_of(model: Model) -> TransformerShape | None:
    """The shape that draws exactly this model, or None where no shape does (convolutions, encoder-decoders …)."""
    for shape in (_named(model), _read(model)):
        if shape is not None and _draws(shape, model):
            return shape
    return None


def _draws(shape: TransformerShape, model: Model) -> bool:
    assert model.seq_len is not None
    rebuilt = transformer(shape, model.seq_len, model.name, model.source)
    return rebuilt.blocks == model.blocks and rebuilt.tied == model.tied


def _named(model: Model) -> TransformerShape | None:
    """The zoo knows what a graph does not show, such as biases of attention that stand for positions."""
    try:
        return zoo.shape(model.name) if model.seq_len else None
    except InputError:
        return None


def _read(model: Model) -> TransformerShape | None:
    if len(model.blocks) < 3 or model.seq_len is None:
        return None
    first, *inner, last = model.blocks
    modules = [block for block in inner if "eh_proj" in _ops(block)]
    blocks = inner[: len(inner) - 2 * len(modules)]  # each is followed by a head of its own
    try:
        return TransformerShape(
            **_outside(_ops(first), _ops(last), _is_tied(model)),
            num_nextn_predict_layers=len(modules),
            **_attention(blocks),
            **_layer(_ops(blocks[-1])),
            position=_position(_ops(first), _ops(blocks[-1])),
            **_feed_forward(blocks, model.seq_len),
        )
    except (KeyError, IndexError, InputError):  # not drawn as a transformer is
        return None


def _ops(block: Block) -> Ops:
    return {op.name: op for op in block.ops}


def _is_tied(model: Model) -> bool:
    last = model.blocks[-1].name
    return any(path.partition(".")[0] == last for path in model.origins)


def _position(start: Ops, layer: Ops) -> str:
    return "learned" if "positions" in start else "rope" if "rope" in layer else "none"


def _outside(start: Ops, end: Ops, is_tied: bool) -> dict[str, Any]:
    tokens, logits = start["tokens"], end["logits"]
    is_span = logits.size["vocab"] == SPAN_ENDS
    head = "mlm" if "pooler" in end else "span" if is_span else "lm"
    positions = start.get("positions")
    predicted = end["transform"].size.get("predicted") if head == "mlm" else None
    return {
        "hidden_size": tokens.size["hidden"],
        "vocab_size": tokens.size["vocab"],
        "tie_word_embeddings": is_tied,
        "max_position_embeddings": positions.size["position"] if positions else None,
        "embedding_norm": "norm" in start,
        "final_norm": "final_norm" in end,
        "type_vocab_size": start["types"].size["types"] if "types" in start else 0,
        "head": head,
        "predicted_positions": predicted,
    }


def _attention(blocks: list[Block]) -> dict[str, Any]:
    ops = _ops(blocks[-1])
    core = ops["attention"]
    fields: dict[str, Any] = {
        "num_attention_heads": core.size["heads"],
        "num_key_value_heads": core.size["kv_heads"],
        "causal": bool(core.attr["causal"]),
        "dropout": float(core.attr["dropout"]),
        **_window(blocks),
    }
    if "kv_down" in ops:
        fields |= {
            "kv_lora_rank": ops["kv_down"].size["kv_rank"],
            "q_lora_rank": ops["q_down"].size["q_rank"] if "q_down" in ops else None,
            "qk_nope_head_dim": ops["kv_up"].size["nope_dim"],
            "qk_rope_head_dim": ops["kv_down"].size["rope_dim"],
            "v_head_dim": ops["kv_up"].size["v_dim"],
        }
    else:
        fields |= {"head_dim": core.size["head_dim"], "qk_norm": "q_norm" in ops}
    return fields


def _window(blocks: list[Block]) -> dict[str, Any]:
    """Every n-th layer attends within the window: n is where the first of them stands."""
    windows = [
        int(_ops(block)["attention"].attr["window"])
        for block in blocks
        for _ in range(block.repeat)
    ]
    if not any(windows):
        return {}
    first = next(index for index, window in enumerate(windows) if window)
    return {"sliding_window": windows[first], "sliding_window_every": first + 1}


def _layer(ops: Ops) -> dict[str, Any]:
    order = list(ops)
    norm = ops["ln1"]
    placement = "pre"
    if order.index("ln1") > order.index("residual1"):
        placement = "post"
    elif min(map(order.index, {"fc2", "combine"} & {*order})) < order.index("residual1"):
        placement = "parallel"
    weights = {weight.name for weight in ops["qkv"].weights} if "qkv" in ops else set()
    is_biased = any(weight.name == "bias" for weight in ops["proj"].weights)
    return {
        "norm": str(norm.attr["norm"]),
        "norm_bias": any(weight.name == "bias" for weight in norm.weights),
        "placement": placement,
        "parallel_norms": 2 if placement == "parallel" and "ln2" in order else 1,
        "biases": "all" if is_biased else "qkv" if "q_bias" in weights else "none",
    }


def _feed_forward(blocks: list[Block], seq: int) -> dict[str, Any]:
    ops = _ops(blocks[-1])
    dense = next((o for o in map(_ops, blocks) if "fc1" in o), None)
    act = dense["act"] if dense else ops["experts_act"]
    wide = dense["fc1"] if dense else ops["experts_fc1"]
    fields: dict[str, Any] = {
        "num_hidden_layers": sum(block.repeat for block in blocks),
        "hidden_act": str(act.attr["op"]),
        "intermediate_size": wide.size["ffn"],
    }
    if "experts_fc1" not in ops:
        return fields
    sparse = ops["experts_fc1"]
    experts, slots = sparse.size["expert"], sparse.size["slot"]
    chosen, width = int(ops["dispatch"].attr["top_k"]), sparse.size["ffn"]
    even = -(-seq * chosen // experts)
    return fields | {
        "num_experts": experts,
        "num_experts_per_tok": chosen,
        "moe_intermediate_size": width,
        "num_shared_experts": ops["shared_fc1"].size["ffn"] // width
        if "shared_fc1" in ops
        else None,
        "first_dense_layers": sum(b.repeat for b in blocks if "fc1" in _ops(b)) or None,
        "capacity_factor": 1.0 if slots == even else slots * experts / (seq * chosen),
    }
