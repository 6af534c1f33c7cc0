"""The operator graph of a model, with named dimensions.

States of the noun: an `Op` is *whole* as the zoo builds it (`batch` is 1: one sample) and becomes *local*
when the compiler shrinks its dims to what one rank computes (`op.local(...)`). Formulas never know which.

Splitting follows from the names alone: a dim that appears in an output shards that output; a dim that does
not (it is contracted) leaves a partial sum. A tensor is matched between producer and consumer by its name,
and its dims by position, so a consumer may see `seq` as `kv_seq`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import ceil, prod
from pathlib import Path
from typing import Any

from foretrain.errors import ModelError
from foretrain.model.details import NO_DETAILS, Details
from foretrain.model.shape import TransformerShape
from foretrain.named import named
from foretrain.units import counted, show_count

Attr = str | int | float | bool
FROZEN = "frozen"


@dataclass(frozen=True, slots=True)
class Tensor:
    """A named tensor; `element` says what is stored and so, with the precision, how many bytes."""

    name: str
    dims: tuple[str, ...]
    # activation | weight | frozen (a weight not trained) | fp32 | index | mask
    element: str = "activation"


@dataclass(frozen=True)
class Op:
    """One operator: an iteration space of named dims, and the tensors that span parts of it."""

    name: str
    kind: str  # a row of `foretrain.model.ops.FAMILIES`
    sizes: tuple[tuple[str, int], ...]
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    weights: tuple[Tensor, ...] = ()
    attrs: tuple[tuple[str, Attr], ...] = ()

    @cached_property
    def size(self) -> Mapping[str, int]:
        return dict(self.sizes)

    @cached_property
    def attr(self) -> Mapping[str, Attr]:
        return dict(self.attrs)

    @cached_property
    def dims(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.sizes)

    def extent(self, dims: Iterable[str]) -> int:
        """Product of the sizes of `dims`."""
        return prod(self.size[dim] for dim in dims)

    def elements(self, tensor: Tensor) -> int:
        return self.extent(tensor.dims)

    def input_elements(self, tensor: Tensor) -> float:
        """Elements of an input; a strided op reads more of it than its own (output) dims span."""
        return self.extent(tensor.dims) * float(self.attr.get("input_scale", 1.0))

    @property
    def reduces(self) -> bool:
        """Whether a split dim that is missing in the output leaves a partial sum (not so for permutations)."""
        return bool(self.attr.get("reduces", True))

    def local(self, degrees: Mapping[str, int], batch: int) -> Op:
        """What one rank computes when each dim is cut into `degrees[dim]` parts.

        Uneven parts count as the largest one, because the slowest rank sets the pace. `batch` is the number
        of samples a rank group holds before `degrees["batch"]` cuts it further.
        """
        sizes = tuple(
            (dim, max(1, ceil(size * (batch if dim == "batch" else 1) / degrees.get(dim, 1))))
            for dim, size in self.sizes
        )
        return replace(self, sizes=sizes)

    @property
    def parameters(self) -> int:
        return sum(self.elements(weight) for weight in self.weights)

    @cached_property
    def is_frozen(self) -> bool:
        """Whether it has weights and none of them is trained: then they have no gradients, and no states."""
        return bool(self.weights) and all(weight.element == FROZEN for weight in self.weights)


@dataclass(frozen=True)
class Block:
    """Ops that run in order, `repeat` times in a row; the unit pipelines are cut at.

    `inputs` and `outputs` are the tensors carried from the previous block and to the next one, matched by
    position. A repeated block's outputs feed its own inputs.
    """

    name: str
    ops: tuple[Op, ...]
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    repeat: int = 1
    sizes: tuple[tuple[str, int], ...] = field(default=())  # sizes of dims of carried tensors

    def __repr__(self) -> str:
        size = f"{counted(len(self.ops), 'op')}, {show_count(self.parameters)} parameters"
        return f"<Block {self.name} x {self.repeat}: {size}>"

    @property
    def parameters(self) -> int:
        """Parameters of one repetition."""
        return sum(op.parameters for op in self.ops)


@dataclass(frozen=True)
class Model:
    """A sequence of blocks. `tied` names weights that share storage: `(block.op.weight, block.op.weight)`.

    >>> from foretrain import Model
    >>> "gpt2" in Model.names()
    True
    """

    name: str
    blocks: tuple[Block, ...]
    seq_len: int | None = None  # tokens per sample; None where samples are not sequences
    tied: tuple[tuple[str, str], ...] = ()
    source: str = ""
    shape: TransformerShape | None = field(
        default=None, compare=False
    )  # of a transformer that its shape describes completely
    details: Details = field(default=NO_DETAILS, compare=False, repr=False)  # no answer has them

    @classmethod
    def of(cls, spec: str | Path | Mapping[str, Any] | Model, seq: int | None = None) -> Model:
        """From a zoo name, a Hugging Face `config.json`, Foretrain YAML, a mapping or a `Model`; `seq`: tokens per sample.

        >>> from foretrain import Model
        >>> Model.of("llama3-8b", seq=4096)
        <Model llama3-8b: 8.03 B parameters, 34 blocks, sequence 4,096>
        """
        model: Model = named("foretrain.model.load:load_model")(spec, seq)
        return model

    @staticmethod
    def names() -> tuple[str, ...]:
        """Names of the models in the zoo."""
        return tuple(named("foretrain.model.zoo:names")())

    def __repr__(self) -> str:
        length = "" if self.seq_len is None else f", sequence {self.seq_len:,}"
        blocks = counted(self.layers, "block")
        return f"<Model {self.name}: {show_count(self.parameters)} parameters, {blocks}{length}>"

    @cached_property
    def parameters(self) -> int:
        total = sum(block.parameters * block.repeat for block in self.blocks)
        return total - sum(self._weight_elements(copy) for copy in self.origins)

    @cached_property
    def trained_parameters(self) -> int:
        """Those that have gradients and optimizer states."""
        frozen = sum(
            op.parameters * block.repeat
            - sum(op.elements(w) for w in op.weights if self._path(block, op, w) in self.origins)
            for block, op in self.ops()
            if op.is_frozen
        )
        return self.parameters - frozen

    @staticmethod
    def _path(block: Block, op: Op, weight: Tensor) -> str:
        return f"{block.name}.{op.name}.{weight.name}"

    @cached_property
    def origins(self) -> Mapping[str, str]:
        """Of every weight that shares another's storage: the first that has it."""
        origins: dict[str, str] = {}
        for first, second in self.tied:
            origins[second] = origins.get(first, first)
        return origins

    def _weight_elements(self, path: str) -> int:
        for block, op in self.ops():
            for weight in op.weights:
                if self._path(block, op, weight) == path:
                    return op.elements(weight)
        raise ModelError(f"{self.name}: tied weight {path!r} does not exist.")

    def ops(self) -> Iterator[tuple[Block, Op]]:
        for block in self.blocks:
            for op in block.ops:
                yield block, op

    @cached_property
    def has_experts(self) -> bool:
        return any("expert" in op.size for _, op in self.ops())

    @cached_property
    def layers(self) -> int:
        """Number of blocks with repetitions counted."""
        return sum(block.repeat for block in self.blocks)
