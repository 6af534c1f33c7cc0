"""Progress on stderr, with the time left, for anything that takes more than a second."""

from __future__ import annotations

import shutil
import sys
import time
from typing import TYPE_CHECKING

from foretrain.cli.process import tell

if TYPE_CHECKING:
    from foretrain.planning.planner import SearchStatus as Reached


QUIET_SECONDS = 1.0
TERMINAL_PERIOD = 0.2
LOG_PERIOD = 10.0


class Progress:
    """Call it with how many are done (and, if it was not known before, of how many)."""

    def __init__(self, what: str, total: int | None = None, quiet: bool = False) -> None:
        self._what = what
        self._total = total
        self._quiet = quiet
        self._terminal = sys.stderr.isatty()
        self._began = time.monotonic()
        self._shown: float | None = None
        self._width = 0

    def __call__(self, done: int, total: int | None = None) -> None:
        if total is not None:
            self._total = total
        if self.is_due():
            elapsed = time.monotonic() - self._began
            self.show(describe(self._what, done, self._total, elapsed))

    def is_due(self) -> bool:
        """Whether enough time has gone by for another line."""
        since = time.monotonic() - (self._began if self._shown is None else self._shown)
        period = (
            QUIET_SECONDS
            if self._shown is None
            else TERMINAL_PERIOD
            if self._terminal
            else LOG_PERIOD
        )
        return not self._quiet and since >= period

    def show(self, line: str) -> None:
        self._shown = time.monotonic()
        self._write(line)

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._width:  # leave no half line behind
            tell("\r" + " " * self._width + "\r", end="")

    def _write(self, line: str) -> None:
        if self._terminal:
            line = line[
                : max(20, shutil.get_terminal_size().columns - 1)
            ]  # one line can be drawn over
            tell("\r" + line.ljust(self._width), end="")
            self._width = max(self._width, len(line))
        else:
            tell(line)


def describe(what: str, done: int, total: int | None, elapsed: float) -> str:
    """`cases 120 of 500, 24 %, 35 s left`."""
    if not total:
        return f"{what} {done:,}, {elapsed:.0f} s so far"
    left = elapsed * (total - done) / done if done else None
    remaining = "" if left is None else f", {clock(left)} left"
    return f"{what} {done:,} of {total:,}, {100 * done / total:.0f} %{remaining}"


def clock(seconds: float) -> str:
    """`35 s`, `2 min 05 s`, `1 h 02 min`."""
    whole = max(0, round(seconds))
    if whole < 100:
        return f"{whole} s"
    if whole < 6000:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


class SearchProgress(Progress):
    """Plans seen, the best so far, the time left; silent where there is no terminal. Remembers the last state."""

    def __init__(self, quiet: bool = False) -> None:
        super().__init__("plans", quiet=quiet or not sys.stderr.isatty())
        self.plans = self.done = self.parts = self.simulated = 0

    def __call__(self, reached: Reached) -> None:  # type: ignore[override]
        self.plans = reached.plans_seen
        self.simulated = reached.simulated
        if reached.parts:
            self.done, self.parts = reached.parts_done, reached.parts
        if self.is_due():
            self.show(line(reached))

    def reached(self) -> str:
        """`19,410 plans in 5 of 8 parts of the search`."""
        text = f"{self.plans:,} plans in {self.done} of {self.parts} parts of the search"
        return f"{text} and {self.simulated} simulations" if self.simulated else text


def line(reached: Reached) -> str:
    """`plans 21,570, best 30.6 ms (dp16 zero1), part 5 of 8, 3 s left`."""
    best = reached.best
    shown = "" if best is None else f", best {_seconds(best.seconds)} ({best.plan})"
    if reached.to_simulate:
        return (
            f"plans {reached.plans_seen:,}, simulating {reached.simulated} of {reached.to_simulate}"
        )
    left = reached.seconds * (reached.parts - reached.parts_done) / max(1, reached.parts_done)
    return (
        f"plans {reached.plans_seen:,}, part {reached.parts_done} of {reached.parts}, "
        f"{clock(left)} left{shown}"
    )


def _seconds(value: float) -> str:
    from foretrain.units import show_seconds

    return show_seconds(value)
