"""Walks through the layers of a stage beside all paths there are, looked at one by one."""

from __future__ import annotations

from itertools import product
from math import ceil, inf
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.plans import tiny_model
from support.stages import Compiled, is_boundary

from foretrain.cluster.cluster import Cluster
from foretrain.compile.compile import stage_programs
from foretrain.compile.execution import BACKWARD, FORWARD
from foretrain.errors import InputError
from foretrain.plan.mesh import Mesh
from foretrain.plan.strategy import Cut, Schedule, StrategyNode
from foretrain.planning import markov
from foretrain.planning.layers import chain_seconds
from foretrain.planning.markov import (
    BUDGET_STEPS,
    STEPS_PER_LAYER,
    LayerState,
    LayerwiseProblem,
    _Paths,
    _primes,
    _Table,
    _Walker,
    walk,
)
from foretrain.planning.per_layer import _halves, best_walk, described, problems
from foretrain.planning.task import Task
from foretrain.runtime import Runtime
from foretrain.testing.asking import ask

STATES = (LayerState(1, "none"), LayerState(1, "full"), LayerState(2, "none"))
TPS = [1, 2]


def paths_of(
    repeats, seconds, saved, work, static, *, stages=1, room=(1e3,), kinds=None, loose=0.0
):
    """The walks through blocks of so many repetitions, with costs written down instead of compiled."""
    model = SimpleNamespace(blocks=[SimpleNamespace(repeat=count) for count in repeats])
    runtime = Runtime(name="drawn").with_options({"fragmentation": float(loose)})
    cluster = SimpleNamespace(devices=room)
    walker = SimpleNamespace(
        tps=TPS,
        states=STATES,
        model=model,
        problem=SimpleNamespace(stages=stages),
        task=SimpleNamespace(runtime=runtime, cluster=cluster, usable_bytes=np.array(room)),
        kinds_of_stages=lambda: kinds or [[0]] * stages,
    )
    return _Paths(walker, _Table(seconds, saved, work, static))


@st.composite
def drawn_problems(draw):
    """A block before the layers, the layers, a block after them; one to three stages of up to two kinds of devices."""
    stages, kinds = draw(st.integers(1, 3)), draw(st.integers(1, 2))
    repeats = [*draw(st.sampled_from(([], [1]))), draw(st.integers(max(2, stages), 4)), *draw(st.sampled_from(([], [1])))]  # fmt: skip
    rng = np.random.default_rng(draw(st.integers(0, 2**31)))
    blocks = len(repeats)
    return {
        "repeats": repeats,
        "seconds": rng.integers(1, 20, (kinds, blocks, len(TPS), len(STATES))).astype(float),
        "saved": rng.integers(0, 12, (blocks, len(STATES))).astype(float),
        "work": rng.integers(0, 8, (blocks, len(STATES))).astype(float),
        "static": rng.integers(1, 20, (blocks, len(STATES))).astype(float),
        "stages": stages,
        "room": tuple(rng.integers(40, 200, kinds).astype(float)),
        "kinds": [sorted(set(rng.integers(0, kinds, 2).tolist())) for _ in range(stages)],
        "loose": draw(st.sampled_from((0.0, 0.25))),
    }


def held_by(problem, number: int, count: int) -> list[int]:
    """Blocks of a stage that runs `count` of the layers."""
    repeats, stages = problem["repeats"], problem["stages"]
    every = [block for block, times in enumerate(repeats) for _ in range(times)]
    if stages == 1:
        return every
    layer = next(block for block, times in enumerate(repeats) if times > 1)
    before = [b for b in every if b < layer] if number == 0 else []
    after = [b for b in every if b > layer] if number == stages - 1 else []
    return [*before, *[layer] * count, *after]


def fastest(problem, number: int, blocks: list[int], most: list[int]) -> float:
    """Every path through the blocks, one by one; memory is counted in pieces, of what a stage of `most` blocks leaves."""
    kinds = problem["kinds"][number]
    loose, flight = 1.0 + problem["loose"], problem["stages"] - number
    room = min(problem["room"][kind] for kind in kinds)
    room -= loose * max(min(problem["work"][block]) for block in most)
    if room <= 0:
        return inf
    steps = max(BUDGET_STEPS, STEPS_PER_LAYER * len(most))
    best = inf
    for path in product(range(len(STATES)), repeat=len(blocks)):
        pieces, seconds = 0, 0.0
        for place, (block, state) in enumerate(zip(blocks, path, strict=True)):
            before = TPS.index(STATES[path[max(place - 1, 0)]].tp)
            seconds += max(problem["seconds"][kind, block, before, state] for kind in kinds)
            need = problem["static"][block, state] + flight * loose * problem["saved"][block, state]
            pieces += ceil(need / (room / steps) - 1e-9)
        if pieces <= steps:
            best = min(best, seconds)
    return best


@settings(max_examples=40, deadline=None)
@given(drawn_problems())
def test_the_fastest_path_of_every_stage_is_found(problem):
    paths = paths_of(**problem)
    for number in range(problem["stages"]):
        profile = paths.profile(number)
        assert profile[0] == inf
        most = held_by(problem, number, paths.most)
        counts = [paths.layers] if problem["stages"] == 1 else range(1, paths.most + 1)
        for count in counts:
            blocks = held_by(problem, number, count)
            best = fastest(problem, number, blocks, most)
            assert profile[count] == pytest.approx(best)
            if best < inf:
                seconds, states = paths.path(number, count)
                assert seconds == pytest.approx(best)
                assert len(states) == len(blocks)


@settings(max_examples=40, deadline=None)
@given(drawn_problems())
def test_layers_are_shared_out_so_that_the_slowest_stage_is_fastest(problem):
    paths, stages = paths_of(**problem), problem["stages"]
    profiles = [paths.profile(number) for number in range(stages)]
    shares = [
        counts
        for counts in product(range(1, paths.most + 1), repeat=stages)
        if sum(counts) == paths.layers
    ]
    slowest = [max(p[c] for p, c in zip(profiles, counts, strict=True)) for counts in shares]
    best = min(slowest, default=inf)
    counts = paths.shared_out()
    if best == inf:
        assert counts is None
        return
    assert counts is not None
    assert sum(counts) == paths.layers
    chosen, seconds = paths.chosen(counts)
    assert seconds == pytest.approx(best)
    assert len(chosen) == sum(problem["repeats"])


def test_a_path_costs_what_its_states_say():
    """Two layers, the first of which is slow to leave: tensor parallel throughout takes 3 + 3, changing 2 + 9."""
    seconds = np.full((1, 1, 2, 3), 50.0)
    seconds[0, 0, 0] = [2.0, 5.0, 9.0]
    seconds[0, 0, 1] = [9.0, 9.0, 3.0]
    plain = np.zeros((1, 3))
    saved = np.array([[400.0, 0.0, 0.0]])  # only one layer may keep all
    paths = paths_of([2], seconds, saved, plain, plain, room=(500.0,))
    assert paths.path(0, 2) == (6.0, [2, 2])
    assert paths.chosen([2]) == ((STATES[2], STATES[2]), 6.0)
    roomy = paths_of([2], seconds, saved, plain, plain, room=(900.0,))
    assert roomy.path(0, 2) == (4.0, [0, 0])


def test_an_even_share_and_two_more_layers_are_offered_three_shares_where_devices_differ():
    table = (np.ones((1, 1, 2, 3)), *(np.zeros((1, 3)) for _ in range(3)))
    assert paths_of([8], *table, stages=4).most == 4
    assert paths_of([7], *table, stages=4).most == 4  # 2 is an even share of 7, rounded up
    assert paths_of([16], *table, stages=4, room=(1e3, 1e3)).most == 12
    assert paths_of([3], *table, stages=3).most == 3


@given(st.integers(1, 5000))
def test_factors_are_primes_and_multiply_to_the_number(count):
    factors = _primes(count)
    assert int(np.prod(factors, initial=1)) == count
    assert all(all(n % d for d in range(2, n)) for n in set(factors))
    assert factors == sorted(factors, reverse=True)


def task_of(model="gpt", *, on="1 x dgx-a100-80gb", batch=16, **options) -> Task:
    scenario = ask(tiny_model(model), on=on, plan="zero0", batch=batch, runtime_options=options)
    return Task.of(scenario)


@pytest.mark.parametrize(
    ("stages", "least", "tps"), [(1, 1, [1, 2, 4, 8]), (2, 1, [1, 2, 4]), (2, 2, [2, 4]), (4, 2, [2])]
)  # fmt: skip
def test_tensor_parallelism_goes_from_the_least_to_a_domain(stages, least, tps):
    walker = _Walker(task_of(), LayerwiseProblem(stages, least, 1, 0))
    assert walker.tps == tps
    assert [walker.mesh.size(*walker.inner(tp)) if tp > 1 else 1 for tp in tps] == tps
    assert walker.mesh.size(*walker.batch_axes) * least * stages == 8
    assert {s.tp for s in walker.states} == set(tps)


def test_tensor_parallelism_stays_in_a_domain_unless_it_has_to_be_wider():
    task = task_of(on="4 x aws:g5.12xlarge")
    domain = int(np.bincount(task.cluster.domain_of).max())
    assert max(_Walker(task, LayerwiseProblem(1, 1, 1, 0)).tps) == domain
    assert _Walker(task, LayerwiseProblem(1, 8, 1, 0)).tps == [8]


def test_grounds_that_cannot_be_are_refused_with_the_reason():
    task = task_of()
    with pytest.raises(InputError, match="tp 3 cannot be formed from the factors of 8 ranks"):
        walk(task, LayerwiseProblem(1, 3, 1, 0))
    assert best_walk(task, LayerwiseProblem(1, 3, 1, 0)) is None
    wide = task_of("gpt", on="2 x dgx-a100-80gb")
    with pytest.raises(InputError, match="no tensor parallelism of 16 to 16 divides the model"):
        walk(wide, LayerwiseProblem(1, 16, 1, 0))


@pytest.mark.parametrize(("stages", "layers"), [(1, None), (2, (3, 3)), (4, (2, 1, 1, 2))])
@pytest.mark.parametrize("model", ["gpt", "llama"])
def test_a_walk_takes_what_the_compiler_makes_of_its_plan(model, stages, layers):
    """With four layers, embedding and head are layers too where a plan says how many each stage holds."""
    task, micro = task_of(model), 2 if stages < 4 else 1
    found = walk(task, LayerwiseProblem(stages, 1, micro, 1))
    assert found is not None
    schedule = found.plan.schedule
    assert (schedule.micro_batch, schedule.stages, schedule.layers) == (micro, stages, layers)
    assert [role for role, _ in found.plan.root.state] == ["optimizer"]
    assert len(found.choices) == task.workload.model.layers
    programs = stage_programs(task.workload, found.plan, task.runtime)
    compiled = Compiled(*programs, found.plan.schedule.pieces)
    chains = [
        tuple(item for item in compiled.chain(segment) if not is_boundary(item))
        for phase in (FORWARD, BACKWARD)
        for segment in compiled.segments(phase)
    ]
    (device,), *_ = chain_seconds(task, found.plan.mesh, chains)
    assert found.slowest == pytest.approx(device.reshape(2, stages).sum(axis=0).max(), rel=1e-9)


def test_where_memory_is_short_layers_recompute():
    """States take 0.95 GB, activations 0.6 GB or a ninth of it: some layers have to run again, then all, then none fit."""
    on, problem = Cluster.of("1 x dgx-a100-80gb").first(1), LayerwiseProblem(1, 1, 64, 0)
    roomy = task_of(on=on, batch=64, context_bytes=0.0)
    free = float(roomy.usable_bytes[0])
    left = (free, 1.7e9, 1.4e9, 1.0e9)
    found = [walk(task_of(on=on, batch=64, context_bytes=free - room), problem) for room in left]
    slowest = [inf if one is None else one.slowest for one in found]
    assert slowest == sorted(slowest)
    assert slowest[-1] == inf
    again = [sum(c.recompute != "none" for c in one.choices) if one else -1 for one in found]
    assert again[0] == 0 < again[1] < again[2]


def test_halves_end_with_an_odd_number():
    assert list(_halves(12)) == [12, 6, 3]
    assert list(_halves(1)) == [1]


def test_problems_of_a_plan_have_as_many_samples_per_rank_or_fewer():
    """tp4 with 4 samples is tp2 with 2 samples and tp1 with 1: as many on every rank."""
    task = task_of(batch=32)
    posed = problems(task, ["tp4 pp2 micro=4 zero1"])
    assert [(g.least_tp, g.micro) for g in posed] == [
        (4, 4),
        (4, 2),
        (4, 1),
        (2, 2),
        (2, 1),
        (1, 1),
    ]
    assert {(g.stages, g.zero) for g in posed} == {(2, 1)}
    few = problems(task_of(batch=8), ["pp2 micro=8 zero1"])
    assert [(g.least_tp, g.micro) for g in few] == [(1, 2), (1, 1)]  # 4 replicas, 8 samples
    plain = problems(task, ["tp2 cp2 dp2 micro=2 zero3 sp offload=optimizer"])
    assert {(g.stages, g.zero) for g in plain} == {(1, 3)}


def test_a_walk_is_described_layer_by_layer():
    found = walk(task_of(), LayerwiseProblem(2, 2, 2, 1))
    assert found is not None
    text = described(found.plan)
    assert text.startswith("pp2 micro=2 zero1")
    assert {f"tp{choice.tp}" for choice in found.choices} == {
        word.strip(",") for word in text.split() if word.startswith("tp")
    }


def node(select, tp, recompute=None):
    """Layers of one choice, on the two innermost axes or one of them."""
    axes = {1: (), 2: ("b",), 4: ("a", "b")}[tp]
    split = (Cut(("heads",), axes), Cut(("seq",), axes)) if axes else ()
    return SimpleNamespace(select=select, split=split, recompute=recompute)


@pytest.mark.parametrize(
    ("stages", "layers", "zero", "text"),
    [
        (2, (3, 1), 1, "pp2 micro=4 zero1 layers=3,1: "),
        (2, (2, 2), 2, "pp2 micro=4 zero2: "),
        (1, None, 0, "micro=4: "),
    ],
)
def test_layers_alike_are_told_once(stages, layers, zero, text):
    nodes = [
        node("embedding", 1), node("layer[0:2]", 4, "full"), node("layer[2:4]", 4, "full"), node("layer[4:6]", 4),
        node("head", 2, "none"),
    ]  # fmt: skip
    plan = SimpleNamespace(
        text="",
        mesh=SimpleNamespace(axes=(("pp", stages), ("a", 2), ("b", 2))),
        schedule=SimpleNamespace(stages=stages, micro_batch=4, layers=layers),
        root=SimpleNamespace(state=("optimizer", "gradients")[:zero], children=nodes),
    )
    told = "embedding tp1, layer[0:2]…layer[2:4] tp4 recompute=full, layer[4:6] tp4, head tp2"
    assert described(plan) == text + told
    assert described(SimpleNamespace(text="dp8")) == "dp8"


@pytest.mark.parametrize(
    ("dims", "cut"),
    [
        (("heads", "ffn", "seq"), [("heads", "kv_heads"), ("ffn",), ("seq", "slot")]),
        (("vocab", "slot"), [("vocab",), ("seq", "slot")]),
        (("kv_heads",), [("heads", "kv_heads")]),
        (("channel_in", "channel_out", "pixel"), [("channel_in",), ("channel_out",)]),
        (("channel_in", "ffn"), [("ffn",)]),
        (("hidden",), []),
        (("hidden", "seq"), [("seq", "slot")]),
    ],
)
def test_blocks_are_cut_where_their_dims_allow(dims, cut):
    walker = SimpleNamespace(inner=lambda tp: (f"x{tp}",))
    block = SimpleNamespace(ops=[SimpleNamespace(size={dim: 8}) for dim in dims])
    assert [(c.dims, c.axes) for c in _Walker.cuts(walker, block, 2)] == [(d, ("x2",)) for d in cut]
    assert _Walker.cuts(walker, block, 1) == ()


def test_a_walk_has_a_node_for_every_run_of_layers_alike():
    blocks = [SimpleNamespace(name=name, repeat=count) for name, count in (("in", 1), ("pair", 2), ("layer", 4), ("out", 1))]  # fmt: skip
    plain, full, wide = STATES
    choices = [plain, plain, plain, full, full, plain, wide, plain]
    walker = SimpleNamespace(
        model=SimpleNamespace(blocks=blocks),
        problem=SimpleNamespace(stages=2),
        mesh=Mesh((("pp", 2), ("x0", 4)), ()),
        cuts=lambda block, tp: (),
        root=lambda layers: StrategyNode(schedule=Schedule("1f1b", 1, 2, 1, layers)),
        _layers=lambda counts: tuple(counts),
    )
    plan = _Walker._plan(walker, choices, [3, 5])
    assert [(node.select, node.recompute) for node in plan.root.children] == [
        ("in", "none"), ("pair[0:2]", "none"), ("layer[0:2]", "full"), ("layer[2:3]", "none"), ("layer[3:4]", "none"),
        ("out", "none"),
    ]  # fmt: skip
    assert plan.schedule.layers == (3, 5)
    walker.problem.stages = 1
    walker.root = lambda layers: StrategyNode(schedule=Schedule("1f1b", 1, 1, 1, layers))
    walker.mesh = Mesh((("pp", 1), ("x0", 8)), ())
    assert _Walker._plan(walker, choices, [8]).schedule.layers is None


@pytest.mark.parametrize(
    ("repeats", "shared", "counts", "layers"),
    [
        ([1, 8, 1], [1], [4, 4], (4, 4)),  # layers alone are shared out
        ([1, 4, 1], [0, 1, 2], [2, 2], (3, 3)),  # so few that what is around them counts
        ([1, 1, 4, 2, 1], [0, 1, 2, 3, 4], [3, 3], (5, 4)),
        ([1, 1, 1], [0, 1, 2], [1, 2], (1, 2)),  # nothing repeats: all blocks are layers
    ],
)
def test_stages_are_told_with_what_is_before_and_behind_layers(
    monkeypatch, repeats, shared, counts, layers
):
    monkeypatch.setattr(markov, "layer_blocks", lambda model: shared)
    walker = SimpleNamespace(
        model=SimpleNamespace(blocks=[SimpleNamespace(repeat=n) for n in repeats])
    )
    assert _Walker._layers(walker, counts) == layers
