"""Each way of being parallel is one file that adds cuts or state splits to the tree.

The order of the table is the priority of cuts: experts first, then tensors, then batch and sequence, and
last the axes that an op's other dims left over (sequence parallelism).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from foretrain.plan.mesh import Mesh
from foretrain.plan.parallelism import (
    context,
    data,
    embedding,
    expert,
    pipeline,
    sequence,
    tensor,
    zero,
)
from foretrain.plan.strategy import Node

if TYPE_CHECKING:
    from foretrain.plan.short_form import Words

Parallelism = Callable[["Words", Mesh, Node], Node]
Factoring = Callable[["Words", Mesh], Mesh]

# First the mesh gets the axes that experts and shards need, then the tree its cuts on those axes.
FACTORINGS: tuple[Factoring, ...] = (expert.factor, zero.factor)

PARALLELISMS: tuple[Parallelism, ...] = (
    expert.apply,
    tensor.apply,
    data.apply,
    context.apply,
    sequence.apply,
    zero.apply,
    pipeline.apply,
    embedding.apply,
)
