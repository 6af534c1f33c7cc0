"""Measure this machine from Python: what `foretrain measure` and `foretrain calibrate` do.

    from foretrain import calibrate, measure, predict
    measure.ops("gpt2", batch=4, seq=256)  # time the kernels of a step into the store
    mine = calibrate()                     # make costs of what the store knows

Everything here loads when it is used; timing needs PyTorch.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from foretrain.errors import InputError
from foretrain.keywords import expect_keywords, paths_of

if TYPE_CHECKING:
    from foretrain.asked import ClusterLike, ModelLike, StepOptions
    from foretrain.measurement.calibration import Calibration
    from foretrain.measurement.data import DataReport
    from foretrain.measurement.links import LinkReport
    from foretrain.measurement.machine import Machine as Machine
    from foretrain.measurement.ops import OpsReport
    from foretrain.measurement.records import Measurement as Measurement
    from foretrain.measurement.records import link_key as link_key
    from foretrain.measurement.store import Store as Store
    from foretrain.measurement.traces import TraceReport
    from foretrain.measurement.train_api import watch as watch
    from foretrain.scenario import Scenario

__all__ = [
    "Machine", "Measurement", "Store", "calibrate", "data", "link_key", "links", "ops", "traces", "watch",
]  # fmt: skip

_HOME = {
    "Machine": "machine",
    "Measurement": "records",
    "Store": "store",
    "link_key": "records",
    "watch": "train_api",
}
TOLERANCE = 0.02
COPIED = (2**20, 2**24)
"""Bytes whose copies to the device are timed."""


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"foretrain.measurement.{_HOME[name]}"), name)


def ops(
    model: ModelLike,
    *,
    on: ClusterLike | None = None,
    device: str = "",
    threads: int | None = None,
    budget: float | None = None,
    tolerance: float = TOLERANCE,
    store: str | Path | None = None,
    progress: Callable[[int, int], None] | None = None,
    **question: Unpack[StepOptions],
) -> OpsReport:
    """Time the kernels that a training step needs on this device, into the store. Known ones are not timed again.

    Args:
        model: as for `predict`.
        on: the cluster whose cuts are timed; left out, a step of one eager process.
        device: `cpu` or `cuda`; left out, a GPU if there is one.
        threads: of a process on CPUs.
        budget: seconds after which what is left stays untimed.
        tolerance: kernels are repeated until the median is known to this share.
        store: the measurement store. Default: the user's own.
        progress: told how many kernels of how many are done.
        **question: the other keywords of `predict` but those of a job.
    """
    from foretrain.asked import OF_JOBS, StepOptions
    from foretrain.measurement.backend import backend
    from foretrain.measurement.ops import IN_CONTEXT, measure_ops
    from foretrain.measurement.store import Store

    expect_keywords(ops, question, StepOptions, of_jobs=OF_JOBS)
    _expect_share(tolerance)
    asked = one_process(model, on, question)
    effort = dataclasses.replace(IN_CONTEXT, tolerance=tolerance)
    with Store.open(store) as opened:
        return measure_ops(
            [asked], opened, backend(device, threads), effort=effort, budget=budget, progress=progress
        )  # fmt: skip


def _expect_share(tolerance: float) -> None:
    if not 0.0 < tolerance < 1.0:
        raise InputError(f"tolerance: {tolerance} must be between 0 and 1, such as {TOLERANCE}.")


def one_process(model: ModelLike, on: ClusterLike | None, question: StepOptions) -> Scenario:
    """The scenario; left out, it is one process on this host's CPUs."""
    from foretrain.resolving import ask

    return ask(model, on="1 x cpu-host" if on is None else on, **question)


def links(
    *,
    processes: int = 2,
    collectives: Sequence[str] | None = None,
    sizes: Sequence[int] | None = None,
    backend: str = "",
    threads: int | None = None,
    budget: float | None = None,
    tolerance: float = TOLERANCE,
    store: str | Path | None = None,
) -> LinkReport:
    """Time collectives and messages between processes on this host, into the store.

    Starts the processes and waits for them. Across hosts, run `foretrain measure links` under torchrun.

    Args:
        processes: how many; 2 or more.
        collectives: such as `["all_reduce", "send"]`; left out, all.
        sizes: of messages, in bytes; left out, 1 KiB to 16 MiB.
        backend: `gloo` or `nccl`; left out, nccl between GPUs.
        threads: of each process on CPUs.
        budget: seconds after which what is left stays untimed.
        tolerance: sizes are repeated until the median is known to this share.
        store: the measurement store. Default: the user's own.
    """
    from foretrain.measurement.links import LinkReport, spawned, wanted

    _expect_share(tolerance)
    if processes < 2:
        raise InputError(f"processes: {processes}; measuring links needs two processes or more.")
    given = {
        "--processes": processes,
        "--collectives": ",".join(wanted(collectives)),
        "--sizes": None if sizes is None else ",".join(str(size) for size in sizes),
        "--backend": backend or None,
        "--threads": threads,
        "--budget": None if budget is None else f"{budget}s",
        "--tolerance": tolerance,
        "--store": store,
    }
    words = [str(w) for pair in given.items() if pair[1] is not None for w in pair]
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "links.json"
        command = ["-m", "foretrain", "measure", "links", "-q", "-o", str(answer), *words]
        code = spawned(command, processes, answer=subprocess.DEVNULL)
        if code or not answer.exists():
            raise InputError(f"the processes exited with code {code} before all timings finished.")
        return LinkReport.from_dict(json.loads(answer.read_text("utf-8")))


def data(
    places: str | Path | Iterable[str | Path] = (),
    *,
    dataset: str | None = None,
    samples: int = 200,
    workers: Sequence[int] = (),
    size: float = 256e6,
    folder: str | Path | None = None,
    device: str = "",
    store: str | Path | None = None,
) -> DataReport:
    """Measure how fast data is read (cold and warm), prepared (by worker) and copied to the device.

    Args:
        places: files or folders of training data; left out, a file of `size` bytes is written and read.
        dataset: `package.module:name` of a data set whose samples are prepared.
        samples: that each worker prepares.
        workers: numbers of workers to try; left out, 1, 2, 4 … up to the cores.
        size: bytes of the file that is read where no places are given.
        folder: where that file is written.
        device: `cpu` or `cuda`.
        store: the measurement store. Default: the user's own.
    """
    from foretrain.measurement.backend import backend
    from foretrain.measurement.data import (
        DataReport,
        DataSession,
        copy_rows,
        data_to_read,
        dataset_of,
        fetch_rows,
        prep_rows,
    )
    from foretrain.measurement.machine import Machine
    from foretrain.measurement.page_cache import data_files
    from foretrain.measurement.store import Store
    from foretrain.measurement.timing import Effort

    named = paths_of(places)
    counts = tuple(workers) or _up_to_the_cores()
    samples_of, name = dataset_of(dataset, samples * max(counts))
    data_files(named)
    target = backend(device)
    with Store.open(store) as opened:
        session = DataSession(opened, Machine.here(), Effort(TOLERANCE, 1.0))
        with data_to_read(named, size, None if folder is None else Path(folder)) as files:
            rows = fetch_rows(session, files)
        rows += prep_rows(session, samples_of, name, counts, samples)
        rows += copy_rows(session, target, COPIED)
        return DataReport(tuple(rows), str(opened.path))


def _up_to_the_cores() -> tuple[int, ...]:
    cores = os.cpu_count() or 1
    return tuple(sorted({*(2**k for k in range(12) if 2**k <= cores), cores}))


def traces(
    paths: str | Path | Sequence[str | Path],
    *,
    devices_per_node: int | None = None,
    steps: int | None = None,
) -> TraceReport:
    """Where the time of profiled steps went.

    Args:
        paths: PyTorch profiler traces (`.json`, `.json.gz`), one per rank.
        devices_per_node: tells network from interconnect where the traces do not.
        steps: how many they hold, where the profiler marked none.
    """
    from foretrain.measurement.traces import analyse, read_traces

    return analyse(read_traces(paths_of(paths)), devices_per_node=devices_per_node, steps=steps)


def calibrate(
    files: str | Path | Iterable[str | Path] = (),
    *,
    store: str | Path | None = None,
    machine: str | None = None,
    threads: int | None = None,
    processes: int = 1,
    device: str | None = None,
) -> Calibration:
    """Build a calibration from measurements, for `predict(…, measured=calibrate())`.

    Args:
        files: measurements written by `foretrain measure export`. Default: the store.
        store: the measurement store. Default: the user's own.
        machine: machine whose measurements to use. Default: this one, or the only one in the files.
        threads: use kernels timed with this many threads. Default: the number used most often.
        processes: use kernels timed by this many concurrent processes.
        device: catalog name of the measured GPU.

    Returns:
        A calibration; `save(path)` writes it for `foretrain predict --calibration`.
    """
    from foretrain.measurement.exchange import read_measurements
    from foretrain.measurement.fitting import calibrate as calibrated
    from foretrain.measurement.fitting import calibration_of
    from foretrain.measurement.machine import Machine
    from foretrain.measurement.store import Store

    how: dict[str, Any] = {"threads": threads, "processes": processes, "device": device}
    rows = [row for file in paths_of(files) for row in read_measurements(file)]
    if rows:
        rows = [row for row in rows if machine is None or row.machine.id == machine]
        ordered = sorted(rows, key=lambda row: row.at)
        newest = {(row.kind, row.key_text, row.machine.id): row for row in ordered}
        return calibration_of(tuple(newest.values()), **how)
    with Store.open(store, must_exist=True) as opened:
        calibration = calibrated(opened, machine or Machine.here(), **how)
        opened.add_calibration(
            Machine.from_dict(calibration.machine),
            calibration.to_dict(),
            calibration.provenance.last,
        )
    return calibration
