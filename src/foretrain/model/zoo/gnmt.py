"""GNMT as MLPerf Training trains it: four encoder and four decoder LSTM layers of 1,024 cells."""

from __future__ import annotations

from foretrain.model.graph import Block, Model, Tensor
from foretrain.model.sketch import Sketch, view, weight
from foretrain.model.zoo import Entry
from foretrain.model.zoo.lstm import TOKENS, both_ways, lstm

_SOURCE = "Wu et al. 2016, arXiv 1609.08144; MLPerf Training v0.6 reference (GNMT v2)"
_WIDTH = 1024
_VOCAB = 32320
X = Tensor("x", TOKENS)
MEMORY = Tensor("memory", ("batch", "kv_seq", "hidden"))
CONTEXT = Tensor("context", TOKENS)


def _sketch(seq: int) -> Sketch:
    return Sketch(batch=1, seq=seq, kv_seq=seq, hidden=_WIDTH, vocab=_VOCAB, units=_WIDTH)


def _embed(s: Sketch, ids: str) -> Tensor:
    table = [weight("weight", "vocab", "hidden")]
    source = Tensor(ids, ("batch", "seq"), "index")
    h = s.op("tokens", "embedding", [source], [Tensor("tokens", TOKENS)], table)
    return s.elementwise("dropout", "dropout", [h], "dropped")


def _encoder_start(seq: int) -> Block:
    """Look-up, the two-way layer and the layer that halves its width again."""
    s = _sketch(seq)
    h = both_ways(s, "both", _embed(s, "ids"), _WIDTH, _WIDTH, joined=True)
    return s.block("encoder_start", [], [lstm(s, "lstm", h, 2 * _WIDTH, _WIDTH)])


def _encoder_layer(seq: int) -> Block:
    s = _sketch(seq)
    h = s.elementwise("dropout", "dropout", [X], "dropped")
    y = s.elementwise("add", "add", [lstm(s, "lstm", h, _WIDTH, _WIDTH), X], "y")
    return s.block("encoder", [X], [y], 2)


def _attention(s: Sketch, query: Tensor, memory: Tensor) -> Tensor:
    """Additive attention: v·tanh(q + k) for every pair, then the weighted memory."""
    q = s.linear("query", query, "query", ("batch", "seq", "units"), False)
    k = s.linear("key", memory, "key", ("batch", "kv_seq", "units"), False)
    energy = Tensor("energy", ("batch", "seq", "kv_seq", "units"))
    s.op("energy", "elementwise", [q, k], [energy], op="tanh")
    scores = s.linear("score", energy, "score", ("batch", "seq", "kv_seq"), False)
    share = s.op("share", "softmax", [scores], [Tensor("share", scores.dims)])
    return s.op("context", "matmul", [share, memory], [Tensor("context", TOKENS)])


def _decoder_start(seq: int) -> Block:
    s = _sketch(seq)
    memory = view(X, *MEMORY.dims)
    first = lstm(s, "lstm", _embed(s, "target_ids"), _WIDTH, _WIDTH)
    context = _attention(s, first, memory)
    return s.block("decoder_start", [memory], [first, context])


def _decoder_layer(seq: int) -> Block:
    """The context enters every layer beside the stream."""
    s = _sketch(seq)
    h = s.elementwise("dropout", "dropout", [X], "dropped")
    views = [view(h, "batch", "seq", "stream"), view(CONTEXT, "batch", "seq", "beside")]
    sizes = {"stream": _WIDTH, "beside": _WIDTH, "hidden": 2 * _WIDTH}
    out = Tensor("joined", TOKENS)
    h = s.op("join", "elementwise", views, [out], (), sizes, op="concat", reduces=False)
    y = s.elementwise("add", "add", [lstm(s, "lstm", h, 2 * _WIDTH, _WIDTH), X], "y")
    return s.block("decoder", [X, CONTEXT], [y, CONTEXT], 3)


def _head(seq: int) -> Block:
    s = _sketch(seq)
    logits = s.linear("logits", X, "logits", ("batch", "seq", "vocab"), True)
    labels = Tensor("labels", ("batch", "seq"), "index")
    s.op("loss", "cross_entropy", [logits, labels], [Tensor("loss", ("batch", "seq"), "fp32")])
    return s.block("head", [X, CONTEXT], [])


def gnmt(seq: int) -> Model:
    """Source and target of `seq` tokens each; all three vocabulary matrices are one."""
    blocks = (
        _encoder_start(seq),
        _encoder_layer(seq),
        _decoder_start(seq),
        _decoder_layer(seq),
        _head(seq),
    )
    first = "encoder_start.tokens.weight"
    tied = ((first, "decoder_start.tokens.weight"), (first, "head.logits.weight"))
    return Model("gnmt", blocks, seq, tied, _SOURCE)


MODELS: dict[str, Entry] = {"gnmt": Entry(gnmt, 50, _SOURCE)}
