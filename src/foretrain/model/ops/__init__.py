"""Op families: one file per family, one row per kind in `FAMILIES`; and the FLOPs of a whole model by them.

Model FLOPs are what the mathematics asks for, whatever the implementation recomputes or skips.
"""

from __future__ import annotations

from collections.abc import Callable

from foretrain.errors import ModelError, hint
from foretrain.limits import QUANTITY, is_finite, shown
from foretrain.model.graph import Model, Op
from foretrain.model.ops.attention import Attention
from foretrain.model.ops.base import Kernel, KernelChoices
from foretrain.model.ops.conv import Conv, Pooling
from foretrain.model.ops.cross_entropy import CrossEntropy
from foretrain.model.ops.elementwise import Elementwise
from foretrain.model.ops.embedding import Embedding, EmbeddingBag, Interaction, Position
from foretrain.model.ops.family import OpFamily
from foretrain.model.ops.linear import Linear, Matmul
from foretrain.model.ops.moe import Combine, Dispatch, GroupedGemm
from foretrain.model.ops.recurrent import Recurrent
from foretrain.model.ops.scan import Scan
from foretrain.model.ops.streaming import BatchNorm, MemoryMove, Norm, Softmax
from foretrain.model.precision import Precision
from foretrain.registering import expect_variant, once

FAMILIES: dict[str, OpFamily] = {
    "linear": Linear(),
    "matmul": Matmul(),
    "attention": Attention(),
    "norm": Norm(),
    "batch_norm": BatchNorm(),
    "elementwise": Elementwise(),
    "softmax": Softmax(),
    "cross_entropy": CrossEntropy(),
    "embedding": Embedding(),
    "position": Position(),
    "conv": Conv(),
    "pooling": Pooling(),
    "dispatch": Dispatch(),
    "combine": Combine(),
    "grouped_gemm": GroupedGemm(),
    "recurrent": Recurrent(),
    "scan": Scan(),
    "embedding_bag": EmbeddingBag(),
    "interaction": Interaction(),
    "memory": MemoryMove(),
}
_OURS = frozenset(FAMILIES)


def family(op: Op) -> OpFamily:
    """The formulas of an op."""
    try:
        return FAMILIES[op.kind]
    except KeyError:
        raise ModelError(
            f"op {op.name!r}: unknown kind {op.kind!r}.{hint(op.kind, FAMILIES)}"
        ) from None


def register(formulas: OpFamily) -> Callable[[], None]:
    """Add a family of one's own to the table, for this process; what comes back takes it out again."""
    expect_variant(formulas, OpFamily, "an op family", ModelError)
    name = formulas.name
    if name in FAMILIES:
        raise ModelError(f"op family {name!r} is in the table already. Use another name.")
    FAMILIES[name] = formulas
    return once(lambda: FAMILIES.__delitem__(name))


def is_outside(kind: str) -> bool:
    """Whether a family was registered for this process alone."""
    return kind not in _OURS


def amount(op: Op, method: str, value: float) -> float:
    """FLOPs, bytes or elements as an op's family counts them; those of families from outside are looked at."""
    if op.kind in _OURS or (is_finite(value) and 0.0 <= value <= QUANTITY.most):
        return value
    raise ModelError(
        f"op {op.name!r}: {method} of family {op.kind!r} is {shown(value)}, not a number from 0 to "
        f"{QUANTITY.most:g}."
    )


def kernels(op: Op, method: str, made: tuple[Kernel, ...]) -> tuple[Kernel, ...]:
    """Kernels as an op's family makes them; those of families from outside are looked at."""
    if op.kind in _OURS:
        return made
    if not isinstance(made, tuple) or not all(isinstance(one, Kernel) for one in made):
        raise ModelError(
            f"op {op.name!r}: {method} of family {op.kind!r} is {shown(made)}, not a tuple of kernels."
        )
    for number, kernel in enumerate(made):
        for field in ("flops", "bytes", "added"):
            amount(op, f"{method}[{number}].{field}", getattr(kernel, field))
    return made


def flops(op: Op) -> float:
    """Nominal forward FLOPs of an op."""
    return amount(op, "flops()", family(op).flops(op))


def workspace(op: Op, precision: Precision, choices: KernelChoices) -> float:
    """Bytes an op needs only while it runs, beside its inputs and outputs."""
    return family(op).workspace(op, precision, choices)


def forward_flops(model: Model) -> float:
    """FLOPs of one sample's forward pass, two per multiply-add, contractions only."""
    return sum(block.repeat * sum(flops(op) for op in block.ops) for block in model.blocks)


def training_flops(model: Model) -> float:
    """Forward and backward of one sample; backward is two products for each of forward's, but one for weights that are
    frozen and so have no gradient."""
    return sum(
        block.repeat * (2.0 if op.is_frozen else 3.0) * flops(op) for block, op in model.ops()
    )
