"""What a plan does where the cluster, or a prediction of memory, is worse than was thought."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from foretrain.analysis.prediction import Memory
from foretrain.cluster.cluster import Cluster
from foretrain.cluster.stragglers import with_stragglers
from foretrain.simulate import Simulation, simulate_scenario

SLOWER = 0.1
"""By so much the network and one device are slower. Jiang et al. 2024 (MegaScale, arXiv 2402.15627, section 5.1): some 0.5 % of
machines take about 10 % longer for the same forward pass; for the network the same share is taken."""
MORE_MEMORY = 0.05
"""By so much the peak is higher: less than one standard deviation of any runtime's (`memory` in
`cost/calibration/uncertainty.yaml`)."""


@dataclass(frozen=True, slots=True)
class Robustness:
    """Steps of a plan on clusters that are worse in one thing, each simulated, and whether it fits with a higher peak."""

    slower_network_seconds: float  # every link between nodes with 10 % less bandwidth
    straggler_seconds: float  # one device of the busiest rank class 10 % slower
    fits_with_more_memory: bool  # a peak 5 % higher
    fits_probability: float

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def robustness(found: Simulation) -> Robustness:
    cluster, held = found.scenario.cluster, found.memory
    slow = with_stragglers(cluster, {_busiest(found): 1.0 + SLOWER})
    return Robustness(
        slower_network_seconds=_step_on(found, cluster.scaled(network=1.0 - SLOWER)),
        straggler_seconds=_step_on(found, slow),
        fits_with_more_memory=has_room(held),
        fits_probability=held.fits_probability,
    )


def has_room(held: Memory) -> bool:
    """Whether a plan fits with more than it is predicted to need."""
    return held.peak_bytes * (1.0 + MORE_MEMORY) <= held.usable_bytes


def _busiest(found: Simulation) -> int:
    """A rank of the class whose kernels take longest: what waits for it waits longest where it is slow."""
    task, owner = found.graph.chains
    fold = found.graph.fold
    on_device = found.costs.seconds[task] * (found.costs.route[task] < 0)
    return int(fold.examples[int(np.argmax(np.bincount(owner, on_device, fold.classes)))])


def _step_on(found: Simulation, cluster: Cluster) -> float:
    return simulate_scenario(
        replace(found.scenario, cluster=cluster), compute=found.compute
    ).step_seconds
