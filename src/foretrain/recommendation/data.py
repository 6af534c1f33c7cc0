"""Samples: how long a step waits for them while the data is cold, and once it is warm.

In the first epoch every sample is read from storage. Later ones read from memory where a machine's page cache holds
all it will be asked for; where it does not, an order that changes every epoch makes the cache useless and all epochs
are cold (Mohan et al., VLDB 2021). A loader works ahead, so a step takes as long as the slowest of computing,
preparing and fetching, not their sum.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from foretrain.cluster.node import Node
from foretrain.compile.execution import Load
from foretrain.cost.items import load_seconds
from foretrain.model.workload import DataSource
from foretrain.recommendation.job import Dataset, figure


@dataclass(frozen=True, slots=True)
class DataLoading:
    """Seconds of a step that loading takes on every machine, beside computing."""

    prep: float
    fetch: float
    is_cached: bool  # after the first epoch

    def seconds(self, step: float, *, is_cold: bool) -> float:
        """A step that would take `step` seconds if samples were there."""
        return max(step, self.prep, self.fetch if is_cold else 0.0)

    def scaled(self, factor: float) -> DataLoading:
        """Loading is known no better than the step."""
        return replace(self, prep=self.prep * factor, fetch=self.fetch * factor)


NOTHING = DataLoading(0.0, 0.0, True)


def feeding(
    data: Dataset | None, node: Node, count: int, batch: int, storage: float | None = None
) -> DataLoading:
    """What loading takes where `count` machines share a batch. `storage`: bytes/s a machine reads, if told."""
    if data is None:
        return NOTHING
    rate = storage or node.host.storage_bandwidth or figure("storage", "bytes_per_second")
    host = replace(node.host, storage_bandwidth=rate)
    devices = node.device_count
    each = batch / (count * devices)
    workers = data.workers or max(1, int((host.cpu_cores or devices) / devices) or 1)
    source = DataSource(data.bytes_per_sample, data.prep_seconds, workers)
    return DataLoading(
        prep=load_seconds(Load(each, "prep"), source, host, devices),
        fetch=load_seconds(Load(each, "fetch"), source, host, devices),
        is_cached=fits_in_memory(data, node, count),
    )


def fits_in_memory(data: Dataset, node: Node, count: int) -> bool:
    """Whether a machine's memory holds what it reads over all epochs: everything, or its own shard."""
    if data.bytes is None or node.host.memory_bytes is None:
        return False
    needed = data.bytes / count if data.is_sharded else data.bytes
    return needed <= node.host.memory_bytes * figure("memory_for_data", "share")


@dataclass(frozen=True, slots=True)
class Epochs:
    """Steps of a job by how warm the data is, and what one takes."""

    cold_steps: float
    warm_steps: float
    cold_seconds: float  # of a step
    warm_seconds: float

    @property
    def seconds(self) -> float:
        return self.cold_steps * self.cold_seconds + self.warm_steps * self.warm_seconds

    @property
    def step_seconds(self) -> float:
        """On average over the job."""
        return self.seconds / (self.cold_steps + self.warm_steps)


def epochs(feed: DataLoading, step: float, steps: float, per_epoch: float | None) -> Epochs:
    """`per_epoch`: steps of an epoch; None where data is read once."""
    cold = min(steps, per_epoch) if feed.is_cached and per_epoch is not None else steps
    return Epochs(
        cold_steps=cold,
        warm_steps=steps - cold,
        cold_seconds=feed.seconds(step, is_cold=True),
        warm_seconds=feed.seconds(step, is_cold=False),
    )


def with_loading(
    stalls: Mapping[str, float], feed: DataLoading, passed: Epochs, step: float
) -> dict[str, float]:
    """Stalls of a step that computes for `step` seconds, with what it waits for data on average over the job."""
    with_data = dict(stalls)
    prep = max(0.0, feed.prep - step)
    with_data["prep"] = with_data.get("prep", 0.0) + prep
    with_data["fetch"] = with_data.get("fetch", 0.0) + passed.step_seconds - step - prep
    return with_data
