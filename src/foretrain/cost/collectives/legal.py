"""Whether an algorithm from outside can be run: what it answers of small groups are numbers, and its ranks exist."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product

import numpy as np

from foretrain.arrays import Ints
from foretrain.cost.collectives.base import Algorithm, Flows, FromProgram, Steps
from foretrain.cost.collectives.program import CollectiveProgram, Round
from foretrain.errors import ForetrainError, InputError
from foretrain.limits import is_finite, shown
from foretrain.registering import is_name
from foretrain.units import counted

_RANKS = (2, 3, 4, 8)
_SIZE = 1e6  # bytes


def check_algorithm(algorithm: Algorithm) -> None:
    """Raises `InputError` where an answer for some small group is none, with what is wrong with each."""
    name, carried = algorithm.name, _collectives(algorithm)
    for collective, ranks in product(carried, _RANKS):
        if collective == "send" and ranks > 2:
            continue
        for layout in (np.zeros(ranks, dtype=np.int64), np.arange(ranks)):
            domains = counted(len(set(layout.tolist())), "domain")
            where = f"{collective} over {ranks} ranks in {domains}"
            faults = [f"{where}: {fault}" for fault in _faults(algorithm, collective, layout)]
            if faults:
                raise InputError(f"algorithm {name!r} cannot be run:", faults=faults)


def _collectives(algorithm: Algorithm) -> tuple[str, ...]:
    try:
        carried: object = algorithm.collectives
    except NotImplementedError:
        carried = ()
    if isinstance(carried, tuple) and carried and all(map(is_name, carried)):
        return carried
    raise InputError(
        f"algorithm {algorithm.name!r}: its collectives are {shown(carried)}, not a tuple of names such as "
        "('all_reduce',)."
    )


def _faults(algorithm: Algorithm, collective: str, layout: Ints) -> Iterator[str]:
    ranks, domains = len(layout), len(set(layout.tolist()))
    answers: tuple[tuple[str, Callable[[], object], Callable[[object], Iterator[str]]], ...] = (
        ("steps", lambda: algorithm.steps(collective, ranks, domains), _of_steps),
        ("volume", lambda: algorithm.volume(collective, _SIZE, ranks), _of_amount),
        (
            "program",
            lambda: algorithm.program(collective, _SIZE, layout),
            lambda found: _of_program(found, ranks, _nodes(algorithm, ranks)),
        ),
        (
            "flows",
            lambda: algorithm.flows(np.arange(ranks)[None, :], layout),
            lambda found: _of_flows(found, ranks),
        ),
    )
    for method, ask, faults in answers:
        if method == "program" and type(algorithm).program is Algorithm.program:
            continue  # only the kit asks for it, where flows do not come from it
        try:
            found = list(faults(ask()))
        except ForetrainError:
            return  # it refuses such groups itself
        except Exception as error:
            found = [f"{type(error).__name__}: {error}"]
        yield from (f"{method}() {fault}" for fault in found)
        if found:
            return  # what follows is made of it


def _nodes(algorithm: Algorithm, ranks: int) -> int:
    """Numbers from `ranks` on are switches, one at most for each rank, which steady flows do not know."""
    return ranks if type(algorithm).flows is FromProgram.flows else 2 * ranks


def _of_steps(steps: object) -> Iterator[str]:
    if not isinstance(steps, Steps):
        yield f"is {shown(steps)}, not Steps(inside, between)"
        return
    for hops in (steps.inside, steps.between):
        yield from _of_amount(hops)


def _of_amount(value: object) -> Iterator[str]:
    if not (isinstance(value, int | float | np.number) and is_finite(float(value)) and value >= 0):
        yield f"has {shown(value)}, not a finite number of at least 0"


def _of_program(program: object, ranks: int, nodes: int) -> Iterator[str]:
    if not isinstance(program, CollectiveProgram):
        yield f"is {shown(program)}, not a CollectiveProgram"
    elif program.ranks != ranks:
        yield f"is of {shown(program.ranks)} ranks"
    elif not program.rounds:
        yield "has no rounds"
    else:
        for number, step in enumerate(program.rounds):
            if isinstance(step, Round):
                found = _of_messages(step.src, step.dst, step.bytes, nodes=nodes)
            else:
                found = iter([f"is {shown(step)}, not a Round"])
            yield from (f"round {number}: {fault}" for fault in found)


def _of_flows(flows: object, ranks: int) -> Iterator[str]:
    if not isinstance(flows, Flows):
        yield f"is {shown(flows)}, not Flows"
        return
    yield from _of_messages(flows.src, flows.dst, flows.weight, nodes=ranks)


def _of_messages(*columns: object, nodes: int) -> Iterator[str]:
    """Who sends to whom, and how much."""
    src, dst, size = map(np.asarray, columns)
    if not (src.shape == dst.shape == size.shape and src.ndim == 1 and src.size):
        shapes = f"{src.shape}, {dst.shape} and {size.shape}"
        yield f"senders, receivers and sizes have the shapes {shapes}, not one of (messages,)"
        return
    for ends in (src, dst):
        if not np.issubdtype(ends.dtype, np.integer):
            yield f"ranks are {ends.dtype}, not whole numbers"
        elif (outside := ends[(ends < 0) | (ends >= nodes)]).size:
            yield f"rank {outside[0]} does not exist"
    sizes = size.astype(np.float64)
    if (wrong := sizes[~(np.isfinite(sizes) & (sizes >= 0))]).size:
        yield f"a size of {wrong[0]}, not a finite number of at least 0"
