"""What NCCL's tuner knows of bandwidth: which share of it a protocol reaches, and ceilings.

`src/graph/tuning.cc`: bus bandwidth of ring and tree by protocol, limits per channel, the tree's correction by
message size, and the latency plateau of long rings.
"""

from __future__ import annotations

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


def bandwidth_terms(
    algorithm: str, protocol: str, size: float, architecture: str, domains: int, count: int
) -> tuple[float, float | None]:
    """Share of the links' bandwidth beyond the protocol's own, and the ceiling in bytes/s of bus bandwidth."""
    table, kind = _tuner(), generation(architecture)
    column = min(domains, 3) - 1
    ll_max = table["ll_max"][kind][column] * 1e9

    def ceiling(name: str) -> float:
        return float(table[name][kind][column]) * count * 1e9

    if algorithm == "nvls":
        return float(table["nvls_efficiency"].get(kind, 1.0)), None
    if algorithm == "nvls_tree":
        return 1.0, ceiling("channel_nvls_tree")
    if algorithm in ("tree", "double_tree"):
        share, most = correction(protocol, size), ceiling("channel_tree")
        if protocol == "LL":
            return share, share * min(most / 3.8, ll_max)
        if protocol == "LL128":
            kept = float(table["tree_ll128_share"][domains > 1])
            return share * kept, share * min(most * kept, ceiling("channel_tree_ll128"))
        return share, share * most
    if protocol == "LL":
        return 1.0, ll_max
    return 1.0, ceiling("channel_ring_ll128") if protocol == "LL128" else None


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
