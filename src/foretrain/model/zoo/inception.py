"""Inception v3 on 299x299 images, without the auxiliary classifier (23,834,568 parameters)."""

from __future__ import annotations

from collections.abc import Callable

from foretrain.model.graph import Block, Model
from foretrain.model.zoo import Entry, fixed
from foretrain.model.zoo.cnn import ConvSketch, Map, carried, image

_SOURCE = "Szegedy et al. 2015, arXiv 1512.00567"
_Unit = Callable[[ConvSketch, Map], list[Map]]


def _pool_branch(s: ConvSketch, x: Map, channels: int) -> Map:
    return s.conv_bn_relu("pool1", s.pool("pool", x, "avg", 3, 1, 1), channels, 1)


def _a(channels: int) -> _Unit:
    """35x35: 1x1, 5x5 and double 3x3 branches."""

    def unit(s: ConvSketch, x: Map) -> list[Map]:
        one = s.conv_bn_relu("one", x, 64, 1)
        five = s.conv_bn_relu("five2", s.conv_bn_relu("five1", x, 48, 1), 64, 5)
        three = s.conv_bn_relu("three2", s.conv_bn_relu("three1", x, 64, 1), 96, 3)
        three = s.conv_bn_relu("three3", three, 96, 3)
        return [one, five, three, _pool_branch(s, x, channels)]

    return unit


def _b(s: ConvSketch, x: Map) -> list[Map]:
    """35x35 → 17x17."""
    three = s.conv_bn_relu("three", x, 384, 3, 2, 0)
    double = s.conv_bn_relu("double2", s.conv_bn_relu("double1", x, 64, 1), 96, 3)
    double = s.conv_bn_relu("double3", double, 96, 3, 2, 0)
    return [three, double, s.pool("pool", x, "max", 3, 2)]


def _c(inner: int) -> _Unit:
    """17x17: 7x7 convolutions as pairs of 1x7 and 7x1."""

    def unit(s: ConvSketch, x: Map) -> list[Map]:
        one = s.conv_bn_relu("one", x, 192, 1)
        seven = s.conv_bn_relu("seven1", x, inner, 1)
        seven = s.conv_bn_relu("seven2", seven, inner, (1, 7))
        seven = s.conv_bn_relu("seven3", seven, 192, (7, 1))
        double = s.conv_bn_relu("double1", x, inner, 1)
        double = s.conv_bn_relu("double2", double, inner, (7, 1))
        double = s.conv_bn_relu("double3", double, inner, (1, 7))
        double = s.conv_bn_relu("double4", double, inner, (7, 1))
        double = s.conv_bn_relu("double5", double, 192, (1, 7))
        return [one, seven, double, _pool_branch(s, x, 192)]

    return unit


def _d(s: ConvSketch, x: Map) -> list[Map]:
    """17x17 → 8x8."""
    three = s.conv_bn_relu("three2", s.conv_bn_relu("three1", x, 192, 1), 320, 3, 2, 0)
    seven = s.conv_bn_relu("seven1", x, 192, 1)
    seven = s.conv_bn_relu("seven2", seven, 192, (1, 7))
    seven = s.conv_bn_relu("seven3", seven, 192, (7, 1))
    seven = s.conv_bn_relu("seven4", seven, 192, 3, 2, 0)
    return [three, seven, s.pool("pool", x, "max", 3, 2)]


def _e(s: ConvSketch, x: Map) -> list[Map]:
    """8x8: branches that end in two directions each."""
    one = s.conv_bn_relu("one", x, 320, 1)
    three = s.conv_bn_relu("three1", x, 384, 1)
    three_h = s.conv_bn_relu("three_h", three, 384, (1, 3))
    three_v = s.conv_bn_relu("three_v", three, 384, (3, 1))
    double = s.conv_bn_relu("double2", s.conv_bn_relu("double1", x, 448, 1), 384, 3)
    double_h = s.conv_bn_relu("double_h", double, 384, (1, 3))
    double_v = s.conv_bn_relu("double_v", double, 384, (3, 1))
    return [one, three_h, three_v, double_h, double_v, _pool_branch(s, x, 192)]


def _stem() -> tuple[Block, Map]:
    s = ConvSketch()
    h = s.conv_bn_relu("1", image(3, 299, 299), 32, 3, 2, 0)
    h = s.conv_bn_relu("2", h, 32, 3, 1, 0)
    h = s.pool("pool1", s.conv_bn_relu("3", h, 64, 3), "max", 3, 2)
    h = s.conv_bn_relu("5", s.conv_bn_relu("4", h, 80, 1), 192, 3, 1, 0)
    h = s.pool("pool2", h, "max", 3, 2)
    return s.finish("stem", None, h), h


def inception_v3() -> Model:
    units: tuple[tuple[str, _Unit, int], ...] = (
        ("a1", _a(32), 1),
        ("a2", _a(64), 1),
        ("a3", _a(64), 1),
        ("b", _b, 1),
        ("c1", _c(128), 1),
        ("c2", _c(160), 2),
        ("c3", _c(192), 1),
        ("d", _d, 1),
        ("e1", _e, 1),
        ("e2", _e, 1),
    )
    block, h = _stem()
    blocks = [block]
    for name, unit, repeat in units:
        s, x = ConvSketch(), carried(h)
        h = s.concat("y", unit(s, x))
        blocks.append(s.finish(name, x, h, repeat))
    s, x = ConvSketch(), carried(h)
    s.sizes["hidden"] = x.channels
    features = s.elementwise("dropout", "dropout", [s.global_pool("pool", x)], "dropped")
    s.classify(features, x.channels, 1000)
    blocks.append(s.finish("head", x, None))
    return Model("inception-v3", tuple(blocks), source=_SOURCE)


MODELS: dict[str, Entry] = {"inception-v3": fixed(inception_v3, _SOURCE)}
