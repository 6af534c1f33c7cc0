"""How far a search has come, in one line of the terminal."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from foretrain.cli.progress import Progress, clock

if TYPE_CHECKING:
    from foretrain.planning.planner import Progress as Reached


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
