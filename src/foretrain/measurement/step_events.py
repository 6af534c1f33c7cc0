"""What happens within a training step, seen by hooks that a model and its optimizers offer.

Marks are taken on the device's own time line: on a CPU that is the clock, on CUDA an event in the current
stream. An event in an idle stream is reached when the host records it, one behind queued work when that is done, so
the difference of two marks is what the device saw: waits of the host that queued work hides cost nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

PARTS = ("data", "host", "compute", "wait", "optimizer")
"""Of one pass through the user's loop, in seconds. wait: from a rank's own last gradient to its update."""


class Clock(Protocol):
    """Marks on a device's time line."""

    def mark(self) -> Any: ...

    def settle(self) -> None:
        """Until every mark has been reached."""

    def seconds(self, first: Any, second: Any) -> float: ...


class HostClock:
    """Work runs when it is called."""

    def mark(self) -> float:
        return time.perf_counter()

    def settle(self) -> None:
        return None

    def seconds(self, first: float, second: float) -> float:
        return second - first


class CudaClock:
    """Work is queued; events are reached in its order."""

    def mark(self) -> Any:
        import torch

        make: Any = torch.cuda.Event
        event = make(enable_timing=True)
        event.record()
        return event

    def settle(self) -> None:
        import torch

        torch.cuda.synchronize()

    def seconds(self, first: Any, second: Any) -> float:
        return float(first.elapsed_time(second)) / 1e3


def clock_of(model: Any) -> tuple[Clock, str]:
    """The clock of the device that holds the model, and that device's kind."""
    kind = "cpu"
    for parameter in model.parameters() if model is not None else ():
        kind = str(parameter.device.type)
        break
    return (CudaClock() if kind == "cuda" else HostClock()), kind


@dataclass(slots=True)
class Pass:
    """The marks of one pass through the loop; what did not happen is None."""

    begin: Any
    got: Any = None
    forward: Any = None
    own_end: Any = None
    update: Any = None
    updated: Any = None


class StepEvents:
    """Hooks on one model and its optimizers. `begin` and `got` are called by the loader's side."""

    def __init__(self, model: Any, optimizers: Iterable[Any], clock: Clock) -> None:
        self.clock = clock
        self.passes: list[Pass] = []
        self._now: Pass | None = None
        self._handles: list[Any] = []
        self._last: Any = None
        self._gradients: list[tuple[Any, Any]] = []
        if model is not None:
            self._handles.append(model.register_forward_pre_hook(self._forward))
            self._watch_gradients(model)
        for optimizer in optimizers:
            self._handles.append(optimizer.register_step_pre_hook(self._update))
            self._handles.append(optimizer.register_step_post_hook(self._updated))

    def begin(self) -> None:
        self._now = Pass(self.clock.mark())
        self.passes.append(self._now)

    def got(self) -> None:
        if self._now is not None:
            self._now.got = self.clock.mark()

    def keep_last_gradient_only(self) -> None:
        """After warm-up the order of gradients is known: one hook tells when a rank's own work is done."""
        for parameter, handle in self._gradients:
            if self._last is not None and parameter is not self._last:
                handle.remove()
        self._gradients = [row for row in self._gradients if row[0] is self._last]

    def remove(self) -> None:
        for handle in (*self._handles, *(handle for _, handle in self._gradients)):
            handle.remove()
        self._handles, self._gradients = [], []

    def parts(self) -> list[tuple[float, ...]]:
        """Seconds of PARTS of every pass that was followed by another, in order."""
        self.clock.settle()
        ends = [later.begin for later in self.passes[1:]]
        return [_parts(one, end, self.clock) for one, end in zip(self.passes, ends, strict=False)]

    def updates(self) -> list[bool]:
        """Whether each of these passes ended with an update of the weights."""
        return [one.updated is not None for one in self.passes[:-1]]

    def _watch_gradients(self, model: Any) -> None:
        for parameter in model.parameters():
            if parameter.requires_grad and hasattr(parameter, "register_post_accumulate_grad_hook"):
                hook = parameter.register_post_accumulate_grad_hook(self._gradient)
                self._gradients.append((parameter, hook))

    def _forward(self, *_: Any) -> None:
        if self._now is not None and self._now.forward is None:
            self._now.forward = self.clock.mark()

    def _gradient(self, parameter: Any) -> None:
        self._last = parameter
        if self._now is not None:
            self._now.own_end = self.clock.mark()

    def _update(self, *_: Any) -> None:
        if self._now is not None and self._now.update is None:
            self._now.update = self.clock.mark()

    def _updated(self, *_: Any) -> None:
        if self._now is not None:
            self._now.updated = self.clock.mark()


def _parts(one: Pass, end: Any, clock: Clock) -> tuple[float, ...]:
    """Marks in the order they must have; one that is missing takes the place of the next that is there."""
    marks = [one.begin, one.got, one.forward, one.own_end, one.update, one.updated, end]
    if one.own_end is None:  # no gradient was seen: the work lasts until the update
        marks[3] = one.update
    for at in range(len(marks) - 2, -1, -1):
        if marks[at] is None:
            marks[at] = marks[at + 1]
    # a pass that only gathers gradients: nothing is waited for, nothing updated
    if one.update is None:
        marks[4] = marks[5] = marks[3]
    between: Callable[[int], float] = lambda at: max(0.0, clock.seconds(marks[at], marks[at + 1]))  # noqa: E731
    data, before, compute, wait, update, after = (between(at) for at in range(6))
    return data, before + after, compute, wait, update
