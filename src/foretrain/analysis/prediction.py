"""The answer: frozen values that every renderer reads and no renderer recomputes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

SCHEMA_VERSION = 1
T = TypeVar("T")

STALLS = (
    "compute",
    "interconnect",
    "network",
    "bubble",
    "host",
    "prep",
    "fetch",
    "imbalance",
    "optimizer",
)
MEMORY_KINDS = ("weights", "gradients", "optimizer", "activations", "buffers")


@dataclass(frozen=True, slots=True)
class StageMemory:
    """Peak of one pipeline stage on one device; `by_kind` sums to `peak_bytes`."""

    stage: int
    peak_bytes: float  # what the allocator holds (PyTorch: max_memory_reserved)
    by_kind: Mapping[str, float]
    moment: str  # what was running at the peak
    allocated_bytes: float = 0.0  # what tensors take of it (max_memory_allocated)


@dataclass(frozen=True, slots=True)
class Memory:
    """The fullest device: `by_kind` is that of the stage that peaks."""

    peak_bytes: float
    capacity_bytes: float
    by_kind: Mapping[str, float]
    by_stage: tuple[StageMemory, ...]
    peak_stage: int
    moment: str
    allocated_bytes: float = 0.0
    context_bytes: float = 0.0  # outside the allocator: driver context, libraries, communicators

    @property
    def total_bytes(self) -> float:
        """What the device shows as taken (nvidia-smi)."""
        return self.peak_bytes + self.context_bytes

    @property
    def fits(self) -> bool:
        return self.total_bytes <= self.capacity_bytes


@dataclass(frozen=True, slots=True)
class Money:
    """Prices as dated facts; None where the catalogue knows no price."""

    usd_per_hour: float | None
    usd_per_step: float | None
    price_date: str | None


@dataclass(frozen=True, eq=False, slots=True)
class LinkFlows:
    """What crosses one link: task `task[i]` of the timeline puts `bytes[i]` on it, as `labels[label[i]]`.

    Flows of tasks that compute and communicate in turn have no times of their own: they lie somewhere
    within their task.
    """

    task: NDArray[np.int32]
    bytes: NDArray[np.float64]
    label: NDArray[np.int32]
    labels: tuple[str, ...]  # purpose and collective


@dataclass(frozen=True, slots=True)
class LinkUse:
    """One kind of link over the step: what one link that stands for the kind carried, of what it could."""

    name: str
    is_network: bool
    bytes: float
    bandwidth: float  # bytes/s that long messages reach
    share: float  # of the step during which it would be busy at that bandwidth
    kind: str = ""  # the name's pattern: `device->switch`
    count: int = 0  # how many links there are of the kind; 0 where that is not known
    traffic: tuple[tuple[str, float], ...] = ()  # purpose, bytes; greatest first
    from_stages: tuple[int, ...] = ()  # stages whose ranks send what crosses it, most bytes first …
    to_stages: tuple[int, ...] = ()  # … and receive it
    flows: LinkFlows | None = field(default=None, repr=False, compare=False)  # of the busiest

    def to_dict(self) -> dict[str, Any]:
        return {
            "link": self.name,
            "tier": "network" if self.is_network else "interconnect",
            "bytes": self.bytes,
            "bandwidth": self.bandwidth,
            "share": self.share,
            "kind": self.kind,
            "count": self.count or None,
            "traffic": dict(self.traffic),
            "from_stages": list(self.from_stages),
            "to_stages": list(self.to_stages),
        }


@dataclass(frozen=True, slots=True)
class Remedy:
    """One change and what it would bring."""

    change: str
    step_seconds: float
    speedup: float


@dataclass(frozen=True, slots=True)
class Lane:
    """A stream of a rank class, as drawn on a timeline."""

    rank_class: int
    stage: int
    stream: str
    ranks: int  # how many ranks this class stands for


@dataclass(frozen=True)
class Timeline:
    """Every task's start and end, in columns. `lane[i]` indexes `lanes`, `label[i]` indexes `labels`."""

    start: NDArray[np.float64]
    end: NDArray[np.float64]
    lane: NDArray[np.int32]
    label: NDArray[np.int32]
    stage: NDArray[np.int32]
    chunk: NDArray[np.int32]
    micro: NDArray[np.int32]
    phase: NDArray[np.int8]  # index into foretrain.compile.execution.PHASE_NAMES
    kind: NDArray[np.int8]  # index into foretrain.compile.execution.KIND_NAMES
    waited_for: NDArray[np.int32]
    lanes: tuple[Lane, ...]
    labels: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.start)


@dataclass(frozen=True, slots=True)
class PathStep:
    """One task of the critical path, or the wait before it."""

    start: float
    end: float
    stage: int
    what: str


class Late(Sequence[T]):
    """A sequence that is worked out when first looked at: most predictions are asked for their step alone."""

    def __init__(self, make: Callable[[], Sequence[T]]) -> None:
        self._make = make
        self._made: Sequence[T] | None = None

    def _items(self) -> Sequence[T]:
        if self._made is None:
            self._made = self._make()
        return self._made

    def __len__(self) -> int:
        return len(self._items())

    @overload
    def __getitem__(self, index: int) -> T: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[T]: ...

    def __getitem__(self, index: int | slice) -> T | Sequence[T]:
        return self._items()[index]

    def __iter__(self) -> Iterator[T]:
        return iter(self._items())


@dataclass(frozen=True)
class Prediction:
    """What one training step will do. Seconds, bytes, USD."""

    id: str
    step_seconds: float
    interval: tuple[float, float]
    samples_per_second: float
    tokens_per_second: float | None
    mfu: float | None
    hfu: float | None
    memory: Memory
    stalls: Mapping[str, float]  # keys of STALLS, sums to step_seconds
    stalls_by_stage: tuple[Mapping[str, float], ...]
    bottleneck: str
    what_would_help: Sequence[Remedy]
    cost: Money
    measured_share: float
    assumptions: tuple[str, ...]
    warnings: tuple[str, ...]
    provenance: Mapping[str, str]  # version, calibration, inputs_sha256, engine
    question: Mapping[
        str, Any
    ]  # what was asked: model, cluster, plan (short form), batch, seq, precision, runtime …
    timeline: Timeline = field(repr=False)
    critical_path: Sequence[PathStep] = field(default=(), repr=False)
    links: Sequence[LinkUse] = field(default=(), repr=False)  # busiest first
    operators: tuple[tuple[str, float], ...] = field(
        default=(), repr=False
    )  # busiest ops, seconds per step on the bottleneck stage

    @property
    def fits(self) -> bool:
        return self.memory.fits

    def to_dict(self, *, in_full: bool = True) -> dict[str, Any]:
        """The prediction document, without the timeline; `in_full=False` leaves critical path and links out."""
        document = self._document()
        if in_full:
            document["critical_path"] = [
                {"start": s.start, "end": s.end, "stage": s.stage, "what": s.what}
                for s in self.critical_path
            ]
            document["links"] = [link.to_dict() for link in self.links]
        return document

    def _document(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "schema_version": SCHEMA_VERSION,
            "question": dict(self.question),
            "step_seconds": self.step_seconds,
            "interval": list(self.interval),
            "samples_per_second": self.samples_per_second,
            "tokens_per_second": self.tokens_per_second,
            "mfu": self.mfu,
            "hfu": self.hfu,
            "fits": self.fits,
            "memory": {
                "peak_bytes": self.memory.peak_bytes,
                "allocated_bytes": self.memory.allocated_bytes,
                "total_bytes": self.memory.total_bytes,
                "capacity_bytes": self.memory.capacity_bytes,
                "peak_stage": self.memory.peak_stage,
                "moment": self.memory.moment,
                "by_kind": dict(self.memory.by_kind),
                "by_stage": [
                    {
                        "stage": stage.stage,
                        "peak_bytes": stage.peak_bytes,
                        "allocated_bytes": stage.allocated_bytes,
                        "by_kind": dict(stage.by_kind),
                        "moment": stage.moment,
                    }
                    for stage in self.memory.by_stage
                ],
            },
            "stalls": dict(self.stalls),
            "stalls_by_stage": [dict(stage) for stage in self.stalls_by_stage],
            "bottleneck": self.bottleneck,
            "what_would_help": [
                {"change": r.change, "step_seconds": r.step_seconds, "speedup": r.speedup}
                for r in self.what_would_help
            ],
            "cost": {
                "usd_per_hour": self.cost.usd_per_hour,
                "usd_per_step": self.cost.usd_per_step,
                "price_date": self.cost.price_date,
            },
            "operators": [{"op": name, "seconds": s} for name, s in self.operators],
            "measured_share": self.measured_share,
            "assumptions": list(self.assumptions),
            "warnings": list(self.warnings),
            "provenance": dict(self.provenance),
        }

    def save(self, path: str) -> None:
        """Write the report in the format its extension names."""
        from foretrain.report import save  # the one upward call: rendering is a door on the answer

        save(self, path)
