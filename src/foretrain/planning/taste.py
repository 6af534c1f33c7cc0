"""Of plans that are as good, the simpler one.

Two rules. A plan is *as good* as the fastest where the 80 % interval of the difference of their steps includes none
(`analysis.differences`); answers mark such plans and count them. The *pick* is the simplest plan of those that are also
behind by no more than `TRADE`, so that simplicity is never paid for with time that a prediction can tell: the interval is
wider than that nearly always, and where it is not, it decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import log2

from foretrain.analysis.differences import StepParts, is_within_noise
from foretrain.plan.defaults import PlanDefaults
from foretrain.plan.plan import Plan
from foretrain.plan.schedules import meant
from foretrain.plan.short_form import Words
from foretrain.planning.per_layer import described
from foretrain.planning.planner import Ranked
from foretrain.planning.robustness import has_room
from foretrain.planning.task import Task

TRADE = 0.001
"""Of a step (and of a peak, where memory is the goal): as much as simplicity may cost at the most. Half of the 0.2 % within
which a search is to find the best plan; the other half is left to what its estimates miss."""
RECOMPUTED = ("none", "selective", "full")
"""From simple to odd; shares of layers and lists of ops come after these."""

Complexity = tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Fastest:
    """The simulated plan with the shortest step; a simpler one that is as good may stand before it."""

    plan: str
    step_seconds: float


def complexity(words: Words, defaults: PlanDefaults) -> Complexity:
    """The less, the simpler; what comes first counts first.

    Offload; recomputation; layers shared out by hand; kinds of parallelism beside data parallelism; chunks, and schedules
    that the stack does not take by itself; ZeRO stages away from the stack's own, and shard groups; other options that
    are not as the stack has them; numbers that are no powers of two; the degree of model parallelism; how many chunks;
    micro-batches per step.
    """
    degrees = (words.tp, words.pp, words.cp, words.ep, words.vpp, words.micro or 1)
    kind, usual = (meant(name, words.pp, words.vpp)[0] for name in (words.schedule, None))
    is_own = kind is usual or words.schedule == defaults.schedule_of(words)
    options = (
        words.order, words.buckets, words.etp, words.exchange != "all-gather", words.tables != defaults.tables_of(words),
        words.sp != defaults.sp_of(words),
    )  # fmt: skip
    return (
        len(words.offload),
        _again(words.recompute or "none"),
        float(words.layers is not None),
        sum(degree > 1 for degree in degrees[:4]),
        (words.pp > 1) * ((words.vpp > 1) + (not is_own)),
        abs(words.zero - defaults.zero_of(words)) + bool(words.shard),
        sum(bool(option) for option in options),
        sum(degree & (degree - 1) > 0 for degree in degrees),
        log2(words.tp * words.pp * words.cp * words.ep),
        words.vpp,
        -(words.micro or 1),
    )


def _again(recompute: str) -> int:
    return RECOMPUTED.index(recompute) if recompute in RECOMPUTED else len(RECOMPUTED)


def words_of(task: Task, plan: Plan) -> Words | None:
    """With the micro-batch; None of a plan that has no short form."""
    if not plan.text:
        return None
    return replace(task.words(plan.text), micro=plan.schedule.micro_batch)


def parts(task: Task, row: Ranked) -> StepParts:
    """Of a simulated plan, what decides how far off its difference to another may be."""
    return StepParts.of(row.prediction.stalls, words_of(task, row.plan))


def as_good(task: Task, rows: Sequence[Ranked]) -> tuple[bool, ...]:
    """Which plans may be as fast as the fastest of them."""
    if not rows:
        return ()
    best = parts(task, _fastest(rows))
    return tuple(is_within_noise(parts(task, row), best) for row in rows)


def fastest(rows: Sequence[Ranked]) -> Fastest | None:
    if not rows:
        return None
    row = _fastest(rows)
    return Fastest(described(row.plan), row.score.step_seconds)


def _fastest(rows: Sequence[Ranked]) -> Ranked:
    return min(rows, key=lambda row: row.score.rank("time"))


def tasteful(task: Task, rows: Sequence[Ranked], objective: str) -> tuple[Ranked, ...]:
    """Ranked plans with the pick first: the simplest of those that are as good as the first, those first that fit with
    more than they are predicted to need. The others stay in their order."""
    if not rows:
        return ()
    first = rows[0].score.rank(objective)

    def is_close(row: Ranked) -> bool:
        score = row.score.rank(objective)
        limits = zip(score, first, strict=True)
        measures = [*limits] if objective == "memory" else [*limits][:1]
        is_near = all(value <= limit * (1.0 + TRADE) for value, limit in measures)
        return is_near and is_within_noise(parts(task, row), parts(task, rows[0]))

    close = [rows[0], *(row for row in rows[1:] if is_close(row))]
    pick = min(close, key=lambda row: _oddness(task, row, objective))
    return (pick, *(row for row in rows if row is not pick))


def _oddness(
    task: Task, row: Ranked, objective: str
) -> tuple[bool, bool, Complexity, tuple[float, float], str]:
    words = words_of(task, row.plan)
    of_words = () if words is None else complexity(words, task.defaults)
    is_tight = not has_room(row.simulation.memory)
    return is_tight, words is None, of_words, row.score.rank(objective), row.plan.text
