"""Partition: what one rank computes of every op, and whether the split is possible at all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import ceil, prod

from foretrain.errors import PlanError
from foretrain.model.graph import Block, Op
from foretrain.plan.mesh import Mesh
from foretrain.plan.strategy import Leaf, StrategyNode, leaf

# Dims that may have fewer parts than ranks: the rest hold copies (grouped-query attention beyond its heads).
_REPLICABLE = ("kv_heads",)
# Dims whose parts may differ by one row: images and tables rarely divide evenly.
_UNEVEN = ("height", "width", "rows")
_WORDS = {"heads": "attention heads", "ffn": "feed-forward columns", "vocab": "vocabulary entries",
          "expert": "experts", "seq": "tokens per sample", "channel_in": "input channels",
          "channel_out": "output channels", "batch": "samples"}  # fmt: skip


@dataclass(frozen=True, slots=True)
class LocalOp:
    """An op as one rank runs it. `whole` has the batch of the entire data-parallel group."""

    path: str
    op: Op
    whole: Op
    leaf: Leaf

    @property
    def used(self) -> tuple[str, ...]:
        return self.leaf.used

    @property
    def spread(self) -> tuple[str, ...]:
        """Axes over which the output gradient differs from rank to rank: those that cut an output."""
        dims = {dim for out in self.op.outputs for dim in out.dims}
        return tuple(
            a for a in self.used if any(a in axes for dim, axes in self.leaf.axes if dim in dims)
        )


def padded(op: Op, multiple: int) -> Op:
    """The op with its vocabulary rounded up, as frameworks do to keep GEMMs aligned."""
    if "vocab" not in op.size or multiple == 1:
        return op
    sizes = tuple((d, ceil(n / multiple) * multiple if d == "vocab" else n) for d, n in op.sizes)
    return replace(op, sizes=sizes)


def partition(
    block: Block, index: int, root: StrategyNode, mesh: Mesh, samples: int, pad: int
) -> tuple[LocalOp, ...]:
    """Local ops of one repetition of a block; `samples` are those of all replicas together."""
    sizes = dict(mesh.axes)
    ops: list[LocalOp] = []
    faults: dict[tuple[str, int], str] = {}  # one line per dim and degree, however many ops have it
    for op in block.ops:
        found = leaf(root, block.name, index, op)
        degrees = {dim: prod(sizes[a] for a in axes) for dim, axes in found.axes}
        whole = padded(op, pad * degrees.get("vocab", 1) if pad > 1 else 1)
        whole = whole.local({}, samples)
        for dim, line in _faults(f"{block.name}.{op.name}", whole, found, degrees):
            faults.setdefault((dim, degrees[dim]), line)
        ops.append(LocalOp(f"{block.name}.{op.name}", whole.local(degrees, 1), whole, found))
    if faults:
        raise PlanError("the plan does not match the model's dimensions:", faults=faults.values())
    return tuple(ops)


def _faults(
    path: str, op: Op, found: Leaf, degrees: Mapping[str, int]
) -> Iterator[tuple[str, str]]:
    for dim, degree in degrees.items():
        size = op.size[dim]
        if degree == 1 or size % degree == 0 or dim in _UNEVEN:
            continue
        # more ranks than heads is fine where copies divide evenly; where query heads fail, they are told
        if dim in _REPLICABLE and (degree % size == 0 or "heads" in degrees):
            continue
        axes = " x ".join(found.axes_of(dim))
        what = _WORDS.get(dim, dim)
        yield (
            dim,
            (
                f"{size:,} {what} ({path}) must be divisible by {axes} {degree}. Try "
                f"{_near(size, degree)}."
            ),
        )


def _near(size: int, degree: int) -> str:
    """Divisors of `size` around `degree`, for the remedy."""
    divisors = [d for d in range(1, min(size, 4 * degree) + 1) if size % d == 0]
    near = sorted(sorted(divisors, key=lambda d: abs(d - degree))[:5])
    shown = ", ".join(map(str, near[:-1]))
    return f"{shown} or {near[-1]}" if shown else str(near[-1])
