"""Every plan that can be said of a small task, by brute force over the words of plans.

Knows nothing of `planning`: what is a plan is decided by the words alone, by the stack's rules and by what the
simulator refuses. Words that say the same of a plan (ZeRO without replicas) are said once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import permutations, product

from foretrain.plan.parallelism import LARGE
from foretrain.plan.schedules import SCHEDULES
from foretrain.plan.short_form import Words
from foretrain.plan.strategy import EXCHANGES
from foretrain.planning.task import Task

RECOMPUTED = ("none", "selective", "full*0.25", "full*0.5", "full*0.75", "full")
"""From the least work to the most; a plan that fits with less is not tried with more."""
OFFLOADED: tuple[tuple[str, ...], ...] = ((), ("optimizer",))
BUCKETS: tuple[float | None, ...] = (None, 5e6, 100e6, 1e9)
AXES = ("tp", "cp", "pp", "dp")


def divisors(count: int) -> list[int]:
    return [n for n in range(1, count + 1) if count % n == 0]


def meshes(task: Task) -> Iterator[Words]:
    """Degrees, micro-batches and sequence parallelism: who holds what."""
    devices, batch = task.devices, task.workload.global_batch
    experts = max((op.size.get("expert", 1) for _, op in task.workload.model.ops()), default=1)
    has_sequence = any("seq" in op.size for _, op in task.workload.model.ops())
    for tp, pp, cp in product(divisors(devices), repeat=3):
        if devices % (tp * pp * cp):
            continue
        dp = devices // (tp * pp * cp)
        for ep, etp in _experts(experts, tp, dp * cp):
            for micro in divisors(batch // dp) if batch % dp == 0 else ():
                for sp in (False, True) if tp > 1 and has_sequence else (False,):
                    yield Words(tp, pp, 1, cp, ep, dp, etp, sp=sp, micro=micro)


def _experts(experts: int, tp: int, replicas: int) -> Iterator[tuple[int, int | None]]:
    yield 1, None
    for ep in divisors(experts)[1:]:
        for etp in dict.fromkeys((1, tp)):
            if replicas * tp // etp % ep == 0:
                yield ep, (etp if tp > 1 else None)


def split(task: Task, mesh: Words) -> Iterator[Words]:
    """Of one mesh: pipelines, ZeRO stages and their groups."""
    for words in _pipelined(task, mesh):
        yield words
        replicas = (words.dp or 1) * words.cp
        for zero in (1, 2, 3) if replicas > 1 else ():
            for shard in (None, *divisors(replicas)[1:-1]):
                yield replace(words, zero=zero, shard=shard)


def _pipelined(task: Task, mesh: Words) -> Iterator[Words]:
    if mesh.pp == 1:
        yield mesh
        return
    most = sum(block.repeat for block in task.workload.model.blocks)
    for name, kind in SCHEDULES.items():
        for vpp in range(1, most // mesh.pp + 1):
            if vpp in kind.chunks:
                yield replace(mesh, schedule=name, vpp=vpp)


def refined(task: Task, words: Words) -> Iterator[Words]:
    """All combinations of the other words: orders of ranks, buckets, exchanges, tables, uneven stages."""
    replicas = (words.dp or 1) * words.cp
    has_tables = any(op.name == LARGE for _, op in task.workload.model.ops())
    every = product(
        _orders(task, words),
        BUCKETS if replicas > 1 else (None,),
        EXCHANGES if words.cp > 1 else ("all-gather",),
        ("replicated", "rows") if has_tables and (words.dp or 1) > 1 else ("replicated",),
        (None, *_layers(task, words)),
    )
    for order, buckets, exchange, tables, layers in every:
        yield replace(
            words, order=order, buckets=buckets, exchange=exchange, tables=tables, layers=layers
        )


def _orders(task: Task, words: Words) -> list[tuple[str, ...] | None]:
    """One for each order in which the axes that are there can stand."""
    found: dict[tuple[str, ...], tuple[str, ...] | None] = {}
    if task.cluster.node_count > 1:
        for order in permutations(AXES):
            present = tuple(axis for axis in order if getattr(words, axis) > 1)
            if len(present) > 1:
                found.setdefault(present, order)
    return [None, *found.values()]


def _layers(task: Task, words: Words) -> Iterator[tuple[int, ...]]:
    """Ways to share out the layers: all of two parts, those near to even of up to four."""
    parts = words.pp * words.vpp
    if parts not in (2, 3, 4):
        return
    blocks = task.workload.model.blocks
    repeated = sum(block.repeat for block in blocks if block.repeat > 1)
    for count in dict.fromkeys((repeated, sum(block.repeat for block in blocks))):
        if parts == 2:
            yield from ((n, count - n) for n in range(1, count))
            continue
        each = count // parts
        for head in product(range(max(1, each - 1), each + 2), repeat=parts - 1):
            if 0 < count - sum(head) <= each + 2:
                yield (*head, count - sum(head))
