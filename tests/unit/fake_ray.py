"""As much of Ray as an executor calls, in this process, with failures on order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any


class RayError(Exception):
    """What Ray raises of itself: a worker, an object or the cluster is lost."""


class RayTaskError(RayError):
    """What Ray raises where a task did."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(f"a traceback\n{cause}")
        self.cause = cause


@dataclass(eq=False)
class Reference:
    """What a task will give, or a value that was put aside."""

    call: Callable[[], Any]
    item: Any = None


@dataclass(eq=False)
class FakeRay:
    """A cluster. The task that was sent last is done first, so nobody may count on an order."""

    failures: dict[Any, list[Exception]] = field(
        default_factory=dict
    )  # of an item, one each time it is sent
    refuses: Exception | None = None  # to be connected to
    is_up: bool = False
    lasts: int = 1000  # results that it gives before it is gone as a whole
    asked: list[dict[str, Any]] = field(
        default_factory=list
    )  # what it was started or connected with
    options: list[dict[str, Any]] = field(default_factory=list)  # of functions
    waiting: list[int] = field(default_factory=list)  # tasks at every wait
    cancelled: list[tuple[Any, bool]] = field(default_factory=list)

    exceptions = SimpleNamespace(RayError=RayError)

    def is_initialized(self) -> bool:
        return self.is_up

    def init(self, **asked: Any) -> None:
        if self.refuses is not None:
            raise self.refuses
        assert not self.is_up, "Ray connects a process once"
        self.is_up = True
        self.asked.append(asked)

    def shutdown(self) -> None:
        self.is_up = False

    def put(self, value: Any) -> Reference:
        return Reference(lambda: value)

    def remote(self, function: Callable[..., Any] | None = None, **options: Any) -> Any:
        """A decorator, with options or without."""
        if function is None:
            return lambda made: self._remote(made, options)
        return self._remote(function, options)

    def _remote(self, function: Callable[..., Any], options: dict[str, Any]) -> SimpleNamespace:
        self.options.append(options)
        return SimpleNamespace(remote=lambda *values: self._sent(function, values))

    def _sent(self, function: Callable[..., Any], values: tuple[Any, ...]) -> Reference:
        assert self.is_up
        known = [value.call() if isinstance(value, Reference) else value for value in values]
        return Reference(lambda: function(*known), known[-1] if known else None)

    def wait(
        self, references: Sequence[Reference], num_returns: int
    ) -> tuple[list[Reference], list[Reference]]:
        if num_returns > len(references):
            raise ValueError("more are waited for than there are")
        self.waiting.append(len(references))
        if len(self.waiting) > self.lasts:
            raise RayError("the head node is gone.\nSee its logs")
        rest = list(references)
        return [rest.pop() for _ in range(num_returns)], rest

    def get(self, reference: Reference) -> Any:
        failures = self.failures.get(reference.item)
        if failures:
            raise failures.pop(0)
        try:
            return reference.call()
        except Exception as error:
            raise RayTaskError(error) from error

    def cancel(self, reference: Reference, force: bool) -> None:
        self.cancelled.append((reference.item, force))
        if len(self.waiting) > self.lasts:
            raise ConnectionError("nobody is there")
