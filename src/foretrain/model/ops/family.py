"""What every op family answers: to whom computes it, and to every pass that asks what may be done with it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import ClassVar

from foretrain.model.graph import Attr, Op, Tensor
from foretrain.model.ops.base import Kernel, KernelChoices
from foretrain.model.precision import Precision

Check = tuple[Callable[[Attr], bool], str]
"""Whether a value of an attribute is allowed, and what is."""


class OpFamily(ABC):
    """Formulas of one kind of op. `op` may be whole or local: only its sizes matter.

    Two answers every family gives itself, and two where there is something to say:

    - `forward`, `backward` – the kernels really run; backward kernels carry their own phase;
    - `flops` – nominal forward FLOPs of the mathematics (two per multiply-add; causal masking not
      discounted), the convention of model FLOPs utilisation, which counts contractions only;
    - `saved` – what autograd keeps for backward: inputs and outputs by their own names (the compiler counts
      a tensor once however many ops keep it) and private tensors under names of their own.

    All else has an answer that suits an op between others in a layer; a family says only where it differs.
    """

    name: str

    # what it is
    makes = ""  # the kind of model that such an op gives away: recommender | transformer | cnn
    is_projection = False  # x·W: adapters stand beside it, and pipelines may be balanced by it
    is_loss = False  # the logits lie there in fp32, in as many copies as the stack makes
    is_layer = False  # a block that has one is a layer, whatever stands beside it
    # a block that has one, and is no layer, stands around them and is not recomputed
    is_outer = False
    attributes: ClassVar[Mapping[str, Check]] = {}  # that only this family reads

    # what is exchanged
    goes_round = False  # what it reads may go round a ring of ranks beside its kernels
    is_dispatched = False  # its tokens are exchanged by the experts' dispatcher, as they are, in kernels of its own
    settled_values = 1  # numbers per element of a partial result that ranks add up

    # what is kept and what runs again
    runs_again_selectively = False  # `recompute=selective` means it
    is_looked_up = False  # full recomputation keeps its result, as the input of what runs again
    keeps_result = False  # recomputed or not, its result stays for those who read it
    hands_on_kept = False  # at a block's end it keeps what it hands on, which the next block counts

    # what the conformance kit and measurements may expect
    # FLOPs of backward for each of forward's; None: it varies
    backward_products: float | None = None
    skips_work = False  # may run less than the mathematics, such as what a mask hides
    # its parts may read something whole beside their share (weights, scores, cells)
    shares_bytes = False
    is_called_apart = False  # a framework calls its kernels one by one

    def flops(self, op: Op) -> float:
        return 0.0

    @abstractmethod
    def forward(
        self, op: Op, precision: Precision, choices: KernelChoices
    ) -> tuple[Kernel, ...]: ...

    @abstractmethod
    def backward(
        self, op: Op, precision: Precision, choices: KernelChoices
    ) -> tuple[Kernel, ...]: ...

    def saved(self, op: Op, precision: Precision, choices: KernelChoices) -> tuple[Tensor, ...]:
        return ()

    def workspace(self, op: Op, precision: Precision, choices: KernelChoices) -> float:
        """Bytes an op needs only while it runs, beside its inputs and outputs."""
        return 0.0

    def divides(self, op: Op, dims: tuple[str, ...]) -> bool:
        """Whether a split of these dims, which go together, divides the op's work exactly."""
        return all(meets(tensor, dims) for tensor in (*op.inputs, *op.outputs))

    def is_quantised(self, op: Op, precision: Precision) -> bool:
        """Whether it multiplies by weights in a narrower format than activations have."""
        return False

    def casts(self, op: Op, precision: Precision, gathered: float = 1.0) -> tuple[Kernel, ...]:
        """Kernels that bring what it reads, of `gathered` ranks, and in backward the gradient of its output into a
        narrower format: one each, or none."""
        return ()

    def stored_bytes(self, op: Op, precision: Precision) -> float:
        """Bytes of an element of its weights, frozen."""
        return precision.weight_bytes

    def touched(self, op: Op) -> float | None:
        """Elements of its weights that an update reaches, at most; None: all."""
        return None

    def replicated(self, op: Op, samples: int, least: float) -> tuple[float, float] | None:
        """Of weights that may be kept in part on all ranks: the elements that so many samples of a step draw at least
        `least` times, and the share of what is drawn that they answer. None: all or nothing is kept."""
        return None

    def head_widths(self, op: Op) -> tuple[int, int] | None:
        """How wide the heads of keys and of values are, where it has some."""
        return None

    def trait(self, op: Op) -> str:
        """What only models with such ops have, where stacks have options about it: convolutions, rotary positions."""
        return ""

    def pooled(self, op: Op) -> tuple[int, ...]:
        """Look-ups of every table whose sums it makes, which stacks may send without those that are empty."""
        return ()


def meets(tensor: Tensor, dims: tuple[str, ...]) -> bool:
    """Whether a tensor has one of the dims."""
    return any(dim in dims for dim in tensor.dims)
