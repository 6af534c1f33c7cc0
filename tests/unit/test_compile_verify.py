"""The executable spec: a legal graph passes, and every kind of damage is noticed and named."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.plans import tiny_model
from support.verify import verify, verify_all, verify_segments

from foretrain.compile.execution import (
    CHAIN,
    COLLECTIVE,
    TRANSFER,
    UPDATE,
    Communication,
    ExecutionGraph,
    Item,
    Load,
)
from foretrain.compile.segment import Async, Segment
from foretrain.errors import Bug
from foretrain.simulate import compile_scenario
from foretrain.testing.asking import ask


@pytest.fixture(scope="module")
def graph() -> ExecutionGraph:
    question = ask(
        tiny_model("gpt"), on="1 x dgx-a100-80gb", plan="tp2 pp2 dp2 zero1", batch=8, micro_batch=1,
        runtime_options={"overlaps_gradients": True, "overlaps_pipeline": True},
    )  # fmt: skip
    return compile_scenario(question)


def test_a_compiled_graph_is_legal(graph):
    verify(graph)


def changed(graph: ExecutionGraph, column: str, at: int, value: float) -> ExecutionGraph:
    values = getattr(graph, column).copy()
    values[at] = value
    return replace(graph, **{column: values})


def first(graph: ExecutionGraph, kind: int, phase: int | None = None) -> int:
    hit = graph.task_kind == kind
    if phase is not None:
        hit = hit & (graph.task_phase == phase)
    return int(np.flatnonzero(hit)[0])


def without_edges(graph: ExecutionGraph, drop) -> ExecutionGraph:
    source = np.repeat(np.arange(graph.tasks), np.diff(graph.succ_ptr))
    keep = ~drop(source, graph.succ)
    counts = np.bincount(source[keep], minlength=graph.tasks)
    pointers = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    return replace(graph, succ_ptr=pointers, succ=graph.succ[keep])


DAMAGE = {
    "rows for": lambda g: replace(g, task_micro=g.task_micro[:-1]),
    "task_shape leaves": lambda g: changed(g, "task_shape", 0, len(g.shape_ptr) + 5),
    "stream_ids leaves": lambda g: changed(g, "stream_ids", 0, len(g.streams)),
    "succ_ptr does not span": lambda g: replace(g, succ=g.succ[:-1]),
    "succ_ptr goes back": lambda g: changed(g, "succ_ptr", 3, g.succ_ptr[-1]),
    "labelled with a stage": lambda g: changed(g, "task_stage", 0, 1),
    "less than no workspace": lambda g: changed(g, "task_workspace", 0, -1.0),
    "not finite": lambda g: changed(g, "task_memory", first(g, CHAIN), np.nan),
    "bytes": lambda g: changed(g, "task_memory", first(g, CHAIN), 1e12),
    "a step": lambda g: changed(g, "task_micro", first(g, CHAIN), 3),
    "stream of another rank class": lambda g: changed(
        g, "stream_ids", 0, next(s for s, (c, _) in enumerate(g.streams) if c != g.task_class[0])
    ),
    "wait for each other": lambda g: changed(g, "succ", int(g.succ_ptr[first(g, TRANSFER)]), 0),
    "receivers": lambda g: without_edges(g, lambda s, t: g.task_kind[s] == TRANSFER),
    "weights change": lambda g: without_edges(
        g, lambda s, t: (g.task_kind[s] == COLLECTIVE) & (g.task_phase[t] == UPDATE)
    ),
}


@pytest.mark.parametrize("message", DAMAGE)
def test_damage_is_noticed(graph, message):
    with pytest.raises(Bug, match=message):
        verify(DAMAGE[message](graph))


def test_a_flow_of_two_items_is_noticed(graph):
    task = first(graph, COLLECTIVE)
    long = int(np.argmax(np.diff(graph.shape_ptr)))
    with pytest.raises(Bug, match="a collective of"):
        verify(changed(graph, "task_shape", task, long))


def test_a_load_on_a_chain_is_noticed(graph):
    items = list(graph.items)
    items[int(graph.shape_items[graph.shape_ptr[graph.task_shape[first(graph, CHAIN)]]])] = Item(
        Load(1.0, "fetch")
    )
    with pytest.raises(Bug, match="a load in a"):
        verify(replace(graph, items=tuple(items)))


def test_a_collective_without_one_of_its_ranks_is_noticed():
    question = ask(tiny_model("gpt"), on="1 x dgx-a100-80gb", plan="dp8", batch=8, micro_batch=1)
    graph = compile_scenario(question, is_folded=False)
    verify(graph)
    task = int(np.flatnonzero(np.diff(graph.stream_ptr) == 8)[0])
    low, high = int(graph.stream_ptr[task]), int(graph.stream_ptr[task + 1])
    pointers = graph.stream_ptr.copy()
    pointers[task + 1 :] -= 1
    ids = np.delete(graph.stream_ids, high - 1)
    assert low < high - 1
    with pytest.raises(Bug, match="joins classes"):
        verify(replace(graph, stream_ptr=pointers, stream_ids=ids))


# --- segments -------------------------------------------------------------------------------------------

SEND = Item(Communication("send", 1.0, None, "pipeline"))  # type: ignore[arg-type]
COPY = Item(Load(1.0, "prep"))


def chain(*numbers: int) -> np.ndarray:
    return np.array(numbers, dtype=np.int32)


def test_segments_that_give_back_what_they_take_are_legal():
    verify_segments([Segment(chain(0), memory=5.0), Segment(chain(0), memory=-5.0)], [SEND])


@pytest.mark.parametrize(
    ("segments", "message"),
    [
        ([Segment(chain(0), memory=5.0)], "keep 5 bytes"),
        ([Segment(chain(7))], "outside"),
        ([Segment(chain(1))], "data loading"),
        ([Segment(chain(0), asyncs=(Async(0, "data", 2),))], "starts after 2"),
        ([Segment(chain(0), asyncs=(Async(0, "data", 1, 0),))], "is due before 0"),
        ([Segment(chain(0), send=1)], "no send"),
        ([Segment(chain(0), workspace=-1.0)], "impossible memory"),
    ],
)
def test_broken_segments_are_noticed(segments, message):
    with pytest.raises(Bug, match=message):
        verify_segments(segments, [SEND, COPY])


def test_all_that_a_test_compiles_may_be_verified(monkeypatch):
    calls = []
    verify_all(monkeypatch)
    monkeypatch.setattr(
        "support.verify.verify_compiled", lambda programs, graph: calls.append(graph)
    )
    graph = compile_scenario(ask(tiny_model("cnn"), on="1 x dgx-a100-80gb", batch=8))
    assert calls == [graph]
