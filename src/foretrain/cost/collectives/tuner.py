"""What NCCL's tuner knows of bandwidth: which share of it a protocol reaches, and ceilings.

`src/graph/tuning.cc`: bus bandwidth of ring and tree by protocol, limits per channel, the tree's correction by
message size, and the latency plateau of long rings.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from foretrain.cost.collectives.constants import constants

ARCHITECTURES = ("volta", "ampere", "hopper", "blackwell")


@lru_cache(maxsize=64)
def generation(architecture: str) -> str:
    """The row of the tuner's tables: unknown devices are taken for Ampere, whose figures lie in the middle."""
    name = architecture.lower()
    found = [a for a in ARCHITECTURES if name.startswith(a)]
    return (
        found[0]
        if found
        else {"ada": "ampere", "turing": "volta", "pascal": "volta"}.get(name, "ampere")
    )


def reduces_in_switch(architecture: str) -> bool:
    return generation(architecture) in _tuner()["nvls_efficiency"]


def channels(architecture: str, domains: int) -> int:
    return int(_tuner()["channels"][generation(architecture)][domains > 1])


@dataclass(frozen=True, slots=True)
class _Case:
    """A message of so many bytes by one protocol, in so many channels over so many domains of devices."""

    protocol: str
    size: float
    kind: str  # generation of the devices
    domains: int
    channels: int

    def listed(self, name: str) -> float:
        """Bytes/s of the tuner's table for one node, two, or more."""
        return self._column(name) * 1e9

    def ceiling(self, name: str) -> float:
        """The same of what the table has for one channel."""
        return self._column(name) * self.channels * 1e9

    def _column(self, name: str) -> float:
        return float(_tuner()[name][self.kind][min(self.domains, 3) - 1])


Terms = tuple[float, float | None]


def bandwidth_terms(
    row: str, protocol: str, size: float, architecture: str, domains: int, count: int
) -> Terms:
    """Share of the links' bandwidth beyond the protocol's own, and the ceiling in bytes/s of bus bandwidth, for an
    algorithm that the tuner's tables have in this row."""
    case = _Case(protocol, size, generation(architecture), domains, count)
    return _TERMS.get(row, _ring)(case)


def _nvls(case: _Case) -> Terms:
    return float(_tuner()["nvls_efficiency"].get(case.kind, 1.0)), None


def _nvls_tree(case: _Case) -> Terms:
    return 1.0, case.ceiling("channel_nvls_tree")


def _tree(case: _Case) -> Terms:
    share, most = correction(case.protocol, case.size), case.ceiling("channel_tree")
    if case.protocol == "LL":
        return share, share * min(most / 3.8, case.listed("ll_max"))
    if case.protocol == "LL128":
        kept = float(_tuner()["tree_ll128_share"][case.domains > 1])
        return share * kept, share * min(most * kept, case.ceiling("channel_tree_ll128"))
    return share, share * most


def _ring(case: _Case) -> Terms:
    if case.protocol == "LL":
        return 1.0, case.listed("ll_max")
    return 1.0, case.ceiling("channel_ring_ll128") if case.protocol == "LL128" else None


_TERMS: dict[str, Callable[[_Case], Terms]] = {
    "nvls": _nvls,
    "nvls_tree": _nvls_tree,
    "tree": _tree,
}
"""Rows of the tuner's tables; all else is limited as a ring is."""


def correction(protocol: str, size: float) -> float:
    """The tree's correction factor at log₂(bytes / 64), 1 beyond the table."""
    row = _tuner()["tree_correction"][protocol]
    index = (int(size) >> 6).bit_length() - 1
    return float(row[index]) if 0 <= index < len(row) else 1.0


def hop_overhead(protocol: str) -> float:
    """Least seconds of a hop inside a node when the ring also crosses the network."""
    return float(_tuner()["net_overhead_us"][protocol]) * 1e-6


def plateau(size: float, ranks: int, architecture: str, count: int) -> float:
    """Long all-reduce rings over several nodes take their latency's multiple (Simple protocol)."""
    if size / (count * ranks) < _tuner()["ring_plateau_bytes"]:
        return 1.0
    return float(_tuner()["ring_plateau"][generation(architecture)])


def _tuner() -> dict[str, Any]:
    table: dict[str, Any] = constants()["nccl_tuner"]
    return table
