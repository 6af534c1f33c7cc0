"""An LSTM layer over a sequence: x `(batch, seq, hidden)` → `(batch, seq, cell)`.

Weights `(hidden, gate, cell)` for the input and `(cell_in, gate, cell)` for the state, with `gate` = 4 and
`cell_in` = `cell`. The input product runs once over the whole sequence, the state product once per step.
"""

from __future__ import annotations

from foretrain.model.graph import Op, Tensor
from foretrain.model.ops.base import (
    FORWARD,
    INPUT_GRADIENT,
    WEIGHT_GRADIENT,
    Kernel,
    KernelChoices,
    memory,
)
from foretrain.model.ops.family import OpFamily
from foretrain.model.ops.linear import gemm
from foretrain.model.precision import Precision

_CELL_FLOPS = 20.0  # four gate functions, two products, a sum and a tanh per cell


class Recurrent(OpFamily):
    """The steps of the state product are described as one GEMM batched over `seq`: every step reads the
    weights again, and a cost model that knows the steps are sequential may say so from the shape."""

    name = "recurrent"
    backward_products = 2.0
    shares_bytes = True

    def divides(self, op: Op, dims: tuple[str, ...]) -> bool:
        return dims not in (("hidden",), ("cell_in",))

    def _dims(self, op: Op) -> tuple[int, int, int, int, int]:
        size = op.size
        columns = size["gate"] * size["cell"]
        return size["batch"], size["seq"], columns, size["hidden"], size["cell_in"]

    def flops(self, op: Op) -> float:
        batch, seq, columns, hidden, state = self._dims(op)
        return 2.0 * batch * seq * columns * (hidden + state)

    def _pointwise(self, op: Op, precision: Precision, phase: str) -> Kernel:
        cells = op.extent(("batch", "seq", "cell"))
        return memory(phase, 7 * cells * precision.activation_bytes, cells, _CELL_FLOPS)

    def forward(self, op: Op, precision: Precision, choices: KernelChoices) -> tuple[Kernel, ...]:
        batch, seq, columns, hidden, state = self._dims(op)
        out = precision.activation_bytes
        return (
            gemm(FORWARD, 1, batch * seq, columns, hidden, precision, out),
            gemm(FORWARD, seq, batch, columns, state, precision, out),
            self._pointwise(op, precision, FORWARD),
        )

    def backward(self, op: Op, precision: Precision, choices: KernelChoices) -> tuple[Kernel, ...]:
        batch, seq, columns, hidden, state = self._dims(op)
        out, grad = precision.activation_bytes, precision.gradient_bytes
        return (
            self._pointwise(op, precision, INPUT_GRADIENT),
            gemm(INPUT_GRADIENT, seq, batch, state, columns, precision, out),
            gemm(INPUT_GRADIENT, 1, batch * seq, hidden, columns, precision, out),
            gemm(WEIGHT_GRADIENT, 1, hidden, columns, batch * seq, precision, grad),
            gemm(WEIGHT_GRADIENT, 1, state, columns, batch * seq, precision, grad),
        )

    def saved(self, op: Op, precision: Precision, choices: KernelChoices) -> tuple[Tensor, ...]:
        gates = Tensor(f"{op.name}.gates", ("batch", "seq", "gate", "cell"))
        state = Tensor(f"{op.name}.state", ("batch", "seq", "cell"))
        return (*op.inputs, *op.outputs, gates, state)
