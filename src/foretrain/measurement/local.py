"""The machine at hand as a cluster: `local` is one process on it, `2 x local` two that share its cores."""

from __future__ import annotations

import re
from pathlib import Path

from foretrain.cluster import catalog
from foretrain.cluster.cluster import Cluster, NodeRun
from foretrain.cluster.device import Device
from foretrain.cluster.link import ClusterNetwork, Interconnect
from foretrain.cluster.node import Host, Node
from foretrain.errors import InputError
from foretrain.measurement.calibration import Calibration
from foretrain.measurement.compute import measured_device
from foretrain.measurement.fitting import calibrate
from foretrain.measurement.link_curves import wire
from foretrain.measurement.machine import GIB, Machine
from foretrain.measurement.store import Store
from foretrain.measurement.tables import LOCAL
from foretrain.units import counted

MOST_PROCESSES = 1024
_LOCAL = re.compile(r"\s*(?:(\d{1,6})\s*[x×*]\s*)?local\s*")


def local_processes(spec: object) -> int | None:
    """How many processes `local` or `4 x local` asks for; None where it asks for something else."""
    match = _LOCAL.fullmatch(spec) if isinstance(spec, str) else None
    return None if match is None else int(match[1] or 1)


def resolved(on: str, file: str | Path | None = None) -> tuple[str | Cluster, Calibration]:
    """What a question runs on and the calibration it is answered with: that of a file, or for `local` without one
    what the store knows of this machine."""
    processes = local_processes(on)
    if file is not None:
        calibration = Calibration.load(file)
    else:
        with Store.open(must_exist=True) as store:
            calibration = calibrate(store, Machine.here(), processes=processes or 1)
    return on if processes is None else local_cluster(calibration, processes), calibration


def local_cluster(calibration: Calibration, processes: int = 1) -> Cluster:
    """So many processes on the machine of a calibration. On CPUs they share cores and memory: more threads than
    cores slow each other down alike, as flows on a link do."""
    if not 1 <= processes <= MOST_PROCESSES:
        raise InputError(f"{processes} processes on one machine; must be 1 to {MOST_PROCESSES}.")
    machine, device = Machine.from_dict(calibration.machine), measured_device(calibration)
    if calibration.device == LOCAL:
        share = _share(calibration, processes) / _share(calibration, calibration.processes)
        device = device.scaled(compute=share, memory_bandwidth=share, memory=1.0 / processes)
    elif processes > len(machine.devices):
        raise InputError(
            "The calibration is of a machine with "
            f"{counted(len(machine.devices), 'device')}; {processes} requested."
        )
    node = Node(
        name=LOCAL,
        title=machine.title,
        devices=(device,) * processes,
        interconnect=_interconnect(calibration, device),
        nics=None,
        host=Host(
            cpu_cores=float(machine.cores),
            memory_bytes=float(max(machine.memory_gib, 1) * GIB),
            memory_bandwidth=measured_device(calibration).memory_bandwidth,
            storage_bandwidth=calibration.data.fetch_cold,
        ),
        source=f"measured: {calibration.name}",
    )
    name = LOCAL if processes == 1 else f"{processes} x {LOCAL}"
    return Cluster(name, (NodeRun(node, 1, processes),), ClusterNetwork("none"))


def _share(calibration: Calibration, processes: int) -> float:
    """Of the speed of a process that has the machine to itself, what each of several gets."""
    cores = Machine.from_dict(calibration.machine).cores
    return min(1.0, cores / (processes * (calibration.threads or 1)))


def _interconnect(calibration: Calibration, device: Device) -> Interconnect:
    """What processes talk over. Where it was not measured, a copy through memory stands in: read and written."""
    if calibration.device != LOCAL:
        return catalog.standard_node(device).interconnect
    latency, bandwidth = wire(calibration.links, 1) or (0.0, device.memory_bandwidth / 2.0)
    return Interconnect("loopback", "nvswitch", latency, bandwidth)
