"""What outlasts the last backward step: gradients that are still to be reduced, updates, and weights to be gathered."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from foretrain.arrays import Floats, Ints
from foretrain.planning.contention import TimedPlans
from foretrain.planning.layers import KINDS
from foretrain.planning.replicas import INSIDE, NETWORK, WAYS, Buckets
from foretrain.planning.sends import Parts


def exposed_reductions(
    t: TimedPlans,
    parts: Parts,
    send: Floats,
    seconds: Floats,
    host: Floats,
    runs: tuple[Ints, Floats],
) -> Floats:
    """[plans, stages] when the reductions of each stage are done, after the end of a pipeline that takes so many
    seconds. `host`: [plans, stages] seconds that hosts need for a micro-batch, which run ahead. `runs`: plans
    whose pipelines were run, and [those, stages] when each stage was through."""
    late = parts
    if host.any():
        lag = np.maximum(1.0, host / np.maximum(t.f.summed(parts[0] + parts[1]), 1e-12))
        forward, backward, weight = (part * lag[:, t.f.pieces.stage_of] for part in parts)
        late = (forward, backward, weight)
    making = t.f.first_chunk(np.where(t.puts_off[:, None], late[2], late[1]))
    sooner = _sooner(t, late, send, seconds)
    rows, done = runs
    sooner[rows] = done.max(axis=1, keepdims=True) - done
    streamed = _streaming(t, parts, send) - seconds[:, None]
    return np.asarray(np.maximum(_reductions(t, making) - sooner, streamed))


def _ways(stages: Floats, send: Floats) -> Floats:
    """[plans, stages] seconds a micro-batch takes over the stages before each."""
    way = np.cumsum(stages, axis=1) - stages
    way[:, 1:] += np.cumsum(send[:, : stages.shape[1] - 1], axis=1)
    return np.asarray(way)


def _sooner(t: TimedPlans, parts: Parts, send: Floats, seconds: Floats) -> Floats:
    """[plans, stages] how long before the end of a pipeline each of its stages is through."""
    f = t.f
    first = f.first_chunk(parts[1])
    ways = _ways(first, send)
    if t.puts_off.any():  # weight gradients that are put off keep stages busy, if there are enough
        work = f.summed(parts[0] + parts[1])
        through = _ways(f.first_chunk(parts[0]), send) + f.counts[:, None] * work
        spare = np.minimum(ways, np.maximum(seconds[:, None] - through, 0.0))
        ways = np.where(t.puts_off[:, None], spare, ways)
    if t.follows.any():  # slower stages before one that is through with its backward steps
        behind = np.maximum.accumulate(first[:, ::-1], axis=1)[:, ::-1]
        waits = (f.counts[:, None] - 1.0) * (first.max(axis=1, keepdims=True) - behind)
        ways = ways + np.where(t.follows[:, None], waits, 0.0)
    return ways


class Overlap(NamedTuple):
    """[plans, columns] what becomes of a second of work while replicas exchange something beside it."""

    longer: Floats  # seconds on top, for kernels that it slows and collectives that it shares links with …
    moved: Floats  # … and seconds of the exchange that are over then


def _overlap(t: TimedPlans, work: Floats, wire: Floats) -> Overlap:
    """`work`: [plans, columns] seconds; `wire`: [plans, columns, ways] those in which collectives load links."""
    slow, slowed = t.slow[_way(t)], t.slowed[_way(t)]
    share = wire / np.maximum(work, 1e-30)[..., None]
    kernels = np.maximum(1.0 - share.sum(axis=-1), 0.0)
    longer = kernels * (slow - 1.0) + share[..., _way(t)]
    return Overlap(longer, kernels * (slow / slowed - 1.0) + 1.0)


def _backward_overlap(t: TimedPlans) -> Overlap:
    """[plans, stages] beside what makes gradients: weight gradients that are put off are kernels alone. Where gradients
    of every micro-batch are reduced, work is as long as that makes it (`contention.py`)."""
    f, layers = t.f, t.f.layers
    wire = np.stack([f.by_stage(layers.wire_backward[..., way]) for way in WAYS], axis=-1)
    wire[t.puts_off] = 0.0
    found = _overlap(t, f.by_stage(layers.backward.max(axis=1)), wire)
    return found._replace(longer=np.where((f.choices.zero >= 2)[:, None], 0.0, found.longer))


def _left(beside: Overlap, moving: Floats, room: Floats) -> Floats:
    """What outlasts so much work, and by how much it makes that longer."""
    hidden = np.minimum(room, moving / beside.moved)
    return np.asarray(moving + hidden * (beside.longer - beside.moved))


def _longer(beside: Overlap, moving: Floats, room: Floats) -> Floats:
    """By how much so much work is longer for what moves beside it."""
    return np.asarray(np.minimum(room, moving / beside.moved) * beside.longer)


def _reductions(t: TimedPlans, backward: Floats) -> Floats:
    """[plans, stages] what of the gradients' reduction outlasts the last backward step. `backward`: of the first
    chunks."""
    beside = _backward_overlap(t)
    tail, moving, pieces = (np.zeros_like(backward) for _ in range(3))
    for kind in KINDS:
        found = t.replicas.reductions(kind)
        if found is not None:
            buckets = Buckets(*(column[t.few] for column in found))
            tail += _exposed(t, buckets, backward, kind, beside)
            moving += buckets.each * buckets.pieces / t.f.chunks
            pieces += buckets.pieces / t.f.chunks
    return tail + _draining(t, moving, pieces, backward, beside)


def _draining(
    t: TimedPlans, moving: Floats, pieces: Floats, backward: Floats, beside: Overlap
) -> Floats:
    """[plans, stages] by how much the last micro-batches come later to a stage for gradients that the stages before it,
    going back, reduce meanwhile.

    The last micro-batch meets at every stage what it sets off itself, and its send what is left. The first one of the
    next chunk follows it: it meets what is left then, the less the later it comes, and it comes later by what it has met
    at the other stages: longer = share · (left - (stages - 1) · longer). `moving`: [plans, stages] seconds to reduce
    the gradients of a chunk, in so many `pieces`.
    """
    f = t.f
    if f.stages == 1:
        return np.zeros_like(backward)
    at_end = np.maximum(t.at_end()[:, None], 1.0 / np.maximum(pieces, 1.0))
    inside = np.minimum(backward * (1.0 - at_end), moving / beside.moved)
    left = moving - inside * beside.moved
    last = inside * beside.longer
    if t.replicas.crosses:
        last += np.minimum(left, f.first_chunk(t.sends.leaving(t.sends.flow)[1]))
    share = beside.longer / beside.moved
    next_ = np.minimum(left * share / (1.0 + (f.stages - 1) * share), backward * beside.longer)
    others = (f.chunks - 1) * np.maximum(last.sum(axis=1), next_.sum(axis=1))
    behind = np.cumsum(last[:, ::-1], axis=1)[:, ::-1] - last
    return np.where((f.choices.zero >= 2)[:, None], 0.0, behind + others[:, None])


def _exposed(
    t: TimedPlans, buckets: Buckets, backward: Floats, kind: int, beside: Overlap
) -> Floats:
    """Buckets follow one another once backward has made them: those of a chunk while the chunks before it are at work,
    those of a block while the blocks before it are."""
    f, runtime = t.f, t.f.task.runtime
    total = buckets.each * buckets.pieces
    of_chunk = total / f.chunks
    several = np.minimum(f.stages, f.counts)[:, None]
    others = np.maximum(total - of_chunk - (f.chunks - 1) * several * backward, 0.0)
    if not runtime.gradients.overlaps_gradients:
        return np.asarray(of_chunk + others)
    last = np.minimum(buckets.last, of_chunk)
    late = _longer(beside, of_chunk - last, backward) + last
    for done, left in _by_block(t, kind, backward):
        before = _longer(beside, of_chunk * (1.0 - done), backward - left)
        late = np.maximum(late, before + _left(beside, of_chunk * done, left))
    if not runtime.gradients.overlaps_scatters:
        late = np.where((f.choices.zero >= 1)[:, None], of_chunk, late)
    return np.asarray(late + others)


def _way(t: TimedPlans) -> int:
    return NETWORK if t.replicas.crosses else INSIDE


def _by_block(t: TimedPlans, kind: int, backward: Floats) -> list[tuple[Floats, Floats]]:
    """[plans, stages] for every kind of block of a stage's first chunk: the share of gradients that are not yet made
    when the first of its repetitions is done, its own among them, and the work left then."""
    f = t.f
    share = f.by_chunk(f.share, 0)[0]
    bytes_ = f.elements("reduced", kind)[f.rows][:, None, :] * share[None]
    work = f.layers.backward[f.rows].max(axis=1)[:, None, :] * share[None]
    sums = [np.maximum(column.sum(axis=2), 1e-30) for column in (bytes_, work)]
    done = np.cumsum(bytes_, axis=2) / sums[0][:, :, None]
    rest = np.cumsum(work, axis=2) - work / np.maximum(share, 1.0)[None]
    rest *= (backward / sums[1])[:, :, None]
    return [(done[:, :, b], rest[:, :, b]) for b in range(share.shape[1]) if share[:, b].any()]


def _streaming(t: TimedPlans, parts: Parts, send: Floats) -> Floats:
    """[plans, stages] when the reductions of all micro-batches are done, where ZeRO splits gradients: they follow one
    another from the first backward step on, and wait for nobody."""
    f, counts = t.f, t.f.counts[:, None]
    is_split = (f.choices.zero >= 2)[:, None]
    if not is_split.any():
        return np.zeros((len(f.choices), f.stages))
    only_back = t.follows[:, None]
    ahead, back = _kernels(t)
    kernels = counts * (back + np.where(only_back, 0.0, ahead))
    wire, fetched = _wired(t)
    beside = f.summed(t.moved) + fetched  # kernels, which slow it
    slow, slowed = t.slow[_way(t)], t.slowed[_way(t)]
    busy = np.minimum(kernels * slow, counts * beside * slowed)
    link = counts * (beside + wire) + busy * (1.0 - 1.0 / slowed)
    if t.replicas.crosses:
        sent, returned = t.sends.sent()
        link += counts * (returned + np.where(only_back, 0.0, t.crowded()[:, None] * sent))
    return np.where(is_split, _first_backward(t, parts, send) + link, 0.0)


def _kernels(t: TimedPlans) -> tuple[Floats, Floats]:
    """[plans, stages] seconds of kernels of a micro-batch, forward and back, without collectives between them."""
    layers = t.f.layers
    pairs = ((layers.forward, layers.wire_forward), (layers.backward, layers.wire_backward))
    ahead, back = (
        np.maximum(t.f.by_stage(work.max(axis=1)) - t.f.by_stage(wire.sum(axis=2)), 0.0)
        for work, wire in pairs
    )
    return ahead, back


def _wired(t: TimedPlans) -> tuple[Floats, Floats]:
    """[plans, stages] seconds of a micro-batch in which collectives of blocks, and gathers of their weights, load the
    network that gradients go over, from the first backward step on."""
    f = t.f
    none = np.zeros((len(f.choices), f.stages))
    if not t.replicas.crosses:
        return none, none
    share = np.where(t.follows, 0.0, t.crowded())[:, None]
    ahead, back = (
        f.by_stage(column[:, :, NETWORK])
        for column in (f.layers.wire_forward, f.layers.wire_backward)
    )
    gathers = t.of_replicas(t.replicas.gathers(False, True))
    if gathers is None or t.replicas.gathers_by != NETWORK:
        return back + share * ahead, none
    return back + share * ahead, f.summed(gathers @ f.share.T) * (1.0 + share)


def _first_backward(t: TimedPlans, parts: Parts, send: Floats) -> Floats:
    """[plans, stages] when the first backward step of each begins."""
    f = t.f
    ways = parts[0].sum(axis=1, keepdims=True) + send.sum(axis=1, keepdims=True)
    last = parts[1][:, len(f.share) - f.stages :].copy()
    last[:, 1:] += send[:, len(f.share) - f.stages :]
    last = last.sum(axis=1, keepdims=True) - np.cumsum(last, axis=1)
    ways = ways + last[:, np.argsort(f.pieces.stage_of[-f.stages :])]
    pace = np.maximum(parts[0].max(axis=1), send.max(axis=1, initial=0.0))
    others = ((f.counts - 1.0) * pace)[:, None]  # all forward steps come first
    return np.asarray(ways + np.where(t.follows[:, None], others, 0.0))


def parameters(t: TimedPlans, forward: Floats, send: Floats) -> tuple[Floats, Floats]:
    """Gathering updated weights: [plans] what it delays the next forward pass by, or [plans, stages] what it adds to
    the update.

    Every chunk has its own gathered from the start of its first step on, so that all are late, one after the other. The
    first ones of a stage are under way while it waits for the stages before it.
    """
    f = t.f
    if not f.task.runtime.sharding.overlaps_parameter_gather:
        return np.zeros(len(f.choices)), t.replicas.parameters()[t.few]
    late = f.by_chunk(_late_starts(t, t.replicas.block_parameters()[t.few], forward))
    late[:, 0] -= _ways(f.first_chunk(forward), send)
    delays = late.max(axis=2).clip(min=0.0).sum(axis=1)
    return delays, np.zeros((len(f.choices), f.stages))


def _late_starts(t: TimedPlans, gather: Floats, forward: Floats) -> Floats:
    """[plans, parts] by how much a forward step is longer that starts together with gathers of all its blocks' weights,
    one after the other, each of which its block waits for. `gather`: [plans, blocks] seconds."""
    share = t.f.share
    work = t.f.layers.forward[t.f.rows].max(axis=1)[:, None, :] * share[None]
    scale = forward / np.maximum(work.sum(axis=2), 1e-30)
    wire = np.stack([t.f.by_part(t.f.layers.wire_forward[..., way]) for way in WAYS], axis=-1)
    beside = Overlap(*(c[..., None] for c in _overlap(t, work.sum(axis=2), wire)))
    moving = gather[:, None, :] * share[None]
    first = gather[:, np.argmax(share > 0, axis=1)]
    late = first.copy()
    again = np.maximum(share - 1.0, 0.0)[None]  # repetitions of a block after its first
    for repeated in (0.0, again):
        moved = np.cumsum(moving, axis=2) - moving + gather[:, None] * (1.0 + repeated)
        room = np.cumsum(work, axis=2) - work + work / np.maximum(share, 1.0) * repeated
        room = room * scale[:, :, None]
        found = first[:, :, None] + _left(beside, moved - first[:, :, None], room)
        late = np.maximum(late, np.where(share > 0, found, 0.0).max(axis=2))
    return late
