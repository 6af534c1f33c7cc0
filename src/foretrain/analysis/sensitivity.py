"""Sensitivity: what the step would be if one thing were better. Same graph, changed costs, run again.

Links with more bandwidth or less latency are costed anew, as `whatif` does: libraries choose otherwise on them, and
what a protocol or a host limits does not move any faster. So are hosts without overhead, where it is more than
launches.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from foretrain.analysis.prediction import Remedy
from foretrain.compile.execution import CHAIN, COPY, LAUNCH, LAUNCH_REST, ExecutionGraph
from foretrain.cost.cost import Costs
from foretrain.cost.items import COMPUTE, INTERCONNECT, NETWORK


@dataclass(frozen=True, slots=True)
class Change:
    """Factors on time: 0.5 means twice as fast."""

    text: str
    compute: float = 1.0
    interconnect: float = 1.0
    network: float = 1.0
    host: float = 1.0
    copies: float = 1.0


CHANGES = (
    Change("kernels twice as fast", compute=0.5),
    Change("copies to and from the host twice as fast", copies=0.5),
    Change("no host overhead (CUDA graphs)", host=0.0),
)
BOUNDS = {
    # what crosses the network passes the links inside nodes too
    "interconnect": Change("", interconnect=0.5, network=0.5, copies=0.5),
    "network": Change("", network=0.5),
}
"""All time on links halved: neither twice their bandwidth nor half their latency brings more."""
WORTH_SAYING = 1.005


def remedies(
    graph: ExecutionGraph,
    costs: Costs,
    step_seconds: float,
    seconds: Callable[[Costs], float],
    on_links: Callable[[str, float], Costs],
    hosted: Callable[[float], float | None],
) -> tuple[Remedy, ...]:
    """Changes that would help, best first. `seconds` runs the graph with other costs; `on_links` costs it with a rate of
    links times a factor, by its name in `Cluster.scaled`; `hosted` is the step with hosts that take so many times
    as long, None where only launches do."""
    tried = []

    def under(change: Change) -> float:
        """The step under a change, run again only where the change touches something."""
        other = changed(graph, costs, change)
        is_same = np.array_equal(other.seconds, costs.seconds)
        if is_same and np.array_equal(other.volume, costs.volume):
            return step_seconds
        return seconds(other)

    for change in CHANGES:
        exact = hosted(change.host) if change.host != 1.0 else None
        plain = under(change) if exact is None else exact
        tried.append((change.text, plain))
    for links, halved in BOUNDS.items():
        bound = under(halved)
        if step_seconds / bound < WORTH_SAYING:
            continue
        wider = seconds(on_links(links, 2.0))
        tried.append((f"twice the {links} bandwidth", wider))
        if wider / bound >= WORTH_SAYING:  # what bandwidth leaves is latency
            quicker = seconds(on_links(f"{links}_latency", 0.5))
            tried.append((f"half the {links} latency", quicker))
    worth = [
        Remedy(text, s, step_seconds / s) for text, s in tried if step_seconds / s >= WORTH_SAYING
    ]
    return tuple(sorted(worth, key=lambda r: r.step_seconds))


def changed(graph: ExecutionGraph, costs: Costs, change: Change) -> Costs:
    """Costs under a change. Latency counts with the link it belongs to."""
    kind = graph.task_kind
    seconds = costs.seconds.copy()
    factors = {COMPUTE: change.compute, INTERCONNECT: change.interconnect, NETWORK: change.network}
    chains = kind == CHAIN
    rows = costs.alike[chains]
    for column, share in factors.items():
        if share != 1.0:
            seconds[chains] += (share - 1.0) * costs.breakdown[rows, column]
    seconds[(kind == LAUNCH) | (kind == LAUNCH_REST)] *= change.host
    seconds[kind == COPY] *= change.copies
    flows = costs.route >= 0
    factor = np.where(costs.is_network, change.network, change.interconnect)
    seconds = np.where(flows, seconds * factor, seconds)
    volume = np.where(flows, costs.volume * factor, costs.volume)
    return replace(costs, seconds=np.maximum(seconds, 0.0), volume=volume)
