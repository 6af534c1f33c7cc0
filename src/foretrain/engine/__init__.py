"""The engine: runs a `Program` of tasks, streams and links and says when each task ran.

Two implementations with one contract, equal to the last bit: a compiled one, and a readable one in
Python that is its oracle and its stand-in where no compiler was at hand. The environment variable
`FORETRAIN_ENGINE` (`auto`, `native` or `reference`) decides where the caller leaves it open.
"""

from __future__ import annotations

import os
from typing import Literal

import numpy as np

from foretrain.engine import reference, stuck
from foretrain.engine.fluid import max_min
from foretrain.engine.program import Program, Run
from foretrain.errors import Bug, InputError, did_you_mean

try:
    from foretrain.engine import _native
except ImportError:  # installed without a compiler
    _HAS_NATIVE = False
else:
    _HAS_NATIVE = True

Engine = Literal["auto", "native", "reference"]

__all__ = ["Program", "Run", "engine_name", "max_min", "native_available", "simulate"]


def simulate(program: Program, engine: Engine = "auto", *, is_graph_known: bool = False) -> Run:
    """Run the program: start and end of every task, and what it waited for. `is_graph_known`: its streams and edges
    were run before, with other costs.

    Raises `Bug` if the program is malformed or if some of its tasks can never start.
    """
    program.check(is_graph_known=is_graph_known)
    run = _simulate_native(program) if _choose(engine) == "native" else reference.simulate(program)
    # NaN marks what never ran, and any sum that meets a NaN is one
    if np.isnan(run.end.sum()):
        raise Bug(stuck.describe(program, run.end))
    return run


def native_available() -> bool:
    """Whether the compiled engine is installed."""
    return _HAS_NATIVE


def engine_name() -> Literal["native", "reference"]:
    """The engine that `simulate` takes when left to choose."""
    return _choose("auto")


def _choose(engine: str) -> Literal["native", "reference"]:
    if engine == "auto":
        engine = os.environ.get("FORETRAIN_ENGINE", "auto") or "auto"
    if engine == "reference" or (engine == "auto" and not _HAS_NATIVE):
        return "reference"
    if engine not in ("auto", "native"):
        known = ("auto", "native", "reference")
        raise InputError(
            f"FORETRAIN_ENGINE: unknown engine {engine!r}; known: {', '.join(known)}."
            + did_you_mean(engine, known)
        )
    if not _HAS_NATIVE:
        raise InputError(
            "FORETRAIN_ENGINE: the native engine is not installed; reinstall foretrain with a "
            "C++17 compiler, or use 'reference'."
        )
    return "native"


def _simulate_native(program: Program) -> Run:
    n = len(program)
    run = Run(np.empty(n), np.empty(n), np.empty(n, dtype=np.int32))
    _native.simulate(
        program.duration,
        program.volume,
        program.route,
        program.stream_ptr,
        program.stream_ids,
        program.succ_ptr,
        program.succ,
        program.route_ptr,
        program.route_link,
        program.route_weight,
        program.route_cap,
        program.capacity,
        program.streams,
        program.stream_place,
        program.activity,
        program.sensitivity,
        program.slowdown,
        run.start,
        run.end,
        run.waited_for,
    )
    return run
