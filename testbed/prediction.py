"""What Foretrain predicts for a configuration of the testbed, from links and compute measured once.

The question is an ordinary one: a cluster drawn as a graph, plan `dpN`, the runtime `cpu-gloo` with a scheme of
synchronisation. What the testbed knows of its machine goes in where a user's measurements would: rates and latencies of
cables, and a compute model that returns the measured seconds. Ranks that share cores share them evenly, as flows share
a link: n ranks on c cores compute n/c times as long.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from foretrain.cluster.device import Device
from foretrain.cost.collectives import selector
from foretrain.cost.collectives.constants import constants
from foretrain.cost.compute import KernelCosts, Roofline
from foretrain.cost.network import network_of
from foretrain.model.ops.base import Kernel
from foretrain.resolving import ask
from foretrain.scenario import Scenario
from foretrain.simulate import answer, network_for
from testbed.jobs import DDP, GOSSIP, ONE_PEER, SERVER
from testbed.models import MODELS
from testbed.topologies import Graph

PHASES = ("forward", "backward", "update")
KIND = "ethernet"


@dataclass(frozen=True, slots=True)
class Line:
    """Seconds = start + slope · amount, never below zero."""

    start: float
    slope: float

    def at(self, amount: float) -> float:
        return max(0.0, self.start + self.slope * amount)


@dataclass(frozen=True, slots=True)
class Machine:
    """What was measured once: links, messages, and compute without communication."""

    cores: int
    payload: float  # bytes of a long message over what the shaped rate would carry in the same time
    message_seconds: float  # of a short message over one cable
    copy: (
        Line  # seconds of processor time by bytes: flattening, adding and storing what is exchanged
    )
    compute: Mapping[str, Mapping[str, Line]]  # model → phase → seconds by batch, on one core

    def phase_seconds(self, model: str, batch: int, ranks: int) -> dict[str, float]:
        """On shared cores."""
        lines, crowd = self.compute[model], max(1.0, ranks / self.cores)
        return {phase: lines[phase].at(batch) * crowd for phase in PHASES}


@dataclass(frozen=True, slots=True)
class Configuration:
    """One cell of the experiment. `batch` is of one rank, `rate` in bit/s of a cable of width 1."""

    graph: Graph
    rate: float
    model: str
    batch: int
    scheme: str
    edges: tuple[tuple[int, int], ...] = ()  # of gossip

    @property
    def name(self) -> str:
        mega = f"{self.rate / 1e6:g}"
        return f"{self.graph.name} {mega} Mbit/s {self.model} b{self.batch} {self.scheme}"


@dataclass(frozen=True, slots=True)
class Expected:
    step: float
    exchange: float  # the communication of a step, alone


@dataclass(frozen=True)
class Phased:
    """A compute model: a step's forward, backward and update take given seconds together, shared out over kernels in
    proportion to what a roofline gives them."""

    factors: Mapping[str, float]

    def seconds(self, kernels: Sequence[Kernel], device: Device) -> KernelCosts:
        base = Roofline().seconds(kernels, device)
        factor = np.array([self.factors[_phase(kernel)] for kernel in kernels])
        measured = np.ones(len(kernels), dtype=np.bool_)
        source = ("measured on this machine",) * len(kernels)
        return KernelCosts(base.seconds * factor, base.spread, measured, source)


def _phase(kernel: Kernel) -> str:
    return kernel.phase if kernel.phase in PHASES else "backward"


def expect(configuration: Configuration, machine: Machine) -> Expected:
    """Both figures, through the whole path: compile, cost, simulate."""
    ranks = configuration.graph.hosts
    seconds = machine.phase_seconds(configuration.model, configuration.batch, ranks)
    factors = _factors(configuration.model, configuration.batch)
    compute = Phased({phase: seconds[phase] / factors[phase] for phase in PHASES})
    nothing = Phased(dict.fromkeys(PHASES, 0.0))
    with measured_constants(machine):
        turns = _collectives(configuration)
        questions = [_question(configuration, machine, turn) for turn in turns]
        step = float(np.mean([answer(q, compute=compute).step_seconds for q in questions]))
        alone = float(np.mean([answer(q, compute=nothing).step_seconds for q in questions]))
        size = 4.0 * questions[0].workload.model.parameters
    copies = _copy_seconds(configuration, machine, size)
    return Expected(step + copies, alone + copies)


def _question(configuration: Configuration, machine: Machine, collective: str) -> Scenario:
    graph = configuration.graph
    reached = selector.link_efficiency("network", KIND)
    rate = configuration.rate / 8 * machine.payload / reached
    options: dict[str, Any] = {
        "synchronises": collective,
        "overlaps_gradients": configuration.scheme == DDP,
        "host_seconds_per_kernel": 0.0,  # is in the measured compute
        "host_seconds_per_collective": 0.0,
        "overlap_slows": False,
    }
    question = ask(
        MODELS[configuration.model].document,
        on=graph.document(rate, 0.0),
        plan=f"dp{graph.hosts}",
        batch=configuration.batch * graph.hosts,
        micro_batch=configuration.batch,
        precision="fp32",
        optimizer="sgd",
        runtime="cpu-gloo",
        runtime_options=options,
    )
    # Gloo lays one ring in the order of ranks, whatever the cables.
    network_for(question).flow_mapping.follows_cables = False
    return question


def _collectives(configuration: Configuration) -> list[str]:
    """What the scheme runs, one for each iteration of its period."""
    ranks = configuration.graph.hosts
    if configuration.scheme == SERVER:
        return ["parameter_server(1)"]
    if configuration.scheme == GOSSIP:
        drawn = ",".join(f"{one}>{other}" for one, other in configuration.edges)
        return [f"neighbour_all_reduce(edges:{drawn})"]
    if configuration.scheme == ONE_PEER:
        period = max(1, (ranks - 1).bit_length())
        return [f"neighbour_all_reduce(one_peer_exponential2@{turn})" for turn in range(period)]
    return ["all_reduce"]


def _copy_seconds(configuration: Configuration, machine: Machine, size: float) -> float:
    """Buffers that a rank copies and adds between messages, on its share of a core."""
    crowd = max(1.0, configuration.graph.hosts / machine.cores)
    if configuration.scheme == DDP:
        return 0.0  # DDP's buckets are the gradients themselves; additions go beside messages
    if (
        configuration.scheme == SERVER
    ):  # while the server adds, all others wait: it has a core alone
        return machine.copy.at(size * (configuration.graph.hosts - 1))
    heard = len(configuration.edges) / configuration.graph.hosts or 1.0
    return machine.copy.at(size * heard) * crowd


@cache
def _factors(model: str, batch: int) -> dict[str, float]:
    """Seconds that the roofline gives each phase of a step on one rank."""
    found = {}
    for phase in PHASES:
        only = Phased({other: float(other == phase) for other in PHASES})
        question = ask(
            MODELS[model].document, on="1 x cpu-host", plan="dp1", batch=batch, micro_batch=batch,
            precision="fp32", optimizer="sgd", runtime="cpu-gloo",
            runtime_options={"host_seconds_per_kernel": 0.0, "host_seconds_per_collective": 0.0},
        )  # fmt: skip
        found[phase] = answer(question, compute=only).step_seconds
    return found


@contextmanager
def measured_constants(machine: Machine) -> Iterator[None]:
    """The library's own constants replaced by what was measured here: what a message takes, and
    queues long enough to lose nothing make no incast."""
    row = constants()["libraries"]["gloo"]["rows"]["default"]["tcp"]
    incast = constants()["incast"]["tcp"]
    kept = dict(row), dict(incast)
    _forget()
    try:
        message = machine.message_seconds * 1e6
        row.update(base_us=0.0, inside_us={"default": 0.0}, between_us=message)
        incast.update(per_sender=0.0)
        yield
    finally:
        row.update(kept[0])
        incast.update(kept[1])
        _forget()


def _forget() -> None:
    selector.protocols.cache_clear()
    selector.select.cache_clear()
    network_of.cache_clear()  # networks remember what collectives cost
