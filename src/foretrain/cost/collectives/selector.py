"""Selector: which algorithm and protocol a library would take for a message, and what it then costs.

NCCL's tuner estimates `latency + bytes / bandwidth` for every pair and takes the least; so do we, with its
constants from `calibration/collectives.yaml`. Apart from the algorithms, which know nothing of protocols.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.resources import files
from typing import Any

from foretrain.cost.collectives import algorithms_for
from foretrain.errors import Bug


@dataclass(frozen=True, slots=True)
class Protocol:
    """One wire protocol of a library: latencies in seconds, share of the link rate it reaches."""

    name: str
    base: float
    inside: Mapping[str, float]  # link family → seconds per hop
    between: float
    efficiency: float
    max_rate: float | None  # bytes/s it cannot exceed


@dataclass(frozen=True, slots=True)
class Choice:
    """The winner: pay `latency`, then move `volume` at the rate the links give, `max_rate` at most."""

    algorithm: str
    protocol: str
    pattern: str
    latency: float
    volume: float
    max_rate: float | None

    def seconds(self, rate: float) -> float:
        if self.max_rate is not None:
            rate = min(rate, self.max_rate)
        return self.latency + self.volume / rate


@dataclass(frozen=True, slots=True)
class Wiring:
    """A group as the selector sees it."""

    ranks: int
    domains: int
    link_family: str  # nvlink | pcie | … inside a domain
    rate: float  # bytes/s of the pattern's slowest link when the group is alone


@cache
def _data() -> dict[str, Any]:
    import yaml

    text = files("foretrain.cost.calibration").joinpath("collectives.yaml").read_text()
    data: dict[str, Any] = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    return data


@cache
def protocols(library: str) -> tuple[Protocol, ...]:
    rows = _data()["libraries"].get(library) or _data()["libraries"]["nccl"]
    return tuple(
        Protocol(
            name=name,
            base=row["base_us"] * 1e-6,
            inside={family: us * 1e-6 for family, us in row["inside_us"].items()},
            between=row["between_us"] * 1e-6,
            efficiency=row["efficiency"],
            max_rate=row["max_gbps"] * 1e9 if row.get("max_gbps") else None,
        )
        for name, row in rows.items()
    )


def link_efficiency(tier: str, kind: str) -> float:
    """Share of a link's rated bandwidth that long messages reach."""
    rows = _data()["link_efficiency"][tier]
    for prefix in sorted(rows, key=len, reverse=True):
        if kind.startswith(prefix):
            return float(rows[prefix])
    return float(rows["default"])


def spread() -> float:
    """Relative spread of communication times under this model."""
    return float(_data()["spread"])


@lru_cache(maxsize=4096)
def select(collective: str, size: float, wiring: Wiring, library: str) -> Choice:
    """The fastest pair of algorithm and protocol."""
    best: Choice | None = None
    best_seconds = float("inf")
    for algorithm in algorithms_for(collective):
        steps = algorithm.steps(collective, wiring.ranks, wiring.domains)
        volume = algorithm.volume(collective, size, wiring.ranks)
        for protocol in protocols(library):
            hop = protocol.inside.get(wiring.link_family, protocol.inside["default"])
            latency = protocol.base + steps.inside * hop + steps.between * protocol.between
            choice = Choice(
                algorithm.name,
                protocol.name,
                algorithm.pattern,
                latency,
                volume / protocol.efficiency,
                protocol.max_rate,
            )
            seconds = choice.seconds(wiring.rate)
            if seconds < best_seconds:
                best, best_seconds = choice, seconds
    if best is None:
        raise Bug(f"no algorithm carries out {collective!r}.")
    return best
