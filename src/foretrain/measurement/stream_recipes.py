"""Recipes of what moves bytes: activations, norms, pooling, losses, sums of gradients and updates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from foretrain.measurement.backend import Backend, torch_module
from foretrain.measurement.needs import ACCUMULATE, UPDATE, Need
from foretrain.measurement.rotation import Recipe, Tensors, nothing
from foretrain.model.ops.base import FORWARD


def _recorded(
    need: Need,
    call: Callable[..., Any],
    flowing: Callable[[], Tensors],
    weights: Callable[[], Tensors] = nothing,
) -> Recipe:
    """Forward as it is; backward by what the framework recorded of forward, node by node."""
    if need.phase == FORWARD:
        return Recipe(call, flowing, weights, keeps=True, records=True)
    torch = torch_module()

    def recorded() -> Tensors:
        leaves = tuple(t.requires_grad_() if t.is_floating_point() else t for t in flowing())
        out = call(*leaves, *(t.requires_grad_() for t in weights()))
        return _nodes(out.grad_fn), torch.ones_like(out)

    def backward(nodes: Tensors, gradient: Any) -> Any:
        flowed = gradient
        for node in nodes:
            flowed = node(flowed)
            flowed = flowed[0] if isinstance(flowed, tuple) else flowed
        return flowed

    return Recipe(backward, nothing, recorded)


def _nodes(last: Any) -> Tensors:
    """From a result back to its first input: what the framework runs, without the leaves."""
    nodes: list[Any] = []
    while last is not None and last.next_functions:
        nodes.append(last)
        last = last.next_functions[0][0]
    return tuple(nodes)


def _elements(need: Need) -> int:
    return max(kernel.shape[0] for kernel in need.kernels if kernel.shape)


def _pointwise(need: Need, b: Backend) -> Recipe:
    torch, op = torch_module(), need.op
    functional = torch.nn.functional
    assert op is not None
    name, count = str(op.attr.get("op", "")), _elements(need)

    def one() -> Tensors:
        return (b.normal(count),)

    def two() -> Tensors:
        return b.normal(count), b.normal(count)

    if name == "add":
        if need.phase == FORWARD:
            return Recipe(torch.add, two, keeps=True, records=True)
        return Recipe(lambda a, c: a.add_(c), two)  # two gradients meet
    if (rule := _BACKWARD.get(name)) and need.phase != FORWARD:
        return Recipe(getattr(torch.ops.aten, rule[0]), one, lambda: (b.normal(count), *rule[1]))
    if name in _ACTIVATIONS:
        return _recorded(need, getattr(functional, _ACTIVATIONS[name]), one)
    if name.endswith("-gated"):
        activated = getattr(functional, name.removesuffix("-gated"))
        return _recorded(need, lambda gate, up: activated(gate) * up, two)
    if name == "squared-relu":
        return _recorded(need, lambda x: functional.relu(x).square(), one)
    if name == "dropout":
        return _recorded(need, lambda x: functional.dropout(x, 0.1), one)
    if name == "dropout-add":
        return _recorded(need, lambda x, y: functional.dropout(x, 0.1) + y, two)
    if name == "multiply":
        return _recorded(need, torch.mul, two)
    return stream(need, b)


_ACTIVATIONS = {
    "gelu": "gelu", "gelu-tanh": "gelu", "relu": "relu", "silu": "silu", "tanh": "tanh",
    "sigmoid": "sigmoid", "leaky-relu": "leaky_relu",
}  # fmt: skip
_BACKWARD: dict[str, tuple[str, tuple[Any, ...]]] = {
    "relu": ("threshold_backward", (0.0,)),
    "gelu": ("gelu_backward", ()),
    "silu": ("silu_backward", ()),
    "tanh": ("tanh_backward", ()),
    "sigmoid": ("sigmoid_backward", ()),
}


def _norm(need: Need, b: Backend) -> Recipe:
    functional, op = torch_module().nn.functional, need.op
    assert op is not None
    row = op.size[op.inputs[0].dims[-1]]
    rows = max(1, _elements(need) // row)
    if op.attr.get("norm") == "rmsnorm":
        return _recorded(
            need, lambda x, w: functional.rms_norm(x, (row,), w),
            lambda: (b.normal(rows, row),), lambda: (b.normal(row),),
        )  # fmt: skip
    return _recorded(
        need, lambda x, w, v: functional.layer_norm(x, (row,), w, v),
        lambda: (b.normal(rows, row),), lambda: (b.normal(row), b.normal(row)),
    )  # fmt: skip


def _batch_norm(need: Need, b: Backend) -> Recipe:
    torch, op = torch_module(), need.op
    assert op is not None
    shape = tuple(op.size[dim] for dim in op.inputs[0].dims)
    channels = op.size[op.weights[0].dims[0]] if op.weights else shape[1]
    mean, variance = torch.zeros(channels), torch.ones(channels)

    def call(x: Any, w: Any, v: Any) -> Any:
        return torch.nn.functional.batch_norm(x, mean, variance, w, v, True)

    return _recorded(
        need, call, lambda: (b.normal(*shape),), lambda: (b.normal(channels), b.normal(channels))
    )


def _pooling(need: Need, b: Backend) -> Recipe:
    functional, op = torch_module().nn.functional, need.op
    assert op is not None
    size, attr = op.size, op.attr
    channel = next(size[dim] for dim in op.inputs[0].dims if dim.startswith("channel"))
    if attr.get("pool") == "global":
        shape = (size["batch"], channel, size["height"], size["width"])
        return _recorded(
            need, lambda x: functional.adaptive_avg_pool2d(x, 1), lambda: (b.normal(*shape),)
        )
    kernel, stride = int(attr.get("kernel_h", 2)), int(attr.get("stride", 2))
    side = (size["height"] * stride, size["width"] * stride)
    padding = kernel // 2 if kernel > stride else 0
    pool = functional.max_pool2d if attr.get("pool") == "max" else functional.avg_pool2d
    return _recorded(
        need, lambda x: pool(x, kernel, stride, padding),
        lambda: (b.normal(size["batch"], channel, *side),),
    )  # fmt: skip


def _softmax(need: Need, b: Backend) -> Recipe:
    op = need.op
    assert op is not None
    row = op.size[op.inputs[0].dims[-1]]
    rows = max(1, _elements(need) // row)
    softmax = torch_module().nn.functional.softmax
    return _recorded(need, lambda x: softmax(x, -1), lambda: (b.normal(rows, row),))


def _cross_entropy(need: Need, b: Backend) -> Recipe:
    op = need.op
    assert op is not None
    classes = op.extent(dim for dim in op.inputs[0].dims if dim not in op.outputs[0].dims)
    rows = max(1, _elements(need) // classes)
    loss = torch_module().nn.functional.cross_entropy
    return _recorded(need, loss, lambda: (b.normal(rows, classes), b.integers(classes, rows)))


def _position(need: Need, b: Backend) -> Recipe:
    torch, op = torch_module(), need.op
    assert op is not None
    shape = tuple(op.size[dim] for dim in op.outputs[0].dims)
    if need.phase == FORWARD:
        return Recipe(
            torch.add,
            lambda: (b.normal(*shape),),
            lambda: (b.normal(*shape[1:]),),
            keeps=True,
            records=True,
        )
    return Recipe(lambda gradient: gradient.sum(0), lambda: (b.normal(*shape),), keeps=True)


def _bias_gradient(need: Need, b: Backend) -> Recipe:
    op = need.op
    assert op is not None
    columns = op.extent(dim for dim in op.outputs[0].dims if dim not in op.inputs[0].dims)
    rows = max(1, _elements(need) // columns)
    return Recipe(lambda gradient: gradient.sum(0), lambda: (b.normal(rows, columns),), keeps=True)


def _accumulate(need: Need, b: Backend) -> Recipe:
    """A micro-batch's gradients are added to those before, weight by weight."""

    def call(fresh: Tensors, held: Tensors) -> None:
        for new, old in zip(fresh, held, strict=True):
            old.add_(new)

    def tensors() -> Tensors:
        return (tuple(b.normal(count) for count in need.tensors),)

    return Recipe(call, tensors, tensors)


def _update(need: Need, b: Backend) -> Recipe:
    torch = torch_module()
    chosen = OPTIMIZERS.get(need.optimizer, OPTIMIZERS["adam"])

    def optimizer() -> Tensors:
        weights = [b.normal(count).requires_grad_() for count in need.tensors]
        for weight in weights:
            # as small as gradients are, but none zero: updates of zeros run into denormal numbers, twice as slow
            weight.grad = b.normal(weight.numel()).mul_(GRADIENT)
        kind, options = chosen
        step = getattr(torch.optim, kind)(weights, lr=1e-4, **options)
        return (step.step,)

    return Recipe(lambda step: step(), optimizer)


GRADIENT = 1e-3  # deviation of the gradients that updates are timed with

OPTIMIZERS: dict[str, tuple[str, dict[str, Any]]] = {
    "sgd": ("SGD", {"momentum": 0.9}),
    "plain-sgd": ("SGD", {}),
    "adam": ("Adam", {}),
    "adamw": ("AdamW", {}),
    "adagrad": ("Adagrad", {}),
}


def stream(need: Need, b: Backend) -> Recipe:
    """So many bytes read and written, a third each of two inputs and a result."""
    torch = torch_module()
    count = max(1, round(need.bytes / 12))
    return Recipe(torch.add, lambda: (b.normal(count),), lambda: (b.normal(count),), keeps=True)


BY_OP: dict[str, Callable[[Need, Backend], Recipe]] = {
    "elementwise": _pointwise,
    "norm": _norm,
    "batch_norm": _batch_norm,
    "pooling": _pooling,
    "softmax": _softmax,
    "cross_entropy": _cross_entropy,
    "position": _position,
    "linear": _bias_gradient,
    ACCUMULATE: _accumulate,
    UPDATE: _update,
}
