"""Other machines for the same plan: more nodes of the kind, or as many of a better one, each with its price."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from foretrain.advice.moves import Move, Place, divisors
from foretrain.cluster.catalog import nodes
from foretrain.cluster.cluster import Cluster, NodeRun
from foretrain.cluster.node import Node
from foretrain.errors import InputError
from foretrain.plan.plan import Plan
from foretrain.resolving.defaults import precision_for
from foretrain.resolving.stack import on_other_devices
from foretrain.runtime import Runtime

MOST_KINDS = 2
"""Kinds of devices that are looked at, those of the same cloud and the cheapest first."""


def machine_moves(at: Place) -> Iterator[Move]:
    """Of clusters of one kind of node, all devices of which take part: for others no text says what is meant."""
    runs = at.scenario.cluster.runs
    if len(runs) > 1 or runs[0].used < runs[0].node.device_count or at.scenario.stragglers:
        return
    if at.scenario.cluster.name != f"{runs[0].count} x {runs[0].node.name}":
        return  # another network, or nodes of the user's own
    yield from _more_nodes(at, runs[0])
    yield from _better_nodes(at, runs[0])


def _more_nodes(at: Place, run: NodeRun) -> Iterator[Move]:
    """Twice as many, with twice the replicas."""
    if not at.scenario.plan.text:
        return
    dp = 2 * (at.words.dp or 1)
    if at.batch % dp:
        return
    cluster = _cluster(2 * run.count, run.node)
    if cluster is None:
        return
    sizes = divisors(at.batch // dp)
    micro = max(n for n in sizes if n <= (at.words.micro or 1))
    words = replace(at.words, dp=dp, micro=None)
    plan = Plan.of(
        words,
        devices=cluster.device_count,
        runtime=at.scenario.runtime,
        defaults=at.task.defaults,
        micro_batch=micro,
    )
    paste = f'--on "{cluster.name}" {at.pasted(plan, micro)}'
    scenario = replace(at.scenario, cluster=cluster, plan=plan)
    yield Move(f"twice the nodes: {cluster.name}", paste, scenario, "machine")


def _better_nodes(at: Place, run: NodeRun) -> Iterator[Move]:
    """The cheapest machine of each kind of device that is better in something that counts and worse in nothing."""
    known: dict[str, Node] = {}
    priced = (node for node in nodes().values() if node.price is not None)
    for node in sorted(priced, key=lambda node: _rent(node, run.node)):
        device = node.devices[0]
        if device.name not in known and _is_better(node, run.node, at):
            known[device.name] = node
    for node in list(known.values())[:MOST_KINDS]:
        cluster = _cluster(run.count, node)
        if cluster is not None:
            yield Move(
                cluster.name,
                f'--on "{cluster.name}"{at.pinned}{_pinned_precision(at, cluster)}',
                replace(at.scenario, cluster=cluster, runtime=_stack(at, cluster)),
                "machine",
            )


def _stack(at: Place, cluster: Cluster) -> Runtime:
    work = at.scenario.workload
    return on_other_devices(at.scenario.runtime, at.scenario.cluster, cluster, work.precision.name)


def _pinned_precision(at: Place, cluster: Cluster) -> str:
    """Other devices have other formats by themselves."""
    name = at.scenario.workload.precision.name
    is_other = at.is_assumed("--precision") and precision_for(cluster.devices) != name
    return f" --precision {name}" if is_other else ""


def _rent(node: Node, than: Node) -> tuple[bool, float]:
    clouds = [one.name.partition(":")[0] for one in (node, than)]
    return clouds[0] != clouds[1], node.price.usd_per_hour if node.price is not None else 0.0


def _is_better(node: Node, than: Node, at: Place) -> bool:
    """As many devices, of one kind, none of which has less memory or a lower rate."""
    if node.device_count != than.device_count or len(set(node.devices)) > 1:
        return False
    new, old = node.devices[0], than.devices[0]
    dtype = at.scenario.workload.precision.matmul
    rates = (new.peak(dtype) or 0.0, old.peak(dtype) or 0.0)
    is_no_worse = new.memory_bytes >= old.memory_bytes and rates[0] >= rates[1]
    return is_no_worse and (new.memory_bytes > old.memory_bytes or rates[0] > rates[1])


def _cluster(count: int, node: Node) -> Cluster | None:
    try:
        return Cluster.of(f"{count} x {node.name}")
    except InputError:
        return None
