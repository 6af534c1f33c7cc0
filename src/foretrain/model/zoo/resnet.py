"""ResNets (v1.5: the stride sits in the 3x3 convolution), wide ResNets and the CIFAR variant."""

from __future__ import annotations

from functools import partial

from foretrain.model.graph import Block, Model
from foretrain.model.zoo import Entry, fixed
from foretrain.model.zoo.cnn import ConvSketch, Map, carried, image

_SOURCE = "He et al. 2015, arXiv 1512.03385, table 1"
_WIDE = "Zagoruyko & Komodakis 2016, arXiv 1605.07146"


def _basic(s: ConvSketch, x: Map, width: int, stride: int) -> Map:
    h = s.conv_bn_relu("1", x, width, 3, stride)
    return s.batch_norm("2_bn", s.conv("2_conv", h, width, 3))


def _bottleneck(s: ConvSketch, x: Map, width: int, stride: int, widen: int) -> Map:
    inner = width * widen
    h = s.conv_bn_relu("1", x, inner, 1)
    h = s.conv_bn_relu("2", h, inner, 3, stride)
    return s.batch_norm("3_bn", s.conv("3_conv", h, width * 4, 1))


def _unit(name: str, x: Map, width: int, stride: int, widen: int, repeat: int) -> tuple[Block, Map]:
    """A residual unit; `widen` 0 means the two-convolution form."""
    s = ConvSketch()
    h = _bottleneck(s, x, width, stride, widen) if widen else _basic(s, x, width, stride)
    skip = x
    if stride != 1 or x.channels != h.channels:
        skip = s.batch_norm("skip_bn", s.conv("skip_conv", x, h.channels, 1, stride))
    out = s.pointwise("y", "relu", s.pointwise("add", "add", h, skip))
    return s.finish(name, x, out, repeat), out


def _stem(is_small: bool, base: int) -> tuple[Block, Map]:
    s = ConvSketch()
    if is_small:  # CIFAR: 32x32 pixels are not shrunk
        h = s.conv_bn_relu("stem", image(3, 32, 32), base, 3)
    else:
        h = s.conv_bn_relu("stem", image(3, 224, 224), base, 7, 2)
        h = s.pool("pool", h, "max", 3, 2, 1)
    return s.finish("stem", None, h), h


def resnet(
    name: str,
    depths: tuple[int, ...],
    widen: int,
    classes: int = 1000,
    is_small: bool = False,
    base: int = 64,
) -> Model:
    """A ResNet; runs of identical residual units are one repeated block. `base`: channels of the first stage."""
    block, h = _stem(is_small, base)
    blocks = [block]
    for stage, depth in enumerate(depths, start=1):
        width, stride = base * 2 ** (stage - 1), 1 if stage == 1 else 2
        rest = depth
        if stride != 1 or h.channels != width * (4 if widen else 1):
            block, h = _unit(f"stage{stage}_first", carried(h), width, stride, widen, 1)
            blocks.append(block)
            rest -= 1
        block, h = _unit(f"stage{stage}", carried(h), width, 1, widen, rest)
        blocks.append(block)
    s, x = ConvSketch(), carried(h)
    s.classify(s.global_pool("pool", x), x.channels, classes)
    blocks.append(s.finish("head", x, None))
    return Model(name, tuple(blocks), source=_WIDE if widen > 1 else _SOURCE)


_ROWS = (
    ("resnet18", (2, 2, 2, 2), 0),
    ("resnet34", (3, 4, 6, 3), 0),
    ("resnet50", (3, 4, 6, 3), 1),
    ("resnet101", (3, 4, 23, 3), 1),
    ("resnet152", (3, 8, 36, 3), 1),
    ("wide-resnet50-2", (3, 4, 6, 3), 2),
    ("wide-resnet101-2", (3, 4, 23, 3), 2),
)

MODELS: dict[str, Entry] = {
    **{
        name: fixed(partial(resnet, name, depths, widen), _WIDE if widen > 1 else _SOURCE)
        for name, depths, widen in _ROWS
    },
    # as large as the largest image model in Alpa's benchmark (Zheng et al. 2022, arXiv 2201.12023); the widths are ours
    "wide-resnet-13b": fixed(
        partial(resnet, "wide-resnet-13b", (3, 4, 23, 3), 2, 1024, base=640), _WIDE
    ),
    "resnet18-cifar": fixed(partial(resnet, "resnet18-cifar", (2, 2, 2, 2), 0, 10, True), _SOURCE),
}
