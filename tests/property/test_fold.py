"""Folding is exact: one rank per class, and chains run as one task, give the answer of every rank and every op.

The questions are small but odd: uneven placements, two kinds of machine, networks that share links, every word a
plan knows. `is_folded=False` simulates each rank; `apart` besides cuts chains at every collective.
"""

from __future__ import annotations

import itertools
from unittest.mock import patch

import numpy as np
from hypothesis import HealthCheck, event, given, settings
from support.plans import questions
from support.verify import verify

from foretrain import engine
from foretrain.compile import lowering
from foretrain.compile.execution import Communication
from foretrain.compile.passes import fold
from foretrain.resolving import ask
from foretrain.simulate import answer, compile_scenario, cost_scenario, program, simulate

QUIET = settings(
    deadline=None,
    derandomize=True,
    suppress_health_check=[
        HealthCheck.too_slow,
        HealthCheck.filter_too_much,
        HealthCheck.data_too_large,
    ],
)
EXACT = 1e-9


@settings(QUIET, max_examples=300)
@given(questions())
def test_folded_equals_every_rank(question):
    folded, every = answer(question), answer(question, is_folded=False)
    step = every.step_seconds
    event("folded" if len(folded.timeline) < len(every.timeline) else "nothing to fold")
    assert abs(folded.step_seconds - step) <= EXACT * step
    assert abs(folded.memory.peak_bytes / every.memory.peak_bytes - 1) <= EXACT
    assert dict(folded.memory.by_kind).keys() == dict(every.memory.by_kind).keys()
    for kind, size in folded.memory.by_kind.items():
        assert abs(size - every.memory.by_kind[kind]) <= EXACT * every.memory.peak_bytes, kind
    for name, seconds in folded.stalls.items():
        assert abs(seconds - every.stalls[name]) <= EXACT * step, name
    assert abs(sum(folded.stalls.values()) - step) <= 1e-12 * step
    assert abs(sum(every.stalls.values()) - step) <= 1e-12 * step


def _always_apart(weaving: lowering._SegmentLowering, number: int) -> bool:
    return isinstance(weaving.context.items[number].work, Communication)


@settings(QUIET, max_examples=100)
@given(questions())
def test_chains_that_run_as_one_task_equal_chains_cut_at_every_collective(question):
    joined = answer(question)
    with patch.object(lowering._SegmentLowering, "_is_apart", _always_apart):
        apart = answer(question)
    step = apart.step_seconds
    assert abs(joined.step_seconds - step) <= EXACT * step
    for name, seconds in joined.stalls.items():
        assert abs(seconds - apart.stalls[name]) <= EXACT * step, name


@settings(QUIET, max_examples=100)
@given(questions())
def test_every_compiled_graph_is_legal(question):
    verify(compile_scenario(question))
    verify(compile_scenario(question, is_folded=False))


@settings(QUIET, max_examples=60)
@given(questions())
def test_both_engines_give_the_same_bits(question):
    graph = compile_scenario(question)
    costs = cost_scenario(question, graph)
    readable = engine.simulate(program(graph, costs), "reference")
    if engine.native_available():
        compiled = engine.simulate(program(graph, costs), "native")
        for column in ("start", "end", "waited_for"):
            assert np.array_equal(getattr(readable, column), getattr(compiled, column)), column
    assert float(simulate(graph, costs).end.max()) == float(readable.end.max())


@settings(QUIET, max_examples=60)
@given(questions())
def test_the_critical_path_is_unbroken_and_ends_with_the_step(question):
    prediction = answer(question)
    path = prediction.critical_path
    step = prediction.step_seconds
    assert path[-1].end == step
    assert path[0].start == 0.0
    for before, after in itertools.pairwise(path):
        assert abs(before.end - after.start) <= 1e-12 * step
        assert after.end > after.start


def test_work_of_the_fold_does_not_grow_with_the_members_of_a_group():
    """Arrays grow with ranks; the number of operations on them must not, or a million ranks take minutes."""

    def mixes(nodes: int) -> int:
        question = ask(
            "gpt2", on=f"{nodes} x dgx-h100", plan="zero1", batch=8 * nodes, micro_batch=1
        )
        with patch.object(fold, "mix", wraps=fold.mix) as mix:
            compile_scenario(question)
        return mix.call_count

    assert 0 < mixes(33) == mixes(65)
