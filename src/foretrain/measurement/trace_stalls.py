"""Where the steps of traces went, in the words of a prediction, adding up to each step exactly.

A moment of the device counts as the first of these that holds: computing, updating, moving data for others, waiting
for others to begin moving (the pipeline's or imbalance), copying, the host waiting for its next batch, the host.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from foretrain.adapters.read.collective_calls import Call
from foretrain.analysis.prediction import STALLS
from foretrain.arrays import Bools, Floats, Ints
from foretrain.measurement.trace_parts import TraceLayer, TraceParts, is_point_to_point, shares

NUMBER = {name: number for number, name in enumerate(STALLS)}


@dataclass(frozen=True, eq=False, slots=True)
class TraceBreakdown:
    """One rank's steps."""

    step_seconds: Floats  # [steps]
    stalls: Floats  # [steps, STALLS]
    communication: Floats  # [steps]: the device was exchanging data, hidden or not
    exposed: Floats  # [steps]: and did nothing else


def waits(ranks: Sequence[TraceParts]) -> tuple[tuple[Floats, ...], tuple[str, ...]]:
    """Seconds at the start of each exchange in which its data did not move yet, and warnings.

    All ranks of a collective end together: the one that came last spends only the transfer in it, and what others
    spend beyond that is waiting. A send or receive is compared with the quickest of the same size instead, since the
    other end is on another stage.
    """
    waited = tuple(_point_to_point(one) for one in ranks)
    odd = 0
    for members in _alike(ranks).values():
        if len(members) < 2:
            continue
        lengths = {len(events) for _, events in members}
        if len(lengths) > 1:
            odd += 1
            continue
        seconds = np.stack([ranks[r].trace.seconds[ranks[r].exchange[i]] for r, i in members])
        for (rank, events), beyond in zip(members, seconds - seconds.min(axis=0), strict=True):
            waited[rank][events] = beyond
    said = f"{odd:,} kinds of collectives were not called equally often on all ranks in a step; "
    return waited, ((said + "waiting in them counts as communication",) if odd else ())


def _point_to_point(one: TraceParts) -> Floats:
    waited = np.zeros(len(one.exchange))
    alike: dict[Call, list[int]] = {}
    for number, call in enumerate(one.calls):
        if is_point_to_point(call):
            alike.setdefault(call, []).append(number)
    for numbers in alike.values():
        seconds = one.trace.seconds[one.exchange[numbers]]
        waited[numbers] = seconds - seconds.min()
    return waited


Member = tuple[int, Ints]


def _alike(ranks: Sequence[TraceParts]) -> dict[tuple[Call, int], list[Member]]:
    """(rank, positions of its exchanges in order) that call the same collective of one group in one step."""
    members: dict[tuple[Call, int], list[Member]] = {}
    for rank, one in enumerate(ranks):
        own: dict[tuple[Call, int], list[int]] = {}
        for number, (call, step) in enumerate(
            zip(one.calls, one.exchange_step.tolist(), strict=True)
        ):
            if step >= 0 and not is_point_to_point(call):
                own.setdefault((call, one.steps[step]), []).append(number)
        for key, numbers in own.items():
            members.setdefault(key, []).append((rank, np.array(numbers, dtype=np.int64)))
    return members


def breakdown(one: TraceParts, wait: Floats, is_network: Bools) -> TraceBreakdown:
    """`wait` and `is_network` are of each exchange."""
    trace = one.trace
    begin, end = trace.start[one.exchange], trace.end[one.exchange]
    moves = begin + wait
    paired = np.array([is_point_to_point(call) for call in one.calls], dtype=np.bool_)
    exchanges = [
        TraceLayer(NUMBER["network"], moves[is_network], end[is_network]),
        TraceLayer(NUMBER["interconnect"], moves[~is_network], end[~is_network]),
        TraceLayer(NUMBER["bubble"], begin[paired], moves[paired]),
        TraceLayer(NUMBER["imbalance"], begin[~paired], moves[~paired]),
    ]
    work = [
        _layer(one, "compute", one.work[~one.update]),
        _layer(one, "optimizer", one.work[one.update]),
    ]
    data = _layer(one, "prep", one.loading)
    copies = _layer(one, "interconnect", one.copies)
    # On a CPU the operators of preparing a batch run where those of the model do: the mark tells them apart.
    layers = [*work, *exchanges, copies, data] if one.on_device else [data, *work, *exchanges]
    return TraceBreakdown(
        step_seconds=np.diff(one.edges),
        stalls=shares(one.edges, layers, NUMBER["host"], len(STALLS)),
        communication=shares(one.edges, [TraceLayer(1, begin, end)], 0, 2)[:, 1],
        exposed=shares(
            one.edges,
            [*(TraceLayer(0, layer.start, layer.end) for layer in work), TraceLayer(1, begin, end)],
            0,
            2,
        )[:, 1],
    )


def _layer(one: TraceParts, cause: str, events: Ints) -> TraceLayer:
    return TraceLayer(NUMBER[cause], one.trace.start[events], one.trace.end[events])
