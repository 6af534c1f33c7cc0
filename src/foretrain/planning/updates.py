"""The optimizer's part of a step, for many plans at once: kernels and copies of `compile.model_states`, costed as those
of the simulator are."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from foretrain.arrays import Floats
from foretrain.compile.model_states import Weights
from foretrain.cost.items import copy_rate, kernel_costs
from foretrain.model.ops.base import LAUNCHES, Kernel
from foretrain.planning.plan_batch import PlanBatch


def update(f: PlanBatch) -> Floats:
    """[plans, stages] seconds of the optimizer."""
    states = f.task.states
    none = np.zeros((len(f.choices), f.stages))
    groups = [f.weights_of(kind) for kind in f.kinds_held]
    trained = np.asarray(sum((w.trained for w in groups), none)) > 0
    if not f.task.workload.optimizer.has_update or not trained.any():
        return none
    flops, traffic = states.update_flops(groups) + none, states.update_traffic(groups) + none
    seconds = _kernels(f, "memory", traffic, flops)
    if f.is_offloaded.any():
        seconds = np.where(f.is_offloaded, _offloaded(f, groups), seconds)
    return np.asarray(np.where(trained, seconds + _launches(f) + _copies(f), 0.0))


def _kernels(f: PlanBatch, kind: str, amount: Floats, flops: Floats | None = None) -> Floats:
    """[plans, stages] seconds of a kernel of so many bytes, or for so many tensors, on the slowest device of a stage."""
    pairs = amount + 1j * (np.zeros_like(amount) if flops is None else flops)
    distinct, of = np.unique(pairs.reshape(-1), return_inverse=True)
    amounts = zip(distinct.real.tolist(), distinct.imag.tolist(), strict=True)
    if kind == LAUNCHES:
        kernels = [Kernel(kind, "update", 0.0, 0.0, "fp32", (int(n),)) for n, _ in amounts]
    else:
        kernels = [Kernel(kind, "update", w, n, "fp32") for n, w in amounts]
    kinds = range(len(f.task.cluster.devices))
    each = [kernel_costs(kernels, device, f.task.around).seconds[of.ravel()] for device in kinds]
    by_stage = np.stack(each, axis=-1).reshape(*amount.shape, len(kinds))
    return np.asarray(np.where(f.kinds[None], by_stage, 0.0).max(axis=2))


def _offloaded(f: PlanBatch, groups: Sequence[Weights]) -> Floats:
    """Gradients out, the update in host memory, weights back, where that takes longest on each stage."""
    amounts = [np.asarray(amount) for amount in f.task.states.offloaded(groups)]
    ways = ("to_host", "host_memory", "to_device")
    found = np.zeros((len(f.choices), f.stages))
    for stages, hosts in f.hosts_by_stages():
        for device, node in hosts:
            rates = [copy_rate(device, node, way) for way in ways]
            each = sum(a[:, stages] / rate for a, rate in zip(amounts, rates, strict=True))
            found[:, stages] = np.maximum(found[:, stages], each)
    return found


def _launches(f: PlanBatch) -> Floats:
    """Kernels per tensor that hosts issue while devices wait, and delays of the slowest host."""
    if not f.task.states.waits_for_hosts:
        return np.zeros((len(f.choices), f.stages))
    tensors = sum(f.stage_weights("tensors", kind) for kind in f.kinds_held)
    return _kernels(f, LAUNCHES, np.asarray(f.task.states.tensors_issued(tensors)))


def _copies(f: PlanBatch) -> Floats:
    """Copies of each owner's shard of each gathered weight to its place, all of the mean size."""
    each = f.task.states.copied_bytes
    count, moved = (np.zeros((len(f.choices), f.stages)) for _ in range(2))
    for kind in f.kinds_held if each else ():
        pieces = f.parts_of(kind, 1)[:, None]
        count += np.where(pieces > 1, f.stage_weights("ready", kind) * pieces, 0.0)
        moved += np.where(pieces > 1, f.stage_weights("trained", kind) * each, 0.0)
    if not count.any():
        return count
    return _kernels(f, "memory", moved / np.maximum(count, 1.0)) * count
