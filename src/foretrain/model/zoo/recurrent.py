"""Recurrent networks: GNMT as MLPerf Training trains it, four encoder and four decoder LSTM layers of 1,024 cells; and Deep
Speech 2, two convolutions over the spectrogram, five two-way LSTM layers, characters out."""

from __future__ import annotations

from foretrain.model.graph import Block, Model, Tensor
from foretrain.model.sketch import Sketch, view, weight
from foretrain.model.zoo import Entry, fixed
from foretrain.model.zoo.cnn import ConvSketch, image

_GNMT = "Wu et al. 2016, arXiv 1609.08144; MLPerf Training v0.6 reference (GNMT v2)"
_DEEP_SPEECH = "Amodei et al. 2015, arXiv 1512.02595; widths of the public PyTorch implementation"
TOKENS = ("batch", "seq", "hidden")
_CELLS = ("batch", "seq", "cell")
X = Tensor("x", TOKENS)


def lstm(s: Sketch, name: str, x: Tensor, width: int, cells: int) -> Tensor:
    """An LSTM layer from `width` features to `cells`, with the two bias vectors libraries keep."""
    sizes = {"hidden": width, "cell": cells, "cell_in": cells, "gate": 4}
    weights = [
        weight("input_weight", "hidden", "gate", "cell"),
        weight("state_weight", "cell_in", "gate", "cell"),
        weight("input_bias", "gate", "cell"),
        weight("state_bias", "gate", "cell"),
    ]
    out = Tensor(name, _CELLS)
    s.op(name, "recurrent", [view(x, *TOKENS)], [out], weights, sizes)
    return view(out, *TOKENS)


def both_ways(s: Sketch, name: str, x: Tensor, width: int, cells: int, joined: bool) -> Tensor:
    """A forward and a backward layer whose results are joined (2·cells wide) or added."""
    forth = lstm(s, f"{name}_forth", x, width, cells)
    back = lstm(s, f"{name}_back", x, width, cells)
    if not joined:
        sizes = {"hidden": cells}
        return s.op(name, "elementwise", [forth, back], [Tensor(name, TOKENS)], (), sizes, op="add")
    views = [view(forth, "batch", "seq", "forth"), view(back, "batch", "seq", "back")]
    sizes = {"forth": cells, "back": cells, "hidden": 2 * cells}
    out = Tensor(name, TOKENS)
    return s.op(name, "elementwise", views, [out], (), sizes, op="concat", reduces=False)


# --- GNMT -------------------------------------------------------------------------------------------

_WIDTH = 1024
_VOCAB = 32320
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


def _logits(seq: int) -> Block:
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
        _logits(seq),
    )
    first = "encoder_start.tokens.weight"
    tied = ((first, "decoder_start.tokens.weight"), (first, "head.logits.weight"))
    return Model("gnmt", blocks, seq, tied, _GNMT)


# --- Deep Speech 2 ----------------------------------------------------------------------------------

# Utterances vary; the graph is one of 3.5 s, the middle of the CMU ARCTIC recordings, at 10 ms a frame.
_FRAMES = 350
_BINS = 161
_UNITS = 1024
_CHARACTERS = 29


def _front() -> tuple[Block, int, int]:
    """Convolutions, then one feature vector per remaining frame; gives its width and the frames."""
    s = ConvSketch()
    h = s.conv_bn_relu("1", image(1, _BINS, _FRAMES), 32, (41, 11), (2, 2), (20, 5))
    h = s.conv_bn_relu("2", h, 32, (21, 11), (2, 1), (10, 5))
    width = h.channels * h.height
    frames = view(h.tensor, "batch", "channel_in", "height", "seq")
    sizes = {"channel_in": h.channels, "height": h.height, "seq": h.width, "hidden": width}
    flat = Tensor("frames", TOKENS)
    s.op("frames", "elementwise", [frames], [flat], (), sizes, op="copy", reduces=False)
    s.sizes |= {"seq": h.width}
    out = both_ways(s, "first", flat, width, _UNITS, joined=False)
    s.sizes |= {"hidden": _UNITS}
    return s.block("front", [], [out]), width, h.width


def _layer(frames: int) -> Block:
    s = ConvSketch()
    s.sizes |= {"seq": frames, "hidden": _UNITS}
    h = s.norm("norm", X, "normed", "layernorm", True)
    return s.block("layers", [X], [both_ways(s, "y", h, _UNITS, _UNITS, joined=False)], 4)


def _head(frames: int) -> Block:
    s = ConvSketch()
    s.sizes |= {"seq": frames, "hidden": _UNITS, "classes": _CHARACTERS}
    h = s.norm("norm", X, "normed", "layernorm", True)
    logits = s.linear("fc", h, "logits", ("batch", "seq", "classes"), False)
    labels = Tensor("labels", ("batch", "seq"), "index")
    s.op("loss", "cross_entropy", [logits, labels], [Tensor("loss", ("batch", "seq"), "fp32")])
    return s.block("head", [X], [])


def deepspeech2() -> Model:
    front, _, frames = _front()
    blocks = (front, _layer(frames), _head(frames))
    return Model("deepspeech2", blocks, source=_DEEP_SPEECH)


MODELS: dict[str, Entry] = {
    "gnmt": Entry(gnmt, 50, _GNMT),
    "deepspeech2": fixed(deepspeech2, _DEEP_SPEECH),
}
