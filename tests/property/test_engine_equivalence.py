"""The compiled engine equals the reference to the last bit, and both obey the contract."""

from __future__ import annotations

import dataclasses
import itertools
import math
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.programs import program_of

from foretrain.engine import Program, Run, native_available, simulate
from foretrain.engine.reference import followers
from foretrain.errors import Bug

needs_native = pytest.mark.skipif(not native_available(), reason="compiled engine not installed")

# Few round numbers make simultaneous events common; zeros are frequent on purpose.
durations = st.one_of(st.sampled_from([0.0, 0.0, 0.5, 1.0, 2.0]), st.floats(0.0, 3.0))
amounts = st.one_of(st.sampled_from([0.5, 1.0, 2.0, 3.0]), st.floats(1e-3, 50.0))
volumes = st.one_of(st.just(0.0), amounts, st.just(1e-300))


@st.composite
def programs(draw: st.DrawFn, most_tasks: int = 30, forward_only: bool = True) -> Program:
    """Random graphs: streams, tasks on several streams, flows over shared links, caps, ties."""
    n = draw(st.integers(0, most_tasks))
    streams = draw(st.integers(1, 5))
    links = draw(st.integers(1, 5))
    routes, caps = [], []
    for _ in range(draw(st.integers(1, 6))):
        hops = draw(st.lists(st.integers(0, links - 1), max_size=3, unique=True))
        routes.append([(link, draw(amounts)) for link in hops])
        caps.append(draw(amounts if not hops else st.one_of(st.just(math.inf), amounts)))
    held = st.lists(st.integers(0, streams - 1), max_size=2)
    task = st.integers(0, max(0, n - 1))
    pairs = draw(st.lists(st.tuples(task, task), max_size=2 * n if n else 0))
    if forward_only:
        pairs = [(min(pair), max(pair)) for pair in pairs if pair[0] != pair[1]]
    return program_of(
        draw(st.lists(durations, min_size=n, max_size=n)),
        streams=draw(st.lists(held, min_size=n, max_size=n)),
        edges=pairs,
        volume=draw(st.lists(volumes, min_size=n, max_size=n)),
        route=draw(st.lists(st.integers(0, len(routes) - 1), min_size=n, max_size=n)),
        routes=routes,
        route_cap=caps,
        capacity=draw(st.lists(amounts, min_size=links, max_size=links)),
    )


def interfering(program: Program, seed: int) -> Program:
    """The same tasks in activities on places: few or all, in rows or crowds, partly insensitive."""
    r = random.Random(seed)
    classes = r.randint(2, 5)
    factors = r.choice([[1.0, 1.5, 2.0], [1.0, 1.25, 4.0], [1.0, 1.1, 1.3, 1 + 1e-13], [7 / 3]])
    slowdown = np.ones((classes, classes))
    for a, b in itertools.product(range(1, classes), repeat=2):
        slowdown[a, b] = r.choice(factors if a != b else [1.0, 1.0, *factors])
    shares = r.choice([[1.0], [0.0, 1.0], [0.0, 0.5, 1.0], [r.random() for _ in range(5)]])
    spots = r.choice([[0], [-1, 0, 1], [3, 70_000, 2**31 - 2]])
    activities = [r.choice([0, *range(1, classes)]) for _ in range(len(program))]
    return dataclasses.replace(
        program,
        stream_place=np.array([r.choice(spots) for _ in range(program.streams)], dtype=np.int32),
        activity=np.array(activities, dtype=np.int8),
        sensitivity=r.choice([None, np.array([r.choice(shares) for _ in activities])]),
        slowdown=slowdown,
    )


def same(a: Run, b: Run) -> bool:
    return all(
        x.tobytes() == y.tobytes()
        for x, y in ((a.start, b.start), (a.end, b.end), (a.waited_for, b.waited_for))
    )


def dense_program(seed: int) -> Program:
    """Larger than hypothesis likes to draw: hundreds of tasks, dozens of flows at once."""
    rng = np.random.default_rng(seed)
    n, streams, links, routes = 300, int(rng.integers(4, 40)), int(rng.integers(2, 30)), 40
    round_numbers = bool(rng.integers(2))
    pick = (
        (lambda k: rng.integers(1, 5, k) / 2.0)
        if round_numbers
        else (lambda k: rng.random(k) + 0.1)
    )
    hops = [
        rng.choice(links, int(rng.integers(1, min(links, 4) + 1)), replace=False)
        for _ in range(routes)
    ]
    ahead = [(int(a), int(b)) for a, b in np.sort(rng.integers(0, n, (n, 2))) if a < b <= a + 60]
    return program_of(
        list(np.where(rng.random(n) < 0.2, 0.0, pick(n))),
        streams=[[int(s)] for s in rng.integers(0, streams, n)],
        edges=ahead,
        volume=list(np.where(rng.random(n) < 0.5, 0.0, pick(n))),
        route=list(rng.integers(0, routes, n)),
        routes=[
            [(int(link), float(w)) for link, w in zip(h, pick(len(h)), strict=True)] for h in hops
        ],
        route_cap=list(np.where(rng.random(routes) < 0.5, math.inf, pick(routes))),
        capacity=list(pick(links)),
    )


@needs_native
@settings(max_examples=500, deadline=None)
@given(program=programs(), seed=st.one_of(st.none(), st.integers(0, 10**6)))
def test_both_engines_agree_to_the_last_bit(program: Program, seed: int | None) -> None:
    if seed is not None:
        program = interfering(program, seed)
    assert same(simulate(program, "native"), simulate(program, "reference"))


def small_program(seed: int) -> Program:
    """The kind hypothesis draws, but a hundred times cheaper to draw."""
    r = random.Random(seed)
    n, streams, links = r.randint(1, 40), r.randint(1, 5), r.randint(1, 6)
    some = [0.5, 1.0, 2.0] if seed % 2 else [r.random() + 0.1 for _ in range(9)]
    hops = [r.sample(range(links), r.randint(1, min(3, links))) for _ in range(5)]
    return program_of(
        [r.choice([0.0, *some]) for _ in range(n)],
        streams=[r.choices(range(streams), k=r.choice([0, 1, 1, 1, 2])) for _ in range(n)],
        edges=[(a, b) for b in range(n) for a in range(b) if r.random() < 0.06],
        volume=[r.choice([0.0, 0.0, *some]) for _ in range(n)],
        route=[r.randrange(6) for _ in range(n)],
        routes=[*([(link, r.choice(some)) for link in crossed] for crossed in hops), []],
        route_cap=[r.choice([math.inf, *some]) for _ in range(5)] + [r.choice(some)],
        capacity=[r.choice(some) for _ in range(links)],
    )


@needs_native
@pytest.mark.parametrize("block", range(10))
def test_both_engines_agree_on_thousands_of_small_programs(block: int) -> None:
    for seed in range(300 * block, 300 * (block + 1)):
        program = small_program(seed)
        assert same(simulate(program, "native"), simulate(program, "reference")), seed
        program = interfering(program, seed)
        assert same(simulate(program, "native"), simulate(program, "reference")), seed


@needs_native
@pytest.mark.parametrize("seed", range(40))
def test_both_engines_agree_on_crowded_links(seed: int) -> None:
    program = dense_program(seed)
    assert same(simulate(program, "native"), simulate(program, "reference"))
    program = interfering(program, seed)
    assert same(simulate(program, "native"), simulate(program, "reference"))


# What makes rounding matter: thirds, weights far apart, numbers a hair apart, all alike.
AWKWARD = [
    [1 / 3, 2 / 3, 1.0],
    [1e-4, 1e-2, 1.0, 7.0, 3e4, 9e4],
    [1.0, 1.0 + 1e-13, 1.0 - 1e-13, 1.0 + 5e-13, 1 / 3],
    [1.0],
]


def awkward_program(seed: int) -> Program:
    """Crowds of flows in awkward numbers on few links; many start together, a few bring caps."""
    r = random.Random(seed)
    some = AWKWARD[seed % len(AWKWARD)]
    n, streams, links = r.randint(5, 120), r.randint(1, 60), r.randint(1, 14)
    hops = [r.sample(range(links), r.randint(1, min(5, links))) for _ in range(r.randint(1, 30))]
    pairs = [sorted(r.sample(range(n), 2)) for _ in range(n // 2)]
    return program_of(
        [r.choice([0.0, r.choice(some)]) for _ in range(n)],
        streams=[[r.randrange(streams)] for _ in range(n)],
        edges=[(a, b) for a, b in pairs],
        volume=[r.choice([0.0, *[r.choice(some)] * 4]) for _ in range(n)],
        route=[r.randrange(len(hops)) for _ in range(n)],
        routes=[[(link, r.choice(some)) for link in crossed] for crossed in hops],
        route_cap=[r.choice([math.inf, math.inf, r.choice(some)]) for _ in hops],
        capacity=[r.choice(some) for _ in range(links)],
    )


@needs_native
@pytest.mark.parametrize("block", range(10))
def test_both_engines_agree_where_rounding_matters(block: int) -> None:
    for seed in range(40 * block, 40 * (block + 1)):
        program = awkward_program(seed)
        assert same(simulate(program, "native"), simulate(program, "reference")), seed
        program = interfering(program, seed)
        assert same(simulate(program, "native"), simulate(program, "reference")), seed


def fixed_program(seed: int) -> Program:
    """Rows of fixed work on many streams, in round numbers: much begins and ends at the same time."""
    r = random.Random(seed)
    n, streams = r.randint(1, 80), r.randint(1, 12)
    some = [1.0, 2.0, 3.0] if seed % 3 else [r.random(), 1e-17, 0.0, 1.0]
    return program_of(
        [r.choice(some) for _ in range(n)],
        streams=[r.choices(range(streams), k=r.choice([1, 1, 1, 2, 3])) for _ in range(n)],
        edges=[(a, b) for b in range(n) for a in range(b) if r.random() < 0.03],
    )


@needs_native
@pytest.mark.parametrize("block", range(5))
def test_both_engines_agree_where_only_fixed_work_interferes(block: int) -> None:
    for seed in range(300 * block, 300 * (block + 1)):
        program = interfering(fixed_program(seed), seed)
        assert same(simulate(program, "native"), simulate(program, "reference")), seed


@needs_native
@settings(max_examples=150, deadline=None)
@given(program=programs(forward_only=False))
def test_both_engines_agree_on_what_can_never_start(program: Program) -> None:
    """Edges may go backwards here, so some programs deadlock: then with the same words."""
    outcomes = []
    for engine in ("native", "reference"):
        try:
            run = simulate(program, engine)  # type: ignore[arg-type]
            outcomes.append((run.start.tobytes(), run.end.tobytes(), run.waited_for.tobytes()))
        except Bug as bug:
            outcomes.append(str(bug))
    assert outcomes[0] == outcomes[1]


@settings(max_examples=150, deadline=None)
@given(program=programs())
def test_a_task_starts_exactly_when_the_last_thing_it_waits_for_ends(program: Program) -> None:
    run = simulate(program)
    waits: list[list[int]] = [[] for _ in range(len(program))]
    for task, waiting in enumerate(followers(program)):
        for other in waiting:
            waits[other].append(task)
    for task, before in enumerate(waits):
        if not before:
            assert (run.start[task], run.waited_for[task]) == (0.0, -1)
            continue
        latest = max(run.end[b] for b in before)
        assert run.start[task] == latest
        assert run.waited_for[task] == min(b for b in before if run.end[b] == latest)


@settings(max_examples=150, deadline=None)
@given(program=programs())
def test_a_stream_runs_one_task_at_a_time_in_index_order(program: Program) -> None:
    run = simulate(program)
    for stream in range(program.streams):
        ptr = program.stream_ptr
        on_it = [
            t for t in range(len(program)) if stream in program.stream_ids[ptr[t] : ptr[t + 1]]
        ]
        for first, second in itertools.pairwise(on_it):
            assert run.end[first] <= run.start[second]


@settings(max_examples=150, deadline=None)
@given(program=programs())
def test_a_flow_is_never_faster_than_alone_on_its_route(program: Program) -> None:
    run = simulate(program)
    for task in range(len(program)):
        least = float(program.duration[task])
        if program.volume[task] > 0:
            route = program.route[task]
            hops = slice(program.route_ptr[route], program.route_ptr[route + 1])
            alone = program.capacity[program.route_link[hops]] / program.route_weight[hops]
            least += program.volume[task] / min([*alone, program.route_cap[route]])
        took = run.end[task] - run.start[task]
        assert took >= least * (1 - 1e-9) - 1e-9


@settings(max_examples=150, deadline=None)
@given(program=programs())
def test_a_link_never_moves_more_than_capacity_times_the_time_it_was_in_use(
    program: Program,
) -> None:
    """Conservation: what crossed a link, weighted, fits into the union of its flows' lifetimes."""
    run = simulate(program)
    for link, capacity in enumerate(program.capacity.tolist()):
        moved, lifetimes = 0.0, []
        for task in np.flatnonzero(program.volume > 0).tolist():
            route = program.route[task]
            for hop in range(program.route_ptr[route], program.route_ptr[route + 1]):
                if program.route_link[hop] == link:
                    moved += program.route_weight[hop] * program.volume[task]
                    lifetimes.append((run.start[task] + program.duration[task], run.end[task]))
        busy, until = 0.0, 0.0
        for begin, end in sorted(lifetimes):
            busy += max(0.0, end - max(begin, until))
            until = max(until, end)
        assert moved <= capacity * busy * (1 + 1e-9) + 1e-9


@settings(max_examples=200, deadline=None)
@given(program=programs())
def test_without_flows_every_end_is_the_longest_path(program: Program) -> None:
    still = program_of(
        program.duration.tolist(),
        streams=[
            program.stream_ids[program.stream_ptr[t] : program.stream_ptr[t + 1]].tolist()
            for t in range(len(program))
        ],
        edges=[
            (t, int(s))
            for t in range(len(program))
            for s in program.succ[program.succ_ptr[t] : program.succ_ptr[t + 1]]
        ],
    )
    longest = still.duration.copy()
    for task, waiting in enumerate(followers(still)):
        for other in waiting:
            longest[other] = max(longest[other], longest[task] + still.duration[other])
    assert simulate(still).end.tolist() == longest.tolist()


@settings(max_examples=150, deadline=None)
@given(program=programs(), seed=st.integers(0, 10**6))
def test_without_slowdown_activities_change_no_bit(program: Program, seed: int) -> None:
    calm = interfering(program, seed)
    assert calm.slowdown is not None
    calm = dataclasses.replace(calm, slowdown=np.ones_like(calm.slowdown))
    for engine in ("native", "reference") if native_available() else ("reference",):
        assert same(simulate(calm, engine), simulate(program, engine))  # type: ignore[arg-type]


@settings(max_examples=150, deadline=None)
@given(program=programs(), seed=st.integers(0, 10**6))
def test_no_task_is_slowed_by_more_than_all_its_factors_together(
    program: Program, seed: int
) -> None:
    """Fixed work takes between its duration and that times the product of its row of factors."""
    program = interfering(program, seed)
    run = simulate(program)
    assert program.activity is not None
    assert program.slowdown is not None
    for task in np.flatnonzero(program.volume == 0).tolist():
        took, alone = run.end[task] - run.start[task], float(program.duration[task])
        most = program.slowdown[program.activity[task]].prod() if program.activity[task] else 1.0
        assert alone * (1 - 1e-9) - 1e-9 <= took <= alone * most * (1 + 1e-9) + 1e-9
