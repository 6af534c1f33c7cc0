"""What forward and backward steps of a micro-batch take: kernels, collectives of blocks, weights that are fetched, and
company on their links."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from foretrain.arrays import Bools, Floats, Ints
from foretrain.cost import interference
from foretrain.planning.contention import Contention, StepContention, TimedPlans, beside
from foretrain.planning.hosts import issued
from foretrain.planning.plan_batch import PlanBatch
from foretrain.planning.replicas import INSIDE, NETWORK, WAYS, Replicas
from foretrain.planning.sends import Parts
from foretrain.planning.task import Task

_WORTH_A_LOOK = 0.01
"""Share of the time below which sends that are under way make no difference."""


class Fetched(NamedTuple):
    """[plans, blocks] seconds to gather a block's weights, and those in which links are busy."""

    forward: tuple[Floats, Floats]
    backward: tuple[Floats, Floats]


def lone_steps(t: TimedPlans) -> list[Floats]:
    """[plans, parts] forward, backward and weight-gradient work of a stage alone, as while a pipeline fills."""
    return _run(t, _fetched(t, t.replicas.shares_links))


def crowded_steps(t: TimedPlans, lone: list[Floats]) -> list[Floats]:
    """… with all other stages and what is reduced meanwhile."""
    fetched = _fetched(t, False)
    if t.replicas.shares_links:
        if t.f.task.runtime.sharding.prefetched_blocks < 1:
            fetched = _now_and_then(t, fetched)
        lone = _run(t, fetched)
    parts_of = t.f.pieces.of.T  # [stages, chunks]
    number = _stages_alike(t) if t.moved.any() else np.zeros(t.f.stages, dtype=np.int64)
    first = np.unique(number, return_index=True)[1]
    if len(first) == 1:
        return _run(t, fetched, beside(t, lone, parts_of[0]))
    # every plan as often as there are stages that are not alike
    plans = np.arange(len(t.f.choices)).repeat(len(first))
    mine = np.tile(parts_of[first], (len(t.f.choices), 1))
    all_ = t.take(plans)
    found = _run(all_, _taken(fetched, plans), beside(all_, [part[plans] for part in lone], mine))
    shape, on = (-1, len(first), len(t.f.share)), number[t.f.pieces.stage_of]
    return [part.reshape(shape)[:, on, np.arange(len(on))] for part in found]


def _stages_alike(t: TimedPlans) -> Ints:
    """[stages] equal for those that have the same blocks, on devices alike, and exchange as much."""
    f = t.f
    moving = [*t.flowing, *t.sends.leaving(t.sends.seconds)]
    rows = np.concatenate([f.stage_share, f.kinds, *(f.summed(m).T for m in moving)], axis=1)
    names = [row.tobytes() for row in rows]
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
    return np.array([numbers[name] for name in names], dtype=np.int64)


def steps(t: TimedPlans, work: list[Floats]) -> Parts:
    """… no faster than hosts issue it, and with what stages have to put together before."""
    parts = issued(work, t.f, t.sends, t.puts_off)
    ahead, back = t.sends.arrivals()
    return parts[0] + ahead, parts[1] + back, parts[2]


def have_company(t: TimedPlans, lone: list[Floats]) -> Bools:
    """[plans] gradients of other micro-batches, or sends on a network that collectives of blocks use too."""
    f, layers = t.f, t.f.layers
    found = np.asarray(f.choices.zero >= 2)
    if t.sends.flow.any():
        wires = np.asarray((layers.wire_forward + layers.wire_backward)[..., NETWORK].any(axis=1))
        turn = lone[0].sum(axis=1) + lone[1].sum(axis=1)
        found |= wires[f.rows] & (2.0 * t.sends.flow.sum(axis=1) > _WORTH_A_LOOK * turn)
    return found


def _fetched(t: TimedPlans, is_lone: bool) -> Fetched | None:
    gather = t.of_replicas(t.replicas.gathers(is_lone))
    flow = t.of_replicas(t.replicas.gathers(is_lone, True))
    if gather is None or flow is None:
        return None
    rerun = Replicas(t.f).reruns(is_lone)
    if rerun is None:
        return Fetched((gather, flow), (gather, flow))
    return Fetched((gather, flow), (gather + rerun, flow + rerun))


def _taken(fetched: Fetched | None, rows: Ints) -> Fetched | None:
    if fetched is None:
        return None
    return Fetched(*((seconds[rows], flow[rows]) for seconds, flow in fetched))


def _now_and_then(t: TimedPlans, crowded: Fetched | None) -> Fetched | None:
    """Where nothing is fetched ahead, stages that share links meet there as often as they are not at work: each finds
    the others there for the share of its turn that a gather takes (mean value analysis, Schweitzer 1979)."""
    lone, f = _fetched(t, True), t.f
    if lone is None or crowded is None:
        return None
    link, all_link = (
        ((each.forward[0] + each.backward[0]) @ f.share.T).sum(axis=1) for each in (lone, crowded)
    )
    forward, backward, _ = (f.seconds_by_part(column) for column in _kernels(t))
    work = (forward + backward).sum(axis=1)
    more = all_link - work
    found = (more + np.sqrt(more**2 + 4.0 * link * work)) / 2.0
    met = np.clip((found - link) / np.maximum(all_link - link, 1e-12), 0.0, 1.0)[:, None]
    ahead, back = (
        (a + (b - a) * met, c + (d - c) * met) for (a, c), (b, d) in zip(lone, crowded, strict=True)
    )
    return Fetched(ahead, back)


def _run(
    t: TimedPlans, fetched: Fetched | None, company: StepContention | None = None
) -> list[Floats]:
    """[plans, parts] seconds of forward, backward and weight-gradient work."""
    f = t.f
    forward, backward, weight = _kernels(t)
    later = None
    if t.puts_off.any():  # weight gradients that are put off need no weights
        later = weight * t.puts_off[:, None, None]
        backward = backward - later
        if company is not None:
            later = later * company.later.slows(t.slow)[:, None, None]
    wires = (f.layers.wire_forward, f.layers.wire_backward)
    companies = (None, None) if company is None else company[:2]
    blocks = list(zip((forward, backward), wires, companies, strict=True))
    works = [_block(t, work, None, wire, beside) for work, wire, beside in blocks]
    both, gathers = works, []
    if fetched is not None:
        gathers = [_stretched(t, *each) for each in zip(fetched, companies, strict=True)]
        both = [
            _block(t, work, gather, wire, beside)
            for gather, (work, wire, beside) in zip(gathers, blocks, strict=True)
        ]
    ends = both[1] if later is None else both[1] + later
    parts = [f.seconds_by_part(column) for column in (both[0], ends, weight)]
    copies = copied(f)
    if copies is not None:
        parts[1] += _behind_copies(f, copies, both[1], parts[0])
    if gathers and f.task.runtime.sharding.prefetched_blocks > 0:
        # nothing runs beside the gather of the block a part begins with, none beside the block it ends with
        first, last = np.argmax(f.share > 0, axis=1), f.last_blocks()
        parts[0] += gathers[0][:, first] - (both[0] - works[0]).min(axis=1)[:, last]
        parts[1] += gathers[1][:, last] - (both[1] - works[1]).min(axis=1)[:, first]
        if company is not None and fetched is not None:
            flows = (fetched.forward[1][:, first], fetched.backward[1][:, last])
            for part, flow, sent, beside in zip(parts[:2], flows, _sent_before(t), company[:2], strict=True):  # fmt: skip
                part += _behind_sends(t, flow, sent, beside)
    return parts


def copied(f: PlanBatch) -> Floats | None:
    """[plans, kinds of devices, blocks] seconds to copy what a block saves to host memory, or back, where it leaves."""
    if not f.leaves.any():
        return None
    leaving = np.where(f.leaves[:, None], f.layers.saved[f.rows], 0.0)
    return leaving[:, None, :] / f.copy_rates("to_host")[None, :, None]


def _behind_copies(f: PlanBatch, copies: Floats, backward: Floats, ahead: Floats) -> Floats:
    """[plans, parts] by how much backward work is longer for what comes back from host memory: of every block while the one
    before it is at work. Copies slow each other as long as the last ones are still on their way out."""

    def waited(moving: Floats) -> Floats:
        longer = np.maximum(moving - backward, 0.0)
        # nothing runs beside the copy of the block that a part begins with going back, none beside that it ends with
        first, last = np.argmax(f.share > 0, axis=1), f.last_blocks()
        ends = moving.max(axis=1)[:, last] - longer.max(axis=1)[:, first]
        return np.asarray(f.seconds_by_part(longer) + ends)

    into, out = _between_copies(f.task)
    work = f.seconds_by_part(backward)
    alone, crowded = work + waited(copies), work + waited(copies * into)
    busy = np.minimum(f.seconds_by_part(copies) * into / np.maximum(crowded, 1e-12), 1.0)
    left = np.maximum(f.seconds_by_part(copies) - ahead, 0.0) * (1.0 + (out - 1.0) * busy)
    met = np.minimum(left / np.maximum(crowded, 1e-12), 1.0)
    return np.asarray(met * crowded + (1.0 - met) * alone - work)


def copies_out(f: PlanBatch, ahead: Floats) -> Floats:
    """[plans, parts] seconds in which copies to host memory keep their slot busy, those of a micro-batch."""
    copies = copied(f)
    if copies is None:
        return np.zeros_like(ahead)
    total = f.seconds_by_part(copies)
    _, out = _between_copies(f.task)
    return np.asarray(total + np.maximum(total - ahead, 0.0) * (out - 1.0))


def _between_copies(task: Task) -> tuple[float, float]:
    """Factors on copies from host memory and to it while the other way is busy."""
    if not task.runtime.communication.overlap_slows:
        return 1.0, 1.0
    tables = [interference.factors(device, False) for device in task.cluster.devices]
    into, out = interference.COPY_IN, interference.COPY_OUT
    return max(float(t[into, out]) for t in tables), max(float(t[out, into]) for t in tables)


def _sent_before(t: TimedPlans) -> tuple[Floats, Floats]:
    """[plans, parts] seconds of what the step before a forward step has sent, and before a backward step: those take
    turns, unless phases are apart. Weight gradients that are put off come before forward steps and send nothing."""
    ahead, back = t.sends.leaving(t.sends.flow)
    follows, off = t.follows[:, None], t.puts_off[:, None]
    before_forward = np.where(follows, ahead, np.where(off, 0.0, back))
    return before_forward, np.where(follows, back, ahead)


def _behind_sends(t: TimedPlans, flow: Floats, sent: Floats, beside: Contention) -> Floats:
    """[plans, parts] what the gather that a part begins with takes longer: it starts together with what the step before
    has sent, and shares links with that for as long as the shorter of them takes, more than by chance."""
    if t.replicas.gathers_by != NETWORK:
        return np.zeros_like(flow)
    return np.maximum(np.minimum(flow, sent) - flow * beside.sent[:, None], 0.0)


def _stretched(t: TimedPlans, gather: tuple[Floats, Floats], beside: Contention | None) -> Floats:
    """[plans, blocks] gathers that share links with what is under way beside them."""
    moving, flow = gather
    return moving if beside is None else moving + flow * beside.on(t.replicas.gathers_by)[:, None]


def _kernels(t: TimedPlans) -> Parts:
    """[plans, kinds of devices, blocks] forward, backward and weight-gradient seconds, with the copies that split
    weights need."""
    f, layers = t.f, t.f.layers
    forward, backward, weight = (
        column[f.rows] for column in (layers.forward, layers.backward, layers.weight)
    )
    if not layers.copied.any():
        return forward, backward, weight
    copied = layers.copied[f.rows] * (f.choices.zero >= 3)[:, None, None, None]
    out, back = copied[..., 0], copied[..., 1]
    return forward + out, backward + out + back, weight + back


def _block(
    t: TimedPlans, kernels: Floats, moving: Floats | None, wire: Floats, beside: Contention | None
) -> Floats:
    """[plans, kinds of devices, blocks] beside what is fetched for the next: the longer of the two, kernels slowed
    meanwhile. Collectives of a block and what is fetched share links where they go the same way, among themselves and
    with what is under way beside them."""
    is_ahead = t.f.task.runtime.sharding.prefetched_blocks > 0
    if beside is None and (moving is None or not is_ahead):
        return kernels if moving is None else kernels + moving[:, None, :]
    wire = wire[t.f.rows][:, None]
    free = kernels - wire[..., INSIDE] - wire[..., NETWORK]
    ways = [wire[..., way] for way in WAYS]
    if beside is not None:
        free = free * beside.slows(t.slow)[:, None, None]
        ways = [ways[way] * (1.0 + beside.on(way))[:, None, None] for way in WAYS]
    if moving is None or not is_ahead:
        whole = free + ways[INSIDE] + ways[NETWORK]
        return whole if moving is None else whole + moving[:, None, :]
    same = ways.pop(t.replicas.gathers_by)
    return np.asarray(_pair(t, free + ways[0], moving[:, None, :]) + same)


def _pair(t: TimedPlans, kernels: Floats, moving: Floats) -> Floats:
    """Two that start together and slow each other, until both are done."""
    slow, slowed = t.slow[t.replicas.gathers_by], t.slowed[t.replicas.gathers_by]
    first = np.minimum(kernels * slow, moving * slowed)
    left = kernels - first / slow + moving - first / slowed
    return np.asarray(first + left)
