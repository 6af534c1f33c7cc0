"""YOLOv3 for the 20 classes of VOC at 448x448: Darknet-53, and three detection scales joined by skips."""

from __future__ import annotations

from foretrain.model.graph import Block, Model, Tensor
from foretrain.model.sketch import view
from foretrain.model.zoo import Entry, fixed
from foretrain.model.zoo.cnn import DIMS, ConvSketch, Map, carried, image, kept

_SOURCE = "Redmon & Farhadi 2018, arXiv 1804.02767, table 1"
_ACT = "leaky-relu"
_OUTPUTS = 3 * (5 + 20)  # three boxes of four corners, objectness and classes


def _conv(s: ConvSketch, name: str, x: Map, channels: int, kernel: int, stride: int = 1) -> Map:
    return s.conv_bn_relu(name, x, channels, kernel, stride, act=_ACT)


def _units(stage: int, x: Map, repeat: int, passed: list[Map]) -> tuple[Block, Map]:
    s = ConvSketch()
    h = _conv(s, "1", x, x.channels // 2, 1)
    out = s.pointwise("y", "add", _conv(s, "2", h, x.channels, 3), x)
    return s.finish(f"stage{stage}", x, out, repeat, passed), out


def _down(stage: int, x: Map, channels: int, passed: list[Map]) -> tuple[Block, Map]:
    s = ConvSketch()
    out = _conv(s, "down", x, channels, 3, 2)
    return s.finish(f"down{stage}", x, out, 1, passed), out


def _neck(s: ConvSketch, scale: int, x: Map, width: int) -> Map:
    """Five convolutions before a detection head."""
    h = x
    for index in range(5):
        channels, kernel = (width, 1) if index % 2 == 0 else (2 * width, 3)
        h = _conv(s, f"neck{scale}_{index}", h, channels, kernel)
    return h


def _detect(s: ConvSketch, scale: int, x: Map) -> None:
    h = _conv(s, f"detect{scale}", x, 2 * x.channels, 3)
    h = s.conv(f"boxes{scale}", h, _OUTPUTS, 1, bias=True)
    loss = Tensor(f"loss{scale}", ("batch",), "fp32")
    s.op(f"loss{scale}", "elementwise", [h.tensor], [loss], (), h.sizes, op="loss")


def _heads(x: Map, passed: list[Map]) -> Block:
    """The three scales, coarse to fine."""
    s = ConvSketch()
    h = _neck(s, 1, x, 512)
    _detect(s, 1, h)
    for scale, (width, skip) in enumerate(zip((256, 128), reversed(passed), strict=True), start=2):
        up = s.upsample(f"up{scale}", _conv(s, f"lateral{scale}", h, width, 1))
        carried = Map(view(skip.tensor, *DIMS), skip.channels, skip.height, skip.width)
        h = _neck(s, scale, s.concat(f"joined{scale}", [up, carried]), width)
        _detect(s, scale, h)
    return s.finish("heads", x, None, 1, passed)


def yolov3() -> Model:
    s = ConvSketch()
    h = _conv(s, "stem", image(3, 448, 448), 32, 3)
    blocks = [s.finish("stem", None, h)]
    passed: list[Map] = []
    for stage, (channels, repeat) in enumerate(
        ((64, 1), (128, 2), (256, 8), (512, 8), (1024, 4)), start=1
    ):
        block, h = _down(stage, carried(h), channels, passed)
        blocks.append(block)
        block, h = _units(stage, carried(h), repeat, passed)
        blocks.append(block)
        if stage in (3, 4):  # these stages are seen again by the finer heads
            block, passed = _keep(block, h, stage, passed)
            blocks[-1:] = _last_apart(blocks[-1], block)
    blocks.append(_heads(carried(h), passed))
    return Model("yolov3", tuple(blocks), source=_SOURCE)


def _keep(block: Block, h: Map, stage: int, passed: list[Map]) -> tuple[Block, list[Map]]:
    """The last unit of a stage gives its output twice: onward and to a later head."""
    given, taken = kept(h, f"skip{stage}")
    extra = (given.channels, given.height, given.width)
    sizes = (*block.sizes, *zip(given.tensor.dims[1:], extra, strict=True))
    outputs = (*block.outputs, given.tensor)
    last = Block(f"{block.name}_last", block.ops, block.inputs, outputs, 1, sizes)
    return last, [*passed, taken]


def _last_apart(block: Block, last: Block) -> list[Block]:
    rest = Block(block.name, block.ops, block.inputs, block.outputs, block.repeat - 1, block.sizes)
    return [rest, last]


MODELS: dict[str, Entry] = {"yolov3": fixed(yolov3, _SOURCE)}
