"""Vision transformers: patches as a strided convolution, a class token, encoder layers, a classifier."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from foretrain.model.graph import Block, Model, Tensor
from foretrain.model.shape import TransformerShape
from foretrain.model.sketch import Sketch, view, weight
from foretrain.model.transformer import TOKENS, X, layer, sketch
from foretrain.model.zoo import Entry, fixed

_SOURCE = (
    "Dosovitskiy et al. 2020, arXiv 2010.11929, table 1; g: Zhai et al. 2021, arXiv 2106.04560"
)


@dataclass(frozen=True, slots=True)
class ViTShape:
    hidden: int
    layers: int
    heads: int
    ffn: int
    patch: int
    pixels: int = 224
    classes: int = 1000

    @property
    def side(self) -> int:
        """Patches along one edge."""
        return self.pixels // self.patch


def vit(shape: ViTShape, name: str, source: str = _SOURCE) -> Model:
    """Samples are images: `seq` (patches and the class token) follows from the resolution."""
    tokens = shape.side**2 + 1
    body = TransformerShape(
        hidden_size=shape.hidden,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        vocab_size=shape.classes,
        intermediate_size=shape.ffn,
        causal=False,
    )
    layers = replace(layer(body, tokens), repeat=shape.layers)
    blocks = (_patches(shape, body, tokens), layers, _classifier(shape, body, tokens))
    return Model(name, blocks, source=source)


def _patches(shape: ViTShape, body: TransformerShape, tokens: int) -> Block:
    s: Sketch = sketch(body, tokens)
    side, patch = shape.side, shape.patch
    s.sizes |= {"channel_in": 3, "channel_out": shape.hidden, "height": side, "width": side}
    s.sizes |= {"kernel_h": patch, "kernel_w": patch, "position": tokens}
    maps = ("batch", "channel_out", "height", "width")
    h = s.op(
        "patches", "conv", [Tensor("images", ("batch", "channel_in", "height", "width"))],
        [Tensor("patches", maps)],
        [weight("weight", "channel_out", "channel_in", "kernel_h", "kernel_w"),
         weight("bias", "channel_out")],
        kernel_h=patch, kernel_w=patch, stride=patch, groups=1, halo_h=0, halo_w=0,
        input_scale=float(shape.pixels**2 / side**2), input_gradient=False,
    )  # fmt: skip
    patches = view(h, "batch", "hidden", "height", "width")
    h = s.op(
        "flatten", "elementwise", [patches], [Tensor("tokens", TOKENS)], op="copy", reduces=False
    )
    table = [weight("weight", "position", "hidden"), weight("class_token", "hidden")]
    h = s.op("positions", "position", [h], [Tensor("placed", TOKENS)], table)
    return s.block("embedding", [], [h])


def _classifier(shape: ViTShape, body: TransformerShape, tokens: int) -> Block:
    s = sketch(body, tokens)
    s.sizes["classes"] = shape.classes
    h = s.norm("final_norm", X, "final_norm", "layernorm", True)
    first = Tensor("first", ("batch", "hidden"))
    h = s.op("first_token", "memory", [h], [first], reduces=False)
    logits = s.linear("logits", h, "logits", ("batch", "classes"), True)
    labels = Tensor("labels", ("batch",), "index")
    s.op("loss", "cross_entropy", [logits, labels], [Tensor("loss", ("batch",), "fp32")])
    return s.block("head", [X], [])


_ROWS = (
    ("vit-b", ViTShape(768, 12, 12, 3072, 16)),
    ("vit-l", ViTShape(1024, 24, 16, 4096, 16)),
    ("vit-h", ViTShape(1280, 32, 16, 5120, 14)),
    ("vit-g", ViTShape(1408, 40, 16, 6144, 14)),
)

MODELS: dict[str, Entry] = {
    name: fixed(partial(vit, shape, name), _SOURCE) for name, shape in _ROWS
}
