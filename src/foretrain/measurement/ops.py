"""Measure ops: time every kernel that training steps need on this device, into the store."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from foretrain.measurement.backend import Backend, Call, torch_module
from foretrain.measurement.links import AgreedClock, RankGroup
from foretrain.measurement.machine import Machine
from foretrain.measurement.needs import UPDATE, Need, needs
from foretrain.measurement.recipes import Rotations
from foretrain.measurement.records import Key, Measurement, MeasurementReport, host_key, op_key
from foretrain.measurement.store import Store
from foretrain.measurement.timing import Budget, Effort, is_tight, repeated
from foretrain.scenario import Scenario

IN_CONTEXT = Effort(sample_seconds=1e-2)
EMPTY = 8  # elements: a kernel that is nothing but its dispatch
UNKNOWN = -1.0  # seconds of what no store knows
CHAIN = 50  # of them in a row
LEAST_UPDATE = 0.1  # share of an update's time that is left when the host's part is taken off

Timer = Callable[[Need, Effort], tuple[float, ...]]
"""Seconds of a need's call, sample by sample."""
Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class OpRow:
    """One call that was asked for."""

    need: Need
    seconds: float
    spread: float
    repeats: int
    was_known: bool
    is_tight: bool

    def to_dict(self) -> dict[str, Any]:
        return {
            "kernel": self.need.title,
            "seconds": self.seconds,
            "spread": self.spread,
            "repeats": self.repeats,
            "was_known": self.was_known,
            "is_tight": self.is_tight,
        }


@dataclass(frozen=True, slots=True, repr=False)
class OpsReport(MeasurementReport):
    """What `measure ops` did."""

    rows: tuple[OpRow, ...]
    unmeasured: tuple[Need, ...]  # the budget ended before them
    host_seconds_per_kernel: float | None
    device: str
    threads: int | None
    store: str = ""  # where the times are kept

    def to_dict(self) -> dict[str, Any]:
        return {
            "device": self.device,
            "threads": self.threads,
            "measured": self.measured,
            "known": len(self.rows),
            "unmeasured": [need.title for need in self.unmeasured],
            "host_seconds_per_kernel": self.host_seconds_per_kernel,
            "kernels": [row.to_dict() for row in self.rows],
            "store": self.store,
        }


class Stopwatch:
    """How calls are timed: by this process alone, or by all of a group at once, which share its caches and memory. They
    start every sample together, and the mean of what they took counts."""

    def __init__(self, backend: Backend, group: RankGroup | None = None) -> None:
        self.backend, self.group = backend, group
        self._agreed = None if group is None else AgreedClock(group)
        self.clock: Callable[[], float] = self._agreed or time.perf_counter

    @property
    def processes(self) -> int:
        return 1 if self.group is None else self.group.world

    def agreed(self, value: float) -> float:
        """The largest of what all say."""
        return value if self.group is None else self.group.largest(value)

    def meet(self) -> None:
        """Wait until all have come so far."""
        if self._agreed is not None:
            self._agreed.tick()

    def elapsed(self, call: Call, calls: int, before: Call | None = None) -> float:
        taken = self.backend.elapsed(call, calls, before)
        self.meet()
        return taken if self.group is None else self.group.mean(taken)


def measure_ops(
    questions: Iterable[Scenario],
    store: Store | None,
    backend: Backend,
    *,
    effort: Effort | None = None,
    budget: float | None = None,
    progress: Progress | None = None,
    machine: Machine | None = None,
    timer: Timer | None = None,
    group: RankGroup | None = None,
) -> OpsReport:
    """Time what the questions need and the store does not know yet, each kernel its own row.

    What takes longest is done first, so that a budget that ends early leaves out what matters least. All processes of
    a `group` do the same at the same time; the store is that of its first, None elsewhere.
    """
    effort, machine = effort or IN_CONTEXT, machine or Machine.here()
    stopwatch = Stopwatch(backend, group)
    session = _Session(store, stopwatch, machine, timer or _timer(stopwatch), effort)
    budgeted = Budget(budget, stopwatch.clock)
    host = session.host()
    todo = sorted(needs(questions), key=lambda need: -(need.flops + 10 * need.bytes))
    rows: list[OpRow] = []
    left_out: list[Need] = []
    for done, need in enumerate(todo):
        if progress is not None:
            progress(done, len(todo))
        row = session.known(need)
        if row is None and budgeted.is_spent:
            left_out.append(need)
            continue
        rows.append(row or session.time(need, budgeted.share(len(todo) - done, effort), host))
    path = "" if store is None else str(store.path)
    return OpsReport(tuple(rows), tuple(left_out), host, backend.device, backend.threads, path)


def _timer(stopwatch: Stopwatch) -> Timer:
    torch, kept = torch_module(), Rotations(stopwatch.backend)

    def timed(need: Need, effort: Effort) -> tuple[float, ...]:
        call, context = kept.of(need), [kept.of(one) for one in need.before]

        def before(number: int) -> None:
            for one in context:
                with torch.set_grad_enabled(one.records):
                    one(number)
            call.refresh()

        with torch.set_grad_enabled(call.records):
            before(0)  # makes their tensors, which may take longer than all repeats
            stopwatch.meet()
            return repeated(
                lambda calls: stopwatch.elapsed(call, calls, before), effort, stopwatch.clock
            )

    return timed


@dataclass(frozen=True, slots=True)
class _Session:
    store: Store | None
    stopwatch: Stopwatch
    machine: Machine
    timer: Timer
    effort: Effort

    @property
    def _place(self) -> dict[str, Any]:
        b = self.stopwatch.backend
        return {"device": b.device, "threads": b.threads, "processes": self.stopwatch.processes}

    def _keys(self, need: Need) -> list[dict[str, Any]]:
        return [op_key(kernel, **self._place) for kernel in dict.fromkeys(need.kernels)]

    def _known(self, kind: str, keys: Sequence[Key]) -> list[Measurement]:
        """What the store says of these, if it knows all."""
        if self.store is None:
            return []
        stored = [self.store.known(kind, key, self.machine) for key in keys]
        known = [one for one in stored if one is not None]
        return known if len(known) == len(stored) else []

    def _add(self, *rows: Measurement) -> None:
        if self.store is not None:
            self.store.add(*rows)

    def known(self, need: Need) -> OpRow | None:
        """The row of a need all of whose kernels are in the store of the first process."""
        known = self._known("op", self._keys(need))
        seconds = self.stopwatch.agreed(sum(one.seconds for one in known) if known else UNKNOWN)
        if seconds == UNKNOWN:
            return None
        spread, repeats = (known[0].spread, known[0].repeats) if known else (0.0, 1)
        return OpRow(need, seconds, spread, repeats, True, True)

    def time(self, need: Need, effort: Effort, host: float | None) -> OpRow:
        samples = self.timer(need, effort)
        taken = _beyond_host(need, samples, host)
        about = {"op": need.what, "optimizer": need.optimizer, "footprint": need.footprint}
        shares = dict(zip(need.kernels, need.shares(), strict=True))
        rows = [
            Measurement.of("op", key, [s * share for s in taken], self.machine, about=about)
            for key, share in zip(self._keys(need), shares.values(), strict=True)
        ]
        self._add(*rows)
        seconds = sum(row.seconds for row in rows)
        tight = is_tight(samples, effort.tolerance)
        return OpRow(need, seconds, rows[0].spread, len(samples), False, tight)

    def host(self) -> float | None:
        """Host seconds to issue one kernel: those of an op on a handful of numbers."""
        place = self._place
        if place["processes"] == 1:
            del place["processes"]
        key = host_key("kernel", runtime="eager", **place)
        known = self._known("host", [key])
        seconds = self.stopwatch.agreed(known[0].seconds if known else UNKNOWN)
        if seconds != UNKNOWN:
            return seconds
        samples = host_samples(self.stopwatch, self.effort)
        if samples is None:
            return None
        row = Measurement.of("host", key, samples, self.machine)
        self._add(row)
        return row.seconds


def host_samples(stopwatch: Stopwatch, effort: Effort) -> Sequence[float] | None:
    """Seconds to issue a kernel that does next to nothing, as an optimizer issues it: in place, one after another."""
    if not hasattr(stopwatch.backend, "torch"):
        return None
    value = stopwatch.backend.normal(EMPTY)
    with torch_module().no_grad():
        calls = repeated(lambda n: stopwatch.elapsed(_chain(value), n), effort, stopwatch.clock)
    return [seconds / CHAIN for seconds in calls]


def _chain(value: object) -> Callable[[int], None]:
    add = value.add_  # type: ignore[attr-defined]

    def call(_: int) -> None:
        for _ in range(CHAIN):
            add(1.0)

    return call


def _beyond_host(need: Need, samples: Sequence[float], host: float | None) -> list[float]:
    """Of an update, what is beyond issuing its kernels: a runtime's `kernels_per_tensor` counts that."""
    if need.what != UPDATE or not host or not need.launches:
        return list(samples)
    return [max(LEAST_UPDATE * s, s - host * need.launches) for s in samples]
