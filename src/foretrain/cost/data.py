"""Seconds of reading and preparing one device's training samples on its host."""

from __future__ import annotations

from foretrain.cluster.node import Host
from foretrain.compile.execution import Load
from foretrain.errors import Bug
from foretrain.model.workload import DataSource


def load_seconds(load: Load, source: DataSource, host: Host, devices: int = 1) -> float:
    """Fetching moves bytes, preparing takes CPU time (Mohan et al. VLDB 2021).

    `load.samples` are those of one device. The node's `devices` load at the same time and share its disk
    and cores; a host that does not state them does not bound the loading.
    """
    match load.kind:
        case "fetch":
            if host.storage_bandwidth is None:
                return 0.0
            return load.samples * source.bytes_per_sample * devices / host.storage_bandwidth
        case "prep":
            return (
                load.samples * source.prep_seconds_per_sample / _busy_cores(source, host, devices)
            )
    raise Bug(f"unknown kind of load {load.kind!r}.")


def _busy_cores(source: DataSource, host: Host, devices: int) -> float:
    """Workers of one device, as far as there are cores for all of them."""
    if host.cpu_cores is None:
        return float(source.workers)
    return min(float(source.workers), host.cpu_cores / devices)
