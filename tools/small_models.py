"""Models small enough to train on a few cores, each twice: as a Foretrain graph and as the torch module it describes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from foretrain.model.graph import Block, Model, Tensor
from foretrain.model.shape import TransformerShape
from foretrain.model.sketch import Sketch, weight
from foretrain.model.transformer import transformer
from foretrain.model.zoo.cnn import ConvSketch, carried, image

CLASSES, SIDE, VOCAB, HEAD = 10, 32, 512, 32


@dataclass(frozen=True, slots=True)
class Training:
    """One configuration of a real training run."""

    family: str  # mlp | cnn | gpt
    width: int
    depth: int
    batch: int  # samples of a micro-batch on one process
    seq: int = 64
    accumulates: int = 1  # micro-batches in a step
    processes: int = 1
    optimizer: str = "sgd"

    @property
    def name(self) -> str:
        seq = f" seq {self.seq}" if self.family == "gpt" else ""
        more = f" x{self.accumulates}" if self.accumulates > 1 else ""
        both = f", {self.processes} processes" if self.processes > 1 else ""
        return f"{self.family} {self.width} x {self.depth}{seq}, batch {self.batch}{more}{both}, {self.optimizer}"

    @property
    def global_batch(self) -> int:
        return self.batch * self.accumulates * self.processes


def graph(t: Training) -> Model:
    """The model as Foretrain sees it."""
    if t.family == "mlp":
        return _mlp_graph(t.width, t.depth)
    if t.family == "cnn":
        return _cnn_graph(t.width, t.depth)
    shape = TransformerShape(
        hidden_size=t.width, num_hidden_layers=t.depth, num_attention_heads=t.width // HEAD,
        vocab_size=VOCAB, max_position_embeddings=t.seq,
    )  # fmt: skip
    return transformer(shape, t.seq, f"gpt-{t.width}x{t.depth}")


def module(t: Training) -> Any:
    """The same as torch has it."""
    return {"mlp": _mlp_module, "cnn": _cnn_module, "gpt": _gpt_module}[t.family](t)


def samples(t: Training) -> tuple[Any, Any]:
    """A micro-batch: inputs and what is to be predicted."""
    import torch

    if t.family == "gpt":
        ids = torch.randint(0, VOCAB, (t.batch, t.seq))
        return ids, torch.randint(0, VOCAB, (t.batch * t.seq,))
    shape = (t.batch, t.width) if t.family == "mlp" else (t.batch, 3, SIDE, SIDE)
    return torch.randn(shape), torch.randint(0, CLASSES, (t.batch,))


# --- perceptrons --------------------------------------------------------------------------------------


def _mlp_layer(width: int, repeat: int, is_first: bool) -> Block:
    s = Sketch(batch=1, inner=width, outer=width)
    x, out = Tensor("x", ("batch", "inner")), Tensor("h", ("batch", "outer"))
    weights = [weight("weight", "inner", "outer"), weight("bias", "outer")]
    h = s.op("linear", "linear", [x], [out], weights, input_gradient=not is_first)
    y = s.elementwise("act", "relu", [h], "y")
    return s.block("first" if is_first else "layers", [] if is_first else [x], [y], repeat)


def _mlp_graph(width: int, depth: int) -> Model:
    blocks = [_mlp_layer(width, 1, True)]
    if depth > 1:
        blocks.append(_mlp_layer(width, depth - 1, False))
    s = Sketch(batch=1, outer=width, classes=CLASSES)
    x = Tensor("y", ("batch", "outer"))
    logits = s.linear("logits", x, "logits", ("batch", "classes"), True)
    labels, loss = Tensor("labels", ("batch",), "index"), Tensor("loss", ("batch",), "fp32")
    s.op("loss", "cross_entropy", [logits, labels], [loss])
    return Model(f"mlp-{width}x{depth}", (*blocks, s.block("head", [x], [])))


def _mlp_module(t: Training) -> Any:
    from torch import nn

    layers = [m for _ in range(t.depth) for m in (nn.Linear(t.width, t.width), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(t.width, CLASSES))


# --- convolutions -------------------------------------------------------------------------------------


def _cnn_graph(channels: int, depth: int) -> Model:
    s = ConvSketch()
    h = s.conv_bn_relu("stem", image(3, SIDE, SIDE), channels, 3)
    blocks = [s.finish("stem", None, h)]
    s, x = ConvSketch(), carried(h)
    h = s.conv_bn_relu("layer", x, channels, 3)
    blocks.append(s.finish("layers", x, h, depth))
    s, x = ConvSketch(), carried(h)
    s.classify(s.global_pool("pool", x), channels, CLASSES)
    return Model(f"cnn-{channels}x{depth}", (*blocks, s.finish("head", x, None)))


def _cnn_module(t: Training) -> Any:
    from torch import nn

    def layer(inward: int) -> list[Any]:
        conv = nn.Conv2d(inward, t.width, 3, padding=1, bias=False)
        return [conv, nn.BatchNorm2d(t.width), nn.ReLU()]

    layers = [m for inward in (3, *(t.width,) * t.depth) for m in layer(inward)]
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(t.width, CLASSES))
    return nn.Sequential(*layers, *head)


# --- transformers -------------------------------------------------------------------------------------


def _gpt_module(t: Training) -> Any:
    import torch
    from torch import nn

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.ln1, self.ln2 = nn.LayerNorm(t.width), nn.LayerNorm(t.width)
            self.qkv, self.proj = nn.Linear(t.width, 3 * t.width), nn.Linear(t.width, t.width)
            self.fc1, self.fc2 = nn.Linear(t.width, 4 * t.width), nn.Linear(4 * t.width, t.width)
            self.act = nn.GELU()

        def forward(self, x: Any) -> Any:
            batch, seq, width = x.shape
            parts = self.qkv(self.ln1(x)).split(width, -1)
            heads = (p.view(batch, seq, width // HEAD, HEAD).transpose(1, 2) for p in parts)
            seen = nn.functional.scaled_dot_product_attention(*heads, is_causal=True)
            x = x + self.proj(seen.transpose(1, 2).reshape(batch, seq, width))
            return x + self.fc2(self.act(self.fc1(self.ln2(x))))

    class Gpt(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens = nn.Embedding(VOCAB, t.width)
            self.positions = nn.Parameter(torch.zeros(t.seq, t.width))
            self.layers = nn.Sequential(*[Layer() for _ in range(t.depth)])
            self.norm, self.logits = nn.LayerNorm(t.width), nn.Linear(t.width, VOCAB, bias=False)

        def forward(self, ids: Any) -> Any:
            x = self.layers(self.tokens(ids) + self.positions)
            return self.logits(self.norm(x)).flatten(0, 1)

    return Gpt()
