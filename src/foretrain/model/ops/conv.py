"""Convolutions and pooling over `(batch, channel, height, width)`; height and width are the OUTPUT's.

A strided op reads `input_scale` = in_h·in_w / (out_h·out_w) times as much of its input. `halo_h`, `halo_w`
rows and columns of neighbours are needed on each side when height or width are split.
"""

from __future__ import annotations

from foretrain.model.graph import Op, Tensor
from foretrain.model.ops.base import (
    FORWARD,
    INPUT_GRADIENT,
    WEIGHT_GRADIENT,
    Kernel,
    KernelChoices,
    input_bytes,
    largest,
    memory,
    output_bytes,
)
from foretrain.model.ops.family import OpFamily
from foretrain.model.precision import Precision

PLAIN = ("fp32", "tf32")  # formats whose kernels take maps either way
TRANSPOSE = 2.5  # passes of a stream that a read and a write across it take


class Conv(OpFamily):
    """Weight `(channel_out, channel_in, kernel_h, kernel_w)`, or `group_in` for `channel_in` if grouped."""

    name = "conv"
    makes = "cnn"
    backward_products = 2.0

    def trait(self, op: Op) -> str:
        return "convolutions"

    def divides(self, op: Op, dims: tuple[str, ...]) -> bool:
        return True

    def flops(self, op: Op) -> float:
        dims = ("batch", "channel_out", "channel_in", "height", "width", "kernel_h", "kernel_w")
        return 2.0 * op.extent(dims) / int(op.attr.get("groups", 1))

    def _kernel(self, op: Op, precision: Precision, phase: str, out: float) -> Kernel:
        """Each phase reads two of (input, weight, output) and writes the third."""
        size, attr = op.size, op.attr
        scale = precision.gemm_input_bytes / precision.activation_bytes
        tensors = {
            FORWARD: (input_bytes(op, precision), op.parameters * precision.activation_bytes),
            INPUT_GRADIENT: (
                output_bytes(op, precision),
                op.parameters * precision.activation_bytes,
            ),
            WEIGHT_GRADIENT: (input_bytes(op, precision), output_bytes(op, precision)),
        }
        return Kernel(
            kind="conv",
            phase=phase,
            flops=self.flops(op),
            bytes=sum(tensors[phase]) * scale + out,
            dtype=precision.matmul,
            shape=(
                size["batch"], size["channel_in"], size["channel_out"], size["height"],
                size["width"], size["kernel_h"], size["kernel_w"], int(attr.get("stride", 1)),
                int(attr.get("groups", 1)),
            ),
        )  # fmt: skip

    def forward(self, op: Op, precision: Precision, choices: KernelChoices) -> tuple[Kernel, ...]:
        product = self._kernel(op, precision, FORWARD, output_bytes(op, precision))
        return (product, *self._transposes(op, precision, FORWARD, choices))

    def _transposes(
        self, op: Op, precision: Precision, phase: str, choices: KernelChoices
    ) -> tuple[Kernel, ...]:
        """Matrix units read channels innermost (cuDNN developer guide, tensor core operations): maps that lie
        otherwise are copied before and after, in strides that reach four fifths of a stream's rate."""
        if choices.channels_last or precision.matmul in PLAIN or int(op.attr.get("groups", 1)) > 1:
            return ()
        maps = (input_bytes(op, precision), output_bytes(op, precision))
        return tuple(memory(phase, TRANSPOSE * size, largest(op), 0.0) for size in maps)

    def backward(self, op: Op, precision: Precision, choices: KernelChoices) -> tuple[Kernel, ...]:
        weight = self._kernel(
            op, precision, WEIGHT_GRADIENT, op.parameters * precision.gradient_bytes
        )
        copies = self._transposes(op, precision, WEIGHT_GRADIENT, choices)
        if not op.attr.get("input_gradient", True):  # raw data needs none
            return (weight, *copies)
        return (
            self._kernel(op, precision, INPUT_GRADIENT, input_bytes(op, precision)),
            *self._transposes(op, precision, INPUT_GRADIENT, choices),
            weight,
            *copies,
        )

    def saved(self, op: Op, precision: Precision, choices: KernelChoices) -> tuple[Tensor, ...]:
        return op.inputs


class Pooling(OpFamily):
    """Attribute `pool`: max | avg | global. Global pooling contracts height and width (its input's sizes).

    Max pooling keeps its input and the index of each maximum; averages keep nothing.
    """

    name = "pooling"

    def _moved(self, op: Op, precision: Precision) -> float:
        return input_bytes(op, precision) + output_bytes(op, precision)

    def forward(self, op: Op, precision: Precision, choices: KernelChoices) -> tuple[Kernel, ...]:
        elements = int(op.input_elements(op.inputs[0]))
        return (memory(FORWARD, self._moved(op, precision), elements),)

    def backward(self, op: Op, precision: Precision, choices: KernelChoices) -> tuple[Kernel, ...]:
        elements = int(op.input_elements(op.inputs[0]))
        moved = self._moved(op, precision)
        if op.attr.get("pool") == "max":
            moved += op.elements(op.outputs[0]) * precision.element_bytes("index")
        return (memory(INPUT_GRADIENT, moved, elements),)

    def saved(self, op: Op, precision: Precision, choices: KernelChoices) -> tuple[Tensor, ...]:
        if op.attr.get("pool") != "max":
            return ()
        return (*op.inputs, Tensor(f"{op.name}.indices", op.outputs[0].dims, "index"))
