"""The estimator: step time and memory of many plans at once, in closed form.

A plan is a chain of blocks whose costs depend on their own state alone (`layers.py`), joined by transitions: sends
between stages, reductions and gathers between replicas (`exchanges.py`). The Markov property makes a plan's cost a
sum, so a few hundred compiled states answer for a million plans. What meets on a link is known by its share of the
time (`contention.py`), not moment by moment as in the simulator; `tests/accuracy/test_search_quality.py` bounds what that
costs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from foretrain.arrays import Bools, Floats, Ints
from foretrain.compile.columns import first_of
from foretrain.errors import InputError
from foretrain.plan.schedules import SCHEDULES
from foretrain.planning.choices import Choices
from foretrain.planning.exchanges import Exchanges
from foretrain.planning.footprint import peak_bytes
from foretrain.planning.incumbents import Incumbents, in_order, least_seconds
from foretrain.planning.layers import (
    Layers,
    Places,
    SharedBlocks,
    State,
    first_line,
    grown,
    layers,
    places,
)
from foretrain.planning.plan_batch import PlanBatch, Shares, plan_batch
from foretrain.planning.task import Task
from foretrain.planning.times import Times


@dataclass(frozen=True, eq=False, slots=True)
class Estimates:
    """One row per plan. Seconds are infinite where the model refuses a plan, where it does not fit and only plans
    that do were asked for, and where it cannot beat the incumbents."""

    seconds: Floats
    memory: Floats  # what the allocator holds at its fullest …
    usable: Floats  # … and what it may take there
    # what the seconds are made of
    work: Floats  # of the slowest stage, all micro-batches
    pipeline: Floats  # what fills and drains the pipeline besides
    data: Floats  # reductions and gathers that nothing hides
    update: Floats
    least: Floats  # seconds that a step takes at least, where incumbents had to be beaten
    refusal: tuple[str, ...]  # reasons …
    refused: Ints  # … and which of them is a row's (-1: none)

    @property
    def fits(self) -> Bools:
        return np.asarray((self.memory <= self.usable) & (self.refused < 0))


_COLUMNS = ("seconds", "memory", "usable", "work", "pipeline", "data", "update")


class Estimator:
    """Remembers what it compiled, so that the next plans cost less."""

    def __init__(self, task: Task, *, only_fitting: bool = True) -> None:
        self.task, self.only_fitting = task, only_fitting
        self.exchanges = Exchanges(task.network, task.runtime.communication.library)
        self.shares = Shares(task)
        self.blocks = SharedBlocks(task)
        self._last: Layers | None = None

    def another(self) -> Estimator:
        """For plans whose blocks are in other states, so that what was compiled for these is kept."""
        other = Estimator(self.task, only_fitting=self.only_fitting)
        other.exchanges, other.shares, other.blocks = self.exchanges, self.shares, self.blocks
        return other

    def estimate(self, choices: Choices, incumbents: Incumbents | None = None) -> Estimates:
        """Memory first: plans that do not fit are not worth a look at their time, nor, where there are `incumbents`,
        those that cannot beat any of these."""
        count = len(choices)
        columns = {name: np.full(count, np.inf) for name in _COLUMNS} | {"least": np.zeros(count)}
        rows, known = self.states(choices)
        reasons = tuple(dict.fromkeys(known.refused.values()))
        refused = np.full(count, -1, dtype=np.int64)
        for place, reason in enumerate(known.refused.values()):
            refused[rows == -1 - place] = reasons.index(reason)
        fleets = [
            (mine, plan_batch(self.shares, choices.take(mine), known, rows[mine], self.exchanges))
            for mine in alike(choices, np.flatnonzero(rows >= 0))
        ]
        self._held(fleets, columns)
        while self._fill(known, rows[self._wanted(columns) & (rows >= 0)]):
            self._held(fleets, columns)
        wanted = self._wanted(columns)
        timed = [
            (mine[some], ships.take(some))
            for mine, ships in fleets
            if len(some := np.flatnonzero(wanted[mine]))
        ]
        if incumbents is None:
            for mine, ships in timed:
                self._timed(mine, ships, columns)
        else:
            self._able_to_win(timed, columns, incumbents)
        return Estimates(**columns, refusal=reasons, refused=refused)

    def _able_to_win(
        self, fleets: Sequence[tuple[Ints, PlanBatch]], columns: dict[str, Floats], best: Incumbents
    ) -> None:
        bounds = [least_seconds(ships) for _, ships in fleets]
        for number in in_order(bounds).tolist():
            mine, ships = fleets[number]
            memory = columns["memory"]
            columns["least"][mine] = bounds[number]
            some = np.flatnonzero(best.wanted(ships.choices, bounds[number], memory[mine]))
            if len(some):
                few = ships.take(some)
                self._timed(mine[some], few, columns)
                best.add(few.choices, columns["seconds"][mine[some]], memory[mine[some]])

    @staticmethod
    def _timed(mine: Ints, ships: PlanBatch, columns: dict[str, Floats]) -> None:
        for name, values in Times(ships).columns().items():
            columns[name][mine] = values

    @staticmethod
    def _held(fleets: Sequence[tuple[Ints, PlanBatch]], columns: dict[str, Floats]) -> None:
        for mine, ships in fleets:
            columns["memory"][mine], columns["usable"][mine] = peak_bytes(ships)

    def _wanted(self, columns: dict[str, Floats]) -> Bools:
        fits = columns["memory"] <= columns["usable"]
        return np.asarray(fits & np.isfinite(columns["memory"]) | (not self.only_fitting))

    def _fill(self, known: Layers, rows: Ints) -> bool:
        """Compile the states that have not been; whether they hold something else than was thought."""
        missing = np.unique(rows)
        missing = missing[~known.is_timed[missing]]
        if not len(missing):
            return False
        states = list(known.number)
        return known.fill(
            layers(self.task, [states[row] for row in missing.tolist()], known.places, self.blocks)
        )

    def states(self, choices: Choices) -> tuple[Ints, Layers]:
        """Each plan's state as a row of the table; refused states are counted down from -1.

        Of states that differ in the micro-batch alone the two smallest are compiled. What the others hold follows
        from them; what they take is asked once a plan is known to fit.
        """
        names = (
            "tp",
            "cp",
            "ep",
            "etp",
            "sp",
            "micro",
            "recompute",
            "exchange",
            "tables",
            "order",
            "pp",
        )
        _, first, inverse = np.unique(
            row_keys(choices, names), return_index=True, return_inverse=True
        )
        plain = self._plain_orders()
        states = [plain(choices.state(int(row))) for row in first]
        known = self._known_before(choices, states)
        if known is None:
            known = self._last = self._compiled(choices, states)
        places = {state: -1 - place for place, state in enumerate(known.refused)}
        numbers = [known.number[s] if s in known.number else places[s] for s in states]
        return np.array(numbers, dtype=np.int64)[inverse.ravel()], known

    def _known_before(self, choices: Choices, states: Sequence[State]) -> Layers | None:
        """What was compiled for the plans before these, if it has all that these need."""
        known = self._last
        if known is None or known.places != self.places(choices):
            return None
        return known if all(s in known.number or s in known.refused for s in states) else None

    def _compiled(self, choices: Choices, states: Sequence[State]) -> Layers:
        """Two states of every family, which is those that differ in the micro-batch and in which ranks work together."""
        families: dict[object, list[State]] = {}
        refused: dict[State, str] = {}
        for state in sorted(dict.fromkeys(states), key=_plainest):
            try:
                families.setdefault(self.blocks.family(state), []).append(state)
            except InputError as error:
                refused[state] = first_line(error)
        ends = {kind: _two_smallest(family) for kind, family in families.items()}
        smallest = [state for two in ends.values() for state in two]
        found = layers(self.task, smallest, self.places(choices), self.blocks)
        for kind, family in families.items():
            reason = found.refused.get(ends[kind][0])
            found.refused.update(dict.fromkeys(family if reason else (), reason or ""))
        found.refused.update(refused)
        between = {
            s: ends[kind]
            for kind, family in families.items()
            for s in family
            if s not in found.refused
        }
        return grown(found, between)

    def places(self, choices: Choices) -> Places:
        """Repetitions of blocks that are alike in all plans."""
        task = self.task
        return places(task.workload.model, choices.palette.recompute, task.runtime)

    def _plain_orders(self) -> Callable[[State], State]:
        """Orders of the axes that differ from the runtime's in where stages lie do not matter to blocks, unless these
        lie between the ranks of a group."""
        usual = tuple(axis for axis in reversed(self.task.runtime.plan.rank_order) if axis != "pp")

        def plain(state: State) -> State:
            if state.order is None or state.pp > 1:
                return state
            inner = tuple(axis for axis in state.order if axis != "pp")
            return state._replace(order=None) if inner == usual else state

        return plain


def _plainest(state: State) -> tuple[object, ...]:
    return state.micro, state.pp, state.order or ()


def _two_smallest(family: Sequence[State]) -> list[State]:
    """In order of the micro-batch, which the two differ in."""
    second = (state for state in family if state.micro > family[0].micro)
    return [family[0], *islice(second, 1)]


def alike(choices: Choices, rows: Ints) -> Iterator[Ints]:
    """Rows of plans with one mesh and one way to share out layers."""
    names = ("tp", "pp", "vpp", "dp", "cp", "ep", "order", "shard", "layers")
    inverse = (row_keys(choices, names) * len(choices.palette.schedule) + _placed(choices))[rows]
    order = np.argsort(inverse, kind="stable")
    bounds = np.flatnonzero(np.diff(inverse[order])) + 1
    yield from (rows[part] for part in np.split(order, bounds) if len(part))


def _placed(choices: Choices) -> Ints:
    """One number per row, equal for plans on as many stages and chunks whose pieces of the model lie alike."""
    kinds = [SCHEDULES[name] for name in choices.palette.schedule]
    first, _ = first_of(row_keys(choices, ("pp", "vpp")))
    sizes = list(zip(choices.pp[first].tolist(), choices.vpp[first].tolist(), strict=True))
    tables = [
        tuple(k.pieces(pp, vpp).of.tobytes() for pp, vpp in sizes if vpp in k.chunks) for k in kinds
    ]
    numbers = np.array([tables.index(table) for table in tables], dtype=np.int64)
    return np.asarray(numbers[choices.schedule])


def row_keys(choices: Choices, names: Sequence[str]) -> Ints:
    """One number per row, equal where all named columns are."""
    key = np.zeros(len(choices), dtype=np.int64)
    for name in names:
        column = getattr(choices, name).astype(np.int64)
        key = key * (int(column.max(initial=0)) + 1) + column
    return key
