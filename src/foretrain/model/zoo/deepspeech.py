"""Deep Speech 2: two convolutions over the spectrogram, five two-way LSTM layers, characters out.

Utterances vary; the graph is one of 3.5 s, the middle of the CMU ARCTIC recordings, at 10 ms a frame.
"""

from __future__ import annotations

from foretrain.model.graph import Block, Model, Tensor
from foretrain.model.sketch import view
from foretrain.model.zoo import Entry, fixed
from foretrain.model.zoo.cnn import ConvSketch, image
from foretrain.model.zoo.lstm import TOKENS, both_ways

_SOURCE = "Amodei et al. 2015, arXiv 1512.02595; widths of the public PyTorch implementation"
_FRAMES = 350
_BINS = 161
_CELLS = 1024
_CHARACTERS = 29
X = Tensor("x", TOKENS)


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
    out = both_ways(s, "first", flat, width, _CELLS, joined=False)
    s.sizes |= {"hidden": _CELLS}
    return s.block("front", [], [out]), width, h.width


def _layer(frames: int) -> Block:
    s = ConvSketch()
    s.sizes |= {"seq": frames, "hidden": _CELLS}
    h = s.norm("norm", X, "normed", "layernorm", True)
    return s.block("layers", [X], [both_ways(s, "y", h, _CELLS, _CELLS, joined=False)], 4)


def _head(frames: int) -> Block:
    s = ConvSketch()
    s.sizes |= {"seq": frames, "hidden": _CELLS, "classes": _CHARACTERS}
    h = s.norm("norm", X, "normed", "layernorm", True)
    logits = s.linear("fc", h, "logits", ("batch", "seq", "classes"), False)
    labels = Tensor("labels", ("batch", "seq"), "index")
    s.op("loss", "cross_entropy", [logits, labels], [Tensor("loss", ("batch", "seq"), "fp32")])
    return s.block("head", [X], [])


def deepspeech2() -> Model:
    front, _, frames = _front()
    blocks = (front, _layer(frames), _head(frames))
    return Model("deepspeech2", blocks, source=_SOURCE)


MODELS: dict[str, Entry] = {"deepspeech2": fixed(deepspeech2, _SOURCE)}
