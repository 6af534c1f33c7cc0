"""How surveys of parts and simulations become a ranking, and what is said of it on the way: both stand-ins here."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from time import perf_counter
from types import SimpleNamespace
from typing import Any

import pytest

from foretrain.errors import InputError
from foretrain.plan.constraints import parse
from foretrain.plan.short_form import parse as words_of
from foretrain.planning import explain, planner
from foretrain.planning.explain import _told, explanations
from foretrain.planning.partial_result import BestPerChoice, EstimatedPlan, PartialResult
from foretrain.planning.planner import Score, SearchStatus, _keep


def row(plan: str, seconds: float, memory: float = 1.0) -> EstimatedPlan:
    return EstimatedPlan(plan, seconds, memory, 80.0, seconds, 0.0, 0.0, 0.0)


def survey_of(seen: int, *best: EstimatedPlan) -> PartialResult:
    return PartialResult(seen=seen, fitting=len(best), pruned={}, best=best)


def test_some_more_plans_are_simulated_than_are_wanted() -> None:
    assert [_keep(top) for top in (1, 8, 9, 10)] == [16, 16, 18, 20]


# --- parts --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("objective", "best"), [("time", "quick"), ("cost", "quick"), ("memory", "lean")])  # fmt: skip
def test_the_best_so_far_is_told_by_the_objective(objective: str, best: str) -> None:
    done = {
        0: survey_of(3, row("quick", 2.0, 9.0), row("x", 2.5, 0.5)),
        2: survey_of(4, row("lean", 3.0, 1.0)),
        4: survey_of(5),
    }
    told = planner._told_progress(done, 7, objective, perf_counter() - 100.0)
    assert (told.parts_done, told.parts, told.plans_seen) == (3, 7, 12)
    assert told.best is not None
    assert told.best.plan == best
    assert 100.0 <= told.seconds < 200.0
    assert planner._told_progress({4: survey_of(5)}, 7, objective, 0.0).best is None


class Backwards:
    """An executor that is done with the last item first."""

    notes: Sequence[str] = ()

    def __init__(self) -> None:
        self.items: list[Any] = []

    def run(self, work: Callable[[Any], Any], items: Sequence[Any]) -> Iterator[tuple[int, Any]]:
        self.items = list(items)
        for number in reversed(range(len(items))):
            yield number, work(items[number])


class Notebook:
    """A journal that knows some of the answers."""

    def __init__(self, parts: dict[int, PartialResult], scores: dict[str, Score]) -> None:
        self.parts, self.scores = parts, scores
        self.added: list[Any] = []

    def known(self) -> dict[int, PartialResult]:
        return self.parts

    def simulated(self) -> dict[str, Score]:
        return self.scores

    def add(self, number: int, found: PartialResult) -> None:
        self.added.append(number)

    def add_simulated(self, plan: str, score: Score) -> None:
        self.added.append((plan, score.step_seconds))


def test_parts_that_a_journal_knows_are_not_done_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever comes first: of plans as fast as each other the one in the first part wins."""
    monkeypatch.setattr(planner, "survey", lambda task, plans, part, objective, keep, **_: survey_of(part, row(f"p{part}", 1.0)))  # fmt: skip
    journal, executor = Notebook({1: survey_of(50, row("known", 1.0))}, {}), Backwards()
    plans = SimpleNamespace(parts=lambda: (10, 20, 30, 40))
    told: list[SearchStatus] = []
    found, _ = planner._surveyed(None, plans, "time", 9, executor, journal, told.append, perf_counter())  # type: ignore[arg-type] # fmt: skip
    assert executor.items == [10, 30, 40]
    assert journal.added == [3, 2, 0]
    assert [(each.parts_done, each.plans_seen) for each in told] == [(2, 90), (3, 120), (4, 130)]
    assert (found.seen, [each.plan for each in found.best]) == (130, ["p10", "known", "p30", "p40"])


def test_memory_comes_first_where_it_is_the_goal() -> None:
    assert Score(2.0, 7.0, True).rank("memory") == (7.0, 2.0)
    assert Score(2.0, 7.0, True).rank("time") == (2.0, 7.0)


# --- simulations --------------------------------------------------------------------------------------------

SIMULATED = {
    "a": Score(3.0, 10.0, True), "b": Score(1.0, 5.0, False), "d": Score(2.0, 40.0, True), "e": Score(2.5, 30.0, True),
    "f": Score(1.5, 20.0, True),
}  # fmt: skip
"""What simulations of estimated plans say; `c` is refused."""


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Plans that are simulated."""
    every: list[str] = []

    def simulate(task: object, estimated: EstimatedPlan) -> SimpleNamespace:
        every.append(estimated.plan)
        if estimated.plan == "c":
            raise InputError("not so")
        return SimpleNamespace(plan=estimated.plan, score=SIMULATED[estimated.plan])

    monkeypatch.setattr(planner, "simulate", simulate)
    return every


WHOLE = survey_of(1000, *(row(name, float(place)) for place, name in enumerate("abcdef")))


def ranked(objective: str, top: int, journal: Notebook | None = None, progress: Any = None) -> str:
    found = planner._simulated(None, WHOLE, objective, top, journal, progress, perf_counter())  # type: ignore[arg-type]
    return "".join(each.plan for each in found)  # type: ignore[misc]


@pytest.mark.parametrize(
    ("objective", "top", "best"),
    [("time", 1, "f"), ("time", 3, "fde"), ("time", 9, "fdea"), ("cost", 2, "fd"), ("memory", 2, "af"), ("memory", 9, "afed")],
)  # fmt: skip
def test_plans_are_ranked_by_their_simulations(asked: list[str], objective: str, top: int, best: str) -> None:  # fmt: skip
    assert ranked(objective, top) == best
    assert asked == list("abcdef"), "once each"


def test_what_a_journal_knows_is_simulated_again_where_it_wins(asked: list[str]) -> None:
    journal = Notebook({}, {name: SIMULATED[name] for name in "abf"})
    told: list[SearchStatus] = []
    assert ranked("time", 2, journal, told.append) == "fd"
    assert asked == ["c", "d", "e", "f"]
    assert journal.added == [("d", 2.0), ("e", 2.5), ("f", 1.5)]
    counts = [(each.best and each.best.plan, each.simulated, each.to_simulate) for each in told]
    assert counts == [("d", 1, 3), ("e", 2, 3), ("f", 3, 4)], "what is refused is no simulation"
    assert {each.plans_seen for each in told} == {1000}
    assert all(0.0 <= each.seconds < 60.0 for each in told)


def test_a_search_of_an_unknown_goal_is_refused() -> None:
    with pytest.raises(InputError, match=r"objective .fame. is unknown\. Known: time"):
        planner.search(None, objective="fame")  # type: ignore[arg-type]


# --- explanations ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "value"),
    [("tp=2", "2"), ("tp=8", None), ("tp=2|4", None), ("tp<=2", None), ("tp=2, sp", None), ("sp", "on"), ("no sp", "off")],
)  # fmt: skip
def test_a_question_about_one_value_is_answered_by_its_row(words: str, value: str | None) -> None:
    rows = [BestPerChoice(choice, value, 5, 5, None) for choice, value in (("sp", "off"), ("sp", "on"), ("tp", "4"), ("tp", "2"))]  # fmt: skip
    found = _told(SimpleNamespace(told=rows), parse([words]))  # type: ignore[arg-type]
    assert (found and found.value) == value


@pytest.mark.parametrize(("objective", "lost"), [("time", ["tp1 dp8"]), ("memory", [])])
def test_what_was_estimated_faster_but_lost_is_said_so_where_time_counts(
    monkeypatch: pytest.MonkeyPatch, objective: str, lost: list[str]
) -> None:
    best = row("tp2 dp4", 1.0)
    winner = SimpleNamespace(plan=SimpleNamespace(text="tp2 dp4"), prediction=SimpleNamespace(step_seconds=1.0))  # fmt: skip
    monkeypatch.setattr(explain, "estimated", lambda result, winner: best)
    values = {"1": row("tp1 dp8", 0.9), "2": best, "4": row("tp4 dp2", 1.0), "8": row("tp8", 1.5)}
    result = SimpleNamespace(
        objective=objective,
        best=[winner],
        told=[BestPerChoice("tp", value, 5, 5, one) for value, one in values.items()],
        task=SimpleNamespace(words=words_of),
    )
    found = explanations(result)  # type: ignore[arg-type]
    assert [one.plan for one in found if one.choice == "tp"] == ["tp1 dp8", "tp4 dp2", "tp8"]
    assert [one.plan for one in found if "Slower than the best plan when simulated" in one.sentence] == lost  # fmt: skip


@pytest.mark.parametrize(("objective", "of"), [("time", "time"), ("pareto", "time"), ("memory", "memory")])  # fmt: skip
def test_what_was_not_looked_at_is_surveyed_for_the_same_goal(
    monkeypatch: pytest.MonkeyPatch, objective: str, of: str
) -> None:
    """The best of two parts; a front is led by its fastest plan."""
    goals: list[tuple[str, int]] = []

    def survey(task: object, plans: object, part: int, objective: str, keep: int) -> PartialResult:
        goals.append((objective, keep))
        return survey_of(3, row(f"p{part}", 1.0 * part, 9.0 - part))

    monkeypatch.setattr(explain, "space", lambda task, where: SimpleNamespace(parts=lambda: (1, 2)))
    monkeypatch.setattr(explain, "survey", survey)
    result = SimpleNamespace(task=None, objective=objective)
    found = explain._surveyed(result, "tp=4", ())  # type: ignore[arg-type]
    assert isinstance(found, BestPerChoice)
    assert goals == [(of, 1)] * 2
    assert (found.choice, found.seen, found.fitting) == ("tp=4", 6, 2)
    assert found.best is not None
    assert found.best.plan == ("p2" if of == "memory" else "p1")
