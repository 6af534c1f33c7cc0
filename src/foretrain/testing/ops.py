"""Conformance kit for op families: what every op of every model must satisfy.

`check_op(op)` raises `AssertionError` with the reason. Give it whole ops; it makes local ones itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import product
from math import inf, isclose, prod

from foretrain.model.graph import Model, Op
from foretrain.model.ops import family
from foretrain.model.ops.base import (
    FORWARD,
    INPUT_GRADIENT,
    WEIGHT_GRADIENT,
    Kernel,
    KernelChoices,
    kernel_kind,
)
from foretrain.model.precision import Precision, precision
from foretrain.model.verify import model_faults

EVERY_CHOICE = tuple(
    KernelChoices(attention, fuses)
    for attention, fuses in product(("flash", "unfused"), (True, False))
)
PRECISIONS = ("fp32", "bf16", "fp8")
# Dims that only make sense split together.
_TOGETHER = (("heads", "kv_heads"), ("head_dim", "v_dim"), ("hidden", "cell_in"))


def check_op(op: Op) -> None:
    """Everything below for one op."""
    assert op.local({}, 1) == op, f"{op.name}: cutting into one part changes it"
    formula = family(op)
    assert formula.name == op.kind, f"{op.name}: {formula.name} is registered as {op.kind}"
    assert isclose(formula.flops(op.local({}, 6)), 6 * formula.flops(op), rel_tol=1e-9), op.name
    for name, choices in product(PRECISIONS, EVERY_CHOICE):
        _check_kernels(op, precision(name), choices)
        _check_saved(op, precision(name), choices)
    for group in split_groups(op):
        _check_all_degrees(op, group)


def check_model(model: Model) -> None:
    """A legal graph whose ops all conform."""
    faults = model_faults(model)
    assert not faults, f"{model.name}: {faults}"
    for op in dict.fromkeys(op for _, op in model.ops()):
        check_op(op)


def _check_kernels(op: Op, number: Precision, choices: KernelChoices) -> None:
    formula = family(op)
    forward = formula.forward(op, number, choices)
    backward = formula.backward(op, number, choices)
    assert forward, f"{op.name}: forward runs no kernel"
    assert all(k.phase == FORWARD for k in forward), f"{op.name}: a forward kernel is misnamed"
    for kernel in backward:
        assert kernel.phase in (INPUT_GRADIENT, WEIGHT_GRADIENT), f"{op.name}: {kernel}"
        assert op.weights or kernel.phase == INPUT_GRADIENT, f"{op.name}: gradient of no weight"
    for kernel in (*forward, *backward):
        _check_kernel(op, kernel)
    _check_flops(op, forward, backward, choices)


def _check_kernel(op: Op, kernel: Kernel) -> None:
    kind = kernel_kind(kernel)
    assert not kind.dims or len(kernel.shape) in kind.dims, f"{op.name}: {kernel.shape}"
    assert all(size >= 1 for size in kernel.shape), f"{op.name}: {kernel.shape}"
    assert 0 <= kernel.flops < inf, f"{op.name}: {kernel.flops} FLOPs"
    assert 0 < kernel.bytes < inf, f"{op.name}: {kernel.bytes} bytes"


def _check_flops(
    op: Op, forward: Iterable[Kernel], backward: Iterable[Kernel], choices: KernelChoices
) -> None:
    formula = family(op)
    nominal = formula.flops(op)
    run = sum(k.flops for k in forward if kernel_kind(k).is_contraction)
    if not formula.skips_work:
        assert isclose(run, nominal, rel_tol=1e-9), (
            f"{op.name}: flops() says {nominal:g}, its contraction kernels run {run:g}"
        )
    elif choices.attention == "flash":
        assert run <= nominal * (1 + 1e-9), f"{op.name}: flash runs more than the mathematics"
    if (products := formula.backward_products) is not None:
        products -= 0.0 if op.attr.get("input_gradient", True) else 1.0
        back = sum(k.flops for k in backward if kernel_kind(k).is_contraction)
        assert isclose(back, products * run, rel_tol=1e-9), f"{op.name}: backward {back} of {run}"


def _check_saved(op: Op, number: Precision, choices: KernelChoices) -> None:
    own = {tensor.name for tensor in (*op.inputs, *op.outputs)}
    kept = family(op).saved(op, number, choices)
    names = [tensor.name for tensor in kept]
    assert len(set(names)) == len(names), f"{op.name}: keeps a tensor twice: {names}"
    for tensor in kept:
        known = tensor.name in own or tensor.name.startswith(f"{op.name}.")
        assert known, f"{op.name}: keeps {tensor.name}, which is neither in, out nor private"
        assert all(dim in op.size for dim in tensor.dims), f"{op.name}: {tensor}"
        number.element_bytes(tensor.element)


def split_groups(op: Op) -> tuple[tuple[str, ...], ...]:
    """Dims (or dims that go together) whose split divides the op's work exactly."""
    taken = {dim for group in _TOGETHER for dim in group if all(d in op.size for d in group)}
    groups: list[tuple[str, ...]] = [
        group for group in _TOGETHER if all(dim in op.size for dim in group)
    ]
    groups += [(dim,) for dim in op.dims if dim not in taken]
    return tuple(group for group in groups if family(op).divides(op, group))


def _check_all_degrees(op: Op, group: tuple[str, ...]) -> None:
    for degree in (2, 3, 4, 7):
        if all(op.size[dim] % degree == 0 for dim in group if dim != "batch"):
            check_split(op, dict.fromkeys(group, degree), groups=(group,))


def check_split(
    op: Op, degrees: Mapping[str, int], groups: Iterable[tuple[str, ...]], batch: int | None = None
) -> None:
    """The parts of a split add up to the whole: FLOPs always, bytes where nothing is shared.

    `groups` are the groups `degrees` covers; every dim of a group has the same degree.
    """
    parts = prod(degrees[group[0]] for group in groups)
    samples = batch or degrees.get("batch", 1)
    whole, local = op.local({}, samples), op.local(degrees, samples)
    formula = family(op)
    _equal(op, "nominal", parts * formula.flops(local), formula.flops(whole))
    number = precision("bf16")
    for choices in EVERY_CHOICE:
        pairs = (
            (formula.forward(local, number, choices), formula.forward(whole, number, choices)),
            (formula.backward(local, number, choices), formula.backward(whole, number, choices)),
        )
        for small, large in pairs:
            assert [k.kind for k in small] == [k.kind for k in large], f"{op.name}: other kernels"
            for one, all_of in zip(small, large, strict=True):
                if one.phase == WEIGHT_GRADIENT and one.kind == "memory":
                    continue  # weights are not divided by every dim
                if kernel_kind(one).is_contraction:
                    _equal(op, one.phase, parts * one.flops, all_of.flops)
                    assert parts * one.bytes >= all_of.bytes * (1 - 1e-9), f"{op.name}: lost bytes"
                elif one.kind == "memory" and not formula.shares_bytes:
                    _equal(op, one.phase, parts * one.bytes, all_of.bytes)
                else:
                    assert parts * one.bytes >= all_of.bytes * (1 - 1e-9), f"{op.name}: lost bytes"


def _equal(op: Op, what: str, parts: float, whole: float) -> None:
    assert isclose(parts, whole, rel_tol=1e-9), f"{op.name} {what}: parts {parts}, whole {whole}"
