"""What layers take and hold in every state, beside what the compiler makes of the plan of the best path."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.plans import tiny_model
from support.stages import Compiled, is_boundary

from foretrain.cluster.cluster import Cluster
from foretrain.compile.compile import stage_programs
from foretrain.compile.execution import BACKWARD, FORWARD
from foretrain.errors import InputError
from foretrain.plan.strategy import Cut
from foretrain.planning.layer_shares import shared_out
from foretrain.planning.layer_trees import (
    LayerState,
    LayerwiseProblem,
    MixedTrees,
    primes,
    runs,
    trees,
)
from foretrain.planning.layers import chain_seconds
from foretrain.planning.markov import Walker, walk
from foretrain.planning.per_layer import _halves, _several, described, problems
from foretrain.planning.task import Task
from foretrain.simulate import peak_memory
from foretrain.testing.asking import ask


@given(st.integers(1, 5000))
def test_factors_are_primes_and_multiply_to_the_number(count):
    factors = primes(count)
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
    walker = Walker(task_of(), LayerwiseProblem(stages, least, 1, 0))
    grid = walker.trees
    assert isinstance(grid, MixedTrees)
    assert walker.tps == tps
    assert [grid.mesh.size(*grid.inner(tp)) if tp > 1 else 1 for tp in tps] == tps
    assert grid.replicas * least * stages == 8
    assert {s.tp for s in walker.states} == set(tps)


def test_tensor_parallelism_stays_in_a_domain_unless_it_has_to_be_wider():
    task = task_of(on="4 x aws:g5.12xlarge")
    domain = int(np.bincount(task.cluster.domain_of).max())
    assert max(Walker(task, LayerwiseProblem(1, 1, 1, 0)).tps) == domain
    assert Walker(task, LayerwiseProblem(1, 8, 1, 0)).tps == [8]


def test_grounds_that_cannot_be_are_refused_with_the_reason():
    task = task_of()
    with pytest.raises(InputError, match="tp 3 cannot be formed from the factors of 8 ranks"):
        walk(task, LayerwiseProblem(1, 3, 1, 0))
    with pytest.raises(InputError, match="8 stages for 6 layers"):
        _ = Walker(task, LayerwiseProblem(8, 1, 1, 0)).table
    wide = task_of("gpt", on="2 x dgx-a100-80gb")
    with pytest.raises(InputError, match="no tensor parallelism of 16 to 16 divides the model"):
        walk(wide, LayerwiseProblem(1, 16, 1, 0))


@pytest.mark.parametrize("stages", [1, 2, 4])
@pytest.mark.parametrize("model", ["gpt", "llama"])
def test_a_walk_takes_what_the_compiler_makes_of_its_plan(model, stages):
    """With four layers, embedding and head are layers too where a plan says how many each stage holds."""
    task, micro = task_of(model), 2 if stages < 4 else 1
    found = walk(task, LayerwiseProblem(stages, 1, micro, 1))
    assert found is not None
    schedule = found.plan.schedule
    assert (schedule.micro_batch, schedule.stages) == (micro, stages)
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
    """1.6 GB are needed, 1.2 GB if all layers run again: some of them have to, then more, then none fit."""
    on, problem = Cluster.of("1 x dgx-a100-80gb").first(1), LayerwiseProblem(1, 1, 64, 0)
    roomy = task_of(on=on, batch=64, context_bytes=0.0)
    free = float(roomy.usable_bytes[0])
    left = (free, 1.5e9, 1.3e9, 1.1e9)
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
    posed = problems(task, ["tp4 pp2 micro=4 zero1"], "all")
    assert [(g.least_tp, g.micro) for g in posed] == [
        (4, 4),
        (4, 2),
        (4, 1),
        (2, 2),
        (2, 1),
        (1, 1),
    ]
    assert {(g.stages, g.zero) for g in posed} == {(2, 1)}
    assert {g.words for g in posed} == {None}
    few = problems(task_of(batch=8), ["pp2 micro=8 zero1"], "all")
    assert [(g.least_tp, g.micro) for g in few] == [(1, 2), (1, 1)]  # 4 replicas, 8 samples


def test_layers_that_are_split_alike_keep_the_rest_of_their_plan():
    """… but what is not there layer by layer: chunks, shares of layers, states in host memory."""
    task = task_of(batch=64)
    text = "tp2 cp2 pp2 vpp2 dp1 zero1 sp interleaved recompute=full offload=optimizer micro=2"
    posed = problems(task, [text], "recompute")
    assert [(g.least_tp, g.micro, g.sp) for g in posed] == [
        (2, 2, True),
        (2, 1, True),
        (1, 1, False),
    ]
    words = [g.words for g in posed]
    assert {(w.cp, w.pp, w.vpp, w.schedule, w.recompute, w.offload, w.zero) for w in words} == {
        (2, 2, 1, "1f1b", "none", (), 1)
    }
    assert [w.dp for w in words] == [1, 1, 2]
    both = problems(task, [text], "all")
    assert {g.words is None for g in both} == {True, False}


def test_a_walk_is_described_layer_by_layer():
    found = walk(task_of(), LayerwiseProblem(2, 2, 2, 1))
    assert found is not None
    text = described(found.plan)
    assert {choice.tp for choice in found.choices} == {2}
    assert text == "tp2 pp2 dp2 zero1 sp 1f1b micro=2"
    mixed = trees(task_of(), LayerwiseProblem(2, 1, 2, 1)).plan(
        [LayerState(tp, "none", 1) for tp in (1, 2, 2, 4, 4, 1)], (2, 4)
    )
    told = "embedding tp1, layers[0:2] tp2, layers[2:4] tp4, head tp1"
    assert described(mixed) == f"pp2 micro=2 zero1 layers=2,4: {told}"


def node(select, tp, recompute=None, state=()):
    """Layers of one choice, on the two innermost axes or one of them."""
    axes = {1: (), 2: ("b",), 4: ("a", "b")}[tp]
    split = (Cut(("heads",), axes), Cut(("seq",), axes)) if axes else ()
    return SimpleNamespace(select=select, split=split, recompute=recompute, state=state)


STATES = (("optimizer", ("a",)), ("gradient", ("a",)), ("weight", ("a",)))


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
        node("head", 2, "none", STATES[zero:]),
    ]  # fmt: skip
    plan = SimpleNamespace(
        text="",
        mesh=SimpleNamespace(axes=(("pp", stages), ("a", 2), ("b", 2))),
        schedule=SimpleNamespace(stages=stages, micro_batch=4, layers=layers),
        root=SimpleNamespace(
            state=STATES[:zero], children=nodes, split=(Cut(("batch",), ("a", "b")),)
        ),
    )
    told = "embedding tp1, layer[0:2]…layer[2:4] tp4 recompute=full, layer[4:6] tp4, head tp2 zero3"
    assert described(plan) == text + told
    assert described(SimpleNamespace(text="dp8")) == "dp8"


def test_what_all_layers_share_is_told_before_them():
    task = task_of(batch=64)
    (problem, *_) = problems(task, ["tp2 pp2 dp2 zero1 micro=2 sp"], "recompute")
    grid = trees(task, problem)
    states = [LayerState(2, r, z) for r, z in (("full", 1), ("none", 1), ("none", 3))]
    choices = [states[1], states[0], states[0], states[1], states[2], states[1]]
    plan = grid.plan(choices, (2, 4))
    text = "tp2 pp2 micro=2 zero1 layers=2,4: layers[0:2] recompute=full, layers[3:4] zero3"
    assert described(plan) == text
    assert {role for role, _ in plan.root.children[1].state} == {"gradient", "weight"}
    same = grid.plan([states[1]] * 6, None)
    assert same.text == "tp2 pp2 dp2 zero1 sp 1f1b micro=2"
    spread = [states[1], *(states[number % 2] for number in range(4)), states[1]]
    assert described(grid.plan(spread, None)).endswith(": layers[0:1,2:3] recompute=full")
    many = [f"layers[{start}:{start + 2}]" for start in range(0, 30, 3)]
    assert _several(["head", *many]) == "head+20 of layers[0:2,…,27:29]"
    most = grid.plan([choices[0], *[states[2]] * 5], None)
    assert described(most) == "tp2 pp2 micro=2 zero3: embedding zero1"
    assert dict(most.root.children[0].state) == {"gradient": (), "weight": ()}


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
    grid = trees(task_of(on="1 x aws:p3.8xlarge"), LayerwiseProblem(1, 1, 1, 0))
    assert isinstance(grid, MixedTrees)
    block = SimpleNamespace(ops=[SimpleNamespace(size={dim: 8}) for dim in dims])
    assert [(c.dims, c.axes) for c in grid.cuts(block, 2)] == [(d, ("x1",)) for d in cut]
    assert grid.cuts(block, 1) == ()
    plain = replace(grid, problem=replace(grid.problem, sp=False))
    assert [c.dims for c in plain.cuts(block, 2)] == [d for d in cut if "seq" not in d]


def test_runs_of_layers_alike_are_chosen_together():
    blocks = [SimpleNamespace(name=name, repeat=count) for name, count in (("in", 1), ("pair", 2), ("layer", 4), ("out", 1))]  # fmt: skip
    plain, full, wide = LayerState(1, "none"), LayerState(1, "full"), LayerState(2, "none")
    choices = [plain, plain, plain, full, full, plain, wide, plain]
    assert runs(SimpleNamespace(blocks=blocks), choices) == [
        ("in", plain), ("pair[0:2]", plain), ("layer[0:2]", full), ("layer[2:3]", plain), ("layer[3:4]", wide),
        ("out", plain),
    ]  # fmt: skip


EIGHT_LAYERS = {
    "family": "gpt", "hidden_size": 4096, "num_hidden_layers": 8, "num_attention_heads": 32,
    "vocab_size": 50257, "max_position_embeddings": 1024,
}  # fmt: skip


def eight_layers() -> Task:
    on = "1 x aws:p3.8xlarge"
    asked = ask(EIGHT_LAYERS, on=on, plan="zero0", batch=128, seq=1024, precision="fp16")
    return Task.of(asked)


@pytest.mark.parametrize(("stages", "tp", "micro"), [(1, 2, 32), (1, 1, 16), (1, 4, 32)])
def test_memory_that_is_all_but_full_is_no_reason_to_find_nothing(stages, tp, micro):
    """Everything recomputed, 14 GB of 16 GB are taken: rounded up to steps of memory, that was too much."""
    task, problem = eight_layers(), LayerwiseProblem(stages, tp, micro, 0)
    found = walk(task, problem)
    assert found is not None
    assert found.gap == 0.0
    held = peak_memory(task.scenario(found.plan))
    assert 0.85 * held.usable_bytes < held.peak_bytes <= held.usable_bytes


@pytest.mark.parametrize(("stages", "tp", "micro"), [(1, 2, 16), (2, 2, 16), (2, 1, 8)])
def test_a_path_holds_what_the_compiler_says(stages, tp, micro):
    walker = Walker(eight_layers(), LayerwiseProblem(stages, tp, micro, 0))
    shares = walker.first_shares
    assert shares is not None
    plan = walker._told(shares).plan
    assert walker._peaks(walker.table, shares) == pytest.approx(walker._held(plan), rel=1e-9)
    every = replace(walker.task.workload, global_batch=walker.task.workload.global_batch * 4)
    large = Walker(replace(walker.task, workload=every), walker.problem)
    assert large._held(plan) == pytest.approx(walker._held(plan), rel=1e-12)


def test_zero_goes_as_far_as_memory_asks():
    """With room, weights stay whole, which spares their gathers; then some layers split them, then all."""
    on = Cluster.of("1 x dgx-a100-80gb")
    problem = LayerwiseProblem(1, 1, 4, 1, ("none",), zeros=(1, 3))
    task = task_of("llama", on=on, batch=512, prefetched_blocks=0)
    walker = Walker(task, problem)
    counts = []
    for share in (1.0, 0.5, 0.25, 0.0):
        least = min(walker._peaks(walker.table, shared_out(walker.table)))
        low = walker.table.static.min(axis=1)[list(walker.table.rows)].sum()
        stage = replace(walker.table.stages[0], room=float(low + share * (least - low) * 1.0001))
        shares = shared_out(replace(walker.table, stages=(stage,)))
        if shares is not None:
            counts.append(
                sum(walker.states[s].zero == 3 for path in shares.paths for s in path.states)
            )
    assert counts[0] == 0
    assert counts == sorted(counts)
    assert counts[-1] > 0
