"""How the benchmarks measure: one core, one thread, best and median of several runs."""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


@dataclass(frozen=True, slots=True)
class Row:
    """One measured figure; `target` is what it should not exceed, in the same unit."""

    name: str
    value: float
    unit: str
    target: float | None = None
    note: str = ""

    @property
    def is_met(self) -> bool | None:
        return None if self.target is None else self.value <= self.target

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"is_met": self.is_met}


def one_core() -> int | None:
    """Pin this process, and so its children, to one core; None where the system cannot."""
    if not hasattr(os, "sched_setaffinity"):
        return None
    core = min(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {core})
    return core


def seconds(call: Callable[[], object], runs: int, warm_up: int = 1) -> list[float]:
    """Wall seconds of several runs, after some that are not counted."""
    for _ in range(warm_up):
        call()
    found = []
    for _ in range(runs):
        before = time.perf_counter()
        call()
        found.append(time.perf_counter() - before)
    return found


def process_seconds(command: list[str], runs: int) -> tuple[list[float], float]:
    """The same for whole processes, and the CPU seconds of the cheapest; the first run warms the file cache."""
    cpu: list[float] = []

    def call() -> None:
        before = children_cpu()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment())
        cpu.append(children_cpu() - before)

    return seconds(call, runs), min(cpu)


def children_cpu() -> float:
    """CPU seconds of all child processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def spread(found: list[float]) -> str:
    return f"best of {len(found)}; median {statistics.median(found) * 1e3:.0f} ms"


def environment() -> dict[str, str]:
    return {**os.environ, **ONE_THREAD}


def foretrain(*arguments: str) -> list[str]:
    """The installed command beside this interpreter."""
    return [str(Path(sys.executable).with_name("foretrain")), *arguments]


def rows_of(script: str, *arguments: str) -> list[Row]:
    """Rows that another benchmark of this folder prints with --json, from its own process."""
    command = [sys.executable, str(HERE / script), "--json", *arguments]
    answer = subprocess.run(command, check=True, capture_output=True, text=True, env=environment())
    return [_row(found) for found in json.loads(answer.stdout)]


def _row(found: dict[str, Any]) -> Row:
    return Row(**{name: found[name] for name in Row.__slots__})


def show(rows: list[Row], as_json: bool) -> None:
    if as_json:
        print(json.dumps([row.to_dict() for row in rows], indent=2))
        return
    width = max(len(row.name) for row in rows)
    for row in rows:
        target = "" if row.target is None else f"(target {number(row.target)} {row.unit})"
        print(f"{row.name:{width}}  {number(row.value):>10} {row.unit:9} {target:20} {row.note}")


def number(value: float) -> str:
    """Three significant digits, thousands apart."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
