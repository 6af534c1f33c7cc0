"""Speed of the engine on one core: tasks per second, compiled and reference.

    python bench/engine.py [--json] [--repeat N]

`static`: 98,304 tasks on 32 streams, each stream handing work to its neighbours on both sides; no flows.
`sharing`: the same size; one task in ten is a flow on one of 64 flow streams, so up to 64 share links of a
two-level tree at once, with unequal volumes, so that every start and end changes some of their rates.
`spread`: the same, but each flow waits a while before it moves, so that about half as many move at once.
`slowing`: `spread` on 32 places, each with a compute stream and two flow streams that slow each other, so that
nearly every start and end changes a rate. `calm` is the same without any slowdown.

Times are the best of N whole `simulate` calls, checks included, in CPU seconds of this thread.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import time
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from foretrain.arrays import Ints32
from foretrain.engine import Program, Run, native_available, simulate

TASKS = 98_304
STREAMS = 32
FLOW_STREAMS = 64
ENDPOINTS = 64
GROUP = 8
LONGEST_WAIT = 0.1
"""seconds; twice the mean time a flow of `spread` moves"""


def _csr(rows: Ints32, items: Ints32, n: int) -> tuple[Ints32, Ints32]:
    order = np.argsort(rows, kind="stable")
    ptr = np.zeros(n + 1, dtype=np.int32)
    np.cumsum(np.bincount(rows, minlength=n), out=ptr[1:])
    return ptr, items[order].astype(np.int32)


def static_program(seed: int = 1) -> Program:
    """Streams in a row; even steps feed the right neighbour's next step, odd ones the left's."""
    return _neighbours(np.random.default_rng(seed), np.zeros(TASKS, dtype=np.bool_))


def _neighbours(rng: np.random.Generator, patient: NDArray[np.bool_]) -> Program:
    """The static program; what a `patient` task feeds comes 200 steps later instead of the next."""
    steps = TASKS // STREAMS
    stream, step = np.divmod(np.arange(TASKS, dtype=np.int32), steps)
    neighbour = (stream + np.where(step % 2 == 0, 1, -1)) % STREAMS
    fed_step = step + np.where(patient, 200, 1)
    has_edge = fed_step < steps
    fed = (neighbour * steps + fed_step)[has_edge]
    succ_ptr, succ = _csr(np.flatnonzero(has_edge).astype(np.int32), fed, TASKS)
    return Program(
        duration=rng.uniform(1e-5, 1e-3, TASKS),
        volume=np.zeros(TASKS),
        route=np.full(TASKS, -1, dtype=np.int32),
        stream_ptr=np.arange(TASKS + 1, dtype=np.int32),
        stream_ids=stream.astype(np.int32),
        succ_ptr=succ_ptr,
        succ=succ,
        route_ptr=np.zeros(1, dtype=np.int32),
        route_link=np.zeros(0, dtype=np.int32),
        route_weight=np.zeros(0),
        route_cap=np.zeros(0),
        capacity=np.zeros(0),
        streams=STREAMS,
    )


def _tree_routes(rng: np.random.Generator, count: int) -> tuple[Ints32, Ints32]:
    """Routes between endpoints in groups: up link, (up and down trunk when they differ,) down link."""
    source = rng.integers(0, ENDPOINTS, count)
    target = (source + rng.integers(1, ENDPOINTS, count)) % ENDPOINTS
    trunks = ENDPOINTS // GROUP
    rows, links = [], []
    for route, (a, b) in enumerate(zip(source.tolist(), target.tolist(), strict=True)):
        hops = [a, ENDPOINTS + b]
        if a // GROUP != b // GROUP:
            hops += [2 * ENDPOINTS + a // GROUP, 2 * ENDPOINTS + trunks + b // GROUP]
        rows += [route] * len(hops)
        links += hops
    return _csr(np.array(rows, dtype=np.int32), np.array(links, dtype=np.int32), count)


def sharing_program(seed: int = 2, longest_wait: float = 1e-5) -> Program:
    """The static program with every tenth task a flow on a stream of its own kind."""
    rng = np.random.default_rng(seed)
    flow = np.arange(TASKS) % 10 == 7
    base = _neighbours(rng, flow)
    flows = int(flow.sum())
    stream_ids = base.stream_ids.copy()
    lanes = FLOW_STREAMS // STREAMS
    stream_ids[flow] = STREAMS + stream_ids[flow] * lanes + np.arange(flows) % lanes
    volume = np.where(flow, rng.uniform(0.5, 1.5, TASKS), 0.0)
    routes = 512
    route = np.where(flow, rng.integers(0, routes, TASKS), -1).astype(np.int32)
    route_ptr, route_link = _tree_routes(rng, routes)
    trunks = ENDPOINTS // GROUP
    capacity = np.concatenate([np.full(2 * ENDPOINTS, 40.0), np.full(2 * trunks, 160.0)])
    wait = rng.uniform(1e-5, longest_wait, TASKS)
    return Program(
        duration=np.where(flow, wait, base.duration),
        volume=volume,
        route=route,
        stream_ptr=base.stream_ptr,
        stream_ids=stream_ids,
        succ_ptr=base.succ_ptr,
        succ=base.succ,
        route_ptr=route_ptr,
        route_link=route_link,
        route_weight=np.ones(len(route_link)),
        route_cap=np.full(routes, 35.0),
        capacity=capacity,
        streams=STREAMS + FLOW_STREAMS,
    )


def slowing_program(compute_by_flow: float = 1.3, flow_by_compute: float = 1.1) -> Program:
    """The spread program with streams on places; fixed work is activity 1, flows are activity 2."""
    base = sharing_program(longest_wait=LONGEST_WAIT)
    lanes = FLOW_STREAMS // STREAMS
    places = [*range(STREAMS), *np.repeat(np.arange(STREAMS), lanes)]
    slowdown = np.ones((3, 3))
    slowdown[1, 2], slowdown[2, 1] = compute_by_flow, flow_by_compute
    return dataclasses.replace(
        base,
        stream_place=np.array(places, dtype=np.int32),
        activity=np.where(base.volume > 0, 2, 1).astype(np.int8),
        slowdown=slowdown,
    )


@dataclass(frozen=True, slots=True)
class Result:
    """One program on one engine."""

    program: str
    engine: str
    tasks: int
    seconds: float
    tasks_per_second: float
    makespan: float
    flows: int
    most_at_once: int
    mean_at_once: float


def flows_at_once(program: Program, run: Run) -> tuple[int, float]:
    """Largest number of flows moving together, and its mean seen by a flow that begins."""
    is_flow = program.volume > 0
    begins = np.sort(run.start[is_flow] + program.duration[is_flow])
    ends = np.sort(run.end[is_flow])
    if not len(begins):
        return 0, 0.0
    moving = np.arange(1, len(begins) + 1) - np.searchsorted(ends, begins, side="right")
    return int(moving.max()), float(moving.mean())


def measure(name: str, program: Program, engine: str, repeat: int) -> Result:
    """Best CPU time of several runs."""
    best = float("inf")
    for _ in range(repeat):
        before = time.thread_time()
        run = simulate(program, engine)  # type: ignore[arg-type]
        best = min(best, time.thread_time() - before)
    most, mean = flows_at_once(program, run)
    flows = int((program.volume > 0).sum())
    n = len(program)
    return Result(name, engine, n, best, n / best, run.makespan, flows, most, mean)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    parser.add_argument("--repeat", type=int, default=30, help="runs of the compiled engine")
    options = parser.parse_args()
    results = []
    programs = {
        "static": static_program(),
        "sharing": sharing_program(),
        "spread": sharing_program(longest_wait=LONGEST_WAIT),
        "slowing": slowing_program(),
        "calm": slowing_program(1.0, 1.0),
    }
    for name, program in programs.items():
        if native_available():
            results.append(measure(name, program, "native", options.repeat))
        results.append(measure(name, program, "reference", max(1, options.repeat // 15)))
    if options.json:
        rows = [{key: getattr(r, key) for key in Result.__slots__} for r in results]
        print(json.dumps({"results": rows}, indent=2))
        return
    print(
        f"{'program':9}{'engine':11}{'tasks':>8}{'flows':>7}{'at once':>14}{'ms':>10}{'tasks/s':>14}"
    )
    for r in results:
        at_once = f"{r.mean_at_once:.0f} (max {r.most_at_once})" if r.flows else "-"
        print(
            f"{r.program:9}{r.engine:11}{r.tasks:8,}{r.flows:7,}{at_once:>14}"
            f"{r.seconds * 1e3:10.2f}{r.tasks_per_second:14,.0f}"
        )


if __name__ == "__main__":
    main()
