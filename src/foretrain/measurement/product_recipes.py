"""Recipes of products: how the framework's own ops run GEMMs, convolutions, attention and look-ups."""

from __future__ import annotations

from typing import Any

from foretrain.measurement.backend import Backend, torch_module
from foretrain.measurement.needs import Need
from foretrain.measurement.rotation import Recipe, Tensors, nothing
from foretrain.model.graph import Op
from foretrain.model.ops.base import FORWARD, INPUT_GRADIENT


def gemm(need: Need, b: Backend) -> Recipe:
    """As `torch.nn.Linear` has its weight (out, in); anything batched is a batched product."""
    kernel = need.kernels[0]
    batch, m, n, k = kernel.shape
    if need.what != "linear" or batch > 1:
        return batched(need, b)
    torch, dtype = torch_module(), kernel.dtype
    functional = torch.nn.functional
    has_bias = _has_bias(need.op)
    if need.phase == FORWARD:
        bias = (lambda: (b.normal(n, dtype=dtype),)) if has_bias else nothing
        return Recipe(
            functional.linear,
            lambda: (b.normal(m, k, dtype=dtype),),
            lambda: (b.normal(n, k, dtype=dtype), *bias()),
            keeps=True,
            records=True,
        )
    if need.phase == INPUT_GRADIENT:
        return Recipe(
            torch.mm,
            lambda: (b.normal(m, k, dtype=dtype),),
            lambda: (b.normal(k, n, dtype=dtype),),
        )

    def weight_gradient(gradient: Any, x: Any) -> Any:
        product = torch.mm(gradient.t(), x)
        return (product, gradient.sum(0)) if has_bias else product

    return Recipe(
        weight_gradient,
        lambda: (b.normal(k, n, dtype=dtype),),
        lambda: (b.normal(k, m, dtype=dtype),),
        keeps=True,
    )


def batched(need: Need, b: Backend) -> Recipe:
    kernel = need.kernels[0]
    batch, m, n, k = kernel.shape
    return Recipe(
        torch_module().bmm,
        lambda: (b.normal(batch, m, k, dtype=kernel.dtype),),
        lambda: (b.normal(batch, k, n, dtype=kernel.dtype),),
    )


def _has_bias(op: Op | None) -> bool:
    if op is None:
        return False
    contracted = set(op.inputs[0].dims) - set(op.outputs[0].dims)
    return any(contracted.isdisjoint(weight.dims) for weight in op.weights)


def conv(need: Need, b: Backend) -> Recipe:
    torch, kernel = torch_module(), need.kernels[0]
    batch, inward, outward, height, width, kernel_h, kernel_w, stride, groups = kernel.shape
    padding = ((kernel_h - 1) // 2, (kernel_w - 1) // 2)
    image = (
        batch, inward, (height - 1) * stride + kernel_h - 2 * padding[0],
        (width - 1) * stride + kernel_w - 2 * padding[1],
    )  # fmt: skip

    def x() -> Tensors:
        return (b.normal(*image, dtype=kernel.dtype),)

    def filters() -> Tensors:
        return (b.normal(outward, inward // groups, kernel_h, kernel_w, dtype=kernel.dtype),)

    def gradient() -> Tensors:
        return (b.normal(batch, outward, height, width, dtype=kernel.dtype),)

    if need.phase == FORWARD:

        def forward(x: Any, weight: Any) -> Any:
            return torch.nn.functional.conv2d(x, weight, None, stride, padding, 1, groups)

        return Recipe(forward, x, filters, keeps=True, records=True)
    mask = [need.phase == INPUT_GRADIENT, need.phase != INPUT_GRADIENT, False]
    twice, once = [stride, stride], [1, 1]

    def backward(gradient: Any, x: Any, weight: Any) -> Any:
        return torch.ops.aten.convolution_backward(
            gradient, x, weight, None, twice, list(padding), once, False, [0, 0], groups, mask
        )

    return Recipe(backward, gradient, lambda: (*x(), *filters()), keeps=not mask[0])


def attention(need: Need, b: Backend) -> Recipe:
    """Fused attention. Queries, keys and values are parts of one product, as most modules have them, so that going
    back their gradients are joined."""
    torch, kernel = torch_module(), need.kernels[0]
    batch, heads, kv_heads, seq, kv_seq, width = kernel.shape
    is_causal = bool(need.op.attr.get("causal", False)) if need.op is not None else False
    attend = torch.nn.functional.scaled_dot_product_attention

    def parts() -> Tensors:
        q = b.normal(batch, seq, heads, width, dtype=kernel.dtype)
        k, v = (b.normal(batch, kv_seq, kv_heads, width, dtype=kernel.dtype) for _ in range(2))
        return q, k, v

    grouped = {"enable_gqa": True} if heads != kv_heads else {}

    def forward(q: Any, k: Any, v: Any) -> Any:
        rows = (t.transpose(1, 2) for t in (q, k, v))
        return attend(*rows, is_causal=is_causal and seq == kv_seq, **grouped)

    if need.phase == FORWARD:
        return Recipe(forward, parts, keeps=True, records=True)

    def recorded() -> Tensors:
        q, k, v = (t.requires_grad_() for t in parts())
        return (forward(q, k, v).grad_fn,)

    def backward(gradient: Any, node: Any) -> Any:
        gradients = [g for g in node(gradient) if g is not None]
        return torch.cat([g.transpose(1, 2).reshape(batch, g.shape[2], -1) for g in gradients], 2)

    def gradient() -> Tensors:
        return (b.normal(batch, seq, heads, width, dtype=kernel.dtype).transpose(1, 2),)

    return Recipe(backward, gradient, recorded)


def embedding(need: Need, b: Backend) -> Recipe:
    torch = torch_module()
    rows, width, lookups = need.kernels[0].shape
    if need.phase == FORWARD:
        return Recipe(
            torch.nn.functional.embedding,
            lambda: (b.integers(rows, lookups),),
            lambda: (b.normal(rows, width),),
            keeps=True,
            records=True,
        )

    def backward(gradient: Any, ids: Any) -> Any:
        return torch.ops.aten.embedding_dense_backward(gradient, ids, rows, -1, False)

    return Recipe(
        backward,
        lambda: (b.normal(lookups, width),),
        lambda: (b.integers(rows, lookups),),
        keeps=True,
    )
