"""What the events of a trace are: work, communication, copies, waiting for data, the update, and whose step."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from foretrain.adapters.read.collective_calls import NAMES, POINT_TO_POINT, Call
from foretrain.adapters.read.kineto import COPY, KERNEL, MARK, OP, RUNTIME, Trace
from foretrain.arrays import Bools, Floats, Ints
from foretrain.errors import FileError

STEP = re.compile(r"ProfilerStep#(\d{1,9})$")
OPTIMIZER = "Optimizer.step#"
LOADER = ("enumerate(DataLoader)", "[pl][profile][_TrainingEpochLoop].train_dataloader_next")
HOST_COLLECTIVE = ("gloo:", "mpi:", "ucc:")
# Kernels of communication libraries, in lower case.
DEVICE_COLLECTIVE = (
    "nccl", "rccl", "msccl", "cross_device_reduce", "multimem_all", "one_shot_all_reduce",
    "two_shot_all_reduce", "nvshmem", "deep_ep",
)  # fmt: skip
ISSUES_COLLECTIVE = ("c10d::", "record_param_comms", "c10d_functional::", "_c10d_functional::")
# In the order they are looked for in the name of a kernel.
IN_KERNEL_NAMES = (
    ("allreduce", "all_reduce"), ("all_reduce", "all_reduce"), ("allgather", "all_gather"),
    ("reducescatter", "reduce_scatter"), ("alltoall", "all_to_all"), ("sendrecv", "recv"),
    ("broadcast", "broadcast"), ("reduce", "all_reduce"),
)  # fmt: skip
WIDTH = {"float": 4, "double": 8, "c10::Half": 2, "c10::BFloat16": 2, "int": 4, "long int": 8}


@dataclass(frozen=True, eq=False, slots=True)
class TraceParts:
    """Index columns into a trace, and its steps."""

    trace: Trace
    on_device: bool  # kernels were recorded; else the CPU is the device
    work: Ints  # kernels or operators that compute
    update: Bools  # of work: part of the optimizer's step
    exchange: Ints  # communication
    calls: tuple[Call, ...]  # of each exchange
    copies: Ints  # between host and device
    loading: Ints  # marks: the host waits for the next batch
    steps: tuple[int, ...]  # numbers, as the profiler counted
    edges: Floats  # len(steps) + 1
    exchange_step: Ints  # position in steps; -1: outside
    warnings: tuple[str, ...]


def parts(trace: Trace, steps: int | None = None) -> TraceParts:
    """`steps`: how many steps the trace holds, where the profiler marked none."""
    device, warnings = _device(trace)
    on_device = len(device) > 0
    marks = trace.kind == MARK
    if on_device:
        exchange = device[_is_exchange(trace)[device]]
        rest = np.setdiff1d(device, exchange, assume_unique=True)
        copies = rest[_is_host_copy(trace)[rest]]
        work = np.setdiff1d(rest, copies, assume_unique=True)
    else:
        exchange = np.flatnonzero(
            marks & trace.named(lambda name: name.startswith(HOST_COLLECTIVE))
        )
        work = _host_work(trace, exchange)
        copies = np.zeros(0, dtype=np.int64)
    issued = _issued(trace)
    numbers, edges, begun, step_warnings = _steps(trace, device, issued, steps)
    updates = np.flatnonzero(marks & trace.named(lambda name: name.startswith(OPTIMIZER)))
    moment = issued[exchange] if on_device else trace.start[exchange]
    step = np.searchsorted(begun, moment, side="right") - 1
    return TraceParts(
        trace=trace,
        on_device=on_device,
        work=work,
        update=inside(issued[work], trace.start[updates], trace.end[updates]),
        exchange=exchange,
        calls=tuple(_call(trace, event) for event in exchange.tolist()),
        copies=copies,
        loading=np.flatnonzero(marks & trace.named(lambda name: name.startswith(LOADER))),
        steps=numbers,
        edges=edges,
        exchange_step=step,
        warnings=(*warnings, *step_warnings),
    )


def _device(trace: Trace) -> tuple[Ints, tuple[str, ...]]:
    """Work of the busiest device of the trace."""
    events = np.flatnonzero((trace.kind == KERNEL) | (trace.kind == COPY))
    if not len(events):
        return events, ()
    owner = np.array([pid for pid, _ in trace.lanes])[trace.lane[events]]
    names, which = np.unique(owner, return_inverse=True)
    if len(names) == 1:
        return events, ()
    busy = np.bincount(which, trace.seconds[events])
    warning = f"work of {len(names)} devices was recorded; using the busiest"
    return events[which == int(busy.argmax())], (warning,)


def _is_exchange(trace: Trace) -> Bools:
    by_name = trace.named(lambda name: any(word in name.lower() for word in DEVICE_COLLECTIVE))
    is_exchange: Bools = (trace.kind == KERNEL) & (by_name | (trace.call >= 0))
    return is_exchange


def _is_host_copy(trace: Trace) -> Bools:
    """Copies that cross the link to the host or to a peer; those inside the device are work."""
    crosses = trace.named(lambda name: "DtoD" not in name and "Device -> Device" not in name)
    is_copy: Bools = (trace.kind == COPY) & crosses
    return is_copy


def _host_work(trace: Trace, exchange: Ints) -> Ints:
    """Operators, but for those that only issue communication and those on its threads."""
    aside = np.unique(trace.lane[exchange])
    is_issue = trace.named(lambda name: name.startswith(ISSUES_COLLECTIVE))
    return np.flatnonzero((trace.kind == OP) & ~is_issue & ~np.isin(trace.lane, aside))


def _issued(trace: Trace) -> Floats:
    """When the host issued each event: the driver call of device work, else its operator, else its own start."""
    issued = trace.start.copy()
    device = np.flatnonzero((trace.kind == KERNEL) | (trace.kind == COPY))
    for kind, ids in ((OP, trace.external), (RUNTIME, trace.correlation)):
        source = np.flatnonzero((trace.kind == kind) & (ids >= 0))
        if not len(source) or not len(device):
            continue
        order = source[np.argsort(ids[source], kind="stable")]
        at = np.minimum(np.searchsorted(ids[order], ids[device]), len(order) - 1)
        hit = ids[order[at]] == ids[device]
        issued[device[hit]] = trace.start[order[at[hit]]]
    return issued


def _steps(
    trace: Trace, device: Ints, issued: Floats, wanted: int | None
) -> tuple[tuple[int, ...], Floats, Floats, tuple[str, ...]]:
    """(numbers, edges between steps on the device, when the host began each, warnings)."""
    marks = _step_marks(trace)
    if not marks:
        count = 1 if wanted is None else wanted
        low, high = _span(trace, device)
        edges = np.linspace(low, high, count + 1)
        said = "no ProfilerStep markers (prof.step()): the whole trace is "
        said += "treated as one step" if count == 1 else f"cut into {count} equal steps"
        return tuple(range(count)), _long_enough(trace, edges), edges[:-1], (said,)
    begun = np.array([trace.start[event] for _, event in marks])
    ended = float(trace.end[marks[-1][1]])
    numbers = tuple(number for number, _ in marks)
    if not len(device):
        return numbers, _long_enough(trace, np.append(begun, ended)), begun, ()
    edges = _device_edges(trace, device, issued[device], begun, ended)
    return numbers, _long_enough(trace, edges), begun, ()


def _device_edges(
    trace: Trace, device: Ints, issued: Floats, begun: Floats, ended: float
) -> Floats:
    """A step lasts from its first work on the device to that of the next: the host may be far ahead."""
    step = np.searchsorted(begun, issued, side="right") - 1
    step[issued > ended] = -1
    first = np.full(len(begun), np.inf)
    own = step >= 0
    np.minimum.at(first, step[own], trace.start[device[own]])
    edges = np.where(np.isfinite(first), first, begun)
    is_behind = bool((trace.end[device[~own & (issued < begun[0])]] > begun[0]).any())
    if not is_behind:
        edges[0] = min(edges[0], begun[0])
    last = float(np.max(trace.end[device[own]], initial=ended))
    return np.append(np.maximum.accumulate(edges), max(last, float(edges.max())))


def _step_marks(trace: Trace) -> list[tuple[int, int]]:
    """(number, event) of each step, in order; a number that comes twice counts once."""
    marks: dict[int, int] = {}
    is_step = trace.named(lambda name: STEP.match(name) is not None)
    for event in np.flatnonzero((trace.kind == MARK) & is_step).tolist():
        match = STEP.match(trace.names[trace.name[event]])
        if match is not None:
            marks.setdefault(int(match[1]), event)
    return sorted(marks.items(), key=lambda row: row[1])


def _span(trace: Trace, device: Ints) -> tuple[float, float]:
    events = device if len(device) else np.flatnonzero(trace.kind == OP)
    if not len(events):
        events = np.arange(len(trace.start))
    return float(trace.start[events].min()), float(trace.end[events].max())


def _long_enough(trace: Trace, edges: Floats) -> Floats:
    if not edges[-1] > edges[0]:
        raise FileError(f"{trace.path}: its steps have zero duration.")
    return edges


def _call(trace: Trace, event: int) -> Call:
    """As the trace tells it, else as far as the name of the kernel and recorded shapes do."""
    number = int(trace.call[event])
    if number >= 0:
        return trace.calls[number]
    name = trace.names[trace.name[event]].lower()
    world = trace.world or 0
    host = name.partition(":")[2] if name.startswith(HOST_COLLECTIVE) else None
    if host is not None:
        return Call(NAMES.get(host, host), _shape_bytes(trace, event), world, "", ())
    names = (ours for word, ours in IN_KERNEL_NAMES if word in name)
    return Call(next(names, "collective"), 0.0, 0, "", ())


def _shape_bytes(trace: Trace, event: int) -> float:
    """Bytes of the recorded inputs."""
    if trace.shape[event] < 0:
        return 0.0
    try:
        dims, types = (json.loads(text) for text in trace.shapes[trace.shape[event]])
        pairs = zip(dims, types, strict=True)
        return float(sum(WIDTH.get(kind, 0) * math.prod(one, start=1.0) for one, kind in pairs))
    except (ValueError, TypeError, OverflowError):
        return 0.0


def is_point_to_point(call: Call) -> bool:
    return call.collective in POINT_TO_POINT


# --- time on a line: which of several causes covers each moment, the first in order counting ------------


@dataclass(frozen=True, eq=False, slots=True)
class TraceLayer:
    """Intervals, in any order and overlapping at will, that count as one cause."""

    cause: int
    start: Floats
    end: Floats


def shares(edges: Floats, layers: Sequence[TraceLayer], rest: int, causes: int) -> Floats:
    """[windows, causes]: seconds of each window between `edges` by the first layer that covers them, else `rest`."""
    low, high = float(edges[0]), float(edges[-1])
    clipped = [(np.clip(one.start, low, high), np.clip(one.end, low, high)) for one in layers]
    points = np.unique(np.concatenate([edges, *(side for pair in clipped for side in pair)]))
    label = np.full(len(points) - 1, rest, dtype=np.int64)
    is_open = np.ones(len(points) - 1, dtype=np.bool_)
    for layer, (start, end) in zip(layers, clipped, strict=True):
        covered = _covered(points, start, end) & is_open
        label[covered] = layer.cause
        is_open &= ~covered
    window = np.searchsorted(edges, points[:-1], side="right") - 1
    flat = np.bincount(
        window * causes + label, np.diff(points), minlength=(len(edges) - 1) * causes
    )
    return flat.reshape(len(edges) - 1, causes).astype(np.float64)


def _covered(points: Floats, start: Floats, end: Floats) -> Bools:
    """Whether any interval covers each stretch between two points; all ends are points."""
    count = len(points)
    opened = np.bincount(np.searchsorted(points, start), minlength=count)
    closed = np.bincount(np.searchsorted(points, end), minlength=count)
    covered: Bools = np.cumsum(opened - closed)[:-1] > 0
    return covered


def inside(moments: Floats, start: Floats, end: Floats) -> Bools:
    """Whether each moment lies in one of the intervals, ends counting as outside."""
    if not len(start):
        return np.zeros(len(moments), dtype=np.bool_)
    opened = np.searchsorted(np.sort(start), moments, side="right")
    closed = np.searchsorted(np.sort(end), moments, side="right")
    within: Bools = opened > closed
    return within
