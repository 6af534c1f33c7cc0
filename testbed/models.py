"""What the testbed trains: each model as a PyTorch module and as the document that is predicted from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

CLASSES = 10
PIXELS = 784
WIDTHS = (512, 512)
SIDE = 16
CHANNELS = ((64, 1), (128, 2), (192, 2), (192, 1))  # channels and stride of each convolution
VOCABULARY, SEQUENCE, HIDDEN, FFN, HEADS, LAYERS = 1000, 32, 128, 512, 4, 3


@dataclass(frozen=True, slots=True)
class TestModel:
    """`measured_batches` are those whose compute is measured; others are interpolated."""

    name: str
    document: Mapping[str, Any]
    measured_batches: tuple[int, int]


def _op(name: str, kind: str, sizes: Mapping[str, int], x: str, y: str, *weights: str, **attrs: object) -> dict[str, Any]:  # fmt: skip
    found: dict[str, Any] = {"name": name, "kind": kind, "sizes": {"batch": 1, **sizes}}
    found |= {"inputs": [x], "outputs": [y], "weights": list(weights), "attrs": attrs}
    return found


def _mlp() -> dict[str, Any]:
    ops, source, width = [], "pixels[batch, a0]", PIXELS
    for number, wider in enumerate((*WIDTHS, CLASSES)):
        a, b = f"a{number}", f"a{number + 1}"
        result = f"h{number}[batch, {b}]"
        weights = (f"weight[{b}, {a}]", f"bias[{b}]")
        ops.append(_op(f"fc{number}", "linear", {a: width, b: wider}, source, result, *weights))
        source = f"y{number}[batch, {b}]"
        if number < len(WIDTHS):
            ops.append(_op(f"act{number}", "elementwise", {b: wider}, result, source, op="relu"))
        width = wider
    return {"name": "mlp", "blocks": [{"name": "body", "ops": ops}]}


def _cnn() -> dict[str, Any]:
    ops, source, channels, side = [], "images[batch, channel_in, height, width]", 3, SIDE
    for number, (wider, stride) in enumerate(CHANNELS):
        scale, side = stride * stride, side // stride
        maps = {"channel_out": wider, "height": side, "width": side}
        shape = "batch, channel_out, height, width"
        ops.append(
            _op(
                f"conv{number}", "conv", {**maps, "channel_in": channels, "kernel_h": 3, "kernel_w": 3},
                source, f"c{number}[{shape}]",
                "weight[channel_out, channel_in, kernel_h, kernel_w]", "bias[channel_out]",
                kernel_h=3, kernel_w=3, stride=stride, groups=1, input_scale=float(scale),
                halo_h=1, halo_w=1,
            )
        )  # fmt: skip
        ops.append(
            _op(f"act{number}", "elementwise", maps, f"c{number}[{shape}]", f"y{number}[{shape}]", op="relu")
        )  # fmt: skip
        source, channels = f"y{number}[batch, channel_in, height, width]", wider
    last = f"y{len(CHANNELS) - 1}[batch, channel_out, height, width]"
    maps = {"channel_out": channels, "height": side, "width": side}
    ops.append(_op("pool", "pooling", maps, last, "p[batch, channel_out]", pool="global"))
    sizes = {"channel_out": channels, "classes": CLASSES}
    weights = ("weight[classes, channel_out]", "bias[classes]")
    ops.append(_op("fc", "linear", sizes, "p[batch, channel_out]", "z[batch, classes]", *weights))
    return {"name": "cnn", "blocks": [{"name": "body", "ops": ops}]}


def _transformer() -> dict[str, Any]:
    shape = {
        "hidden_size": HIDDEN, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
        "intermediate_size": FFN, "vocab_size": VOCABULARY, "hidden_act": "gelu",
        "norm": "layernorm", "position": "learned", "biases": "all",
    }  # fmt: skip
    return {"name": "transformer", "seq": SEQUENCE, "transformer": shape}


MODELS: Mapping[str, TestModel] = {
    "mlp": TestModel("mlp", _mlp(), (16, 128)),
    "cnn": TestModel("cnn", _cnn(), (2, 16)),
    "transformer": TestModel("transformer", _transformer(), (2, 16)),
}


def module(name: str) -> torch.nn.Module:
    """The model with the parameters of its document, from the same seed everywhere."""
    import torch

    torch.manual_seed(1)
    return {"mlp": _mlp_module, "cnn": _cnn_module, "transformer": _transformer_module}[name]()


def sample(name: str, batch: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A batch of inputs and labels."""
    import torch

    if name == "transformer":
        ids = torch.randint(VOCABULARY, (batch, SEQUENCE + 1))
        return ids[:, :-1].contiguous(), ids[:, 1:].reshape(-1)
    shape = (PIXELS,) if name == "mlp" else (3, SIDE, SIDE)
    return torch.randn(batch, *shape), torch.randint(CLASSES, (batch,))


def _mlp_module() -> torch.nn.Module:
    from torch import nn

    layers: list[nn.Module] = []
    width = PIXELS
    for wider in WIDTHS:
        layers += [nn.Linear(width, wider), nn.ReLU()]
        width = wider
    return nn.Sequential(*layers, nn.Linear(width, CLASSES))


def _cnn_module() -> torch.nn.Module:
    from torch import nn

    layers: list[nn.Module] = []
    channels = 3
    for wider, stride in CHANNELS:
        layers += [nn.Conv2d(channels, wider, 3, stride, padding=1), nn.ReLU()]
        channels = wider
    end = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, CLASSES)]
    return nn.Sequential(*layers, *end)


def _transformer_module() -> torch.nn.Module:
    from torch import nn

    from testbed.modules import Decoder

    decoder: nn.Module = Decoder(VOCABULARY, SEQUENCE, HIDDEN, FFN, HEADS, LAYERS)
    return decoder
