"""calibrate: from the measurements of one machine to what its kernels, links and data cost."""

from __future__ import annotations

import hashlib
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from foretrain import __version__
from foretrain.arrays import Floats
from foretrain.cluster import catalog
from foretrain.errors import InputError
from foretrain.measurement.calibration import Calibration
from foretrain.measurement.link_curves import link_curves
from foretrain.measurement.links import drift_of
from foretrain.measurement.machine import Machine
from foretrain.measurement.records import TO_DEVIATION, Measurement
from foretrain.measurement.store import Store
from foretrain.measurement.tables import (
    LOCAL,
    DataRates,
    MeasuredOp,
    MeasuredRoofline,
    Peak,
    Provenance,
)

SMALL = 0.1
"""A kernel's start is no longer than all but this share of kernels: the very shortest are parts of a call."""


def calibrate(
    store: Store,
    machine: Machine | str,
    *,
    threads: int | None = None,
    processes: int = 1,
    device: str | None = None,
) -> Calibration:
    """What the newest measurements of a machine say. `threads`: of those kernels that were timed with so many (the
    number most were timed with); `processes`: that were timed by so many at once (the nearest number there is);
    `device`: the catalog's name of a GPU that its driver calls something else."""
    name = machine if isinstance(machine, str) else machine.id
    rows = store.rows(machine=name, newest=True)
    if not rows:
        raise InputError(_nothing(store, name))
    return calibration_of(rows, threads=threads, processes=processes, device=device)


def calibration_of(
    rows: Sequence[Measurement],
    *,
    threads: int | None = None,
    processes: int = 1,
    device: str | None = None,
) -> Calibration:
    """The same from measurements of one machine that are at hand."""
    if not rows:
        raise InputError("There are no measurements to calibrate from.")
    machines = {row.machine.id for row in rows}
    if len(machines) > 1:
        raise InputError(
            f"The measurements are of {len(machines)} machines ({', '.join(sorted(machines))}); "
            "calibrate one at a time with --machine."
        )
    place = _place(rows)
    chosen, used = _chosen(
        [row for row in rows if row.kind == "op" and _device(row) == place], threads
    )
    together = _nearest(used, processes)
    ops = _ops(row for row in used if _processes(row) == together)
    links = [row for row in rows if row.kind == "link" and _device(row) == place]
    return Calibration(
        machine=rows[0].machine.to_dict(),
        device=_named(place, device),
        threads=chosen,
        ops=ops,
        roofline=fitted_roofline(ops) if ops else None,
        links=link_curves(links),
        data=_data([row for row in rows if row.kind == "data"]),
        host_seconds_per_kernel=_host(rows, place, chosen, together),
        provenance=_provenance(rows),
        drift=drift_of(row for row in rows if _device(row) == place),
        processes=together,
    )


def _nothing(store: Store, name: str) -> str:
    known = store.machines()
    others = "; ".join(f"{one} ({known[one].title})" for one in sorted(known))
    remedy = f" It has measurements of {others}: select one with --machine." if others else ""
    return f"{store.path} has no measurements of machine {name}. Run 'foretrain measure ops' first.{remedy}"


# --- kernels ----------------------------------------------------------------------------------------


def _device(row: Measurement) -> str:
    return str(row.key.get("device", "cpu"))


def _place(rows: Sequence[Measurement]) -> str:
    """The device that most was measured on."""
    counts = Counter(_device(row) for row in rows if row.kind in ("op", "link"))
    return max(sorted(counts), key=lambda name: counts[name], default="cpu")


def _named(place: str, name: str | None) -> str:
    if name is not None:
        return LOCAL if name == LOCAL else catalog.find_device(name).name
    if place == "cpu":
        return LOCAL
    if catalog.is_device(place):
        return catalog.find_device(place).name
    raise InputError(
        f"{place!r} is not in the catalog. Specify its catalog name with --device, or add it "
        "('foretrain catalog add')."
    )


def _chosen(
    rows: Sequence[Measurement], threads: int | None
) -> tuple[int | None, list[Measurement]]:
    """The thread count to calibrate for, and what was measured with it or with none told."""
    counts = Counter(row.key["threads"] for row in rows if isinstance(row.key.get("threads"), int))
    if threads is not None and counts and threads not in counts:
        known = ", ".join(str(n) for n in sorted(counts))
        raise InputError(f"No kernels were timed with {threads} threads; available: {known}.")
    chosen = threads or max(sorted(counts), key=lambda n: counts[n], default=None)
    return chosen, [row for row in rows if row.key.get("threads", chosen) == chosen]


def _processes(row: Measurement) -> int:
    count = row.key.get("processes", 1)
    return count if isinstance(count, int) and count > 0 else 1


def _nearest(rows: Sequence[Measurement], processes: int) -> int:
    """How many processes at once most resemble what is asked for."""
    counts = {_processes(row) for row in rows}
    return min(sorted(counts), key=lambda n: abs(n - processes), default=1)


def _ops(rows: Iterable[Measurement]) -> tuple[MeasuredOp, ...]:
    """One op for each kernel. Ops of the framework that run the same kernel are one: their median."""
    alike: dict[tuple[object, ...], list[MeasuredOp]] = {}
    for row in rows:
        op = _op(row)
        if op is not None:
            alike.setdefault(op.identity, []).append(op)
    return tuple(_one(ops) for _, ops in sorted(alike.items(), key=lambda item: repr(item[0])))


def _op(row: Measurement) -> MeasuredOp | None:
    key = row.key
    try:
        return MeasuredOp(
            kernel=str(key["kernel"]),
            phase=str(key["phase"]),
            dtype=str(key["dtype"]),
            shape=tuple(int(dim) for dim in key["shape"]),
            flops=float(key["flops"]),
            bytes=float(key["bytes"]),
            seconds=float(row.seconds),
            spread=float(row.spread),
        )
    except (KeyError, TypeError, ValueError, OverflowError):
        return None  # an op that no kernel was named for: kept in the store, no table


def _one(ops: Sequence[MeasuredOp]) -> MeasuredOp:
    if len(ops) == 1:
        return ops[0]
    logs = np.log([op.seconds for op in ops])
    middle = float(np.exp(np.median(logs)))
    spread = float(np.hypot(np.std(logs), statistics.median(op.spread for op in ops)))
    return replace(ops[0], seconds=middle, spread=spread)


def fitted_roofline(ops: Sequence[MeasuredOp]) -> MeasuredRoofline:
    """start + max(FLOPs / peak of the kind, bytes / bandwidth), nearest to the measured times in logarithms.

    Absolute deviations beyond a few per cent count once, not squared: a kind with another law does not bend the rest.
    """
    from scipy.optimize import least_squares

    seconds = np.array([op.seconds for op in ops])
    flops, moved = (np.array([getattr(op, name) for op in ops]) for name in ("flops", "bytes"))
    kinds = sorted({(op.kernel, op.dtype) for op in ops if op.flops > 0})
    if not kinds:
        kinds = sorted({(op.kernel, op.dtype) for op in ops})
    row = np.array(
        [kinds.index((o.kernel, o.dtype)) if (o.kernel, o.dtype) in kinds else 0 for o in ops]
    )
    best = np.array([_rate(flops[row == i], seconds[row == i]) for i in range(len(kinds))])
    stream = _rate(moved, seconds)

    def modelled(logs: Floats) -> Floats:
        start, bandwidth, peaks = np.exp(logs[0]), np.exp(logs[1]), np.exp(logs[2:])
        modelled_seconds: Floats = start + np.maximum(flops / peaks[row], moved / bandwidth)
        return modelled_seconds

    def apart(logs: Floats) -> Floats:
        distance: Floats = np.log(modelled(logs) / seconds)
        return distance

    small = float(np.quantile(seconds, SMALL))
    start = np.log(np.array([0.5 * small, 0.7 * stream, *(0.7 * best)]))
    low = np.log(np.array([1e-2 * small, 1e-2 * stream, *(1e-2 * best)]))
    high = np.log(np.array([small, stream, *best]))
    solution = least_squares(apart, start, bounds=(low, high), loss="soft_l1", f_scale=0.1)
    values = np.exp(solution.x).tolist()
    deviation = float(np.median(np.abs(apart(solution.x))) * TO_DEVIATION)
    return MeasuredRoofline(
        start_seconds=values[0],
        bandwidth=values[1],
        peaks=tuple(Peak(*kind, rate) for kind, rate in zip(kinds, values[2:], strict=True)),
        spread=deviation,
        best_bandwidth=stream,
        best_flops=_best(kinds, best),
    )


def _rate(amount: Floats, seconds: Floats) -> float:
    """The highest rate seen; something harmless where nothing is done."""
    return max(float((amount / seconds).max(initial=0.0)), 1.0)


def _best(kinds: Sequence[tuple[str, str]], rates: Floats) -> dict[str, float]:
    best: dict[str, float] = {}
    for (_, dtype), rate in zip(kinds, rates.tolist(), strict=True):
        best[dtype] = max(best.get(dtype, 0.0), rate)
    return best


# --- data and host ----------------------------------------------------------------------------------


def _data(rows: Sequence[Measurement]) -> DataRates:
    def rate(what: str, **wanted: object) -> float | None:
        rates = [
            float(row.key["bytes"]) / row.seconds
            for row in rows
            if row.key.get("what") == what
            and row.seconds > 0
            and isinstance(row.key.get("bytes"), int | float)
            and all(row.key.get(name) == value for name, value in wanted.items())
        ]
        return statistics.median(rates) if rates else None

    return DataRates(
        fetch_cold=rate("fetch", cache="cold"),
        fetch_warm=rate("fetch", cache="warm"),
        host_to_device=rate("host_to_device"),
        prep_seconds_per_sample=_prep(rows),
    )


def _prep(rows: Sequence[Measurement]) -> float | None:
    """Seconds of one worker, from the fewest workers that were measured."""
    by_workers: dict[int, list[float]] = {}
    for row in rows:
        samples, workers = row.key.get("samples"), row.key.get("workers", 1)
        if row.key.get("what") != "prep" or not isinstance(samples, int | float) or samples <= 0:
            continue
        if isinstance(workers, int) and workers > 0 and row.seconds > 0:
            by_workers.setdefault(workers, []).append(row.seconds * workers / samples)
    return statistics.median(by_workers[min(by_workers)]) if by_workers else None


def _host(
    rows: Sequence[Measurement], place: str, threads: int | None, processes: int
) -> float | None:
    seconds = [
        row.seconds
        for row in rows
        if (row.kind, row.key.get("what")) == ("host", "kernel")
        and row.seconds > 0
        and row.key.get("device", place) == place
        and row.key.get("threads", threads) in (threads, None)
        and _processes(row) == processes
    ]
    return statistics.median(seconds) if seconds else None


def _provenance(rows: Sequence[Measurement]) -> Provenance:
    digests = sorted(row.digest for row in rows)
    times = sorted(row.at for row in rows)
    sha256 = hashlib.sha256("\n".join(digests).encode()).hexdigest()
    return Provenance(__version__, len(rows), times[0], times[-1], sha256)
