"""Which layers a stage holds, beside all ways to share them out; and buckets of gradients, one gradient after another."""

from __future__ import annotations

from itertools import accumulate, combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.plans import tiny_model

from foretrain.compile.passes.bucket import filled_at
from foretrain.compile.passes.place import (
    _balanced,
    _even_shares,
    _greedy,
    layer_blocks,
    place,
    stored_before,
)
from foretrain.errors import PlanError
from foretrain.model.graph import Model
from foretrain.model.load import load_model
from foretrain.model.ops import family
from foretrain.plan.strategy import Schedule


def transformer(layers: int, **shape: object) -> Model:
    """Embedding, so many layers, head."""
    small = {"hidden_size": 64, "num_attention_heads": 4, "vocab_size": 256} | shape
    return load_model({"name": "tiny", "transformer": {**small, "num_hidden_layers": layers}, "seq": 16})  # fmt: skip


def schedule(stages: int, chunks: int = 1, layers: tuple[int, ...] | None = None) -> Schedule:
    return Schedule("interleaved" if chunks > 1 else "1f1b", 1, stages, chunks, layers)


def counts_of(parts) -> list[int]:
    return [len(part) for part in parts]


def every_way(count: int, parts: int):
    """All ways to cut so many layers into parts that hold one at least."""
    for cuts in combinations(range(1, count), parts - 1):
        yield [b - a for a, b in zip((0, *cuts), (*cuts, count), strict=True)]


works = st.lists(st.floats(0.1, 10.0), min_size=1, max_size=8)


def heaviest(work, counts) -> float:
    ends = list(accumulate(counts))
    return max(sum(work[end - count : end]) for end, count in zip(ends, counts, strict=True))


@settings(max_examples=150, deadline=None)
@given(works, st.integers(1, 4), st.floats(0.5, 30.0))
def test_a_greedy_share_is_found_where_there_is_one(work, parts, limit):
    found = _greedy(work, limit, parts)
    able = [c for c in every_way(len(work), parts) if heaviest(work, c) <= limit * (1 + 1e-12)]
    assert (found is not None) == bool(able)
    if found is not None:
        assert found in able


@settings(max_examples=100, deadline=None)
@given(works, st.integers(1, 4))
def test_even_shares_end_where_the_running_total_reaches_them(work, parts):
    found = _even_shares(work, parts)
    assert sum(found) == len(work)
    if len(work) >= parts:
        assert min(found) >= 1
    share, ends = sum(work) / parts, list(accumulate(found))
    totals = [0.0, *accumulate(work)]
    if all(count > 0 for count in found) and len(work) >= 3 * parts:
        first = ends[0]  # nothing was taken from a part with several behind it
        assert totals[first] >= share * (1 - 1e-9) or found[0] == 1


@pytest.mark.parametrize(("layers", "stages"), [(13, 3), (14, 4), (17, 5), (12, 7)])
def test_what_divides_in_no_way_is_balanced_by_arithmetic(layers, stages):
    """Beside all shares: none has a smaller largest part, embedding and head on the first and the last."""
    model = transformer(layers, vocab_size=4096)
    layer = sum(family(op).flops(op) for op in model.blocks[1].ops)
    head, before = (sum(family(op).flops(op) for op in model.blocks[n].ops) or 1.0 for n in (2, 0))
    work = [layer] * layers
    work[0] += before
    work[-1] += head
    instances = [(1, n) for n in range(layers)]
    best = min(heaviest(work, counts) for counts in every_way(layers, stages))
    assert heaviest(work, _balanced(model, instances, stages)) == pytest.approx(best)


@pytest.mark.parametrize(
    ("layers", "stages", "chunks", "held"),
    [
        (12, 4, 1, [4, 3, 3, 4]),  # embedding and head beside their layers
        (12, 2, 3, [3, 2, 2, 2, 2, 3]),
        (14, 4, 1, [4, 4, 4, 4]),  # embedding and head count as a layer each
        (15, 4, 1, [5, 4, 4, 4]),  # the head counts as one
        (13, 1, 1, [15]),
    ],
)
def test_layers_divide_evenly_or_with_the_ends(layers, stages, chunks, held):
    model = transformer(layers)
    parts = place(model, schedule(stages, chunks))
    assert counts_of(parts) == held
    flat = [instance for part in parts for instance in part]
    assert flat == [(0, 0), *((1, n) for n in range(layers)), (2, 0)]


def test_layers_may_be_told():
    model = transformer(12)
    assert counts_of(place(model, schedule(3, layers=(2, 6, 4)))) == [3, 6, 5]
    with pytest.raises(PlanError, match=r"layers \[2, 6\] add up to 8 in 2 parts, but tiny has 12"):
        place(model, schedule(2, layers=(2, 6)))
    with pytest.raises(PlanError, match=r"part 1 of the pipeline would be empty"):
        place(model, schedule(3, layers=(6, 0, 6)))


def test_few_layers_are_shared_out_with_embedding_and_head():
    model = transformer(4)
    assert layer_blocks(model) == {0, 1, 2}
    assert layer_blocks(transformer(12)) == {1}
    assert counts_of(place(model, schedule(6))) == [1] * 6
    assert counts_of(place(model, schedule(2, layers=(5, 1)))) == [5, 1]
    with pytest.raises(PlanError, match="7 parts, but tiny has only 6 layers"):
        place(model, schedule(7))
    many = transformer(12)
    assert counts_of(place(many, schedule(14))) == [1] * 14
    assert counts_of(place(many, schedule(13, layers=(2, *[1] * 12)))) == [2, *[1] * 12]
    with pytest.raises(PlanError, match="but tiny has 14 blocks"):
        place(many, schedule(13, layers=(1,) * 13))


def test_by_products_the_head_counts_with_its_matrix():
    """A head as large as four layers takes their place on the last stage."""
    model = transformer(12, vocab_size=8192)
    even, shared = (counts_of(place(model, schedule(2), by)) for by in (False, True))
    assert even == [7, 7]
    assert shared[0] > shared[1]
    assert sum(shared) == 14


@pytest.mark.parametrize(("stages", "is_stored_once"), [(1, True), (2, False)])
def test_tied_weights_are_stored_once_on_a_stage(stages, is_stored_once):
    model = tiny_model("gpt")
    found = stored_before(model, schedule(stages))
    assert found == (set(model.origins) if is_stored_once else set())
    assert stored_before(tiny_model("llama"), schedule(1)) == frozenset()


@settings(max_examples=150, deadline=None)
@given(st.lists(st.floats(0.1, 9.0), min_size=1, max_size=12), st.floats(0.1, 20.0), st.floats(0.1, 20.0))  # fmt: skip
def test_a_bucket_goes_once_it_holds_its_size(sizes, first, others):
    """The first bucket may be another size than those after it; what is left at the end is not one yet."""
    ends, held = [], 0.0
    for place_, size in enumerate(sizes, 1):
        held += size
        if held >= (others if ends else first) * (1 - 1e-12):
            ends.append(place_)
            held = 0.0
    found = filled_at(np.array(sizes), (first, others))
    if not np.isclose(np.add.outer(np.cumsum(sizes), -np.cumsum(sizes)), first).any():
        assert list(found) == ends
