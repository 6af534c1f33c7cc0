"""Measure ops: time every kernel that training steps need on this device, into the store."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from foretrain.forecast import Question
from foretrain.measurement.backend import Backend, torch_module
from foretrain.measurement.machine import Machine
from foretrain.measurement.needs import UPDATE, Need, needs
from foretrain.measurement.recipes import rotation
from foretrain.measurement.records import Measurement, host_key, op_key
from foretrain.measurement.store import Store
from foretrain.measurement.timing import Budget, Effort, is_tight, repeated

EMPTY = 8  # elements: a kernel that is nothing but its dispatch
CHAIN = 50  # of them in a row
LEAST_UPDATE = 0.1  # share of an update's time that is left when the host's part is taken off

Timer = Callable[[Need, Effort], tuple[float, ...]]
"""Seconds of a need's call, sample by sample."""
Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Row:
    """One call that was asked for."""

    need: Need
    seconds: float
    spread: float
    repeats: int
    was_known: bool
    is_tight: bool


@dataclass(frozen=True, slots=True)
class Report:
    """What `measure ops` did."""

    rows: tuple[Row, ...]
    unmeasured: tuple[Need, ...]  # the budget ended before them
    host_seconds_per_kernel: float | None
    device: str
    threads: int | None

    @property
    def measured(self) -> int:
        return sum(not row.was_known for row in self.rows)


def measure_ops(
    questions: Iterable[Question],
    store: Store,
    backend: Backend,
    *,
    effort: Effort | None = None,
    budget: float | None = None,
    progress: Progress | None = None,
    machine: Machine | None = None,
    timer: Timer | None = None,
) -> Report:
    """Time what the questions need and the store does not know yet, each kernel its own row.

    What takes longest is done first, so that a budget that ends early leaves out what matters least.
    """
    effort, machine = effort or Effort(), machine or Machine.here()
    session = _Session(store, backend, machine, timer or _timer(backend), effort)
    budgeted = Budget(budget)
    host = session.host()
    todo = sorted(needs(questions), key=lambda need: -(need.flops + 10 * need.bytes))
    rows: list[Row] = []
    left_out: list[Need] = []
    for done, need in enumerate(todo):
        if progress is not None:
            progress(done, len(todo))
        row = session.known(need)
        if row is None and budgeted.is_spent:
            left_out.append(need)
            continue
        rows.append(row or session.time(need, budgeted.share(len(todo) - done, effort), host))
    return Report(tuple(rows), tuple(left_out), host, backend.device, backend.threads)


def _timer(backend: Backend) -> Timer:
    def timed(need: Need, effort: Effort) -> tuple[float, ...]:
        call = rotation(need, backend)
        with torch_module().set_grad_enabled(call.records):
            return repeated(lambda calls: backend.elapsed(call, calls), effort)

    return timed


@dataclass(frozen=True, slots=True)
class _Session:
    store: Store
    backend: Backend
    machine: Machine
    timer: Timer
    effort: Effort

    def _keys(self, need: Need) -> list[dict[str, object]]:
        b = self.backend
        return [op_key(k, device=b.device, threads=b.threads) for k in dict.fromkeys(need.kernels)]

    def known(self, need: Need) -> Row | None:
        """The row of a need all of whose kernels are in the store."""
        found = [self.store.known("op", key, self.machine) for key in self._keys(need)]
        known = [one for one in found if one is not None]
        if len(known) < len(found):
            return None
        seconds = sum(one.seconds for one in known)
        first = known[0]
        return Row(need, seconds, first.spread, first.repeats, True, True)

    def time(self, need: Need, effort: Effort, host: float | None) -> Row:
        samples = self.timer(need, effort)
        taken = _beyond_host(need, samples, host)
        about = {"op": need.what, "optimizer": need.optimizer, "footprint": need.footprint}
        shares = dict(zip(need.kernels, need.shares(), strict=True))
        rows = [
            Measurement.of("op", key, [s * share for s in taken], self.machine, about=about)
            for key, share in zip(self._keys(need), shares.values(), strict=True)
        ]
        self.store.add(*rows)
        seconds = sum(row.seconds for row in rows)
        tight = is_tight(samples, effort.tolerance)
        return Row(need, seconds, rows[0].spread, len(samples), False, tight)

    def host(self) -> float | None:
        """Host seconds to issue one kernel: those of an op on a handful of numbers."""
        key = host_key(
            "kernel", runtime="eager", device=self.backend.device, threads=self.backend.threads
        )
        known = self.store.known("host", key, self.machine)
        if known is not None:
            return known.seconds
        samples = host_samples(self.backend, self.effort)
        if samples is None:
            return None
        row = Measurement.of("host", key, samples, self.machine)
        self.store.add(row)
        return row.seconds


def host_samples(backend: Backend, effort: Effort) -> Sequence[float] | None:
    """Seconds to issue a kernel that does next to nothing, as an optimizer issues it: in place, one after another."""
    if not hasattr(backend, "torch"):
        return None
    torch = torch_module()
    value = backend.normal(EMPTY)
    with torch.no_grad():
        return [
            s / CHAIN for s in repeated(lambda n: backend.elapsed(_chain(value), n), effort)
        ]  # fmt: skip


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
