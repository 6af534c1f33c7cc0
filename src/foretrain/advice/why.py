"""Why not this plan: what a plan that the user names loses against the best of a search, simulated."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from foretrain.advice.facade import fixes
from foretrain.advice.judging import together
from foretrain.advice.moves import divisors
from foretrain.analysis.prediction import STALLS
from foretrain.errors import InputError, PlanError
from foretrain.plan import constraints
from foretrain.plan.constraints import value_in
from foretrain.plan.short_form import Words, filled, said
from foretrain.plan.supported import refusals
from foretrain.planning import explain
from foretrain.planning.estimator import Estimator
from foretrain.planning.explain import Explanation
from foretrain.planning.planner import Ranked, RankedPlans
from foretrain.planning.task import Task
from foretrain.planning.taste import TRADE, words_of
from foretrain.simulate import Simulation, simulate_scenario
from foretrain.units import counted, show_bytes

FIXES = 4
"""Changes that are simulated for a plan that does not fit, the fastest by estimate."""


def is_plan(text: str) -> bool:
    """Whether a question names a plan (`tp8 pp2 zero1`) and not choices (`tp=4, no zero`); a fault in either is told."""
    try:
        constraints.parse([text])
    except PlanError as error:
        try:
            said(text)
        except PlanError as of_plan:
            is_list = ", " in text or text.startswith("no ")
            is_more_a_plan = " " in text.strip() and not is_list
            raise (of_plan if is_more_a_plan else error) from None
        return True
    return False


def why(result: RankedPlans, text: str, where: tuple[str, ...] = ()) -> Explanation:
    """Why not `tp=4`, `no zero` or `tp=4, pp=2`, of which the best plan is looked for, or the plan `tp8 pp2 zero1`."""
    return why_plan(result, text, where) if is_plan(text) else explain.why(result, text, where)


def why_plan(result: RankedPlans, text: str, where: tuple[str, ...] = ()) -> Explanation:
    """What a plan loses, and on what: the model's and the stack's rules, memory, or time, both plans simulated."""
    task, name = result.task, text.strip()
    try:
        asked = _words(task, name)
        found = simulate_scenario(task.scenario(task.plan(asked.words)))
        found.step_seconds  # noqa: B018 - what only the whole of a plan shows is told now
    except InputError as error:
        return Explanation(name, "", None, f"{name}: not a plan for this work: {_faults(error)}.")
    told = [*asked.remarks, *_excluded(task, asked.words, where)]
    best = result.best[0] if result.best else None
    if not found.memory.fits:
        return _too_large(name, found, told)
    return _compared(task, name, asked.words, found, best, told)


@dataclass(frozen=True, slots=True)
class _Asked:
    words: Words
    remarks: tuple[str, ...]


def _words(task: Task, text: str) -> _Asked:
    """The plan in full. Where its micro-batch is left open, the fastest that is estimated to fit."""
    words = filled(said(text), task.defaults, task.devices)
    task.plan(words)  # its faults are told before it is estimated
    batch, dp = task.workload.global_batch, words.dp or 1
    if batch % dp:
        raise PlanError(f"global batch {batch:,} is not divisible by {counted(dp, 'replica')}.")
    if words.micro is not None:
        return _Asked(words, ())
    sizes = [replace(words, micro=size) for size in divisors(batch // dp)]
    guess = Estimator(task).estimate(together(sizes))
    able = [n for n in range(len(sizes)) if guess.fits[n]]
    best = sizes[min(able, key=lambda n: (guess.seconds[n], n))] if able else sizes[0]
    of_what = "the fastest that fits" if able else "the smallest"
    return _Asked(best, (f"Micro-batch {best.micro}: {of_what}.",))


def _excluded(task: Task, words: Words, where: tuple[str, ...]) -> Iterator[str]:
    """Why a search would not have taken it, however fast."""
    if not task.is_hypothetical:
        reasons = [*refusals(task.runtime, words, task.facts)]
        if reasons:
            yield f"Not in the search: {'; '.join(reasons)}. Predicted as if it could."
    lost = [
        one.text
        for one in constraints.parse(where)
        if (value := value_in(words, one.name)) is not None and not one.allows(value)
    ]
    if lost:
        yield f"Not in the search: excluded by {', '.join(lost)}."


def _too_large(name: str, found: Simulation, told: list[str]) -> Explanation:
    held, plan = found.memory, _text(found)
    lacks = held.peak_bytes - held.usable_bytes
    changes = [one for one in fixes(found, FIXES) if one.fits]
    fix = (
        f"The fastest change that makes it fit: {changes[0].change}, "
        f"{explain.seconds_told(changes[0].step_seconds)}."
        if changes
        else "No single change was found that makes it fit."
    )
    sentence = (
        f"{plan}: does not fit, exceeds device memory by {show_bytes(lacks)} "
        f"({show_bytes(held.peak_bytes)} of {show_bytes(held.usable_bytes)} usable; {held.moment})."
    )
    return Explanation(
        name, "", plan, " ".join([sentence, *told, fix]), step_seconds=found.step_seconds, lacks_bytes=lacks,
    )  # fmt: skip


def _compared(
    task: Task, name: str, words: Words, found: Simulation, best: Ranked | None, told: list[str]
) -> Explanation:
    """Next to the best plan: by how much it is slower, and what of the step grew and shrank."""
    plan, step = _text(found), found.step_seconds
    time = f"{plan}: {explain.seconds_told(step)}"
    if best is None:
        sentence = f"{time} and fits, though the search found no plan that does."
        return Explanation(name, "", plan, sentence, fits=True, step_seconds=step)
    if words_of(task, best.plan) == words:
        sentence = f"{plan}: the best plan itself, {explain.seconds_told(step)}."
        return Explanation(name, "", plan, sentence, fits=True, step_seconds=step)
    slower = step - best.score.step_seconds
    more = found.memory.peak_bytes - best.score.peak_bytes
    grew = {
        stall: found.prediction.stalls[stall] - best.prediction.stalls[stall] for stall in STALLS
    }
    verdict = explain.pace_told(slower, best.score.step_seconds).removeprefix("estimated ")
    sentence = (
        f"{time} vs. {explain.seconds_told(best.score.step_seconds)} for the best plan, simulated: {verdict}"
        f"{explain.stalls_told(grew, slower)}; {explain.bytes_told(more)} per device."
    )
    is_faster = slower < -TRADE * best.score.step_seconds
    if is_faster and not told:
        told = [*told, "The search did not look at it, or estimated it slower."]
    return Explanation(
        name, "", plan, " ".join([sentence, *told]),
        fits=True, step_seconds=step, slower_seconds=slower, more_bytes=more, grew=grew,
    )  # fmt: skip


def _text(found: Simulation) -> str:
    plan = found.scenario.plan
    task = Task.of(found.scenario)
    words = words_of(task, plan)
    return plan.text if words is None else task.text(words)


def _faults(error: InputError) -> str:
    lines = error.faults or (str(error),)
    return "; ".join(" ".join(line.split()).rstrip(".") for line in lines[: explain.MOST_FAULTS])
