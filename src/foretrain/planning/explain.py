"""Why the other plans lose: for every value of a choice the best plan with it, and what it pays for it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from math import inf
from typing import Any

from foretrain.analysis.prediction import Prediction
from foretrain.errors import InputError, UnsupportedPlanError
from foretrain.plan import constraints
from foretrain.plan.constraints import value_in
from foretrain.plan.short_form import Words
from foretrain.planning.choices import lone
from foretrain.planning.estimator import Estimator
from foretrain.planning.partial_result import (
    BestPerChoice,
    EstimatedPlan,
    PartialResult,
    merged,
    survey,
)
from foretrain.planning.planner import Ranked, RankedPlans, simulate
from foretrain.planning.space import space
from foretrain.planning.task import Task
from foretrain.planning.taste import TRADE
from foretrain.simulate import compile_scenario
from foretrain.units import show_bytes, show_seconds

PARTS = {
    "work": "compute and in-layer communication of the slowest stage",
    "pipeline": "pipeline bubble",
    "data": "data-parallel communication",
    "update": "parameter update",
}
"""What an estimated step is made of, in words."""
WORTH_TELLING = 0.1
"""Share of a difference from which on a part of it is named."""
ALIKE = 0.005
"""Step times closer than this are called alike."""
DEGREES = ("tp", "pp", "cp", "ep", "vpp", "micro")
MOST_FAULTS = 3
ALL_REPLICAS = "all replicas"
SLOWER = " Slower than the best plan"


@dataclass(frozen=True, slots=True)
class Explanation:
    """One alternative to the best plan whose layers are alike. Figures are estimates, differences are to the estimate
    of that plan."""

    choice: str
    value: str
    plan: str | None
    sentence: str
    fits: bool = False
    step_seconds: float | None = None
    slower_seconds: float | None = None
    more_bytes: float | None = None
    lacks_bytes: float = 0.0
    grew: Mapping[str, float] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"<Explanation: {self.sentence}>"

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def explanations(result: RankedPlans) -> tuple[Explanation, ...]:
    """Every value that the winner does not have, in the order of choices; those that fit least far first."""
    winner = winning(result)
    if winner is None:
        return _none(result)
    seen, words = estimated(result, winner), result.task.words(winner.plan.text)
    simulated = {row.plan.text: row.prediction.step_seconds for row in result.best}
    found: dict[str, list[Explanation]] = {}
    for row in result.told:
        if row.best is None:
            continue
        if value_in(result.task.words(row.best.plan), row.choice) == value_in(words, row.choice):
            continue
        told = _missing(row)
        if row.fitting:
            told = against(result.objective, seen, row.best, row, simulated.get(row.best.plan))
            if result.objective != "memory" and (told.slower_seconds or 0.0) < 0.0:
                # whatever is estimated faster than the winner was simulated, and lost
                step, own = simulated.get(row.best.plan, inf), winner.prediction.step_seconds
                is_alike = step <= own <= step * (1.0 + TRADE)
                slower = " As fast as the best plan, but less simple," if is_alike else SLOWER
                told = _with(told, f"{slower} when simulated.")
        found.setdefault(row.choice, []).append(told)
    for rows in found.values():
        rows.sort(key=lambda e: _distance(e, result.objective))
    return (*_alike(result, winner), *(one for rows in found.values() for one in rows))


def _alike(result: RankedPlans, uniform: Ranked) -> Iterator[Explanation]:
    """Where the layers of the best plan differ: what it costs that they are alike. Simulated, both of them."""
    best, other = result.best[0], uniform.prediction
    if best is uniform:
        return
    slower = other.step_seconds - best.prediction.step_seconds
    more = other.memory.peak_bytes - best.prediction.memory.peak_bytes
    pace = pace_told(slower, best.prediction.step_seconds)
    sentence = (
        f"same strategy for all layers: at best {uniform.plan.text}, simulated "
        f"{seconds_told(other.step_seconds)}: {pace} than per-layer strategies; {bytes_told(more)} per "
        "device."
    )
    yield Explanation(
        "layers", "alike", uniform.plan.text, sentence,
        fits=True, step_seconds=other.step_seconds, slower_seconds=slower, more_bytes=more,
    )  # fmt: skip


def _none(result: RankedPlans) -> tuple[Explanation, ...]:
    """Nothing fits: how far every value of a choice is from it, the nearest first."""
    values = Counter(row.choice for row in result.told)
    rows = [row for row in result.told if not row.fitting and values[row.choice] > 1]
    order = {name: place for place, name in enumerate(values)}
    rows.sort(key=lambda row: (order[row.choice], row.best.lacks if row.best else 0.0))
    return tuple(_missing(row) for row in rows)


def winning(result: RankedPlans) -> Ranked | None:
    """The best plan that has a short form: values of choices are those of all its layers."""
    return next((row for row in result.best if row.plan.text), None)


def why(result: RankedPlans, text: str, where: tuple[str, ...] = ()) -> Explanation:
    """Why not `tp=4`, `no zero` or `tp=4, pp=2`: the best plan with it, estimated and simulated."""
    asked = constraints.parse([text])
    if not asked:
        raise InputError("why: specify a choice, such as tp=4 or recompute=full.")
    name = ", ".join(one.text for one in asked)
    row = _told(result, asked) or _surveyed(result, name, (*where, text))
    if isinstance(row, Explanation):
        return row
    winner = winning(result)
    if row.best is None or not row.fitting or winner is None:
        return _missing(row)
    if all(_holds(one, result.task.words(winner.plan.text)) for one in asked):
        sentence = f"{_label(row)}: used by the best plan ({winner.plan.text})."
        return Explanation(row.choice, row.value, winner.plan.text, sentence, fits=True)
    told = against(result.objective, estimated(result, winner), row.best, row)
    return _confirmed(result.task, told, row.best, winner)


def against(
    objective: str,
    winner: EstimatedPlan,
    rival: EstimatedPlan,
    row: BestPerChoice,
    simulated: float | None = None,
) -> Explanation:
    """A plan that fits, next to the winner; `simulated` are the rival's seconds where they are known."""
    slower, more = rival.seconds - winner.seconds, rival.memory - winner.memory
    pace = pace_told(slower, winner.seconds)
    grew = {name: getattr(rival, name) - getattr(winner, name) for name in PARTS}
    if objective == "memory":
        verdict = f"{bytes_told(more)} per device, {pace}"
    else:
        verdict = f"{pace}{_because(grew, slower)}; {bytes_told(more)} per device"
    times = seconds_told(rival.seconds)
    if simulated is not None:
        times += f" (simulated {seconds_told(simulated)})"
    sentence = f"{_label(row)}: at best {rival.plan}, {times}: {verdict}."
    return Explanation(
        row.choice, row.value, rival.plan, sentence,
        fits=True, step_seconds=rival.seconds, slower_seconds=slower, more_bytes=more, grew=grew,
    )  # fmt: skip


def _missing(row: BestPerChoice) -> Explanation:
    """None of the plans fits."""
    count = f"none of {row.seen:,} plans fits" if row.seen > 1 else "its only plan does not fit"
    if row.best is None:
        return Explanation(row.choice, row.value, None, f"{_label(row)}: {count} in memory.")
    sentence = (
        f"{_label(row)}: {count}; the closest, {row.best.plan}, exceeds device memory by "
        f"{show_bytes(row.best.lacks)}."
    )
    return Explanation(
        row.choice, row.value, row.best.plan, sentence, lacks_bytes=row.best.lacks
    )  # fmt: skip


def _label(row: BestPerChoice) -> str:
    if row.choice == "shard" and row.value == "0":
        return f"shard over {ALL_REPLICAS}"
    return f"{row.choice}={row.value}" if row.value else row.choice


def pace_told(slower: float, than: float) -> str:
    share = slower / than
    if abs(share) < ALIKE:
        return "about as fast"
    if share < 0:
        return f"estimated {-share:.1%} faster".replace("%", " %")
    shown = f"{share:.0%}" if share >= 0.1 else f"{share:.1%}"
    return f"{shown.replace('%', ' %')} slower"


def _because(grew: Mapping[str, float], slower: float) -> str:
    """` (compute and in-layer communication of the slowest stage +17.1 ms, parameter update −1.3 ms)`."""
    scale = max(abs(slower), max(abs(v) for v in grew.values()))
    told = sorted(grew.items(), key=lambda item: -item[1])
    words = [
        f"{PARTS[name]} {'+' if value > 0 else '−'}{seconds_told(abs(value))}"
        for name, value in told
        if scale and abs(value) > WORTH_TELLING * scale
    ]
    return f" ({', '.join(words)})" if words else ""


def bytes_told(more: float) -> str:
    if abs(more) < 1e6:
        return "same memory"
    return f"{show_bytes(abs(more))} {'more' if more > 0 else 'less'} memory"


def seconds_told(value: float) -> str:
    """Three digits, as many as an estimate carries."""
    shown, _, unit = show_seconds(value).partition(" ")
    number = float(shown.replace(",", ""))
    digits = 0 if number >= 99.95 else 1 if number >= 9.995 else 2
    return f"{number:,.{digits}f} {unit}"


def _distance(told: Explanation, objective: str) -> tuple[bool, float]:
    if not told.fits:
        return True, told.lacks_bytes
    measure = told.more_bytes if objective == "memory" else told.slower_seconds
    return False, measure or 0.0


# --- the winner's estimate ------------------------------------------------------------------------


def estimated(result: RankedPlans, winner: Ranked) -> EstimatedPlan:
    """The winner as the estimator sees it: simulation decides who wins, parts are compared like with like."""
    known = (row.best for row in result.told if row.best is not None)
    for seen in (*known, *result.pareto):
        if seen.plan == winner.plan.text:
            return seen
    return estimate(result.task, result.task.words(winner.plan.text))


def estimate(task: Task, words: Words) -> EstimatedPlan:
    """One plan, estimated."""
    words = words.with_devices(task.devices)
    found = Estimator(task, only_fitting=False).estimate(lone(words))
    names = ("seconds", "memory", "usable", "work", "pipeline", "data", "update")
    return EstimatedPlan(task.text(words), *(float(getattr(found, name)[0]) for name in names))


# --- values of choices ----------------------------------------------------------------------------


def _holds(one: constraints.Constraint, words: Words) -> bool:
    value = value_in(words, one.name)
    return value is not None and one.allows(value)


def _told(result: RankedPlans, asked: tuple[constraints.Constraint, ...]) -> BestPerChoice | None:
    """The row of the search that answers, if there is one."""
    if len(asked) != 1 or asked[0].sign != "=" or len(asked[0].values) != 1:
        return None
    value = asked[0].values[0]
    wanted = {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)
    rows = (r for r in result.told if r.choice == asked[0].name and r.value == wanted)
    return next(rows, None)


def _surveyed(
    result: RankedPlans, name: str, where: tuple[str, ...]
) -> BestPerChoice | Explanation:
    """What was not among the plans looked at, looked at now."""
    try:
        plans = space(result.task, where)
    except UnsupportedPlanError as error:
        stack, reasons = result.task.runtime.name, " ".join(error.faults)
        return Explanation(
            name, "", None, f"{name}: {stack} cannot run it ({reasons.rstrip('.')})."
        )
    objective = "time" if result.objective == "pareto" else result.objective
    parts = (survey(result.task, plans, part, objective, 1) for part in plans.parts())
    found = merged(parts, objective, 1)
    if not found.seen:
        reasons = _refusal(result.task, constraints.parse([name])) or _reasons(found)
        return Explanation(name, "", None, f"{name}: no valid plan uses it{reasons}.")
    best = found.best[0] if found.best else found.nearest
    return BestPerChoice(name, "", found.seen, found.fitting, best)


def _refusal(task: Task, asked: tuple[constraints.Constraint, ...]) -> str:
    """What the compiler says of a plan with the degrees that were asked for and nothing else."""
    degrees = {
        one.name: one.values[0]
        for one in asked
        if one.sign == "=" and len(one.values) == 1 and one.name in DEGREES
    }
    if len(degrees) < len(asked):
        return ""
    try:
        compile_scenario(task.scenario(task.plan(Words(**degrees))))
    except InputError as error:
        faults = error.faults or (str(error),)
        told = "; ".join(" ".join(fault.split()) for fault in faults[:MOST_FAULTS])
        return f": {told.rstrip('.')}"
    return ""


def _reasons(found: PartialResult) -> str:
    told = sorted(found.pruned.items(), key=lambda item: (-item[1], item[0]))
    shown = "; ".join(f"{reason.rstrip(':')} ({count:,})" for reason, count in told[:3] if count)
    return f": {shown}" if shown else ""


def _confirmed(task: Task, told: Explanation, rival: EstimatedPlan, winner: Ranked) -> Explanation:
    """The same with the rival simulated in full."""
    one, best = simulate(task, rival).prediction, winner.prediction
    if not one.fits:
        missing = show_bytes(one.memory.peak_bytes - one.memory.usable_bytes)
        more = f" Simulated, it does not fit: exceeds device memory by {missing}."
        return _with(told, more)
    grew = {name: one.stalls[name] - best.stalls[name] for name in one.stalls}
    delta = one.step_seconds - best.step_seconds
    reason = stalls_told(grew, delta)
    return _with(told, f" Simulated: {_versus(one, best)}{reason}.")


def stalls_told(grew: Mapping[str, float], slower: float) -> str:
    """` (bubble +17.1 ms, network −1.3 ms)`: what of a simulated step grew most, and what shrank."""
    scale = max(abs(slower), *(abs(value) for value in grew.values()))
    names = [
        f"{name} {'+' if value > 0 else '−'}{seconds_told(abs(value))}"
        for name, value in sorted(grew.items(), key=lambda item: -item[1])
        if abs(value) > WORTH_TELLING * scale
    ]
    return f" ({', '.join(names)})" if names else ""


def _versus(one: Prediction, best: Prediction) -> str:
    return (
        f"{seconds_told(one.step_seconds)} vs. {seconds_told(best.step_seconds)} for the best plan"
    )


def _with(told: Explanation, more: str) -> Explanation:
    fields = {**asdict(told), "sentence": told.sentence + more}
    return Explanation(**fields)
