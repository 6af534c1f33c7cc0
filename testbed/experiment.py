"""The experiment: measure links and compute once, predict combinations never run, then run them."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from testbed.hosts import Hosts, standing
from testbed.jobs import DDP, GOSSIP, ONE_PEER, SERVER, Job, Times, per_step
from testbed.launching import run
from testbed.models import MODELS
from testbed.prediction import (
    PHASES,
    Configuration,
    Expected,
    Line,
    Machine,
    expect,
)
from testbed.topologies import TOPOLOGIES, Cable, Graph

RATES_MEASURED = (40e6, 160e6)  # bit/s of the one cable whose messages are measured
MESSAGES = (1 << 6, 1 << 20, 1 << 21)
COPIES = (1 << 20, 1 << 22)
SECONDS_PER_REPEAT = 1.3
REPEATS = 3
DDP_RATE = 120e6
DDP_BATCHES = {"mlp": 64, "cnn": 6, "transformer": 4}
OTHER_BATCHES = {"mlp": 96, "cnn": 10, "transformer": 8}
OTHERS: Mapping[tuple[str, str], tuple[str, float]] = {
    ("star", "mlp"): (SERVER, 200e6),
    ("star", "cnn"): (SERVER, 200e6),
    ("star", "transformer"): (ONE_PEER, 60e6),
    ("ring", "mlp"): (GOSSIP, 80e6),
    ("ring", "cnn"): (GOSSIP, 80e6),
    ("ring", "transformer"): (SERVER, 200e6),
    ("binary-tree", "mlp"): (GOSSIP, 80e6),
    ("binary-tree", "cnn"): (GOSSIP, 80e6),
    ("binary-tree", "transformer"): (GOSSIP, 80e6),
    ("hierarchical", "mlp"): (ONE_PEER, 60e6),
    ("hierarchical", "cnn"): (SERVER, 200e6),
    ("hierarchical", "transformer"): (ONE_PEER, 60e6),
    ("exponential", "mlp"): (ONE_PEER, 60e6),
    ("exponential", "cnn"): (GOSSIP, 60e6),
    ("exponential", "transformer"): (ONE_PEER, 60e6),
    ("random", "mlp"): (GOSSIP, 80e6),
    ("random", "cnn"): (GOSSIP, 80e6),
    ("random", "transformer"): (GOSSIP, 80e6),
}
"""Per topology and model the scheme besides DDP, and the rate of its cables."""
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Figure:
    """Median over repeats, and half of what lies between the least and the most of them, relative to it."""

    seconds: float
    noise: float
    repeats: tuple[float, ...]

    @staticmethod
    def of(repeats: Sequence[float]) -> Figure:
        middle = statistics.median(repeats)
        return Figure(middle, (max(repeats) - min(repeats)) / 2 / middle, tuple(repeats))


@dataclass(frozen=True, slots=True)
class Outcome:
    configuration: Configuration
    expected: Expected
    step: Figure
    exchange: Figure


def machine_measured(models: Iterable[str], say: Say) -> Machine:
    """Two hosts on one cable: messages at two rates, buffers copied, compute with every core busy."""
    cores = len(os.sched_getaffinity(0))
    ranks = max(2, cores)
    graph = Graph("line", ranks, tuple(Cable(host, host + 1) for host in range(ranks - 1)))
    computing = [
        Job("compute", model=model, batch=batch, steps=8)
        for model in models
        for batch in MODELS[model].measured_batches
    ]
    copying = [Job("copy", batch=size, steps=20) for size in COPIES]
    sending = [Job("transfer", batch=size, steps=20 if size < 1 << 16 else 3) for size in MESSAGES]
    found: dict[tuple[float, Job], list[Times]] = {}
    with standing(graph, RATES_MEASURED[0]) as hosts:
        for rate in RATES_MEASURED:
            hosts.shape(rate)
            say(f"measuring messages at {rate / 1e6:g} Mbit/s")
            jobs = [*sending, *((*copying, *computing) if rate == RATES_MEASURED[0] else ())]
            for job, times in zip(jobs, run(hosts, ranks, jobs), strict=True):
                found[rate, job] = times
    first = RATES_MEASURED[0]
    crowd = ranks / cores  # above 1 on a machine of one core
    return Machine(
        cores=cores,
        payload=statistics.mean(_payload(rate, sending, found) for rate in RATES_MEASURED),
        message_seconds=_message(sending[0], found[RATES_MEASURED[-1], sending[0]]),
        copy=_through([(j.batch, _alone(j, found[first, j]) / crowd) for j in copying]),
        compute={
            model: {
                phase: _through([(j.batch, _phase(found[first, j], phase) / crowd)
                                 for j in computing if j.model == model])
                for phase in PHASES
            }
            for model in models
        },
    )  # fmt: skip


def _alone(job: Job, times: Sequence[Times]) -> float:
    """The quickest repeat: the one that others on the machine disturbed least."""
    return min(per_step(job, times))


def _phase(times: Sequence[Times], phase: str) -> float:
    """The lower quartile over steps, for the same reason."""
    seconds = [second for rank in times for second in rank.phases[phase]]
    return statistics.quantiles(seconds, n=4)[0]


def _payload(rate: float, jobs: Sequence[Job], found: dict[tuple[float, Job], list[Times]]) -> float:  # fmt: skip
    """From the longest two messages, whose difference nothing but the rate explains."""
    short, long = jobs[-2:]
    more = _alone(long, found[rate, long]) - _alone(short, found[rate, short])
    return 2 * 8 * (long.batch - short.batch) / more / rate


def _message(job: Job, times: Sequence[Times]) -> float:
    """One way of a short message."""
    return _alone(job, times) / 2


def _through(points: Sequence[tuple[float, float]]) -> Line:
    (x0, y0), (x1, y1) = points
    slope = (y1 - y0) / (x1 - x0)
    return Line(y0 - slope * x0, slope)


def configurations(hosts: int = 8) -> list[Configuration]:
    """The whole experiment. DDP runs on every topology at one rate, so that topologies can be told apart; the other
    schemes at rates and batches of their own."""
    found = []
    for topology, make in TOPOLOGIES.items():
        graph = make(hosts)
        found += [Configuration(graph, DDP_RATE, m, b, DDP) for m, b in DDP_BATCHES.items()]
        for model, batch in OTHER_BATCHES.items():
            scheme, rate = OTHERS[topology, model]
            edges = neighbours(graph) if scheme == GOSSIP else ()
            found.append(Configuration(graph, rate, model, batch, scheme, edges))
    return found


def subset() -> list[Configuration]:
    """A short one: two topologies, three schemes, four hosts."""
    star, ring = TOPOLOGIES["star"](4), TOPOLOGIES["ring"](4)
    return [
        Configuration(star, 100e6, "mlp", 64, DDP),
        Configuration(star, 100e6, "mlp", 64, SERVER),
        Configuration(ring, 80e6, "transformer", 4, DDP),
        Configuration(ring, 80e6, "transformer", 4, GOSSIP, neighbours(ring)),
    ]


def neighbours(graph: Graph) -> tuple[tuple[int, int], ...]:
    """Gossip along the cables, both ways."""
    pairs = [
        (cable.one, cable.other)
        for cable in graph.cables
        if isinstance(cable.one, int) and isinstance(cable.other, int)
    ]
    return tuple(pair for one, other in pairs for pair in ((one, other), (other, one)))


def run_all(
    wanted: Sequence[Configuration], machine: Machine, say: Say, budget: float = SECONDS_PER_REPEAT
) -> list[Outcome]:
    """Predicted first, all of them; then measured, network by network."""
    expected = {c: expect(c, machine) for c in wanted}
    outcomes: list[Outcome] = []
    for graph in dict.fromkeys(c.graph for c in wanted):
        for rate in dict.fromkeys(c.rate for c in wanted if c.graph == graph):
            mine = [c for c in wanted if c.graph == graph and c.rate == rate]
            say(f"{graph.name} at {rate / 1e6:g} Mbit/s: {len(mine)} configurations")
            with standing(graph, rate) as hosts:
                outcomes += _measured(hosts, mine, expected, budget)
            for outcome in outcomes[-len(mine) :]:
                say(f"  {line(outcome)}")
    return outcomes


def _measured(
    hosts: Hosts,
    mine: Sequence[Configuration],
    expected: dict[Configuration, Expected],
    budget: float,
) -> list[Outcome]:
    jobs: list[Job] = []
    for c in mine:
        for kind, seconds in (("train", expected[c].step), ("exchange", expected[c].exchange)):
            steps = _steps(c, budget / seconds)
            jobs.append(Job(kind, c.model, c.batch, c.scheme, c.edges, steps, REPEATS))
    times = run(hosts, hosts.graph.hosts, jobs)
    figures = [Figure.of(per_step(job, t)) for job, t in zip(jobs, times, strict=True)]
    return [
        Outcome(c, expected[c], figures[2 * number], figures[2 * number + 1])
        for number, c in enumerate(mine)
    ]


def _steps(configuration: Configuration, wanted: float) -> int:
    """Whole periods of schemes that have one."""
    if configuration.scheme != ONE_PEER:
        return max(2, min(20, round(wanted)))
    period = max(1, (configuration.graph.hosts - 1).bit_length())
    return period * max(1, min(6, round(wanted / period)))


def line(o: Outcome) -> str:
    return (
        f"{o.configuration.name}: step {o.expected.step * 1e3:.0f} / {o.step.seconds * 1e3:.0f} ms "
        f"({o.expected.step / o.step.seconds - 1:+.1%}, noise {o.step.noise:.1%}), communication "
        f"{o.expected.exchange * 1e3:.0f} / {o.exchange.seconds * 1e3:.0f} ms "
        f"({o.expected.exchange / o.exchange.seconds - 1:+.1%}, noise {o.exchange.noise:.1%})"
    )
