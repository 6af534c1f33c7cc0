"""Properties of max-min sharing, for the reference and the compiled solver alike."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.programs import program_of

from foretrain.engine import max_min, native_available
from foretrain.engine.fluid import Route

Solver = Callable[[Sequence[Route], Sequence[float], Sequence[float]], list[float]]

ROUNDING = 1e-9


def native_max_min(
    routes: Sequence[Route], caps: Sequence[float], capacity: Sequence[float]
) -> list[float]:
    from foretrain.engine import _native

    p = program_of([], routes=routes, route_cap=caps, capacity=capacity)
    rates = np.empty(len(routes))
    _native.max_min(p.route_ptr, p.route_link, p.route_weight, p.route_cap, p.capacity, rates)
    return rates.tolist()


needs_native = pytest.mark.skipif(not native_available(), reason="compiled engine not installed")
SOLVERS = [
    pytest.param(max_min, id="reference"),
    pytest.param(native_max_min, id="native", marks=needs_native),
]


@dataclass(frozen=True)
class Case:
    routes: list[list[tuple[int, float]]]
    caps: list[float]
    capacity: list[float]


# Few distinct round numbers make ties and simultaneous saturation common; the rest are arbitrary.
numbers = st.one_of(st.sampled_from([0.5, 1.0, 2.0, 3.0, 10.0]), st.floats(0.01, 100.0))


@st.composite
def cases(draw: st.DrawFn, most_flows: int = 12) -> Case:
    capacity = draw(st.lists(numbers, min_size=1, max_size=6))
    routes, caps = [], []
    for _ in range(draw(st.integers(1, most_flows))):
        links = draw(st.lists(st.integers(0, len(capacity) - 1), max_size=4, unique=True))
        routes.append([(link, draw(numbers)) for link in links])
        caps.append(draw(numbers if not links else st.one_of(st.just(math.inf), numbers)))
    return Case(routes, caps, capacity)


def loads(case: Case, rates: Sequence[float]) -> list[float]:
    total = [0.0] * len(case.capacity)
    for route, rate in zip(case.routes, rates, strict=True):
        for link, weight in route:
            total[link] += weight * rate
    return total


@pytest.mark.parametrize("solve", SOLVERS)
@settings(max_examples=200, deadline=None)
@given(case=cases())
def test_no_link_carries_more_than_its_capacity_and_no_flow_exceeds_its_cap(
    solve: Solver, case: Case
) -> None:
    rates = solve(case.routes, case.caps, case.capacity)
    assert all(rate > 0 for rate in rates)
    assert all(rate <= cap for rate, cap in zip(rates, case.caps, strict=True))
    for load, capacity in zip(loads(case, rates), case.capacity, strict=True):
        assert load <= capacity * (1 + ROUNDING)


@pytest.mark.parametrize("solve", SOLVERS)
@settings(max_examples=200, deadline=None)
@given(case=cases())
def test_every_flow_is_at_its_cap_or_has_a_full_link_on_which_none_is_faster(
    solve: Solver, case: Case
) -> None:
    """The bottleneck condition, which holds for the max-min fair allocation and for no other."""
    rates = solve(case.routes, case.caps, case.capacity)
    carried = loads(case, rates)
    fastest = [0.0] * len(case.capacity)
    for route, rate in zip(case.routes, rates, strict=True):
        for link, _ in route:
            fastest[link] = max(fastest[link], rate)
    for route, rate, cap in zip(case.routes, rates, case.caps, strict=True):
        at_cap = rate >= cap * (1 - ROUNDING)
        bottleneck = any(
            carried[link] >= case.capacity[link] * (1 - ROUNDING)
            and rate >= fastest[link] * (1 - ROUNDING)
            for link, _ in route
        )
        assert at_cap or bottleneck


def lexicographic_max_min(case: Case) -> list[float]:
    """The definition, by linear programming: raise the least rate as far as it goes, fix those that
    cannot go higher, repeat with the rest."""
    from scipy.optimize import linprog

    flows = len(case.routes)
    matrix = np.zeros((len(case.capacity), flows))
    for flow, route in enumerate(case.routes):
        for link, weight in route:
            matrix[link, flow] = weight
    fixed: dict[int, float] = {}
    while len(fixed) < flows:
        open_flows = [flow for flow in range(flows) if flow not in fixed]
        # variables: rates, then the common floor t of the open ones
        above = np.zeros((len(open_flows), flows + 1))
        for row, flow in enumerate(open_flows):
            above[row, flow], above[row, flows] = -1.0, 1.0
        a_ub = np.vstack([np.hstack([matrix, np.zeros((len(matrix), 1))]), above])
        b_ub = np.concatenate([case.capacity, np.zeros(len(open_flows))])
        caps = [None if math.isinf(cap) else cap for cap in case.caps]
        bounds = [(fixed[f], fixed[f]) if f in fixed else (0, caps[f]) for f in range(flows)]
        floor = linprog(np.r_[np.zeros(flows), -1.0], a_ub, b_ub, bounds=[*bounds, (0, None)]).x[-1]
        bounds = [b if f in fixed else (floor * (1 - 1e-9), caps[f]) for f, b in enumerate(bounds)]
        for flow in open_flows:
            best = linprog(-np.eye(flows)[flow], matrix, case.capacity, bounds=bounds).x[flow]
            if best <= floor * (1 + 1e-6):
                fixed[flow] = floor * (1 - 1e-9)
    return [fixed[flow] for flow in range(flows)]


@settings(max_examples=25, deadline=None)
@given(case=cases(most_flows=4))
def test_progressive_filling_finds_the_lexicographic_max_min_of_linear_programming(
    case: Case,
) -> None:
    rates = max_min(case.routes, case.caps, case.capacity)
    np.testing.assert_allclose(rates, lexicographic_max_min(case), rtol=1e-5)


@needs_native
@settings(max_examples=300, deadline=None)
@given(case=cases(most_flows=30))
def test_compiled_and_reference_rates_are_equal_to_the_last_bit(case: Case) -> None:
    expected = max_min(case.routes, case.caps, case.capacity)
    assert native_max_min(case.routes, case.caps, case.capacity) == expected


@settings(max_examples=200, deadline=None)
@given(case=cases(), scale=st.sampled_from([0.25, 2.0, 1024.0]))
def test_scaling_all_capacities_and_caps_scales_all_rates(case: Case, scale: float) -> None:
    """By powers of two, hence exactly."""
    rates = max_min(case.routes, case.caps, case.capacity)
    grown = max_min(
        case.routes, [cap * scale for cap in case.caps], [c * scale for c in case.capacity]
    )
    assert grown == [rate * scale for rate in rates]


@settings(max_examples=200, deadline=None)
@given(case=cases(), data=st.data())
def test_the_order_of_the_flows_does_not_matter(case: Case, data: st.DataObject) -> None:
    order = data.draw(st.permutations(range(len(case.routes))))
    rates = max_min(case.routes, case.caps, case.capacity)
    shuffled = max_min(
        [case.routes[i] for i in order], [case.caps[i] for i in order], case.capacity
    )
    np.testing.assert_allclose(shuffled, [rates[i] for i in order], rtol=1e-9)


@pytest.mark.parametrize("solve", SOLVERS)
@pytest.mark.parametrize(("cap", "bottleneck"), [(1.0, 9.0), (math.inf, 1.0)], ids=["cap", "link"])
def test_a_link_nearly_full_when_a_flow_on_it_freezes_is_full(
    solve: Solver, cap: float, bottleneck: float
) -> None:
    """Link 0 has a hair more than 1 for each of its three flows. One of them freezes at 1, by its cap or
    on link 1, so all three do. Link 2 has as much for each of its two, but none of them freezes at 1."""
    nearly = 1.0 + 2e-13
    routes = [[(0, 1.0), (1, 1.0)], [(0, 1.0)], [(0, 1.0)], [(2, 1.0)], [(2, 1.0)]]
    rates = solve(routes, [cap, *[math.inf] * 4], [3 * nearly, bottleneck, 2 * nearly])
    assert rates == [1.0, 1.0, 1.0, nearly, nearly]
