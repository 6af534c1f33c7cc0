"""The answer: frozen values that every renderer reads and no renderer recomputes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

SCHEMA_VERSION = 1

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
    peak_bytes: float
    by_kind: Mapping[str, float]
    moment: str  # what was running at the peak


@dataclass(frozen=True, slots=True)
class Memory:
    """The fullest device: `by_kind` is that of the stage that peaks."""

    peak_bytes: float
    capacity_bytes: float
    by_kind: Mapping[str, float]
    by_stage: tuple[StageMemory, ...]
    peak_stage: int
    moment: str

    @property
    def fits(self) -> bool:
        return self.peak_bytes <= self.capacity_bytes


@dataclass(frozen=True, slots=True)
class Money:
    """Prices as dated facts; None where the catalogue knows no price."""

    usd_per_hour: float | None
    usd_per_step: float | None
    price_date: str | None


@dataclass(frozen=True, slots=True)
class LinkUse:
    """One kind of link over the step: what the busiest link of the kind carried, of what it could."""

    name: str
    is_network: bool
    bytes: float
    bandwidth: float  # bytes/s that long messages reach
    share: float  # of the step during which it would be busy at that bandwidth


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
    what_would_help: tuple[Remedy, ...]
    cost: Money
    measured_share: float
    assumptions: tuple[str, ...]
    warnings: tuple[str, ...]
    provenance: Mapping[str, str]  # version, calibration, inputs_sha256, engine
    question: Mapping[
        str, Any
    ]  # what was asked: model, cluster, plan (short form), batch, seq, precision, runtime …
    timeline: Timeline = field(repr=False)
    critical_path: tuple[PathStep, ...] = field(default=(), repr=False)
    links: tuple[LinkUse, ...] = field(default=(), repr=False)  # busiest first
    operators: tuple[tuple[str, float], ...] = field(
        default=(), repr=False
    )  # busiest ops, seconds per step on the bottleneck stage

    @property
    def fits(self) -> bool:
        return self.memory.fits

    def to_dict(self) -> dict[str, Any]:
        """The prediction document (see the interface page), without the timeline."""
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
                "capacity_bytes": self.memory.capacity_bytes,
                "peak_stage": self.memory.peak_stage,
                "moment": self.memory.moment,
                "by_kind": dict(self.memory.by_kind),
                "by_stage": [
                    {
                        "stage": stage.stage,
                        "peak_bytes": stage.peak_bytes,
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
            "critical_path": [
                {"start": s.start, "end": s.end, "stage": s.stage, "what": s.what}
                for s in self.critical_path
            ],
            "links": [
                {
                    "link": link.name,
                    "tier": "network" if link.is_network else "interconnect",
                    "bytes": link.bytes,
                    "bandwidth": link.bandwidth,
                    "share": link.share,
                }
                for link in self.links
            ],
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
