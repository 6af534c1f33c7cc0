"""Fleets of plans whose costs are written down instead of compiled, for closed forms that are derived again plan by plan."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
from hypothesis import strategies as st

from foretrain.arrays import Floats
from foretrain.plan.schedules import SCHEDULES
from foretrain.planning.choices import COLUMNS, Choices, Palette
from foretrain.planning.contention import TimedPlans
from foretrain.planning.plan_batch import PlanBatch
from foretrain.planning.replicas import Buckets
from foretrain.planning.sends import Sends
from foretrain.runtime import Runtime

STATES, PLANS = 2, 3
SECOND = 1e-3
"""Times are milliseconds, as those of real steps: what keeps divisors from zero must not show in them."""
DEFAULTS = {
    "overlaps_gradients": True,
    "overlaps_scatters": True,
    "overlaps_pipeline": True,
    "overlaps_parameter_gather": True,
    "prefetched_blocks": 1,
    "host_blocks_on_pipeline": True,
    "host_delay_on_network": 0.0,
    "overlap_slows": True,
    "cycle_seconds": 0.0,
}


def shared_out(rng: np.random.Generator, parts: int, blocks: int) -> Floats:
    """[parts, blocks] repetitions: blocks one after the other, cut into parts that hold something each."""
    instances = np.repeat(np.arange(blocks), rng.integers(1, 4, blocks))
    while len(instances) < parts:
        instances = np.repeat(instances, 2)
    cuts = np.sort(rng.choice(np.arange(1, len(instances)), parts - 1, replace=False))
    share = np.zeros((parts, blocks))
    for part, held in enumerate(np.split(instances, cuts)):
        np.add.at(share[part], held, 1.0)
    return share


def columns(rng: np.random.Generator, blocks: int, kinds: int) -> SimpleNamespace:
    """Costs of blocks in every state; collectives take part of a block's time, weight gradients of the backward one."""
    wires = [SECOND * rng.uniform(0.0, 0.3, (STATES, blocks, 2)) for _ in range(2)]
    forward, backward = (SECOND * rng.uniform(0.7, 2.0, (STATES, kinds, blocks)) for _ in range(2))
    hosts = {f"host_{name}": SECOND * rng.uniform(0.2, 1.5, (STATES, blocks)) for name in ("forward", "backward")}  # fmt: skip
    hosts["host_weight"] = hosts["host_backward"] * 0.4
    return SimpleNamespace(
        forward=forward,
        backward=backward,
        weight=backward * rng.uniform(0.1, 0.5),
        copied=SECOND
        * rng.uniform(0.0, 0.2, (STATES, kinds, blocks, 2))
        * rng.integers(0, 2, (STATES, kinds, blocks, 1)),
        wire_forward=wires[0],
        wire_backward=wires[1],
        hidden=SECOND
        * rng.uniform(0.0, 0.2, (STATES, blocks))
        * rng.integers(0, 2, (STATES, blocks)),
        saved=rng.uniform(0.0, 2.0, (STATES, blocks)),
        lead=SECOND * rng.uniform(0.0, 2.0, (STATES, blocks, 3)),
        host_copied=SECOND
        * rng.uniform(0.0, 0.2, (STATES, blocks, 2))
        * rng.integers(0, 2, (STATES, blocks, 1)),
        late=SECOND * rng.uniform(0.0, 0.4, (STATES, blocks, 3)),
        late_lead=SECOND * rng.uniform(0.0, 2.4, (STATES, blocks, 3)),
        reduced=rng.uniform(0.0, 5.0, (STATES, blocks, 9)),
        tied=np.zeros((STATES, 0, 9)),
        shared_out={},
        **hosts,
    )


def fleets(**runtime: Any) -> st.SearchStrategy[PlanBatch]:
    """By one number each: drawn piece by piece, they would take longer to draw than to test."""
    return st.integers(0, 2**31).map(lambda seed: fleet(np.random.default_rng(seed), **runtime))


def timed_fleets(**runtime: Any) -> st.SearchStrategy[TimedPlans]:
    return st.integers(0, 2**31).map(
        lambda seed: timed_fleet(np.random.default_rng(seed), **runtime)
    )


def fleet(rng: np.random.Generator, **runtime: Any) -> PlanBatch:
    """A few plans on one mesh, of up to three stages with up to two chunks, on one or two kinds of devices."""
    stages, chunks, kinds, blocks = (int(rng.integers(1, most + 1)) for most in (3, 2, 2, 4))
    chunks = chunks if stages > 1 else 1
    habits: dict[str, Any] = {name: bool(rng.integers(2)) for name, usual in DEFAULTS.items() if isinstance(usual, bool)}  # fmt: skip
    habits["prefetched_blocks"] = int(rng.integers(2))
    habits["host_delay_on_network"] = SECOND * float(rng.choice((0.0, 0.1)))
    schedules = ("interleaved",) if chunks > 1 else ("1f1b", "gpipe", "zb-h1")
    values: dict[str, Any] = {"pp": stages, "vpp": chunks, "dp": 2, "tp": 2}
    varied = {"zero": rng.integers(0, 4, PLANS), "micro": 2 ** rng.integers(0, 3, PLANS)}
    varied["schedule"] = rng.integers(0, len(schedules), PLANS)
    table = [np.broadcast_to(varied.get(name, values.get(name, 0)), PLANS) for name in COLUMNS]
    choices = Choices.of(Palette(schedule=schedules), np.array(table, np.int32))
    on = np.ones((stages, kinds), dtype=np.bool_)
    if kinds > 1:
        on = rng.integers(0, 2, (stages, kinds)).astype(np.bool_)
        on[np.arange(stages), rng.integers(0, kinds, stages)] = True
    task = SimpleNamespace(
        runtime=Runtime(name="drawn").with_options(DEFAULTS | habits | runtime),
        workload=SimpleNamespace(global_batch=int(8 * rng.integers(1, 5))),
        states=SimpleNamespace(),
    )
    none = SimpleNamespace(is_stored_before=np.zeros(0, np.bool_))
    share = shared_out(rng, stages * chunks, blocks)
    return PlanBatch(
        task=task,
        choices=choices,
        layers=columns(rng, blocks, kinds),
        rows=rng.integers(0, STATES, PLANS),
        mesh=SimpleNamespace(),
        exchanges=SimpleNamespace(),
        share=share,
        behind=share[:, None, :] * np.triu(np.ones((blocks, blocks)), 1),
        ties=none,
        kinds=on,
    )


def timed_fleet(rng: np.random.Generator, **runtime: Any) -> TimedPlans:
    """… with what they exchange: sends, gathers of split weights and buckets of gradients of one kind."""
    f = fleet(rng, **runtime)
    parts, blocks = f.share.shape
    kinds = [SCHEDULES[name] if f.stages > 1 else SCHEDULES["1f1b"] for name in f.choices.palette.schedule]  # fmt: skip
    puts_off = np.array([kind.splits_backward for kind in kinds])[f.choices.schedule]
    follows = np.array([kind.separates_phases for kind in kinds])[f.choices.schedule]
    filling = np.array([kind.filling(f.stages, f.chunks) for kind in kinds])[f.choices.schedule]
    lone = np.array([kind.lone_passes(f.stages, f.chunks) for kind in kinds])[f.choices.schedule]
    sent = SECOND * rng.uniform(0.0, 0.5, (PLANS, parts - 1)) * rng.choice((1, 1, 1, 0))
    far = (
        rng.integers(0, 2, parts - 1) if rng.integers(2) else rng.choice((1, 1, 0))
    )  # some, all or none
    flow = sent * rng.uniform(0.0, 1.0) * far
    is_split = (f.choices.zero >= 2)[:, None]
    moved = SECOND * rng.uniform(0.1, 3.0, (PLANS, parts)) * is_split
    gathers = {alone: SECOND * rng.uniform(0.1, 1.5, (PLANS, blocks)) * (f.choices.zero >= 3)[:, None] for alone in (True, False)}  # fmt: skip
    gathers[False] = gathers[True] + gathers[False]
    has_gathers = bool((f.choices.zero >= 3).any())
    buckets = Buckets(*(SECOND * rng.uniform(0.05, 1.0, (PLANS, f.stages)) for _ in range(3)))
    buckets = buckets._replace(each=buckets.each * rng.choice((1.0, 30.0)))  # few are large
    buckets = buckets._replace(pieces=rng.integers(1, 6, (PLANS, f.stages)).astype(float))
    parameters = SECOND * rng.uniform(0.0, 3.0, (PLANS, f.stages))
    block_parameters = SECOND * rng.uniform(0.0, 1.0, (PLANS, blocks))
    replicas = SimpleNamespace(
        crosses=bool(rng.integers(2)),
        gathers_by=int(rng.integers(2)),
        shares_links=bool(rng.integers(2)) and f.stages > 1,
        gathers=lambda alone, flow=False: gathers[alone] * (0.9 if flow else 1.0) if has_gathers else None,
        reductions=lambda kind: buckets if kind == 3 else None,
        parameters=lambda: parameters,
        block_parameters=lambda: block_parameters,
    )  # fmt: skip
    flowing = tuple(moved * share for share in rng.uniform(0.0, 0.9, 2))
    slow, slowed = (rng.uniform(1.0, 1.4, 2) for _ in range(2))
    sends = Sends(f, sent * 1e9, sent, flow)
    return TimedPlans(
        f, np.arange(PLANS), replicas, sends, puts_off, follows, filling, lone, moved, flowing, slow, slowed
    )  # fmt: skip


def parts_of(t: TimedPlans, rng: np.random.Generator) -> tuple[Floats, Floats, Floats]:
    """Steps of a micro-batch as drawn: forward, backward and the part of it that makes weight gradients."""
    shape = (PLANS, len(t.f.share))
    forward, backward = SECOND * rng.uniform(0.5, 3.0, shape), SECOND * rng.uniform(0.5, 4.0, shape)
    return forward, backward, backward * rng.uniform(0.1, 0.6, shape)
