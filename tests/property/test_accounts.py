"""What is told of a simulated step beside plain bookkeeping, task by task: memory, stalls, arithmetic and the path."""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from support.plans import questions, tiny_model

from foretrain.analysis.memory import memory
from foretrain.analysis.operators import busiest_operators, executed_flops
from foretrain.analysis.stalls import stalls
from foretrain.analysis.timeline import critical_path, timeline
from foretrain.compile.execution import (
    CHAIN,
    LAUNCH,
    LAUNCH_REST,
    PHASE_NAMES,
    Communication,
    Compute,
    Copy,
)
from foretrain.model.workload import DataSource
from foretrain.simulate import compile_scenario, cost_scenario, simulate, simulate_scenario
from foretrain.testing.asking import ask

few = settings(
    max_examples=20, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True
)


def on_the_chain(graph, rank_class):
    """Tasks that a rank class runs on its compute stream, in order."""
    stream = graph.streams.index((rank_class, "compute"))
    return [
        task
        for task in range(graph.tasks)
        if stream in graph.stream_ids[graph.stream_ptr[task] : graph.stream_ptr[task + 1]]
    ]


def fullest(graph, loose, stage, frees_gradients):
    """Bytes of a stage at its fullest, with what is held task after task."""
    static = graph.stages[stage]
    rank_class = int(np.flatnonzero(graph.fold.stage_of == stage)[0])
    held, worst, gradients = 0.0, 0.0, static.gradients
    has_freed = not frees_gradients
    for task in on_the_chain(graph, rank_class):
        change = float(graph.task_memory[task])
        alive = held + max(change, 0.0) + float(graph.task_workspace[task])
        worst = max(worst, (1.0 + loose) * alive + (gradients if has_freed else 0.0))
        held += change
        has_freed |= change < 0.0  # gradients come as the first activations go
    return static.weights + static.optimizer + static.buffers + max(worst, gradients)


@few
@given(questions())
def test_memory_is_the_fullest_moment_of_the_fullest_stage(question):
    graph, runtime = compile_scenario(question), question.runtime
    exchanges = any(
        isinstance(work, Communication) and work.purpose == "tensor"
        for item in graph.items
        for work in (item.work, item.beside)
    )
    loose = runtime.memory.fragmentation + (
        runtime.memory.exchange_fragmentation if exchanges else 0.0
    )
    kinds = np.asarray(question.cluster.device_kind)[graph.fold.examples]
    capacities = np.array([question.cluster.devices[kind].memory_bytes for kind in kinds])
    found = memory(graph, runtime, capacities, headroom=0.1)
    room = []
    for stage, told in enumerate(found.by_stage):
        peak = fullest(graph, loose, stage, runtime.gradients.frees_gradients)
        assert told.peak_bytes == pytest.approx(peak, rel=1e-12)
        assert sum(told.by_kind.values()) == pytest.approx(peak, rel=1e-12)
        smallest = capacities[graph.fold.stage_of == stage].min()
        room.append(max(0.9 * smallest - runtime.memory.context_bytes, 1.0))
    shares = [s.peak_bytes / r for s, r in zip(found.by_stage, room, strict=True)]
    assert shares[found.peak_stage] == max(shares)
    assert found.fits == (max(shares) <= 1.0)


@few
@given(questions())
def test_stalls_of_every_class_add_up_to_the_step_and_none_is_negative(question):
    simulated = simulate_scenario(question)
    graph, costs, run = simulated.graph, simulated.costs, simulated.run
    step = float(run.end.max())
    found = stalls(graph, costs, run, step).by_class
    assert found.sum(axis=1) == pytest.approx(np.full(graph.fold.classes, step), rel=1e-9)
    assert found.min() >= -1e-9 * step


@few
@given(questions())
def test_arithmetic_is_counted_kernel_by_kernel(question):
    graph = compile_scenario(question)
    runs, done, again = np.zeros((graph.fold.classes, len(graph.items))), 0.0, 0.0
    for task in np.flatnonzero(graph.task_kind == CHAIN).tolist():
        shape, rank_class = int(graph.task_shape[task]), int(graph.task_class[task])
        for number in graph.shape_items[graph.shape_ptr[shape] : graph.shape_ptr[shape + 1]]:
            work, ranks = graph.items[number].work, float(graph.fold.counts[rank_class])
            runs[rank_class, number] += 1
            if isinstance(work, Compute):
                done += ranks * work.kernel.flops
                again += ranks * work.kernel.flops * work.is_recomputed
    assert np.array_equal(graph.item_runs, runs)
    assert executed_flops(graph) == pytest.approx((done, again), rel=1e-9)
    every = compile_scenario(question, is_folded=False)
    assert executed_flops(every) == pytest.approx((done, again), rel=1e-9)


@few
@given(questions())
def test_operators_are_told_with_what_they_take_on_the_busiest_class(question):
    simulated = simulate_scenario(question)
    graph, costs = simulated.graph, simulated.costs
    seconds = graph.item_runs * costs.item_seconds
    busiest = seconds[int(np.argmax(seconds.sum(axis=1)))]
    found = busiest_operators(graph, costs, limit=10**6)
    assert sum(value for _, value in found) == pytest.approx(busiest.sum(), rel=1e-9)
    values = [value for _, value in found]
    assert values == sorted(values, reverse=True)
    assert busiest_operators(graph, costs, limit=3) == found[:3]
    by_op = defaultdict(float)
    for item, value in zip(graph.items, busiest.tolist(), strict=True):
        if isinstance(item.work, Compute):
            by_op[item.work.op] += value
    told = dict(found)
    for op, value in by_op.items():
        assert told.get(op, 0.0) == pytest.approx(value, rel=1e-9, abs=1e-18)


@few
@given(questions())
def test_the_path_walks_back_from_the_end_over_what_was_waited_for(question):
    simulated = simulate_scenario(question)
    run = simulated.run
    seen = timeline(simulated.graph, run)
    task, spans = int(np.argmax(run.end)), []
    while task >= 0:
        if run.end[task] > run.start[task]:
            spans.append((float(run.start[task]), float(run.end[task])))
        task = int(run.waited_for[task])
    spans.reverse()
    path = critical_path(seen)
    assert (path[0].start, path[-1].end) == (spans[0][0], spans[-1][1])
    bounds = {start for start, _ in spans} | {end for _, end in spans}
    assert all(step.start in bounds and step.end in bounds for step in path)
    assert all(one.end <= other.start + 1e-12 for one, other in pairwise(path))
    short = critical_path(seen, limit=4)
    if len(path) > 4:
        assert len(short) == 5
        assert (short[:2], short[3:]) == (path[:2], path[-2:])
        assert short[2].what == f"{len(path) - 4:,} steps in between"
        assert (short[2].start, short[2].end) == (path[2].start, path[-3].end)


def test_lanes_and_labels_say_what_runs_where():
    """Copies to hosts and back, samples that are loaded, collectives with their bytes, chains by their phase."""
    question = ask(
        tiny_model("gpt"), on="1 x dgx-a100-80gb", plan="tp2 pp2 dp2 zero1 offload=optimizer,activations",
        batch=8, data=DataSource(1e9, 1e-4),
    )  # fmt: skip
    simulated = simulate_scenario(question)
    graph, run = simulated.graph, simulated.run
    seen = timeline(graph, run)
    names = [seen.labels[number] for number in seen.label]
    for task in range(graph.tasks):
        shape = int(graph.task_shape[task])
        kind = graph.task_kind[task]
        if kind in (LAUNCH, LAUNCH_REST):
            assert names[task] == f"launch {PHASE_NAMES[graph.task_phase[task]]}"
        if kind in (CHAIN, LAUNCH, LAUNCH_REST) or shape < 0:
            continue
        work = graph.shape(shape)[0].work
        if isinstance(work, Copy):
            assert names[task].startswith(f"copy {work.direction.replace('_', ' ')} ")
        if isinstance(work, Communication):
            assert names[task].startswith(f"{work.purpose} {work.collective.replace('_', '-')} ")
    phases = Counter(names[task] for task in np.flatnonzero(graph.task_kind == CHAIN))
    assert phases["forward"] > 0
    assert phases["backward"] > 0
    assert any(name.startswith("copy to host") for name in names)
    assert [(lane.stage, lane.stream) for lane in seen.lanes] == [
        (int(graph.fold.stage_of[c]), name) for c, name in graph.streams
    ]


def test_nothing_ran_means_no_path():
    question = ask(tiny_model("gpt"), on="1 x dgx-a100-80gb", plan="dp8", batch=8)
    graph = compile_scenario(question)
    seen = timeline(graph, simulate(graph, cost_scenario(question, graph)))
    empty = type(seen)(**{f: getattr(seen, f)[:0] for f in seen.__dataclass_fields__})
    assert critical_path(empty) == ()
