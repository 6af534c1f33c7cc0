"""Layouts: which collectives lie between two ways of cutting a tensor, and interval intersection."""

from __future__ import annotations

import pytest

from foretrain.compile.layout import TensorLayout, overlap_bytes, transition

SIZES = {"a": 2, "b": 4, "one": 1}
FULL = 64.0


def steps(have: TensorLayout, want: TensorLayout) -> list[tuple[str, tuple[str, ...], float]]:
    return [
        (c.collective, c.group.axes, c.bytes)
        for c in transition(have, want, FULL, SIZES, "reshard")
    ]


def layout(*axes: str, partial: str = "") -> TensorLayout:
    return TensorLayout(tuple(tuple(a.split()) for a in axes), tuple(partial.split()))


@pytest.mark.parametrize(
    ("have", "want", "expected"),
    [
        (layout("a", ""), layout("a", ""), []),
        (layout("", ""), layout("a", ""), []),  # every rank keeps its part
        (layout("a", ""), layout("", ""), [("all_gather", ("a",), 64.0)]),
        (layout("a b", ""), layout("a", ""), [("all_gather", ("b",), 32.0)]),
        (layout("a", ""), layout("", "a"), [("all_to_all", ("a",), 32.0)]),
        (layout("", "", partial="b"), layout("", ""), [("all_reduce", ("b",), 64.0)]),
        (layout("", "", partial="b"), layout("b", ""), [("reduce_scatter", ("b",), 64.0)]),
        (layout("a", "", partial="b"), layout("a", "b"), [("reduce_scatter", ("b",), 32.0)]),
        (
            layout("a", "", partial="b"),
            layout("", ""),
            [("all_reduce", ("b",), 32.0), ("all_gather", ("a",), 64.0)],
        ),
        (
            layout("a", "b"),
            layout("b", ""),
            [("all_to_all", ("b",), 8.0), ("all_gather", ("a",), 16.0)],
        ),
        # an axis that newly cuts makes the rest smaller: tokens go to experts of their own tp rank only
        (layout("a", ""), layout("", "a b"), [("all_to_all", ("a",), 8.0)]),
        (layout("a", ""), layout("", "b"), [("all_gather", ("a",), 16.0)]),
        (layout("one", "", partial="one"), layout("", "one"), []),  # axes of one rank say nothing
    ],
)
def test_transitions(have, want, expected):
    assert steps(have, want) == expected


def test_there_and_back_moves_the_same_bytes():
    sharded, whole = layout("a b", ""), layout("", "")
    [gather] = transition(sharded, whole, FULL, SIZES, "reshard")
    [scatter] = transition(layout("", "", partial="a b"), sharded, FULL, SIZES, "reshard")
    assert gather.bytes == scatter.bytes == FULL


@pytest.mark.parametrize(
    ("have", "want", "halo", "extent", "rows"),
    [
        (4, 4, 0, 32, 0),  # the same parts: nothing to fetch
        (1, 1, 3, 32, 0),  # one part has all there is
        (2, 2, 1, 32, 1),  # an end has one neighbour
        (4, 4, 1, 32, 2),  # an inner part has two
        (4, 4, 3, 7, 4.75),  # 1.75 rows each: three rows more reach over the edge of the image
        (4, 4, 100, 32, 24),  # never more than what the others hold
        (2, 4, 0, 32, 0),  # finer parts lie inside the coarser ones
        (4, 2, 0, 32, 8),  # coarser parts fetch the other half
        (1, 8, 2, 32, 0),  # everything is at hand
        (2, 4, 1, 32, 1),  # an inner cut needs a row from over the outer one
    ],
)
def test_interval_intersection(have, want, halo, extent, rows):
    assert overlap_bytes(have, want, halo, extent, 10.0) == pytest.approx(10.0 * rows)
