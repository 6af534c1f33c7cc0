"""The façade of search: from names to the best plans."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, partial
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar, Unpack

from foretrain import runtime
from foretrain.adapters.write import expect_target
from foretrain.analysis.answer import TableAnswer
from foretrain.asked import OF_JOBS, ClusterLike, ModelLike, StackOptions, command_line
from foretrain.cost import collectives
from foretrain.errors import InputError, refuse
from foretrain.keywords import counted_by, keywords, texts_of
from foretrain.limits import shown
from foretrain.plan import constraints, schedules
from foretrain.plan.supported import rules_of
from foretrain.planning import explain, planner
from foretrain.planning.document import Standing, document, flat_rows
from foretrain.planning.executors import Executor, InOrder, Processes, RayExecutor
from foretrain.planning.explain import Explanation
from foretrain.planning.layerwise import ASKED, UNASKED, Effort, can_help, with_walks
from foretrain.planning.more_nodes import Larger, larger
from foretrain.planning.partial_result import OBJECTIVES
from foretrain.planning.planner import Ranked, RankedPlans, SearchStatus
from foretrain.planning.robustness import Robustness, robustness
from foretrain.planning.task import Task
from foretrain.planning.taste import Fastest, as_good, fastest, tasteful
from foretrain.resolving import Request, resolve

T = TypeVar("T")
GOALS = (*OBJECTIVES, "pareto")
LEAST_RANKED = 8
"""Plans of which the pick is one, however few are shown."""
ROBUST = 3
"""Plans of which the robustness is worked out, the first."""


@dataclass(frozen=True, repr=False)
class SearchResult(TableAnswer, RankedPlans):
    """A search's result and what can be asked of it."""

    where: tuple[str, ...] = ()
    said: Mapping[str, Any] = field(default_factory=dict)  # keywords that the search was asked with
    fastest: Fastest | None = None  # of the plans that were simulated; shown or not

    def words(self, rank: int = 1) -> dict[str, Any]:
        """Keywords with which `predict` gives the same answer as for the plan of this rank, bit for bit."""
        plan = self.best[rank - 1].plan
        said = {name: value for name, value in self.said.items() if name != "micro_batch"}
        own = {"plan": plan.text or plan, "runtime": said.get("runtime") or self.task.runtime.name}
        return {**said, **own}

    @property
    def command(self) -> str | None:
        """The `foretrain predict` command of the best plan; None without one, or where no words say the same."""
        return command_line(self.words()) if self.best and not self._is_outside else None

    @property
    def _is_outside(self) -> bool:
        """Whether the best plan, its stack or an algorithm is one that only this process knows."""
        stack = self.task.runtime
        chosen = (algorithm for _, algorithm in stack.communication.algorithms)
        return (
            schedules.is_outside(self.best[0].plan.schedule.kind)
            or runtime.is_outside(stack.name)
            or any(collectives.is_outside(name.partition("/")[0]) for name in chosen)
        )

    @cached_property
    def explanations(self) -> tuple[Explanation, ...]:
        """For every value of a choice that the best plan does not have: what it costs."""
        return explain.explanations(self)

    @cached_property
    def as_good(self) -> tuple[bool, ...]:
        """Of every best plan whether it may be as fast as the fastest: the 80 % interval of their difference includes none."""
        return as_good(self.task, self.best)

    @cached_property
    def robustness(self) -> tuple[Robustness, ...]:
        """What the first plans do where the cluster or the memory is worse than was thought."""
        return tuple(robustness(row.simulation) for row in self.best[:ROBUST])

    def why(self, text: str) -> Explanation:
        """Why not `"tp=4"`, `"no zero"`, `"tp=4, pp=2"`, or a plan, `"tp8 pp2 zero1"`."""
        from foretrain.advice.why import why

        return why(self, text, self.where)

    @cached_property
    def with_more_nodes(self) -> Larger | None:
        """Where nothing fits: how many times the nodes would do."""
        if self.best or self.nearest is None:
            return None
        return larger(self.task, self.nearest, self.where)

    def to_dict(self) -> dict[str, Any]:
        standing = Standing(self.as_good, self.fastest, self.robustness)
        return document(self, self.explanations, self.with_more_nodes, self.command, standing)

    def rows(self) -> list[dict[str, Any]]:
        """The best plans, simulated, then the front of time against memory, estimated."""
        return flat_rows(self, self.as_good)


@keywords(StackOptions, of_jobs=OF_JOBS)
def search(
    model: ModelLike,
    *,
    on: ClusterLike,
    batch: int | str,
    to: str | None = None,
    objective: str = "time",
    top: int = 10,
    where: str | Sequence[str] = (),
    per_layer: bool | None = None,
    hypothetical: bool = False,
    workers: int | None = None,
    ray: str | None = None,
    state: str | Path | None = None,
    restart: bool = False,
    seed: int | None = None,
    progress: Callable[[SearchStatus], None] | None = None,
    **step: Unpack[StackOptions],
) -> SearchResult:
    """Search for the best plans and explain why others are slower. All plans are estimated, the best are simulated.

    The keywords have the same meaning as for `predict`; the plan is what is searched for.

    Args:
        model: as for `predict`.
        to: target of `export` that the plan is for: its stack is taken where `runtime` is left out.
        objective: `time`, `cost`, `memory`, or `pareto` for plans that are Pareto-optimal in time and memory.
        top: number of plans to simulate and return.
        where: constraints on plans: `"tp<=8, pp=4|8, zero>=1, sp, no recompute"`.
        per_layer: also search for different strategies per layer. Left out, this is done briefly where layers may differ
            and memory is short.
        hypothetical: also search plans that the software stack cannot run.
        workers: number of worker processes on this machine.
        ray: address of a Ray cluster to use instead; `"local"` starts one on this machine.
        state: file to save progress in; a later call with the same arguments resumes from it.
        restart: discard the progress saved in that file.
        seed: random seed for stragglers given as a distribution.
        progress: called with the progress of the search.
        **step: `micro_batch`, `seq`, `precision`, `optimizer`, `runtime`, `runtime_options`, `data`, `stragglers`,
            `measured` and `headroom`, as for `predict`.

    >>> from foretrain import search
    >>> result = search("gpt2", on="1 x dgx-h100", batch=32, where="tp<=2, pp=1, vpp=1, cp=1, no offload", top=2)
    >>> len(result.best), result.rows()[0]["list"], result.best[0].prediction.fits
    (2, 'best', True)
    """
    top = counted_by(top)
    _check(objective, top, batch)
    _expect_kinds(state, progress)
    slow, micro_batch = step.get("stragglers"), step.get("micro_batch")
    _expect_partners(state, restart, slow, seed)
    pinned = texts_of("where", where)
    if micro_batch is not None:
        pinned = (*pinned, f"micro={micro_batch}")
    said: dict[str, Any] = {
        "model": model,
        "on": on,
        "batch": batch,
        **{name: step.get(name) for name in StackOptions.__annotations__},
        "stragglers": _seeded(slow, seed),
    }
    said = {name: value for name, value in said.items() if value is not None}
    target = "" if to is None else expect_target(to)
    asked = resolve(Request(**{"model": model, "on": on, **said}, target=target, is_searched=True))
    task = _ruled(Task.of(asked), hypothetical)
    if per_layer:
        _expect_per_layer(task)
    wanted = _Wanted(task, pinned, objective, top, progress)
    result = wanted.searched(executor_of(workers, ray), state, restart)
    if per_layer or (per_layer is None and can_help(task, result)):
        result = wanted.walked(result, ASKED if per_layer else UNASKED)
    if objective == "pareto":
        result = replace(result, objective=objective, best=wanted.front(result))
    quickest = fastest(result.best)
    if objective != "pareto":
        result = replace(result, best=tasteful(task, result.best, objective)[:top])
    own = {field.name: getattr(result, field.name) for field in fields(RankedPlans)}
    return SearchResult(**own, where=pinned, said=said, fastest=quickest)


@dataclass(frozen=True)
class _Wanted:
    task: Task
    where: tuple[str, ...]
    objective: str
    top: int
    progress: Callable[[SearchStatus], None] | None

    @property
    def ranked_by(self) -> str:
        """Plans of a front are looked for from its fast end."""
        return "time" if self.objective == "pareto" else self.objective

    @property
    def ranked(self) -> int:
        """Plans that are kept until one is picked."""
        return max(self.top, LEAST_RANKED)

    def searched(self, executor: Executor, state: str | Path | None, restart: bool) -> RankedPlans:
        asked: dict[str, Any] = {
            "where": self.where,
            "objective": self.ranked_by,
            "top": self.ranked,
        }
        more: dict[str, Any] = {"executor": executor, "progress": self.progress}
        if state is None:
            return planner.search(self.task, **asked, **more)
        from foretrain.planning.journal import Journal

        key = planner.search_key(self.task, **asked)
        with Journal(state, key, restart=restart) as journal:
            return planner.search(self.task, **asked, **more, journal=journal)

    def walked(self, result: RankedPlans, effort: Effort) -> RankedPlans:
        """The same with plans whose layers differ."""
        pinned, tell = constraints.parse(self.where), partial(self._tell, result)
        best, outcome = with_walks(
            self.task, result, pinned, self.ranked_by, self.ranked, effort, tell
        )
        return replace(result, best=best, per_layer=outcome)

    def front(self, result: RankedPlans) -> tuple[Ranked, ...]:
        """Plans spread over the front, simulated; fastest first, each with less memory than those before it."""
        known = {row.plan.text for row in result.best}
        rows = [row for row in spread(result.pareto, self.top) if row.plan not in known]
        simulated = list(result.best)
        for number, row in enumerate(rows, 1):
            simulated.append(planner.simulate(self.task, row))
            self._tell(result, number, len(rows))
        simulated.sort(key=lambda one: (one.score.step_seconds, _peak(one)))
        kept: list[Ranked] = []
        for one in simulated:
            if one.score.fits and (not kept or _peak(one) < _peak(kept[-1])):
                kept.append(one)
        return tuple(spread(kept, self.top))

    def _tell(self, result: RankedPlans, done: int, count: int) -> None:
        if self.progress is not None:
            self.progress(SearchStatus(0, 0, result.plans_valid, None, result.seconds, done, count))


def _peak(row: Ranked) -> float:
    return row.score.peak_bytes


def executor_of(workers: int | None, ray: str | None) -> Executor:
    """Who does the work."""
    if ray is not None:
        return RayExecutor(None if ray in ("", "local") else ray, workers)
    return InOrder() if workers is None or workers == 1 else Processes(workers)


def _check(objective: str, top: int, batch: int | str) -> None:
    faults = []
    if objective not in GOALS:
        faults.append(f"objective {objective!r} is unknown. Known: {', '.join(GOALS)}.")
    if isinstance(top, bool) or not isinstance(top, int) or top < 1:
        faults.append(f"top {shown(top)}: must be a whole number, 1 or more.")
    if isinstance(batch, int) and batch < 1:
        faults.append(f"global batch {batch} is not a positive whole number.")
    refuse("invalid search:", faults)


def _expect_kinds(state: object, progress: object) -> None:
    faults = []
    if not isinstance(state, str | PathLike | None):
        faults.append(f"state: {shown(state)} is not the path of a file.")
    if progress is not None and not callable(progress):
        faults.append(f"progress: {shown(progress)} is not a function.")
    refuse("invalid search:", faults)


def _expect_partners(state: object, restart: bool, slow: object, seed: int | None) -> None:
    """What would have no effect is refused, not ignored."""
    faults = []
    if restart and state is None:
        faults.append("restart: has no effect without state (--state FILE).")
    if seed is not None and not (isinstance(slow, str) and "sigma" in slow):
        faults.append(
            "seed: has no effect without stragglers as a distribution (--stragglers sigma=0.05)."
        )
    refuse("invalid search:", faults)


def _ruled(task: Task, hypothetical: bool) -> Task:
    """Whether plans that the stack cannot run are searched, too; where it has rules, this is said."""
    name = task.runtime.name
    if not rules_of(task.runtime):
        return replace(task, is_hypothetical=hypothetical)
    if hypothetical:
        line = f"plans that {name} cannot run are searched, too (--hypothetical)"
        return replace(task, is_hypothetical=True, warnings=(*task.warnings, line))
    line = f"plans: those that {name} can run; its rules: catalog show {name} (--hypothetical)"
    return replace(task, assumptions=(*task.assumptions, line))


def _expect_per_layer(task: Task) -> None:
    if not task.is_hypothetical and task.runtime.supported_plans.per_layer == "none":
        raise InputError(
            f"per_layer (--per-layer): {task.runtime.name} cannot run different strategies per layer. Use "
            "hypothetical (--hypothetical) to search them all the same."
        )


def _seeded(slow: Any, seed: int | None) -> Any:
    """A spread of slow devices is drawn with the search's seed, unless it names its own."""
    if seed is None or not isinstance(slow, str) or "sigma" not in slow or "seed" in slow:
        return slow
    return f"{slow},seed={seed}"


def spread(rows: Sequence[T], count: int) -> list[T]:
    """So many of the rows, both ends among them."""
    if len(rows) <= count:
        return list(rows)
    if count == 1:
        return [rows[0]]
    return [rows[round(place * (len(rows) - 1) / (count - 1))] for place in range(count)]
