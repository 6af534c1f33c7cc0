"""A few micro-batches of a plan on the engine: steps of stages, the hosts that issue them, and sends that share links.

Once a pipeline has filled, every micro-batch takes it as long as the one before, or every group of as many as there are
stages: two runs of different length say how long, and the rest is a line through them. Where pipelines of a plan send
unequally fast inside nodes (NVLink of a V100 machine is one lane or two), they get out of step and share the network in
another way than together: each class of them is run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cache, lru_cache
from pathlib import Path

import numpy as np

from foretrain import engine
from foretrain.arrays import Bools, Floats, Ints, Ints32
from foretrain.engine import Program
from foretrain.loading import load_own_yaml
from foretrain.plan.schedules import SCHEDULES
from foretrain.plan.schedules.base import BACKWARD, BACKWARD_WEIGHT, FORWARD, joined
from foretrain.planning.contention import TimedPlans
from foretrain.planning.exchanges import SendLinks
from foretrain.planning.hosts import issue_seconds, leads
from foretrain.planning.plan_batch import PlanBatch

PHASES = FORWARD, BACKWARD, BACKWARD_WEIGHT


@dataclass(frozen=True, slots=True)
class Limits:
    """What is worth a run, and how long runs are (`short_runs.yaml`)."""

    least_share: float
    tasks_per_share: float
    rounds: int
    even: float
    tasks_per_program: int

    def are_met(self, share: Floats, tasks: Floats) -> Bools:
        """[plans] by the share of a pipeline's time that sends and hosts take, and the tasks of a run."""
        return np.asarray((share > self.least_share) & (tasks <= self.tasks_per_share * share))


@cache
def limits() -> Limits:
    return Limits(**load_own_yaml(Path(__file__).with_name("short_runs.yaml")))


@dataclass(frozen=True, slots=True)
class Layout:
    """What the tasks of a pipeline are, however long they take."""

    schedule: str
    stages: int
    chunks: int
    has_host: bool
    host_waits: bool  # for what a step receives
    sends_block: bool  # the stage that sends


@dataclass(frozen=True, eq=False, slots=True)
class Tasks:
    """Steps of all stages in order, then their sends, then two tasks of hosts for each step: what devices wait for, and
    the rest."""

    step: Ints  # [steps] phase · parts + part
    boundary: Ints  # [sends] the part before it
    route: Ints  # [sends] direction · stages + stage
    stream: Ints  # [tasks]
    streams: int
    source: Ints  # [edges] tasks …
    target: Ints  # … and those that wait for them
    last: Ints  # [stages] the last step of each

    def __len__(self) -> int:
        return len(self.stream)

    def side_by_side(self, pieces: PieceSeconds, links: SendLinks) -> Program:
        """One program for several plans, each with a pipeline for every class of those that move in step."""
        plans, (classes, flows, shared) = len(pieces.device), links.usage.shape
        steps, sends, runs = len(self.step), len(self.boundary), plans * classes
        duration, volume = (np.zeros((runs, len(self))) for _ in range(2))
        moving = slice(steps, steps + sends)
        latency = pieces.latency.reshape(runs, -1)
        duration[:, moving] = latency[:, self.boundary]
        each = pieces.take(np.repeat(np.arange(plans), classes))
        duration[:, :steps] = each.device[:, self.step]
        volume[:, moving] = each.flow[:, self.boundary]
        place = np.arange(runs)[:, None]
        route = np.full((runs, len(self)), -1)
        route[:, moving] = self.route + place * flows
        route[volume <= 0.0] = -1
        if len(self) > steps + sends:
            lead = each.lead[:, self.step]
            duration[:, steps + sends :: 2] = lead
            duration[:, steps + sends + 1 :: 2] = each.host[:, self.step] - lead
        usage = links.usage.reshape(classes * flows, shared)
        flow, link = np.nonzero(usage)
        hops = np.bincount(flow, minlength=len(usage))
        degree = np.bincount(self.source, minlength=len(self))
        order = np.argsort(self.source, kind="stable")
        return Program(
            duration=duration.ravel(),
            volume=volume.ravel(),
            route=_int32(route),
            stream_ptr=np.arange(duration.size + 1, dtype=np.int32),
            stream_ids=_int32(self.stream + place * self.streams),
            succ_ptr=_pointers(np.tile(degree, runs)),
            succ=_int32(self.target[order] + place * len(self)),
            route_ptr=_pointers(np.tile(hops, plans)),
            route_link=_int32(link + np.arange(plans)[:, None] * shared),
            route_weight=np.tile(usage[flow, link], plans),
            route_cap=np.tile(links.fastest.ravel(), plans),
            capacity=np.ones(plans * shared),
            streams=runs * self.streams,
        )


def _int32(values: Ints) -> Ints32:
    return np.ascontiguousarray(values.ravel(), dtype=np.int32)


def _pointers(lengths: Ints) -> Ints32:
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)


@lru_cache(maxsize=256)
def tasks_of(layout: Layout, count: int) -> Tasks:
    """Of all steps that the schedule has for so many micro-batches."""
    stages, parts = layout.stages, layout.stages * layout.chunks
    kind = SCHEDULES[layout.schedule]
    orders = [kind.order(stage, stages, count, layout.chunks) for stage in range(stages)]
    lengths = [len(order) for order in orders]
    rows, stage = np.concatenate(orders).astype(np.int64), np.repeat(np.arange(stages), lengths)
    pieces = kind.pieces(stages, layout.chunks)
    phase, micro, part = rows[:, 0], rows[:, 2], pieces.of[rows[:, 1], stage]
    steps = np.arange(len(rows))
    number = np.full((len(PHASES), parts, count), -1)
    number[phase, part, micro] = steps
    ahead, back = (phase == FORWARD) & (part < parts - 1), (phase == BACKWARD) & (part > 0)
    sender = np.flatnonzero(ahead | back)
    sender = sender[pieces.hops[part[sender] - phase[sender]] != 0]  # phases: 0 forward, 1 back
    way = phase[sender]
    receiver = number[way, part[sender] + 1 - 2 * way, micro[sender]]
    boundary = part[sender] - way
    direction = np.where(pieces.hops[boundary] > 0, way, 1 - way)
    late = np.concatenate([joined(order) for order in orders]) & kind.joins_gradients
    leaves = sender + late[sender]
    sends = len(rows) + np.arange(len(sender))
    edges = [(leaves, sends), (sends, receiver)]
    streams = [stage, stages * (1 + direction) + stage[sender]]
    if layout.sends_block:
        goes_on = ~np.isin(leaves, np.cumsum(lengths) - 1)
        edges.append((sends[goes_on], leaves[goes_on] + 1))
    if layout.has_host:
        lead = len(rows) + len(sender) + 2 * steps
        edges.append((lead, steps))
        if layout.host_waits:
            edges.append((sends, lead[receiver]))
        streams.append(np.repeat(3 * stages + stage, 2))
    source, target = (np.concatenate(tasks) for tasks in zip(*edges, strict=True))
    return Tasks(
        step=phase * parts + part,
        boundary=boundary,
        route=stages * direction + stage[sender],
        stream=np.concatenate(streams),
        streams=4 * stages,
        source=source,
        target=target,
        last=np.cumsum(lengths) - 1,
    )


@dataclass(frozen=True, eq=False, slots=True)
class PieceSeconds:
    """[plans, phases · parts] seconds of one micro-batch on devices, of hosts that issue it, and by how much these have
    to be ahead; [plans, classes of pipelines · (parts - 1)] latencies of sends, and [plans, parts - 1] seconds in which
    they move at full rate."""

    device: Floats
    host: Floats
    lead: Floats
    latency: Floats
    flow: Floats

    def take(self, rows: Ints) -> PieceSeconds:
        """Some of the plans."""
        return PieceSeconds(*(getattr(self, field.name)[rows] for field in fields(self)))

    def distinct(self, counts: Floats) -> tuple[Ints, Ints]:
        """One plan of all that run alike for as many micro-batches, and which of them stands for each: what ZeRO splits
        and how gradients are cut does not show in steps."""
        columns = [getattr(self, field.name) for field in fields(self)]
        table = np.concatenate([counts[:, None], *columns], axis=1)
        _, first, inverse = np.unique(table, axis=0, return_index=True, return_inverse=True)
        return first, inverse.ravel()


def tasks_of_run(f: PlanBatch) -> Floats:
    """[plans] about how many tasks the longer of two runs has: steps and sends."""
    return np.asarray(4.0 * np.minimum(f.counts, (limits().rounds + 1) * f.stages) * len(f.share))


def run_pipelines(t: TimedPlans, work: Sequence[Floats]) -> Floats:
    """[plans, stages] when each is done with its last step. `work`: [plans, parts] forward, backward and weight-gradient
    seconds on devices."""
    f, runtime = t.f, t.f.task.runtime
    links = f.exchanges.send_links(f.mesh)
    pieces = _pieces(t, work, links)
    done = np.zeros((len(f.choices), f.stages))
    for number in np.unique(f.choices.schedule).tolist():
        rows = np.flatnonzero(f.choices.schedule == number)
        layout = Layout(
            f.schedule(number).name,
            f.stages,
            f.chunks,
            has_host=bool(pieces.host.any()),
            host_waits=runtime.host.host_blocks_on_pipeline,
            sends_block=not runtime.pipeline.overlaps_pipeline,
        )
        few, stands_for = pieces.take(rows).distinct(f.counts[rows])
        done[rows] = ends(layout, pieces.take(rows[few]), links, f.counts[rows][few])[stands_for]
    return done


def _pieces(t: TimedPlans, work: Sequence[Floats], links: SendLinks) -> PieceSeconds:
    f, sends = t.f, t.sends
    ahead, back = sends.arrivals()
    device = np.stack([work[0] + ahead, work[1] + back, work[2]], axis=1)
    issue = issue_seconds(f, sends)
    host = np.zeros_like(device) if issue is None else np.stack(issue, axis=1)
    lead = np.zeros_like(device) if issue is None else np.stack(leads(f, sends), axis=1)
    for column in (device, host):  # weight gradients that are put off are steps of their own
        column[t.puts_off, 1] = np.maximum(column[t.puts_off, 1] - column[t.puts_off, 2], 0.0)
    flat = (len(device), -1)
    return PieceSeconds(
        device.reshape(flat),
        host.reshape(flat),
        np.minimum(lead, host).reshape(flat),
        sends.latencies(links).reshape(flat),
        sends.flow,
    )


def ends(layout: Layout, pieces: PieceSeconds, links: SendLinks, counts: Floats) -> Floats:
    """[plans, stages] when each stage is done with its last step, of so many micro-batches."""
    found = np.zeros((len(counts), layout.stages))
    for count in np.unique(counts).astype(int).tolist():
        rows = np.flatnonzero(counts == count)
        found[rows] = _ends(layout, pieces.take(rows), links, count)
    return found


def _ends(layout: Layout, pieces: PieceSeconds, links: SendLinks, count: int) -> Floats:
    rounds, rest = divmod(count, layout.stages)
    before, last = limits().rounds, limits().rounds + 1
    if rounds <= last:
        return _run(layout, count, pieces, links)
    begun, ended = (
        _run(layout, each * layout.stages + rest, pieces, links) for each in (before, last)
    )
    whole = ended + (ended - begun) * (rounds - last)
    rows = np.arange(len(whole) if len(links.classes) > 1 else 0)
    while len(rows) and last < rounds:  # pipelines out of step may take long to run evenly
        further = min(2 * last - 1, rounds)
        begun, ended = ended, _run(layout, further * layout.stages + rest, pieces.take(rows), links)
        before, last = last, further
        expected = whole[rows]
        whole[rows] = ended + (ended - begun) * ((rounds - last) / (last - before))
        is_uneven = (np.abs(whole[rows] - expected) > limits().even * expected).any(axis=1)
        rows, ended = rows[is_uneven], ended[is_uneven]
    return whole


def _run(layout: Layout, count: int, pieces: PieceSeconds, links: SendLinks) -> Floats:
    """[plans, stages] all plans side by side in one program: none has links or streams in common with another."""
    tasks = tasks_of(layout, count)
    found = np.empty((len(pieces.device), layout.stages))
    classes = len(links.usage)
    several = max(1, limits().tasks_per_program // (len(tasks) * classes))
    for first in range(0, len(found), several):
        rows = np.arange(first, min(first + several, len(found)))
        program = tasks.side_by_side(pieces.take(rows), links)
        run = engine.simulate(program)
        found[rows] = run.end.reshape(len(rows), classes, -1)[..., tasks.last].max(axis=1)
    return found
