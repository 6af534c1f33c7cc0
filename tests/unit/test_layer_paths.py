"""Fastest paths through layers and layers shared out to stages, beside an integer program that knows neither labels nor prices."""

from __future__ import annotations

from functools import cache
from itertools import product
from math import inf

import numpy as np
import pytest
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import lil_matrix

from foretrain.planning.fastest_path import Chain, fastest, least_of, least_peak
from foretrain.planning.layer_shares import LayerTable, Stage, least_seconds, shared_out

CHAINS, TABLES = 240, 24
"""Problems with binding memory; every one is solved in each run."""
BATCH = 40


def by_integers(chain: Chain) -> float:
    """The seconds of the fastest path that fits: one variable per layer and state, one per step from a state to the
    next; at every layer, what is kept by all and saved so far and worked with has to fit."""
    layers, states = chain.kept.shape
    chosen, steps = layers * states, (layers - 1) * states * states
    cost = np.zeros(chosen + steps)
    cost[:states], cost[chosen:] = chain.first, chain.through.ravel()
    rules = lil_matrix((2 * layers + 2 * (layers - 1) * states, chosen + steps))
    low, high, row = [], [], 0
    for layer in range(layers):
        rules[row, layer * states : (layer + 1) * states] = 1
        row, low, high = row + 1, [*low, 1.0], [*high, 1.0]
    for layer, state in product(range(layers - 1), range(states)):
        first = chosen + layer * states * states
        leaves = range(first + state * states, first + (state + 1) * states)
        enters = range(first + state, first + states * states, states)
        for place, ways in (
            (layer * states + state, leaves),
            ((layer + 1) * states + state, enters),
        ):
            rules[row, place] = -1
            rules[row, list(ways)] = 1
            row, low, high = row + 1, [*low, 0.0], [*high, 0.0]
    for at, layer in product(range(layers), repeat=2):
        held = (
            chain.kept[layer]
            + chain.saved[layer] * (layer <= at)
            + chain.work[layer] * (layer == at)
        )
        rules[row + at, layer * states : (layer + 1) * states] = held / chain.room
    low, high = [*low, *[-inf] * layers], [*high, *[1.0] * layers]
    most = float(cost.max())
    found = milp(
        cost / most,
        constraints=LinearConstraint(rules.tocsr(), low, high),
        integrality=np.concatenate([np.ones(chosen), np.zeros(steps)]),
        bounds=Bounds(0, 1),
        options={"mip_rel_gap": 1e-9},
    )
    assert found.status in (0, 2), found.message
    return most * float(found.fun) if found.status == 0 else inf


def with_room(chain: Chain, room: float) -> Chain:
    return Chain(chain.first, chain.through, chain.kept, chain.saved, chain.work, room)


def drawn_chain(seed: int) -> Chain:
    """Layers, often all alike, whose states trade seconds for bytes and are cheaper to keep than to change; room between
    what is needed at least and what the fastest path needs."""
    rng = np.random.default_rng(seed)
    layers, states = int(rng.integers(2, 12)), int(rng.integers(2, 7))
    degree = np.sort(rng.integers(0, 2, states))
    kinds = np.zeros(layers, int) if rng.random() < 0.6 else rng.integers(0, 3, layers)
    base, move = rng.uniform(1, 10, (3, states)), rng.uniform(0, 3, (2, 2))
    np.fill_diagonal(move, 0.0)
    saved = 30 / base * rng.uniform(0.7, 1.3, (3, states))
    kept, work = rng.uniform(0, 5, (3, states)), rng.uniform(0, 8, (3, states))
    through = np.stack([base[kind][None] + move[degree][:, degree] for kind in kinds[1:]])
    chain = Chain(base[kinds[0]], through, kept[kinds], saved[kinds], work[kinds], inf)
    quick = fastest(chain)
    assert quick is not None
    low, high = chain.peak(least_peak(chain)), chain.peak(np.array(quick.states))
    return with_room(chain, low + (high - low) * rng.uniform(0.0, 0.98))


@pytest.mark.parametrize("start", range(0, CHAINS, BATCH))
def test_the_fastest_path_is_that_of_an_integer_program(start: int) -> None:
    binding = 0
    for seed in range(start, start + BATCH):
        chain = drawn_chain(seed)
        path = fastest(chain)
        assert path is not None, seed
        assert path.seconds == pytest.approx(by_integers(chain), rel=1e-6), seed
        assert path.bound == path.seconds, seed
        assert chain.fits(np.array(path.states))
        assert chain.seconds(np.array(path.states)) == pytest.approx(path.seconds, rel=1e-12)
        assert least_of(chain) <= path.seconds * (1 + 1e-12)
        free = fastest(with_room(chain, inf))
        assert free is not None
        binding += free.seconds < path.seconds * (1 - 1e-9)
    assert binding >= 0.8 * BATCH


@pytest.mark.parametrize("seed", range(40))
def test_some_path_is_found_wherever_one_fits(seed: int) -> None:
    """All paths are looked at; with the least room that any of them needs there is one, with less there is none."""
    rng = np.random.default_rng(seed)
    layers, states = int(rng.integers(1, 6)), int(rng.integers(1, 5))
    chain = Chain(
        rng.uniform(1, 9, states),
        rng.uniform(1, 9, (layers - 1, states, states)),
        *(rng.integers(0, 9, (layers, states)).astype(float) for _ in range(3)),
        room=0.0,
    )
    every = [np.array(path) for path in product(range(states), repeat=layers)]
    least = min(map(chain.peak, every))
    assert chain.peak(least_peak(chain)) == least
    tight = with_room(chain, least)
    path = fastest(tight)
    assert path is not None
    assert path.seconds == pytest.approx(min(chain.seconds(p) for p in every if tight.fits(p)))
    for labels in (1, 2):  # however few labels are kept
        assert fastest(tight, labels) is not None
    assert fastest(with_room(chain, least * (1 - 1e-9) - 1e-9)) is None


@pytest.mark.parametrize("seed", range(20))
def test_with_few_labels_the_gap_is_told(seed: int) -> None:
    chain = drawn_chain(1000 + seed)
    exact, rough = fastest(chain), fastest(chain, 1)
    assert exact is not None
    assert rough is not None
    assert rough.bound <= exact.seconds * (1 + 1e-12)
    assert exact.seconds <= rough.seconds * (1 + 1e-12)
    assert chain.fits(np.array(rough.states))


def test_layers_that_recompute_come_first_where_one_has_to() -> None:
    """Two states, 1 s with 4 bytes saved or 2 s with none but 6 at work: at work early, they lie beside little."""
    chain = Chain(
        np.array([1.0, 2.0]), np.full((2, 2, 2), (1.0, 2.0)), np.zeros((3, 2)),
        np.tile([4.0, 0.0], (3, 1)), np.tile([1.0, 6.0], (3, 1)), room=9.0,
    )  # fmt: skip
    path = fastest(chain)
    assert path is not None
    assert path.seconds == 4.0
    assert path.states == (1, 0, 0)


# --- stages -----------------------------------------------------------------------------------------


def drawn_table(seed: int) -> LayerTable:
    """Up to three stages, some slower or with more memory, a layer before and behind those shared out."""
    rng = np.random.default_rng(seed)
    stages, before, behind = (int(rng.integers(*r)) for r in ((1, 4), (0, 2), (0, 2)))
    shared, states = int(rng.integers(max(stages, 2), 7)), int(rng.integers(2, 5))
    degree = np.sort(rng.integers(0, 2, states))
    rows = (*[0] * before, *np.sort(rng.integers(1, 3, shared)).tolist(), *[3] * behind)
    base, move = rng.uniform(1, 10, (4, states)), rng.uniform(0, 3, (2, 2))
    np.fill_diagonal(move, 0.0)
    seconds = base[:, None] + move[degree][:, degree]
    saved = 30 / base * rng.uniform(0.7, 1.3, (4, states))
    static, work = rng.uniform(0, 5, (4, states)), rng.uniform(0, 8, (4, states))
    room = rng.uniform(8, 50) * shared / stages
    each = tuple(
        Stage(seconds * rng.choice([1.0, 1.5]), room * rng.choice([1.0, 1.3]), stages - number, rng.choice([0.0, 2.0]))
        for number in range(stages)
    )  # fmt: skip
    return LayerTable(tuple(rows), range(before, before + shared), static, saved, work, each)


@pytest.mark.parametrize("seed", range(TABLES))
def test_layers_are_shared_out_as_by_integer_programs_of_all_ways(seed: int) -> None:
    """The slowest stage is as fast as can be, then all of them together."""
    table = drawn_table(seed)
    stages, layers = len(table.stages), len(table.shared)

    @cache
    def seconds(number: int, low: int, high: int) -> float:
        return by_integers(table.chain(number, low, high))

    best = (inf, inf)
    for counts in product(range(1, layers + 1), repeat=stages):
        if sum(counts) == layers:
            ends = np.cumsum(counts).tolist()
            each = [seconds(n, e - c, e) for n, (c, e) in enumerate(zip(counts, ends, strict=True))]
            best = min(best, (max(each), sum(each)))
    shares = shared_out(table)
    if shares is None:
        assert best == (inf, inf)
        return
    assert sum(shares.counts) == layers
    assert (shares.slowest, shares.total) == pytest.approx(best, rel=1e-6)
    assert shares.gap == pytest.approx(0.0, abs=1e-9)
    assert least_seconds(table)[0] <= shares.slowest * (1 + 1e-12)


def test_layers_of_stages_may_be_given() -> None:
    table = drawn_table(3)
    stages, layers = len(table.stages), len(table.shared)
    assert stages > 1
    free = shared_out(table)
    assert free is not None
    for counts in product(range(1, layers + 1), repeat=stages):
        if sum(counts) == layers and (found := shared_out(table, counts)) is not None:
            assert found.counts == counts
            assert found.slowest >= free.slowest * (1 - 1e-12)
