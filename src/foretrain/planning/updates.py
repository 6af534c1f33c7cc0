"""The optimizer's part of a step, for many plans at once."""

from __future__ import annotations

import numpy as np

from foretrain.arrays import Floats
from foretrain.cost.compute.device_variation import latest
from foretrain.planning.curves import Curve
from foretrain.planning.fleet import KINDS, Fleet


def update(f: Fleet, seconds_of: Curve) -> Floats:
    """[plans, stages] seconds of the optimizer. `seconds_of`: by the bytes an update moves."""
    task, runtime = f.task, f.task.runtime
    optimizer, precision = task.workload.optimizer, task.workload.precision
    gradient_bytes = runtime.gradient_bytes or precision.gradient_bytes
    out = np.zeros((len(f.choices), f.stages))
    if not optimizer.has_update:
        return out
    owned, buffer = np.zeros_like(out), np.zeros_like(out)
    for kind in KINDS:
        owned += f.by_stage(f.elements("touched", kind)) / f.parts_of(kind, 1)[:, None]
        held = f.by_stage(f.elements("trained", kind))
        buffer += held / f.parts_of(kind, 2)[:, None] * gradient_bytes
    traffic = owned * optimizer.update_bytes(1.0, precision) * runtime.update_passes
    if runtime.gradient_bytes is not None and runtime.adds_gradients:
        traffic += owned * (gradient_bytes - precision.gradient_bytes)
        traffic += buffer * (4.0 if runtime.clips_gradients else 1.0)
    seconds = seconds_of(traffic)
    offloads = np.array(["optimizer" in o for o in f.choices.palette.offload])
    if offloads.any():
        moved = owned * (gradient_bytes + precision.weight_bytes)
        away = _offloaded(f, moved, traffic)
        seconds = np.where(offloads[f.choices.offload][:, None], away, seconds)
    return np.asarray(seconds + _launches(f) + _copies(f, gradient_bytes, seconds_of))


def _offloaded(f: Fleet, moved: Floats, traffic: Floats) -> Floats:
    """Gradients out, the update in host memory, weights back."""
    node, device = f.task.cluster.node(0), f.task.cluster.devices[0]
    rate = node.host.memory_bandwidth or device.pcie_bandwidth
    return np.asarray(moved / device.pcie_bandwidth + traffic * node.device_count / rate)


def _launches(f: Fleet) -> Floats:
    """Kernels per tensor that hosts issue while devices wait, and delays of the slowest host."""
    runtime, workload = f.task.runtime, f.task.workload
    if not runtime.kernels_per_tensor and not runtime.jitter_seconds:
        return np.zeros((len(f.choices), f.stages))
    kept = max(1.0, workload.optimizer.memory_bytes(1.0, workload.precision) / 4.0)
    tensors = f.by_stage(f.layers.tensors) * kept
    issued = tensors * runtime.kernels_per_tensor * runtime.host_seconds_per_kernel
    return np.asarray(issued + runtime.jitter_seconds * latest(f.task.devices))


def _copies(f: Fleet, gradient_bytes: float, seconds_of: Curve) -> Floats:
    """Each owner's part of each gathered weight to its place, as `compile/passes/pipeline.py` counts them."""
    out = np.zeros((len(f.choices), f.stages))
    if not f.task.runtime.copies_gathered:
        return out
    each = 6.0 * f.task.workload.precision.weight_bytes + 4.0 * gradient_bytes
    held = sum(f.by_stage(f.elements("trained", kind)) for kind in KINDS)
    pieces = f.parts_of(0, 1)[:, None]
    count = f.by_stage(f.layers.tensors) * pieces
    found = seconds_of(held * each / np.maximum(count, 1.0)) * count
    return np.asarray(np.where(pieces > 1, found, out))
