"""Drawing convolutional networks: feature maps that remember their size."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from foretrain.model.graph import Block, Tensor
from foretrain.model.sketch import Sketch, view, weight

DIMS = ("batch", "channel_out", "height", "width")
_AS_INPUT = ("batch", "channel_in", "height", "width")


@dataclass(frozen=True, slots=True)
class Map:
    """A tensor of feature maps with its sizes."""

    tensor: Tensor
    channels: int
    height: int
    width: int

    @property
    def sizes(self) -> dict[str, int]:
        return {"channel_out": self.channels, "height": self.height, "width": self.width}


def carried(source: Map) -> Map:
    """The same map as the next block receives it."""
    return Map(Tensor("x", DIMS), source.channels, source.height, source.width)


def image(channels: int, height: int, width: int) -> Map:
    return Map(Tensor("images", DIMS), channels, height, width)


class ConvSketch(Sketch):
    """A sketch whose ops take and give feature maps; names of ops name their results too."""

    def __init__(self) -> None:
        super().__init__(batch=1)
        self.normed: set[str] = set()  # maps that a norm gives, or a sum with one

    def conv(
        self,
        name: str,
        x: Map,
        channels: int,
        kernel: int | tuple[int, int],
        stride: int | tuple[int, int] = 1,
        padding: int | tuple[int, int] | Literal["same"] = "same",
        bias: bool = False,
    ) -> Map:
        kernel_h, kernel_w = (kernel, kernel) if isinstance(kernel, int) else kernel
        stride_h, stride_w = (stride, stride) if isinstance(stride, int) else stride
        if padding == "same":
            padding = ((kernel_h - 1) // 2, (kernel_w - 1) // 2)
        pad_h, pad_w = (padding, padding) if isinstance(padding, int) else padding
        height = (x.height + 2 * pad_h - kernel_h) // stride_h + 1
        width = (x.width + 2 * pad_w - kernel_w) // stride_w + 1
        out = Map(Tensor(name, DIMS), channels, height, width)
        weights = [weight("weight", "channel_out", "channel_in", "kernel_h", "kernel_w")]
        if bias:
            weights.append(weight("bias", "channel_out"))
        self.op(
            name,
            "conv",
            [view(x.tensor, *_AS_INPUT)],
            [out.tensor],
            weights,
            {**out.sizes, "channel_in": x.channels, "kernel_h": kernel_h, "kernel_w": kernel_w},
            kernel_h=kernel_h,
            kernel_w=kernel_w,
            stride=max(stride_h, stride_w),
            groups=1,
            input_scale=x.height * x.width / (height * width),
            halo_h=(kernel_h - 1) // 2,
            halo_w=(kernel_w - 1) // 2,
            input_gradient=x.tensor.name != "images",
        )
        return out

    def batch_norm(self, name: str, x: Map) -> Map:
        out = Map(Tensor(name, DIMS), x.channels, x.height, x.width)
        weights = [weight("weight", "channel_out"), weight("bias", "channel_out")]
        self.op(name, "batch_norm", [x.tensor], [out.tensor], weights, x.sizes)
        self.normed.add(name)
        return out

    def pointwise(self, name: str, op: str, *inputs: Map) -> Map:
        first = inputs[0]
        out = Map(Tensor(name, DIMS), first.channels, first.height, first.width)
        tensors = [x.tensor for x in inputs]
        attr: dict[str, str | bool] = {"op": op}
        if self.normed & {tensor.name for tensor in tensors}:
            attr["follows_norm"] = True
            if op == "add":
                self.normed.add(name)
        self.op(name, "elementwise", tensors, [out.tensor], (), first.sizes, **attr)
        return out

    def conv_bn_relu(
        self,
        name: str,
        x: Map,
        channels: int,
        kernel: int | tuple[int, int],
        stride: int | tuple[int, int] = 1,
        padding: int | tuple[int, int] | Literal["same"] = "same",
        act: str = "relu",
    ) -> Map:
        h = self.conv(f"{name}_conv", x, channels, kernel, stride, padding)
        return self.pointwise(f"{name}_act", act, self.batch_norm(f"{name}_bn", h))

    def pool(self, name: str, x: Map, pool: str, kernel: int, stride: int, padding: int = 0) -> Map:
        height = (x.height + 2 * padding - kernel) // stride + 1
        width = (x.width + 2 * padding - kernel) // stride + 1
        out = Map(Tensor(name, DIMS), x.channels, height, width)
        self.op(
            name,
            "pooling",
            [x.tensor],
            [out.tensor],
            (),
            out.sizes,
            pool=pool,
            kernel_h=kernel,
            kernel_w=kernel,
            stride=stride,
            input_scale=x.height * x.width / (height * width),
            halo_h=(kernel - 1) // 2,
            halo_w=(kernel - 1) // 2,
        )
        return out

    def global_pool(self, name: str, x: Map) -> Tensor:
        """Mean over height and width, seen from then on as a vector of features."""
        out = Tensor(name, ("batch", "channel_out"))
        self.op(name, "pooling", [x.tensor], [out], (), x.sizes, pool="global")
        return view(out, "batch", "hidden")

    def concat(self, name: str, inputs: Iterable[Map]) -> Map:
        """Feature maps joined along the channels; each input keeps its own channel dim."""
        inputs = tuple(inputs)
        first = inputs[0]
        out = Map(Tensor(name, DIMS), sum(x.channels for x in inputs), first.height, first.width)
        labels = [f"channel_{index}" for index in range(len(inputs))]
        views = [
            view(x.tensor, "batch", label, "height", "width")
            for x, label in zip(inputs, labels, strict=True)
        ]
        sizes = out.sizes | {label: x.channels for x, label in zip(inputs, labels, strict=True)}
        self.op(name, "elementwise", views, [out.tensor], (), sizes, op="concat", reduces=False)
        return out

    def classify(self, features: Tensor, width: int, classes: int) -> None:
        """A last linear layer and the loss."""
        sizes = {"hidden": width, "classes": classes}
        logits = self.linear("fc", features, "logits", ("batch", "classes"), True, sizes)
        labels = Tensor("labels", ("batch",), "index")
        loss = Tensor("loss", ("batch",), "fp32")
        self.op("loss", "cross_entropy", [logits, labels], [loss], (), sizes)

    def upsample(self, name: str, x: Map) -> Map:
        """Twice the height and width by repetition."""
        out = Map(Tensor(name, DIMS), x.channels, 2 * x.height, 2 * x.width)
        self.op(
            name,
            "elementwise",
            [x.tensor],
            [out.tensor],
            (),
            out.sizes,
            op="copy",
            input_scale=0.25,
        )
        return out

    def finish(
        self,
        name: str,
        x: Map | None,
        out: Map | None,
        repeat: int = 1,
        passed: Iterable[Map] = (),
    ) -> Block:
        """The block from map `x` to map `out`.

        Its sizes are those of `out`, or of `x` where nothing is given on. Maps in `passed` travel through to a
        later block; they have dim names of their own.
        """
        passed = tuple(passed)
        end = out or x
        sizes = dict(end.sizes) if end else {}
        for extra in passed:
            sizes |= dict(
                zip(extra.tensor.dims[1:], (extra.channels, extra.height, extra.width), strict=True)
            )
        ends = [m.tensor for m in (out, *passed)] if out else []
        starts = [m.tensor for m in ((x, *passed) if x else passed)]
        return self.block(name, starts, ends, repeat, sizes)


def kept(source: Map, name: str) -> tuple[Map, Map]:
    """A map that skips blocks: as its producer gives it, and as later blocks receive it."""
    dims = ("batch", f"channel_{name}", f"height_{name}", f"width_{name}")
    sizes = (source.channels, source.height, source.width)
    return Map(view(source.tensor, *dims), *sizes), Map(Tensor(name, dims), *sizes)
