"""The compiled program: what every rank class runs, in columns.

From small to large:

- a *work* is one thing to do: a kernel, a collective, a copy (`Compute`, `Communication`, `Copy`, `Load`);
- an *item* is a work on the main chain, perhaps with a communication running beside it;
- a *shape* is a run of items that nothing can come between: the engine sees it as one task;
- a *task* is one shape executed once: by a rank class, on streams, for a micro-batch.

No times here: costs are looked up per distinct shape afterwards.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from foretrain.arrays import Bools, Floats, Ints, Ints32
from foretrain.compile.columns import order_of
from foretrain.model.ops.base import Kernel
from foretrain.units import counted

if TYPE_CHECKING:
    from foretrain.compile.passes.fold import Fold


# Kinds of tasks: what their time is counted as.
CHAIN, COLLECTIVE, TRANSFER, COPY, LAUNCH, LAUNCH_REST, LOAD = range(7)
KIND_NAMES = ("chain", "collective", "transfer", "copy", "launch", "launch", "load")

# Phases of a step, as labelled on tasks.
FORWARD, BACKWARD, BACKWARD_WEIGHT, UPDATE = range(4)
PHASE_NAMES = ("forward", "backward", "backward_weight", "update")


@dataclass(frozen=True, slots=True)
class Communicator:
    """Which ranks talk to each other.

    `group`: the ranks that differ only in their coordinates on `axes`. `shift`: each rank to the one
    `offset` further on `axes[0]` (cyclic when `wraps`). `ends`: first and last coordinate of `axes[0]`.
    """

    axes: tuple[str, ...]
    kind: str = "group"
    offset: int = 0
    wraps: bool = False


@dataclass(frozen=True, slots=True)
class Compute:
    """A kernel of op `op` (its path in the model)."""

    op: str
    kernel: Kernel
    is_recomputed: bool = False


class ExchangeGroup(Protocol):
    """What an exchange may ask of those that carry it out; the cost models, above this layer, know."""

    @property
    def ranks(self) -> int: ...

    @property
    def domains(self) -> int: ...

    def inside_seconds(self, size: float) -> float:
        """Of so many bytes over the slowest link inside a domain."""

    def copy_seconds(self, tensors: int, size: float) -> float:
        """Until the slowest device has copied so many tensors, of so many bytes in all, to where they are sent from and
        back from where they arrive."""


@dataclass(frozen=True, slots=True)
class Communication:
    """A collective; exchanges that cost something of their own say so in subclasses (`compile/exchanges.py`).

    `bytes` follows nccl-tests: the full buffer of all-reduce and all-to-all on a rank, the gathered result of all-gather,
    the whole input of reduce-scatter, the message of a send or to one neighbour of an exchange.
    """

    collective: str  # all_reduce | reduce_scatter | all_gather | all_to_all | exchange | send
    bytes: float
    group: Communicator
    purpose: (
        str  # tensor | context | expert | data | pipeline | embedding | halo | reshard | weights
    )
    is_sized: ClassVar[bool] = True  # its cost follows from collective, bytes and group alone

    @property
    def label(self) -> str:
        return f"{self.purpose} {self.collective.replace('_', '-')}"

    def on_the_wire(self, group: ExchangeGroup) -> Communication:
        """What the library is asked to carry out."""
        return self

    def more_seconds(self, group: ExchangeGroup) -> float:
        """What it takes beside that, before anything moves."""
        return 0.0


@dataclass(frozen=True, slots=True)
class Copy:
    """Bytes between device and host memory."""

    bytes: float
    direction: str  # to_host | to_device

    @property
    def label(self) -> str:
        return f"copy {self.direction.replace('_', ' ')}"


@dataclass(frozen=True, slots=True)
class Load:
    """Reading and preparing the samples of one step on the host."""

    samples: float
    kind: str  # fetch | prep


Work = Compute | Communication | Copy | Load


@dataclass(frozen=True, slots=True)
class Item:
    """A work on the main chain; `beside` runs at the same time and must be done when the item is.

    `in_pieces`: the two are cut into as many pieces as ranks take part and feed each other.
    """

    work: Work
    beside: Communication | None = None
    in_pieces: bool = False

    @property
    def communication(self) -> Communication | None:
        """What it moves over links: its work, or what runs beside it."""
        return self.work if isinstance(self.work, Communication) else self.beside


@dataclass(frozen=True, slots=True)
class Stage:
    """Static memory of one pipeline stage on one rank, in bytes by kind, and its parameters."""

    index: int
    weights: float
    gradients: float
    optimizer: float
    buffers: float
    parameters: float  # held by one rank (before state sharding)
    blocks: tuple[tuple[str, int], ...]  # block name, how many


@dataclass(frozen=True, eq=False)
class ExecutionGraph:
    """Columns over tasks, CSR edges, and the tables the columns point into.

    Tasks of one stream run in index order. `task_class` is the rank class a task belongs to (of several, the
    first); `streams[k] = (rank class, stream name)`.
    """

    items: tuple[Item, ...]  # distinct items
    shape_ptr: Ints32
    shape_items: Ints32  # shape s = items[shape_items[shape_ptr[s]:shape_ptr[s+1]]]
    task_kind: NDArray[np.int8]
    task_shape: Ints32
    task_class: Ints32
    task_phase: NDArray[np.int8]
    task_stage: Ints32
    task_chunk: Ints32
    task_micro: Ints32  # micro-batch, -1 where none
    task_memory: Floats  # bytes kept (+) or freed (-) when the task ends
    task_workspace: Floats  # bytes needed only while the task runs
    task_accompanied: Bools  # something may run beside it on the same device
    stream_ptr: Ints32
    stream_ids: Ints32
    succ_ptr: Ints32
    succ: Ints32
    streams: tuple[tuple[int, str], ...]
    stages: tuple[Stage, ...]
    fold: Fold

    def __repr__(self) -> str:
        ranks = f"{counted(int(self.fold.counts.sum()), 'rank')} in "
        ranks += counted(self.fold.classes, "class", "classes")
        size = f"{counted(self.tasks, 'task')} on {counted(len(self.streams), 'stream')}"
        return f"<{type(self).__name__}: {size}; {ranks}>"

    @property
    def tasks(self) -> int:
        return len(self.task_kind)

    @cached_property
    def queued(self) -> Ints:
        """The task of every entry of `stream_ids`."""
        return np.repeat(np.arange(self.tasks), np.diff(self.stream_ptr))

    @cached_property
    def chains(self) -> tuple[Ints, Ints]:
        """Tasks on main chains in order, and the rank class each entry belongs to."""
        class_of = [rank_class if name == "compute" else -1 for rank_class, name in self.streams]
        owner = np.array(class_of, dtype=np.int64)[self.stream_ids]
        keep = owner >= 0
        task, owner = self.queued[keep], owner[keep]
        order = order_of(owner)  # tasks are in order already
        return task[order], owner[order]

    @cached_property
    def item_runs(self) -> Floats:
        """How often each rank class runs each item on its chain: [rank classes, items]."""
        classes, shapes = self.fold.classes, len(self.shape_ptr) - 1
        chain = self.task_kind == CHAIN
        key = self.task_class[chain].astype(np.int64) * shapes + self.task_shape[chain]
        times = np.bincount(key, minlength=classes * shapes).reshape(classes, shapes)
        member = np.zeros((shapes, len(self.items)))
        owner = np.repeat(np.arange(shapes), np.diff(self.shape_ptr))
        np.add.at(member, (owner, self.shape_items), 1.0)
        return times @ member

    def shape(self, index: int) -> tuple[Item, ...]:
        low, high = self.shape_ptr[index], self.shape_ptr[index + 1]
        return tuple(self.items[i] for i in self.shape_items[low:high])
