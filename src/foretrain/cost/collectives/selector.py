"""Selector: which algorithm and protocol a library would take for a message, and what it then costs.

NCCL's tuner estimates `latency + bytes / bandwidth` for every pair and takes the least; so do we, with its
constants from `calibration/collectives.yaml`. MPI follows written thresholds. The user may choose instead.
Apart from the algorithms, which know nothing of protocols.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache

from foretrain.cost.collectives import Algorithm, Chosen, algorithms_for, name_of, tuner
from foretrain.cost.collectives.base import GroupTopology
from foretrain.cost.collectives.constants import constants, library_row
from foretrain.errors import Bug, InputError


@dataclass(frozen=True, slots=True)
class Protocol:
    """One wire protocol of a library: latencies in seconds, share of the link rate it reaches."""

    name: str
    base: float
    inside: Mapping[str, float]  # link family → seconds per hop
    between: float
    efficiency: float
    families: tuple[str, ...] = ()  # link families it works on, none: all
    to_message_bytes: float = float("inf")
    is_direct: bool = False  # between domains it asks for network cards that reach device memory
    # link family → buffer at which half the bandwidth is reached, for groups inside a domain
    half_bytes: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AlgorithmChoice:
    """The winner: pay `latency`, then move `volume` at the rate the links give, `max_rate` at most.

    `volume` counts what keeps links busy, so that it is more than the `moved` bytes where a protocol, a ramp or a
    measured curve reaches less than the rate of the links.
    """

    algorithm: str
    protocol: str
    pattern: str
    latency: float
    volume: float
    max_rate: float | None
    moved: float = 0.0

    def seconds(self, rate: float) -> float:
        if self.max_rate is not None:
            rate = min(rate, self.max_rate)
        return self.latency + self.volume / rate


@cache
def protocols(library: str, algorithm: str = "ring") -> tuple[Protocol, ...]:
    rows = library_row(library)["rows"]
    return tuple(
        Protocol(
            name=name,
            base=row["base_us"] * 1e-6,
            inside={family: us * 1e-6 for family, us in row["inside_us"].items()},
            between=row["between_us"] * 1e-6,
            efficiency=row["efficiency"],
            families=tuple(row.get("families", ())),
            to_message_bytes=row.get("to_message_bytes", float("inf")),
            is_direct=row.get("direct", False),
            half_bytes=row.get("half_bytes", {}),
        )
        for name, row in rows.get(algorithm, rows["default"]).items()
    )


def link_efficiency(tier: str, kind: str) -> float:
    """Share of a link's rated bandwidth that long messages reach."""
    rows = constants()["link_efficiency"][tier]
    for prefix in sorted(rows, key=len, reverse=True):
        if kind.startswith(prefix):
            return float(rows[prefix])
    return float(rows["default"])


def reported_latency(kind: str) -> float:
    """Seconds that a network's plugin tells NCCL's tuner to add to a hop between domains."""
    rows = constants()["reported_us"]
    return float(rows.get(kind, rows["default"])) * 1e-6


def spread() -> float:
    """Relative spread of communication times under this model."""
    return float(constants()["spread"])


@lru_cache(maxsize=4096)
def select(
    collective: str, size: float, wiring: GroupTopology, library: str, choose: Chosen = ()
) -> AlgorithmChoice:
    """The pair of algorithm and protocol that the user chose, the library's rule says, or that is fastest."""
    wish = dict(choose).get(name_of(collective), "")
    expect_able(choose, [(collective, wiring)])
    routed = _routed(collective, wiring, library, choose)
    able = [a for a in routed if a.why_not(wiring) is None]
    rule = _rule(collective, size, wiring.ranks, library)
    able = [a for a in able if a.name == rule] or able
    best: AlgorithmChoice | None = None
    best_seconds = float("inf")
    for algorithm in able:
        rate = dict(wiring.rates).get(algorithm.pattern, wiring.rate)
        for protocol in _protocols(algorithm, collective, size, wiring, library, wish):
            choice = _choice(algorithm, protocol, collective, size, wiring, library)
            seconds = choice.seconds(rate)
            if seconds < best_seconds:
                best, best_seconds = choice, seconds
    if best is None:
        raise Bug(f"no algorithm implements {collective!r}.")
    return best


def expect_able(choose: Chosen, uses: Sequence[tuple[str, GroupTopology]]) -> None:
    """Refuse choices of the user that cannot run on the groups they are for, all at once."""
    faults: dict[str, None] = {}
    for collective, wiring in uses:
        name = name_of(collective)
        if name not in dict(choose):
            continue
        (algorithm,) = algorithms_for(name, choose=choose)
        reason = algorithm.why_not(wiring)
        if reason is None:
            continue
        others = [a.name for a in algorithms_for(name) if a.why_not(wiring) is None]
        faults[
            f"algorithms.{name}: {algorithm.name!r} cannot run on a group of {wiring.ranks} ranks: "
            f"{reason}. Use {' or '.join(others)}, or remove {name} to let the library choose."
        ] = None
    if faults:
        raise InputError("The chosen algorithms are invalid:", faults=faults)


def _routed(
    collective: str, wiring: GroupTopology, library: str, choose: Chosen
) -> list[Algorithm]:
    """Candidates whose links are known: those of `rates`, or else those of the default patterns."""
    able = algorithms_for(collective, library, choose)
    if wiring.rates:
        routed = {pattern for pattern, _ in wiring.rates}
        known = [*able, *algorithms_for(collective)]
        return [a for a in able if a.pattern in routed] or [a for a in known if a.pattern in routed]
    if name_of(collective) in dict(choose):
        return list(able)
    default = algorithms_for(collective)
    patterns = {a.pattern for a in default}
    return [a for a in able if a.pattern in patterns] or list(default)


def _rule(collective: str, size: float, ranks: int, library: str) -> str | None:
    """What a library with written thresholds takes."""
    for row in library_row(library).get("rules", {}).get(collective, ()):
        small = size <= row.get("to_bytes", size) and size / ranks <= row.get("to_pair_bytes", size)
        if small and ranks < row.get("below_ranks", ranks + 1):
            return str(row["algorithm"])
    return None


def _protocols(
    algorithm: Algorithm,
    collective: str,
    size: float,
    wiring: GroupTopology,
    library: str,
    wish: str,
) -> tuple[Protocol, ...]:
    every = protocols(library, row_of(algorithm))
    wanted = wish.partition("/")[2]
    if wanted:
        found = tuple(p for p in every if p.name == wanted)
        if not found:
            names = ", ".join(p.name for p in every)
            raise InputError(
                f"collectives.{name_of(collective)}: {algorithm.name} has no protocol {wanted!r}."
                f" Try {names}."
            )
        return found
    steps = algorithm.steps(collective, wiring.ranks, wiring.domains)
    message = algorithm.volume(collective, size, wiring.ranks) / (steps.inside + steps.between)
    family = wiring.link_family
    return tuple(
        p
        for p in every
        if (not p.families or family in p.families)
        and message <= p.to_message_bytes
        and not (p.is_direct and wiring.domains > 1 and wiring.transport == "tcp")
    )


def _choice(
    algorithm: Algorithm,
    protocol: Protocol,
    collective: str,
    size: float,
    wiring: GroupTopology,
    library: str,
) -> AlgorithmChoice:
    count = wiring.channels or tuner.channels(wiring.architecture, wiring.domains)
    share, ceiling = _bandwidth(algorithm, protocol, size, wiring, library, count)
    reached = protocol.efficiency * share
    moved = volume = algorithm.volume(collective, size, wiring.ranks)
    if wiring.domains == 1:
        volume = ramped(volume, size, protocol.half_bytes.get(wiring.link_family, 0.0))
    latency = _latency(algorithm, protocol, collective, size, wiring, library, count)
    return AlgorithmChoice(
        algorithm=algorithm.name,
        protocol=protocol.name,
        pattern=algorithm.pattern,
        latency=latency,
        volume=volume * _incast(algorithm, wiring, library) / reached,
        # The ceiling is of useful bytes, the volume of bytes at the links' rate.
        max_rate=None if ceiling is None else ceiling / reached,
        moved=moved,
    )


def _latency(
    algorithm: Algorithm,
    protocol: Protocol,
    collective: str,
    size: float,
    wiring: GroupTopology,
    library: str,
    count: int,
) -> float:
    steps = algorithm.steps(collective, wiring.ranks, wiring.domains)
    hop = protocol.inside.get(wiring.link_family, protocol.inside["default"])
    is_ring = algorithm.is_ring and has_tuner(library) and wiring.domains > 1
    if is_ring:
        hop = max(hop, tuner.hop_overhead(protocol.name))
    hop, far = hop * wiring.inside_latency, protocol.between * wiring.between_latency
    latency = protocol.base + steps.inside * hop + steps.between * far
    if is_ring and protocol.name == "Simple" and collective == "all_reduce":
        latency *= tuner.plateau(size, wiring.ranks, wiring.architecture, count)
    return latency + steps.between * dict(wiring.delays).get(algorithm.pattern, 0.0)


def _bandwidth(
    algorithm: Algorithm,
    protocol: Protocol,
    size: float,
    wiring: GroupTopology,
    library: str,
    count: int,
) -> tuple[float, float | None]:
    if has_tuner(library):
        share, ceiling = tuner.bandwidth_terms(
            row_of(algorithm), protocol.name, size, wiring.architecture, wiring.domains, count
        )
        flows = _tcp_ceiling(wiring, library, count)
        known = [c for c in (ceiling, flows and flows * protocol.efficiency) if c is not None]
        return share, min(known, default=None)
    per_sender = library_row(library).get("per_sender_gbps")
    if per_sender is None:
        return 1.0, None
    return 1.0, per_sender * 1e9 * algorithm.streams(wiring)


def _tcp_ceiling(wiring: GroupTopology, library: str, count: int) -> float | None:
    """Bytes/s that the TCP connections between two neighbours carry, each of them limited by the network."""
    if wiring.transport != "tcp" or wiring.domains < 2:
        return None
    row = constants()["tcp"]
    least = row["channels"].get(wiring.link_family, row["channels"]["default"])
    channels = count if wiring.link_family in ("nvlink", "xgmi") else least
    each = row["flow_gbps"] / 8.0 * 1e9 * link_efficiency("network", "ethernet")
    rate = float(channels * row["connections"].get(library, 1) * each)
    if wiring.domains == 2:
        return rate * float(row["pair_share"])
    return rate * float((wiring.domains / 3.0) ** -row["falls"])


def ramped(volume: float, size: float, half_bytes: float) -> float:
    """Bytes to charge so that a message of `half_bytes` runs at half the bandwidth: m/B(m) = (m + half)/B."""
    return volume * (1.0 + half_bytes / size) if size > 0 else volume


def _incast(algorithm: Algorithm, wiring: GroupTopology, library: str) -> float:
    transport = wiring.transport or library_row(library)["transport"]
    row = constants()["incast"][transport if wiring.domains > 1 else "rdma"]
    return incast_factor(algorithm.fan_in(wiring.ranks), row["per_sender"], row["most"])


def incast_factor(senders: float, per_sender: float, most: float) -> float:
    """How much longer k simultaneous senders into one port take than their bytes need: 1 + c(k)."""
    return 1.0 + min(most, per_sender * max(0.0, senders - 1))


def row_of(algorithm: Algorithm) -> str:
    """Which rows of a library's tables an algorithm is timed by."""
    return algorithm.tuned_as or algorithm.name


def has_tuner(library: str) -> bool:
    """Whether NCCL's tuner chooses, with all that it knows of networks and channels."""
    return bool(library_row(library).get("tuner", False))
