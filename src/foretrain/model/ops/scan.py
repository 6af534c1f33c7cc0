"""Selective state space scan in chunks (Mamba-2's SSD: Dao & Gu 2024, arXiv 2405.21060, section 6).

x `(batch, scan, heads, head_dim)`, dt `(batch, scan, heads)`, B and C `(batch, scan, kv_heads, state)` →
y `(batch, scan, heads, head_dim)`; weights A, D and the bias of dt `(heads,)`, as far as the op has them. `kv_heads` are
the groups of heads that share B and C, in the role that keys and queries have in attention. `scan` is the sequence under a
name of its own: states pass along it, so that cuts of `seq` are undone before it.

Attribute `chunk`: positions in a chunk. With T positions in chunks of Q, H heads of P values, G groups and N states forward
multiplies C·Bᵀ within chunks (2·T·Q·G·N), that by x (2·T·Q·H·P), Bᵀ by x for the state at the end of every chunk and C by
the states that come in (2·T·H·N·P each). Between them states pass from chunk to chunk. The kernels are those of
`mamba_ssm/ops/triton/ssd_combined.py`: backward makes C·Bᵀ and the states again and keeps none of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from foretrain.limits import DIMENSION
from foretrain.model.graph import Op, Tensor
from foretrain.model.ops.base import (
    FORWARD,
    INPUT_GRADIENT,
    WEIGHT_GRADIENT,
    Kernel,
    KernelChoices,
    memory,
)
from foretrain.model.ops.family import Check, OpFamily
from foretrain.model.precision import Precision

CHUNK = 256  # Mamba-2's own (state-spaces/mamba, modules/mamba2.py)
FP32 = 4.0


class Scan(OpFamily):
    """Counted dense within chunks, as nominal FLOPs are; what the causal mask hides there is not discounted."""

    name = "scan"
    makes = "transformer"
    is_layer = True
    attributes: ClassVar[Mapping[str, Check]] = {
        "chunk": (DIMENSION.allows, "a positive whole number")
    }

    def divides(self, op: Op, dims: tuple[str, ...]) -> bool:
        return dims in (("batch",), ("heads", "kv_heads"))

    def flops(self, op: Op) -> float:
        work = _Work(op, 0.0, "", FORWARD)
        return sum(kernel.flops for kernel in (work.scores(), work.states(), work.outputs()))

    def forward(self, op: Op, precision: Precision, choices: KernelChoices) -> tuple[Kernel, ...]:
        work = _Work(op, precision.activation_bytes, precision.attention, FORWARD)
        return (*work.prepared(), work.outputs())

    def backward(self, op: Op, precision: Precision, choices: KernelChoices) -> tuple[Kernel, ...]:
        work = _Work(op, precision.activation_bytes, precision.attention, INPUT_GRADIENT)
        kernels = (*work.prepared(), *work.gradients())
        if not op.weights:
            return kernels
        # the decays' gradient is summed up along chunks and once more over all positions
        positions = op.extent(("batch", "scan", "heads"))
        return (*kernels, memory(WEIGHT_GRADIENT, 3 * positions * FP32, positions))

    def saved(self, op: Op, precision: Precision, choices: KernelChoices) -> tuple[Tensor, ...]:
        decays = Tensor(f"{op.name}.decays", ("batch", "scan", "heads"), "fp32")
        return (*op.inputs, *op.outputs, decays)


class _Work:
    """Kernels of one pass over a scan."""

    def __init__(self, op: Op, each: float, dtype: str, phase: str) -> None:
        """`each`: bytes of an activation."""
        self.each, self.dtype, self.phase = each, dtype, phase
        size = op.size
        self.chunk = min(int(op.attr.get("chunk", CHUNK)), size["scan"])
        self.chunks = size["batch"] * -(-size["scan"] // self.chunk)
        self.heads, self.width = size["heads"], size["head_dim"]
        self.groups, self.state = size["kv_heads"], size["state"]
        self.positions = op.extent(("batch", "scan", "heads"))
        # bytes that kernels read and write: x or y, B or C, C·Bᵀ, states
        self.values = self.positions * self.width * each
        self.shared = op.extent(("batch", "scan", "kv_heads", "state")) * each
        self.squares = self.chunks * self.groups * self.chunk**2 * FP32
        self.carried = self.chunks * self.heads * self.width * self.state

    def prepared(self) -> tuple[Kernel, ...]:
        """Decays along chunks, states at their ends, states passed on, and C·Bᵀ."""
        decays = memory(self.phase, self.positions * (self.each + 2 * FP32), self.positions, 2.0)
        passed = memory(self.phase, self.carried * (FP32 + self.each), self.carried, 2.0)
        return decays, self.states(), passed, self.scores()

    def scores(self) -> Kernel:
        moved = 2 * self.shared + self.squares
        return self._product(self.groups, self.chunk, self.chunk, self.state, moved)

    def states(self) -> Kernel:
        moved = self.values + self.shared + self.carried * FP32
        return self._product(self.heads, self.state, self.width, self.chunk, moved)

    def outputs(self) -> Kernel:
        """[C·Bᵀ, C] by [x, states]: both products in one kernel."""
        moved = 2 * self.values + self.shared + self.squares + self.carried * self.each
        return self._product(self.heads, self.chunk, self.width, self.chunk + self.state, moved)

    def gradients(self) -> tuple[Kernel, ...]:
        """Two products for each of forward's, and one more of dy and x for the decays."""
        heads, groups, q = self.heads, self.groups, self.chunk
        p, n, carried = self.width, self.state, self.carried * self.each
        pair = 2 * self.values + self.squares
        one = self.values + self.shared + carried
        return (
            self._product(heads, n, p, q, one),  # of the states that come in: Cᵀ·dy
            memory(self.phase, 2 * self.carried * (FP32 + self.each), self.carried, 4.0),
            self._product(heads, q, p, q + n, self.values + pair + self.shared + carried),  # of x
            self._product(heads, q, n, p, one),  # of B, from the states
            self._product(heads, q, n, p, one),  # of C, from the states
            self._product(heads, q, q, p, pair),  # of C·Bᵀ
            self._product(groups, q, n, q, 3 * self.shared + self.squares),  # of B, from that
            self._product(groups, q, n, q, 3 * self.shared + self.squares),  # of C, from that
            self._product(heads, q, q, p, pair),
        )

    def _product(self, each: int, m: int, n: int, k: int, moved: float) -> Kernel:
        """So many in every chunk; operands that fit are read once for all heads."""
        batch = self.chunks * each
        flops = 2.0 * batch * m * n * k
        return Kernel("gemm", self.phase, flops, moved, self.dtype, (batch, m, n, k))
