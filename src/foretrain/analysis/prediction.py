"""The answer: frozen values that every renderer reads and no renderer recomputes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from math import erfc, exp, log, sqrt
from typing import TYPE_CHECKING, Any, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from foretrain.analysis.answer import Answer
from foretrain.analysis.memory_words import memory_verdict
from foretrain.arrays import Floats, Ints32
from foretrain.cluster.headroom import usable_bytes
from foretrain.units import counted, rounded_seconds, show_bytes

if TYPE_CHECKING:
    from foretrain.analysis.job import JobTotals
    from foretrain.cluster.cluster import Cluster

SCHEMA_VERSION = 1
Z80 = 1.2815515655446004
"""Half of a two-sided 80 % interval, in standard deviations of a normal distribution."""
T = TypeVar("T")
V = TypeVar("V", covariant=True)
_SHOWN = 5
"""Items of a long list that a console shows."""

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

    def __repr__(self) -> str:
        return f"<StageMemory of stage {self.stage}: peak {show_bytes(self.peak_bytes)}>"


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
    headroom: float = 0.0  # share of the device that is kept free
    spread: float = 0.0  # standard deviation of the logarithm of the peak

    def __repr__(self) -> str:
        return f"<Memory: {memory_verdict(self)}>"

    @property
    def total_bytes(self) -> float:
        """What the device shows as taken (nvidia-smi)."""
        return self.peak_bytes + self.context_bytes

    @property
    def headroom_bytes(self) -> float:
        return self.headroom * self.capacity_bytes

    @property
    def usable_bytes(self) -> float:
        """What the allocator may take: the device less context and headroom."""
        return usable_bytes(self.capacity_bytes, self.context_bytes, self.headroom)

    @property
    def interval(self) -> tuple[float, float]:
        """What the peak lies in with a probability of 80 %."""
        factor = exp(Z80 * self.spread)
        return self.peak_bytes / factor, self.peak_bytes * factor

    @property
    def fits(self) -> bool:
        """Whether it is expected to fit."""
        return self.peak_bytes <= self.usable_bytes

    @property
    def fits_probability(self) -> float:
        """Of a peak that is log-normal around the predicted one."""
        if self.spread <= 0.0 or self.peak_bytes <= 0.0 or self.usable_bytes <= 0.0:
            return float(self.fits)
        return 0.5 * erfc(log(self.peak_bytes / self.usable_bytes) / (sqrt(2.0) * self.spread))

    def to_dict(self) -> dict[str, Any]:
        return {
            "peak_bytes": self.peak_bytes,
            "interval_bytes": list(self.interval),
            "allocated_bytes": self.allocated_bytes,
            "total_bytes": self.total_bytes,
            "capacity_bytes": self.capacity_bytes,
            "context_bytes": self.context_bytes,
            "headroom_bytes": self.headroom_bytes,
            "usable_bytes": self.usable_bytes,
            "fits_probability": self.fits_probability,
            "peak_stage": self.peak_stage,
            "moment": self.moment,
            "by_kind": dict(self.by_kind),
            "by_stage": [
                {
                    "stage": stage.stage,
                    "peak_bytes": stage.peak_bytes,
                    "allocated_bytes": stage.allocated_bytes,
                    "by_kind": dict(stage.by_kind),
                    "moment": stage.moment,
                }
                for stage in self.by_stage
            ],
        }


@dataclass(frozen=True, slots=True)
class Money:
    """Prices as dated facts; None where the catalog knows no price."""

    usd_per_hour: float | None
    usd_per_step: float | None
    price_date: str | None

    @classmethod
    def of_step(
        cls, cluster: Cluster, step_seconds: float, usd_per_device_hour: float | None = None
    ) -> Money:
        """`usd_per_device_hour`: the user's own price of one device, before the catalog's."""
        if usd_per_device_hour is None:
            rent, date = cluster.usd_per_hour, cluster.price_date
        else:
            rent, date = usd_per_device_hour * cluster.device_count, None
        per_step = None if rent is None else rent * step_seconds / 3600.0
        return cls(rent, per_step, date if rent is not None else None)


@dataclass(frozen=True, eq=False, slots=True)
class LinkFlows:
    """What crosses one link: task `task[i]` of the timeline puts `bytes[i]` on it, as `labels[label[i]]`.

    Flows of tasks that compute and communicate in turn have no times of their own: they lie somewhere
    within their task.
    """

    task: Ints32
    bytes: Floats
    label: Ints32
    labels: tuple[str, ...]  # purpose and collective


@dataclass(frozen=True, slots=True)
class LinkUse:
    """One kind of link over the step: what one link that stands for the kind carried, of what it could."""

    name: str
    is_network: bool
    bytes: float  # that cross it
    bandwidth: float  # bytes/s that long messages reach
    share: float  # of the step during which it is busy: flows that do not reach its bandwidth keep it longer
    kind: str = ""  # the name's pattern: `device->switch`
    count: int = 0  # how many links there are of the kind; 0 where that is not known
    traffic: tuple[tuple[str, float], ...] = ()  # purpose, bytes; greatest first
    from_stages: tuple[int, ...] = ()  # stages whose ranks send what crosses it, most bytes first …
    to_stages: tuple[int, ...] = ()  # … and receive it
    flows: LinkFlows | None = field(default=None, repr=False, compare=False)  # of the busiest

    def __repr__(self) -> str:
        busy = f"busy {100 * self.share:.1f} % of the step"
        return f"<LinkUse {self.name}: {show_bytes(self.bytes)}, {busy}>"

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
    """A change and what it would bring. Of plans, switches and machines there are options to paste; factors on hardware
    (twice the bandwidth) have none, and leave memory as it is."""

    change: str
    step_seconds: float
    speedup: float
    kind: str = "hardware"  # plan | option | machine | hardware
    paste: str = ""  # options of a command that make the change
    peak_bytes: float | None = None
    fits: bool = True
    usd_per_hour: float | None = None  # of all devices, where the catalog knows a price
    remark: str = ""  # what is another besides


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

    start: Floats
    end: Floats
    lane: Ints32
    label: Ints32
    stage: Ints32
    chunk: Ints32
    micro: Ints32
    phase: NDArray[np.int8]  # index into foretrain.compile.execution.PHASE_NAMES
    kind: NDArray[np.int8]  # index into foretrain.compile.execution.KIND_NAMES
    waited_for: Ints32
    lanes: tuple[Lane, ...]
    labels: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.start)

    def __repr__(self) -> str:
        size = f"{counted(len(self), 'task')} in {counted(len(self.lanes), 'lane')}"
        return f"<Timeline: {size}, {rounded_seconds(float(self.end.max(initial=0.0)))}>"


@dataclass(frozen=True, slots=True)
class PathStep:
    """One task of the critical path, or the wait before it."""

    start: float
    end: float
    stage: int
    what: str


class Lazy(Sequence[T]):
    """A sequence that is worked out when first looked at: most predictions are asked for their step alone."""

    def __init__(self, make: Callable[[], Sequence[T]]) -> None:
        self._make = make
        self._value: Sequence[T] | None = None

    def _items(self) -> Sequence[T]:
        if self._value is None:
            self._value = self._make()
        return self._value

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

    def __repr__(self) -> str:
        first = [repr(one) for one in self[:_SHOWN]]
        more = [f"… {len(self) - _SHOWN:,} more"] if len(self) > _SHOWN else []
        return f"[{', '.join((*first, *more))}]"


class LazyMapping(Mapping[str, V]):
    """The same by name: a hash of all that was asked takes as long as a tenth of a small step."""

    def __init__(self, make: Callable[[], Mapping[str, V]]) -> None:
        self._make = make

    @cached_property
    def _known(self) -> Mapping[str, V]:
        return self._make()

    def __getitem__(self, name: str) -> V:
        return self._known[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)

    def __repr__(self) -> str:
        return repr(self._known)


@dataclass(frozen=True, repr=False)
class Prediction(Answer):
    """The prediction of one training step, in seconds, bytes and USD.

    >>> from foretrain import predict
    >>> p = predict("gpt2", on="1 x dgx-h100", plan="dp8", batch=64)
    >>> abs(sum(p.stalls.values()) - p.step_seconds) < 1e-9
    True
    """

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
    job: JobTotals | None = None  # where the question names one

    @property
    def fits(self) -> bool:
        return self.memory.fits

    @property
    def usd_per_sample(self) -> float | None:
        """Cost per sample, to compare plans with different batch sizes."""
        per_step, batch = self.cost.usd_per_step, self.samples_per_second * self.step_seconds
        return None if per_step is None or batch <= 0.0 else per_step / batch

    def to_dict(self, *, in_full: bool = True) -> dict[str, Any]:
        """The prediction document, without the timeline; `in_full=False` omits the critical path and links."""
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
            "memory": self.memory.to_dict(),
            "stalls": dict(self.stalls),
            "stalls_by_stage": [dict(stage) for stage in self.stalls_by_stage],
            "bottleneck": self.bottleneck,
            "what_would_help": [asdict(remedy) for remedy in self.what_would_help],
            "cost": asdict(self.cost),
            "job": None if self.job is None else self.job.to_dict(),
            "operators": [{"op": name, "seconds": s} for name, s in self.operators],
            "measured_share": self.measured_share,
            "assumptions": list(self.assumptions),
            "warnings": list(self.warnings),
            "provenance": dict(self.provenance),
        }
