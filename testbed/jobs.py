"""What workers are asked to do and what they answer, as both sides of the pipe see it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

DDP, SERVER, GOSSIP, ONE_PEER = "ddp", "parameter-server", "gossip", "one-peer"
SCHEMES = (DDP, SERVER, GOSSIP, ONE_PEER)


@dataclass(frozen=True, slots=True)
class Job:
    """`train` and `exchange` (the same communication without compute) of a model under a scheme; `compute` without any
    communication; `transfer` of `batch` bytes between ranks 0 and 1. `edges` are (from, to) of gossip."""

    kind: str
    model: str = ""
    batch: int = 0
    scheme: str = ""
    edges: tuple[tuple[int, int], ...] = ()
    steps: int = 3
    repeats: int = 3

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def of(data: dict[str, Any]) -> Job:
        return Job(**{**data, "edges": tuple((int(a), int(b)) for a, b in data["edges"])})


@dataclass(frozen=True, slots=True)
class Times:
    """One rank's clock: where each repeat began and ended, and, of `compute`, the seconds of each phase."""

    began: tuple[float, ...]
    ended: tuple[float, ...]
    phases: dict[str, tuple[float, ...]] = field(default_factory=dict)


def per_step(job: Job, ranks: Sequence[Times]) -> list[float]:
    """Seconds of a step in every repeat: from the last rank's start to the last rank's end."""
    began = [max(times) for times in zip(*(r.began for r in ranks), strict=True)]
    ended = [max(times) for times in zip(*(r.ended for r in ranks), strict=True)]
    return [(end - start) / job.steps for start, end in zip(began, ended, strict=True)]


def partner(rank: int, ranks: int, turn: int) -> tuple[int, int]:
    """One-peer exponential graph: whom a rank sends to and hears in iteration `turn` (Ying et al. 2021)."""
    far = 1 << turn % max(1, (ranks - 1).bit_length())
    return (rank + far) % ranks, (rank - far) % ranks
