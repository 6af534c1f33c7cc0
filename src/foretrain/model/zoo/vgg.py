"""VGG and AlexNet: convolutions in a row, then three wide linear layers."""

from __future__ import annotations

from functools import partial

from foretrain.model.graph import Block, Model
from foretrain.model.sketch import view
from foretrain.model.zoo import Entry, fixed
from foretrain.model.zoo.cnn import ConvSketch, Map, carried, image

_FFN = ("batch", "ffn")
_VGG = "Simonyan & Zisserman 2014, arXiv 1409.1556, table 1"
_ALEXNET = "Krizhevsky 2014, arXiv 1404.5997 (one weird trick), as trained today"


def _classifier(x: Map, dropout_first: bool) -> Block:
    """Linear 4096, 4096, 1000 over the flattened map, with dropout as the original networks have it."""
    s = ConvSketch()
    s.sizes |= {"ffn": 4096, "hidden": 4096, "channel_in": x.channels}
    s.sizes |= {"height": x.height, "width": x.width, "channel_out": x.channels}
    h = x.tensor
    if dropout_first:
        h = s.elementwise("dropout1", "dropout", [h], "dropout1")
    h = s.linear("fc1", view(h, "batch", "channel_in", "height", "width"), "fc1", _FFN, True)
    h = s.elementwise("act1", "relu", [h], "act1")
    h = s.elementwise("dropout2", "dropout", [h], "dropout2")
    h = s.linear("fc2", h, "fc2", ("batch", "hidden"), True)
    h = s.elementwise("act2", "relu", [h], "act2")
    if not dropout_first:
        h = s.elementwise("dropout3", "dropout", [h], "dropout3")
    s.classify(h, 4096, 1000)
    return s.finish("head", x, None)


def vgg(name: str, depths: tuple[int, ...]) -> Model:
    """One block per convolution; the last one of a stage ends with the pooling."""
    h = image(3, 224, 224)
    blocks: list[Block] = []
    for stage, depth in enumerate(depths, start=1):
        channels = min(64 * 2 ** (stage - 1), 512)
        for index in range(1, depth + 1):
            s = ConvSketch()
            x = h if not blocks else carried(h)
            h = s.conv("conv", x, channels, 3, bias=True)
            h = s.pointwise("act", "relu", h)
            if index == depth:
                h = s.pool("pool", h, "max", 2, 2)
            blocks.append(s.finish(f"conv{stage}_{index}", x if blocks else None, h))
    blocks.append(_classifier(carried(h), dropout_first=False))
    return Model(name, tuple(blocks), source=_VGG)


def alexnet() -> Model:
    """AlexNet with a single tower."""
    h = image(3, 224, 224)
    blocks: list[Block] = []
    rows = ((64, 11, 4, 2, True), (192, 5, 1, 2, True), (384, 3, 1, 1, False),
            (256, 3, 1, 1, False), (256, 3, 1, 1, True))  # fmt: skip
    for index, (channels, kernel, stride, padding, pools) in enumerate(rows, start=1):
        s = ConvSketch()
        x = h if not blocks else carried(h)
        h = s.pointwise("act", "relu", s.conv("conv", x, channels, kernel, stride, padding, True))
        if pools:
            h = s.pool("pool", h, "max", 3, 2)
        blocks.append(s.finish(f"conv{index}", x if blocks else None, h))
    blocks.append(_classifier(carried(h), dropout_first=True))
    return Model("alexnet", tuple(blocks), source=_ALEXNET)


_ROWS = (
    ("vgg11", (1, 1, 2, 2, 2)),
    ("vgg13", (2, 2, 2, 2, 2)),
    ("vgg16", (2, 2, 3, 3, 3)),
    ("vgg19", (2, 2, 4, 4, 4)),
)

MODELS: dict[str, Entry] = {
    **{name: fixed(partial(vgg, name, depths), _VGG) for name, depths in _ROWS},
    "alexnet": fixed(alexnet, _ALEXNET),
}
