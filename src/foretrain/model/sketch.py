"""Drawing a block op by op: sizes are looked up by dim name, tensors are passed along."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from foretrain.model.graph import Attr, Block, Op, Tensor


def view(tensor: Tensor, *dims: str) -> Tensor:
    """The same tensor under other dim names (dims are matched by position)."""
    if len(dims) != len(tensor.dims):
        raise ValueError(f"{tensor.name}: {dims} does not match {tensor.dims}.")
    return replace(tensor, dims=dims)


def weight(name: str, *dims: str) -> Tensor:
    return Tensor(name, dims, "weight")


class Sketch:
    """Collects the ops of one block; `sizes` holds the usual size of every dim name."""

    def __init__(self, **sizes: int) -> None:
        self.sizes = sizes
        self.ops: list[Op] = []

    def op(
        self,
        name: str,
        kind: str,
        inputs: Iterable[Tensor],
        outputs: Iterable[Tensor],
        weights: Iterable[Tensor] = (),
        sizes: Mapping[str, int] | None = None,
        **attrs: Attr,
    ) -> Tensor:
        """Adds an op and returns its first output. `sizes` overrides or adds dims of this op alone."""
        inputs, outputs, weights = tuple(inputs), tuple(outputs), tuple(weights)
        known = {**self.sizes, **(sizes or {})}
        used = dict.fromkeys(d for t in (*inputs, *outputs, *weights) for d in t.dims)
        used.update(dict.fromkeys(sizes or {}))
        self.ops.append(
            Op(
                name,
                kind,
                tuple((dim, known[dim]) for dim in used),
                inputs,
                outputs,
                weights,
                tuple(attrs.items()),
            )
        )
        return outputs[0]

    def block(
        self,
        name: str,
        inputs: Iterable[Tensor],
        outputs: Iterable[Tensor],
        repeat: int = 1,
        sizes: Mapping[str, int] | None = None,
    ) -> Block:
        """The finished block; carried dims take their sizes from `sizes`, else from the usual ones."""
        inputs, outputs = tuple(inputs), tuple(outputs)
        known = {**self.sizes, **(sizes or {})}
        carried = dict.fromkeys(d for t in (*outputs, *inputs) for d in t.dims)
        pairs = tuple((dim, known[dim]) for dim in carried)
        return Block(name, tuple(self.ops), inputs, outputs, repeat, pairs)

    # The shapes of op that nearly every model uses.

    def norm(self, name: str, x: Tensor, out: str, norm: str, bias: bool) -> Tensor:
        """Normalisation over the last dim of `x`."""
        dim = x.dims[-1]
        weights = [weight("weight", dim), *([weight("bias", dim)] if bias else [])]
        return self.op(name, "norm", [x], [Tensor(out, x.dims)], weights, norm=norm)

    def linear(
        self,
        name: str,
        x: Tensor,
        out: str,
        dims: Iterable[str],
        bias: bool,
        sizes: Mapping[str, int] | None = None,
        **attrs: Attr,
    ) -> Tensor:
        """`x` times one weight: dims of `x` that are missing in `dims` are contracted."""
        dims = tuple(dims)
        own = [dim for dim in dims if dim not in x.dims]
        inner = [dim for dim in x.dims if dim not in dims]
        weights = [weight("weight", *inner, *own), *([weight("bias", *own)] if bias else [])]
        return self.op(name, "linear", [x], [Tensor(out, dims)], weights, sizes, **attrs)

    def elementwise(self, name: str, op: str, inputs: Iterable[Tensor], out: str) -> Tensor:
        """An elementwise op whose result has the shape of its first input."""
        inputs = tuple(inputs)
        return self.op(name, "elementwise", inputs, [Tensor(out, inputs[0].dims)], op=op)
