"""The kernels that op families answer with, and how a software stack wants them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from foretrain.model.graph import Op, Tensor
from foretrain.model.precision import Precision

FORWARD = "forward"
INPUT_GRADIENT = "backward_input"
WEIGHT_GRADIENT = "backward_weight"

LAUNCHES = "launches"  # a kind that is none: for each of so many tensors kernels too small to hide their launch


@dataclass(frozen=True, slots=True)
class KernelChoices:
    """How the software stack implements ops; the compiler reads it off the Runtime."""

    attention: str = "flash"  # flash | flash3 | cudnn | unfused
    fuses_elementwise: bool = True  # bias+GELU, dropout+add, scale+mask+softmax in one pass
    fuses_score_dropout: bool = False  # attention's softmax drops out in its own pass
    aligned_to: int = 1  # dims of 16-bit products in matrix units are multiples of it
    keeps_quantised: bool = False  # low-precision GEMMs keep their input as they read it
    fuses_norms: bool = True  # RMS norm in one kernel
    # rotary positions by single kernels: halves | complex | matrices | copies
    rotary: str = "halves"
    fuses_behind_norms: bool = False  # so are sums and activations with the batch norm before
    fuses_loss: bool = True  # cross entropy in one pass over the logits
    groups_experts: bool = True  # products of experts in one launch, their activation fused
    fuses_epilogues: bool = False  # products do the activation behind them
    channels_last: bool = True  # feature maps lie as matrix units read them, channels innermost


@dataclass(frozen=True, slots=True)
class Kernel:
    """One device kernel on local dims: what a cost model needs to time it."""

    kind: str  # gemm | grouped_gemm | attention… | conv | embedding | memory
    phase: str  # FORWARD | INPUT_GRADIENT | WEIGHT_GRADIENT
    flops: float
    bytes: float  # read + written in device memory
    dtype: str  # the data-sheet rate the arithmetic runs at
    shape: tuple[int, ...] = ()  # by kind, see below
    added: float = 0.0  # of the bytes, what adding a product to a buffer moves beyond writing it


@dataclass(frozen=True, slots=True)
class KernelKind:
    """What passes and kits need to know of a kind of kernel; what it takes is the cost models' affair."""

    dims: tuple[int, ...]  # how many numbers its shape may have
    is_contraction: bool = False  # its FLOPs are those of the mathematics, which splits divide
    is_product: bool = False  # of matrices, with a result that may be narrower or added to a buffer
    feeds_in_pieces: bool = False  # an exchange next to it can be cut into pieces with it


KERNELS: dict[str, KernelKind] = {
    # (batch, m, n, k)
    "gemm": KernelKind((4,), is_contraction=True, is_product=True, feeds_in_pieces=True),
    "grouped_gemm": KernelKind((4,), is_contraction=True, is_product=True),
    # (batch, heads, kv_heads, seq, kv_seq, head_dim)
    "attention": KernelKind((6,), is_contraction=True),
    # (batch, channel_in, channel_out, height, width, kernel_h, kernel_w, stride, groups)
    "conv": KernelKind((9,), is_contraction=True),
    # (rows, width, lookups), and where it is known: rows met, rows met more than once
    "embedding": KernelKind((3, 5)),
    # (elements of the largest tensor,), and the length of a row for norms over rows
    "memory": KernelKind((1, 2)),
    LAUNCHES: KernelKind((1,)),  # (tensors,)
}
"""Kinds of kernels, and what their shapes say. One that is not listed is costed by FLOPs and bytes alone."""

_OTHER = KernelKind(())


def kernel_family(kind: str) -> str:
    """`attention_cudnn` and `attention_flash3` are attention by another implementation."""
    return kind if kind in KERNELS else kind.partition("_")[0]


def kernel_kind(kernel: Kernel) -> KernelKind:
    return KERNELS.get(kernel_family(kernel.kind), _OTHER)


def memory(
    phase: str, moved: float, elements: int, flops_per_element: float = 1.0, row: int = 0
) -> Kernel:
    """A kernel bound by memory: `moved` bytes read and written, some vector arithmetic beside it.

    Norms say how long the rows are that they reduce: they run slower than what only streams.
    """
    return Kernel(
        kind="memory",
        phase=phase,
        flops=elements * flops_per_element,
        bytes=moved,
        dtype="fp32",
        shape=(elements, row) if row else (elements,),
    )


def input_bytes(op: Op, precision: Precision) -> float:
    """Bytes of all inputs, as large as their producers made them."""
    return sum(op.input_elements(t) * precision.element_bytes(t.element) for t in op.inputs)


def output_bytes(op: Op, precision: Precision) -> float:
    return tensor_bytes(op, op.outputs, precision)


def largest(op: Op) -> int:
    """Elements of the op's largest tensor at the op's own sizes."""
    return max(op.elements(t) for t in (*op.inputs, *op.outputs))


def saved_bytes(
    op: Op, tensors: Iterable[Tensor], precision: Precision
) -> tuple[tuple[str, float], ...]:
    """`(name, bytes)` of kept tensors; inputs of strided ops count at their producer's size."""
    inputs = {tensor.name for tensor in op.inputs}
    return tuple(
        (
            t.name,
            (op.input_elements(t) if t.name in inputs else op.elements(t))
            * precision.element_bytes(t.element),
        )
        for t in tensors
    )


def tensor_bytes(op: Op, tensors: Iterable[Tensor], precision: Precision) -> float:
    """Bytes of `tensors` at the op's sizes."""
    return sum(op.elements(t) * precision.element_bytes(t.element) for t in tensors)
