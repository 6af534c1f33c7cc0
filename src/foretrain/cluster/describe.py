"""A cluster in a few lines for people."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from foretrain.cluster.topology import device_rate
from foretrain.units import counted, show_bandwidth, show_bytes

if TYPE_CHECKING:
    from foretrain.cluster.cluster import Cluster, NodeRun
    from foretrain.cluster.node import Node


def described(cluster: Cluster) -> str:
    devices = counted(cluster.device_count, "device")
    lines = [f"{cluster.name}: {devices} in {counted(cluster.node_count, 'node')}"]
    lines += [line for run in cluster.runs for line in _run_lines(run)]
    if cluster.node_count > 1:
        lines.append(f"network: {cluster.network.kind}, {_shape(cluster)}")
    lines.append(_money(cluster))
    return "\n".join(lines)


def _shape(cluster: Cluster) -> str:
    network = cluster.network
    given = [f"{key}={_value(value)}" for key, value in network.parameters]
    if network.routing is not None:
        given.append(f"routing={network.routing}")
    return network.topology + (f"({', '.join(given)})" if given else "")


def _value(value: object) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(_value(one) for one in value)}]"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _run_lines(run: NodeRun) -> list[str]:
    node = run.node
    use = (
        "" if run.used == node.device_count else f", {run.used} of {node.device_count} devices used"
    )
    lines = [f"  {run.count} x {node.title} ({node.name}){use}"]
    for device, same in groupby(node.devices):
        peaks = ", ".join(f"{dtype} {rate / 1e12:,.4g}" for dtype, rate in device.peak_flops)
        lines.append(
            f"    {len(list(same))} x {device.title}: {show_bytes(device.memory_bytes)}, "
            f"{show_bandwidth(device.memory_bandwidth)}, TFLOP/s {peaks}"
        )
    lines.append(f"    interconnect: {node.interconnect.kind}{_port(node)}")
    if node.nics is not None:
        lines.append(
            f"    NICs: {node.nics.count} x {node.nics.bandwidth * 8 / 1e9:,.4g} Gb/s "
            f"{node.nics.kind}"
        )
    return lines


def _port(node: Node) -> str:
    rate = device_rate(node.interconnect, node.devices[0])
    return f", {show_bandwidth(rate)} each way per device" if rate and node.device_count > 1 else ""


def _money(cluster: Cluster) -> str:
    price = cluster.usd_per_hour
    if price is None:
        return "price: unknown"
    return f"price: ${price:,.2f} per hour ({cluster.price_date})"
