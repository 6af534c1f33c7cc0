"""What would help a plan that was simulated, and what would make one fit that does not."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import chain
from math import inf

from foretrain.advice.judging import MARGIN, NEARLY, Judged, estimated, fitting, remedy, simulated
from foretrain.advice.machines import machine_moves
from foretrain.advice.moves import Move, Place, plan_moves
from foretrain.advice.switches import precision_moves, switch_moves
from foretrain.analysis.prediction import Remedy
from foretrain.analysis.sensitivity import WORTH_SAYING
from foretrain.plan.strategy import recompute_kind
from foretrain.simulate import Simulation

FEW = 3
"""Plans that are simulated for a page, the fastest by estimate; every option and machine is."""
SHOWN = 5
"""Moves that a page lists."""
_VALUE = re.compile(r"=\S+|[\d.]+")
"""What is left of a change without its values is the choice that it makes."""
DEEPEST = 3
"""Moves in a row that are tried where no single one makes a plan fit."""


def what_would_help(found: Simulation) -> Sequence[Remedy]:
    """Plans and switches, then machines, then factors on hardware, each best first. For a plan that does not fit: what
    makes it fit, the fastest first; a faster kernel is no remedy."""
    if not found.memory.fits:
        moves = [row for row in fixes(found, FEW) if row.fits]
        return (*moves[:SHOWN], *machines(found))
    moves = _faster(Place(found.scenario), found)
    return (*moves[:SHOWN], *machines(found), *found.prediction.what_would_help)


def machines(found: Simulation) -> tuple[Remedy, ...]:
    """Other machines on which the plan is faster, or fits where it does not here."""
    rows = _judged(machine_moves(Place(found.scenario)), found.step_seconds)
    return tuple(_worth(rows, is_misfit=not found.memory.fits))


def _faster(at: Place, found: Simulation) -> list[Remedy]:
    step = found.step_seconds
    moves = [move for move in plan_moves(at) if not _does_more(move, at)]
    ranked = [one for one in estimated(at, moves, step) if one.fill <= 1.0 or not one.is_exact]
    exact: dict[str, Move] = {}
    for one in ranked:  # of moves of one choice the best
        if one.is_exact and one.seconds < step:
            exact.setdefault(_VALUE.sub("", one.move.change), one.move)
    kin = [one.move for one in ranked if not one.is_exact and one.seconds < step * (1.0 + MARGIN)]
    tried = chain([*exact.values()][:FEW], kin[:FEW], switch_moves(at), precision_moves(at))
    return _worth(_judged(tried, step), is_misfit=False)


def _does_more(move: Move, at: Place) -> bool:
    """Whether a plan runs more again or keeps more on the host, which saves memory and never time."""
    after, before = move.words or at.words, at.words
    kinds = [recompute_kind(words.recompute or "none") for words in (after, before)]
    is_again = kinds[0] != "none" and kinds[1] == "none"
    return is_again or len(after.offload) > len(before.offload)


def _judged(moves: Iterable[Move], step: float) -> list[Remedy]:
    return [remedy(move, one, step) for move, one in simulated(moves)]


def _worth(rows: Iterable[Remedy], *, is_misfit: bool) -> list[Remedy]:
    able = (row for row in rows if row.fits and (is_misfit or row.speedup >= WORTH_SAYING))
    return sorted(able, key=lambda row: row.step_seconds)


def fixes(found: Simulation, most: int | None = None) -> list[Remedy]:
    """What makes a plan fit, the fastest first; where no single move does, moves in a row, each the one that takes most
    memory away; where those do not, either, the plans that come nearest.

    All that may be among the fastest is simulated: whatever is estimated to fit, until estimates lie further above the
    fastest so far than estimates err. `most`: so many plans at the most.
    """
    at, step = Place(found.scenario), found.step_seconds
    options = fitting(chain(switch_moves(at), precision_moves(at)))
    rows = _worth(_judged(options, step), is_misfit=True)
    for _ in range(DEEPEST):
        moves = estimated(at, list(plan_moves(at)), step)
        rows += _fitting(moves, step, most)
        if rows or not moves:
            break
        at = Place(min(moves, key=lambda one: one.fill).move.scenario, found.scenario)
    nearest = sorted(moves, key=lambda one: one.fill)[:FEW]
    rows = rows or _judged((one.move for one in nearest), step)
    return sorted(rows, key=lambda row: (not row.fits, row.step_seconds))


def _fitting(moves: Sequence[Judged], step: float, most: int | None) -> list[Remedy]:
    rows: list[Remedy] = []
    able = [one for one in moves if one.fill <= (1.0 if one.is_exact else NEARLY)]
    for one in able[:most]:
        best = min((row.step_seconds for row in rows), default=inf)
        if one.seconds > best * (1.0 + MARGIN):
            break
        rows += _worth(_judged([one.move], step), is_misfit=True)
    return rows
