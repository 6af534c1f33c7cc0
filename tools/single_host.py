"""Ops of this machine measured once, then training runs that were never run: predicted against measured.

    python tools/single_host.py [--ops own|grid] [--clock wall|cpu] [--only TEXT] [-o docs/single-host.md]

Kernels, collectives between two processes and the host's dispatch are measured first. Then every configuration is
predicted and after that really trained, a process of its own each. With `--ops own` the kernels timed are those of
the configurations themselves; with `--ops grid` those of a grid of other widths and batches, so that every shape is
interpolated. `--clock cpu` counts CPU time instead of time, for machines that are not idle; it leaves out runs of
several processes, which wait for each other.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from math import ceil
from pathlib import Path
from statistics import mean, median
from typing import Any

from small_models import Training, graph, module, samples

from foretrain.forecast import Question, answer, ask
from foretrain.measurement.backend import CpuBackend, keep_memory
from foretrain.measurement.calibration import Calibration
from foretrain.measurement.fitting import calibrate
from foretrain.measurement.links import spawned
from foretrain.measurement.local import local_cluster
from foretrain.measurement.machine import Machine
from foretrain.measurement.ops import measure_ops
from foretrain.measurement.store import Store
from foretrain.measurement.timing import Effort, median_interval
from foretrain.report.md import table

CLOCKS: dict[str, Callable[[], float]] = {"wall": time.perf_counter, "cpu": time.process_time}
WARM_UP, LEAST, MOST, SECONDS = 5, 15, 200, 4.0
MEAN_AIM, P90_AIM = 0.08, 0.15

RUNS = (
    Training("mlp", 384, 3, 48), Training("mlp", 384, 8, 96), Training("mlp", 768, 4, 48),
    Training("mlp", 768, 2, 192), Training("mlp", 640, 5, 96, optimizer="adam"),
    Training("mlp", 384, 4, 96, accumulates=4), Training("mlp", 768, 3, 96, accumulates=2),
    Training("cnn", 16, 6, 12), Training("cnn", 24, 3, 24), Training("cnn", 48, 2, 12),
    Training("cnn", 32, 4, 24), Training("cnn", 48, 4, 8, optimizer="adam"),
    Training("cnn", 24, 4, 12, accumulates=2),
    Training("gpt", 192, 3, 4), Training("gpt", 192, 6, 6), Training("gpt", 320, 2, 4),
    Training("gpt", 320, 4, 3, seq=96), Training("gpt", 192, 4, 4, seq=96, optimizer="adam"),
    Training("gpt", 192, 3, 4, accumulates=3), Training("gpt", 256, 3, 6),
    Training("mlp", 768, 4, 96, processes=2), Training("mlp", 384, 6, 48, processes=2),
    Training("cnn", 24, 4, 12, processes=2), Training("cnn", 48, 2, 12, processes=2),
    Training("gpt", 192, 4, 4, processes=2), Training("gpt", 320, 3, 4, accumulates=2, processes=2),
)  # fmt: skip
GRID = (
    *(Training("mlp", w, 3, b, optimizer=o) for w in (256, 512, 1024) for b, o in
      ((32, "sgd"), (64, "adam"), (128, "sgd"), (256, "adam"))),
    *(Training("cnn", w, 3, b, optimizer=o) for w in (16, 32, 64) for b, o in
      ((8, "sgd"), (16, "adam"), (32, "sgd"))),
    *(Training("gpt", w, 3, b, seq=s, optimizer=o) for w in (128, 256, 384) for b, s, o in
      ((2, 64, "sgd"), (8, 64, "adam"), (4, 128, "sgd"))),
    *(Training(f, w, 3, b, accumulates=2) for f, w, b in
      (("mlp", 256, 64), ("mlp", 1024, 64), ("cnn", 32, 16), ("gpt", 128, 4), ("gpt", 384, 4))),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Compared:
    run: Training
    predicted: float
    measured: float
    interval: tuple[float, float]

    @property
    def error(self) -> float:
        return self.predicted / self.measured - 1.0


# --- the real thing -----------------------------------------------------------------------------------


def train(run: Training, clock: str) -> list[float]:
    """Seconds of every step of a real training run, in this process (one of several where the run says so)."""
    import torch

    torch.set_num_threads(1)
    keep_memory()
    model: Any = module(run)
    if run.processes > 1:
        torch.distributed.init_process_group("gloo")
        model = torch.nn.parallel.DistributedDataParallel(model)
    kind, options = {"sgd": (torch.optim.SGD, {"momentum": 0.9}), "adam": (torch.optim.Adam, {})}[
        run.optimizer
    ]
    optimizer = kind(model.parameters(), lr=1e-3, **options)
    x, y = samples(run)
    now, taken, began = CLOCKS[clock], [], time.monotonic()
    for step in range(WARM_UP + MOST):
        start = now()
        _step(run, model, optimizer, x, y)
        taken.append(now() - start)
        if _agreed(step >= WARM_UP + LEAST and time.monotonic() - began > SECONDS, run):
            break
    if run.processes > 1:
        torch.distributed.destroy_process_group()
    return taken[WARM_UP:]


def _step(run: Training, model: Any, optimizer: Any, x: Any, y: Any) -> None:
    from contextlib import nullcontext

    import torch

    optimizer.zero_grad()
    for micro in range(run.accumulates):
        is_last = micro == run.accumulates - 1
        with nullcontext() if is_last or run.processes == 1 else model.no_sync():
            torch.nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()


def _agreed(is_done: bool, run: Training) -> bool:
    """All processes stop after the same step."""
    if run.processes == 1:
        return is_done
    import torch

    told = torch.tensor([float(is_done)])
    torch.distributed.all_reduce(told, op=torch.distributed.ReduceOp.MIN)
    return bool(told.item())


def measured(run: Training, clock: str, folder: Path) -> list[float]:
    """The same in processes of its own."""
    out = folder / "steps.json"
    out.unlink(missing_ok=True)
    told = [
        str(Path(__file__)),
        "--train",
        json.dumps(asdict(run)),
        "--clock",
        clock,
        "--steps",
        str(out),
    ]
    if run.processes > 1:
        spawned(told, run.processes, 300.0)
    else:
        subprocess.run([sys.executable, *told], check=True, timeout=300)
    steps: list[float] = json.loads(out.read_text())
    return steps


# --- the prediction -----------------------------------------------------------------------------------


def asked(run: Training, calibration: Calibration | None = None, adds: bool = True) -> Question:
    on: Any = "1 x cpu-host"
    # DDP copies gradients into its buckets and back, which takes about what adding them to a buffer takes.
    copies = run.accumulates > 1 or run.processes > 1
    options: dict[str, Any] = {"adds_gradients": adds and copies}
    if calibration is not None:
        on = local_cluster(calibration, run.processes)
        options["host_seconds_per_kernel"] = calibration.host_seconds_per_kernel
    else:
        run = replace(run, processes=1)
    return ask(
        graph(run), on=on, plan=f"dp{run.processes}", batch=run.global_batch, micro_batch=run.batch,
        precision="fp32", optimizer=run.optimizer, runtime="cpu-eager", runtime_options=options,
        measured=calibration,
    )  # fmt: skip


def calibrated(runs: Sequence[Training], told: argparse.Namespace, processes: int) -> Calibration:
    """Ops, links and dispatch of this machine. Kernels of runs of several processes are timed by as many at once,
    since they share its caches and memory."""
    store = told.folder / f"{told.ops}-{told.clock}-{processes}.sqlite"
    began = time.monotonic()
    if processes == 1:
        measure(runs, told.clock, store)
    else:
        names = json.dumps([asdict(run) for run in runs])
        words = ["--measure", names, "--clock", told.clock, "--steps", str(store)]
        if spawned([str(Path(__file__)), *words], processes):
            raise SystemExit("the kernels could not be timed")
        links = ["measure", "links", "--threads", "1", "--collectives", "all_reduce", "-q"]
        words = [sys.executable, "-m", "foretrain", *links, "--processes", str(processes)]
        subprocess.run([*words, "--store", str(store)], check=True)
    print(f"\nmeasured for {time.monotonic() - began:.0f} s", file=sys.stderr)
    with Store.open(store) as opened:
        return calibrate(opened, Machine.here(), threads=1)


def measure(runs: Sequence[Training], clock: str, store: Path) -> None:
    backend = CpuBackend(1, CLOCKS[clock])
    questions = [asked(run) for run in runs]
    with Store.open(store) as opened:
        measure_ops(questions, opened, backend, effort=Effort(seconds=1.0), progress=_progress)


def predicted_seconds(run: Training, calibration: Calibration) -> float:
    """The first of several micro-batches leaves its gradients as they are; Foretrain has each add its own."""
    seconds = answer(asked(run, calibration)).step_seconds
    if run.accumulates == 1 or run.processes > 1:
        return seconds
    plain = answer(asked(run, calibration, adds=False)).step_seconds
    return plain + (seconds - plain) * (run.accumulates - 1) / run.accumulates


def _progress(done: int, total: int) -> None:
    print(f"\rkernels {done} of {total}", end="", file=sys.stderr, flush=True)


# --- the page -----------------------------------------------------------------------------------------


def scored(rows: Sequence[Compared]) -> tuple[list[float], float]:
    """Absolute errors from small to large, and what nine of ten are within."""
    errors = sorted(abs(row.error) for row in rows)
    return errors, errors[ceil(0.9 * len(errors)) - 1]


def page(rows: Sequence[Compared], told: argparse.Namespace, calibration: Calibration) -> str:
    errors, p90 = scored(rows)
    head = ("configuration", "measured", "interval", "predicted", "error")
    body = [
        (
            row.run.name,
            f"{1e3 * row.measured:.2f} ms",
            f"{1e3 * row.interval[0]:.2f} – {1e3 * row.interval[1]:.2f}",
            f"{1e3 * row.predicted:.2f} ms",
            f"{100 * row.error:+.1f} %",
        )
        for row in rows
    ]
    which = "their own kernels" if told.ops == "own" else "kernels of other widths and batches"
    return "\n".join(
        (
            "# One host: predicted against measured",
            "",
            f"`python tools/single_host.py --ops {told.ops} --clock {told.clock}` on {calibration.name}.",
            f"{len(rows)} training runs of real models, each predicted from {which} and then run for the first time.",
            "",
            f"Mean error {100 * mean(errors):.1f} % (aim {100 * MEAN_AIM:.0f} %), median "
            f"{100 * median(errors):.1f} %, 90 % of runs within {100 * p90:.1f} % (aim {100 * P90_AIM:.0f} %).",
            "",
            table(head, body),
            "",
        )
    )


def main() -> int:
    told = _arguments()
    if told.train:
        steps = train(Training(**json.loads(told.train)), told.clock)
        if told.steps and os.environ.get("RANK", "0") == "0":
            told.steps.write_text(json.dumps(steps))
        return 0
    if told.measure:
        rank = os.environ.get("RANK", "0")
        store = told.steps if rank == "0" else told.steps.with_suffix(f".{rank}")
        measure([Training(**run) for run in json.loads(told.measure)], told.clock, store)
        return 0
    runs = [run for run in RUNS if told.only in run.name]
    if told.clock == "cpu":
        runs = [run for run in runs if run.processes == 1]
    told.folder.mkdir(parents=True, exist_ok=True)
    calibrations = {
        count: calibrated(
            [run for run in runs if run.processes == count] if told.ops == "own" else GRID,
            told,
            count,
        )
        for count in sorted({run.processes for run in runs})
    }
    rows = []
    for run in runs:
        predicted = predicted_seconds(run, calibrations[run.processes])
        steps = measured(run, told.clock, told.folder)
        row = Compared(run, predicted, median(steps), median_interval(steps))
        rows.append(row)
        print(
            f"{run.name:58s} {1e3 * row.measured:9.2f} ms {1e3 * predicted:9.2f} ms {100 * row.error:+6.1f} %",
            flush=True,
        )
    text = page(rows, told, next(iter(calibrations.values())))
    (told.folder / "rows.json").write_text(
        json.dumps(
            [{**asdict(r.run), "predicted": r.predicted, "measured": r.measured} for r in rows]
        )
    )
    if told.output:
        told.output.write_text(text)
    print(text.split("\n\n")[2])
    errors, p90 = scored(rows)
    return 0 if mean(errors) <= MEAN_AIM and p90 <= P90_AIM else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ops", choices=("own", "grid"), default="own")
    parser.add_argument("--clock", choices=tuple(CLOCKS), default="wall")
    parser.add_argument("--only", default="", help="configurations whose name has this text")
    parser.add_argument("--folder", type=Path, default=Path("build/single-host"))
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--train", help=argparse.SUPPRESS)
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    parser.add_argument("--steps", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
