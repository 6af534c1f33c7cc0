"""Training runs that were never run, on this machine: predicted from its kernels, then measured.

    python tools/single_host.py [--rounds 3] [--only TEXT] [--part 1/3] [-o docs/single-host.md]

For each configuration the kernels of its step are timed, the step is predicted from them, and then the configuration
is trained for the first time, in processes of its own. That is done in rounds, all configurations in each, and medians
over the rounds are compared: a shared machine's speed drifts by a fifth within minutes, which one round would take for
an error. Configurations of two processes have their kernels timed by two processes at once, and collectives and drift
between the two measured at the start of the round. Every result is written to `--folder` at once; a run that was
interrupted goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from statistics import mean, median
from typing import Any

from single_host_page import MEAN_AIM, P90_AIM, Compared, line, page, scored
from small_models import Training, graph, module, samples

from foretrain.measurement.backend import CpuBackend, keep_memory
from foretrain.measurement.calibration import Calibration
from foretrain.measurement.fitting import calibration_of
from foretrain.measurement.launching import end_at_once
from foretrain.measurement.links import spawned
from foretrain.measurement.local import local_cluster
from foretrain.measurement.ops import measure_ops
from foretrain.measurement.store import Store
from foretrain.measurement.timing import Effort
from foretrain.measurement.torch_group import TorchGroup
from foretrain.resolving import ask
from foretrain.scenario import Scenario
from foretrain.simulate import answer

WARM_UP, LEAST, MOST, SECONDS = 5, 15, 400, 2.5
EFFORT = Effort(seconds=0.4, sample_seconds=1e-2, warm_up_seconds=0.02)
LONGEST = 300.0  # seconds of one piece

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


# --- the real thing -----------------------------------------------------------------------------------


def train(run: Training) -> list[float]:
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
    taken: list[float] = []
    began = time.monotonic()
    for step in range(WARM_UP + MOST):
        start = time.perf_counter()
        _step(run, model, optimizer, x, y)
        taken.append(time.perf_counter() - start)
        if _agreed(step >= WARM_UP + LEAST and time.monotonic() - began > SECONDS, run):
            break
    if run.processes > 1:
        torch.distributed.destroy_process_group()
    return taken[WARM_UP:]


def _step(run: Training, model: Any, optimizer: Any, x: Any, y: Any) -> None:
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


# --- the prediction -----------------------------------------------------------------------------------


def asked(run: Training, calibration: Calibration | None = None, adds: bool = True) -> Scenario:
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


def time_kernels(run: Training, path: Path) -> None:
    """As one of the processes that train it will."""
    question = asked(run)
    with ExitStack() as stack:
        group = stack.enter_context(TorchGroup("gloo")) if run.processes > 1 else None
        is_first = group is None or group.rank == 0
        store = stack.enter_context(Store.open(path)) if is_first else None
        measure_ops([question], store, CpuBackend(1), effort=EFFORT, group=group)


def predicted_seconds(run: Training, calibration: Calibration) -> float:
    """The first of several micro-batches leaves its gradients as they are; Foretrain has each add its own."""
    seconds = answer(asked(run, calibration)).step_seconds
    if run.accumulates == 1 or run.processes > 1:
        return seconds
    plain = answer(asked(run, calibration, adds=False)).step_seconds
    return plain + (seconds - plain) * (run.accumulates - 1) / run.accumulates


# --- rounds -------------------------------------------------------------------------------------------


def elsewhere(what: str, run: Training, out: Path) -> None:
    """This tool with another task, in as many processes as the run has."""
    words = [str(Path(__file__)), what, json.dumps(asdict(run)), "--out", str(out)]
    code = spawned(words, run.processes, LONGEST)
    if code != 0:
        raise SystemExit(
            f"{run.name}: {what} ended with {code}; run the tool again to go on from here."
        )


def measured_links(store: Path) -> None:
    words = ["measure", "links", "--threads", "1", "--collectives", "all_reduce", "-q"]
    command = [sys.executable, "-m", "foretrain", *words, "--processes", "2", "--store", str(store)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def tried(run: Training, number: int, folder: Path) -> dict[str, Any]:
    """One configuration in one round: kernels, the prediction, then the training."""
    name = f"{number}-{RUNS.index(run):02d}"
    kernels, links, steps = (
        folder / f"{name}.sqlite", folder / f"{number}-links.sqlite", folder / f"{name}.json"
    )  # fmt: skip
    if run.processes > 1 and not links.exists():
        measured_links(links)
    elsewhere("--kernels", run, kernels)
    rows = []
    for path in (kernels, links) if run.processes > 1 else (kernels,):
        with Store.open(path) as store:
            rows += store.rows(newest=True)
    calibration = calibration_of(rows, threads=1, processes=run.processes)
    predicted = predicted_seconds(run, calibration)
    elsewhere("--train", run, steps)
    return {
        "round": number,
        "run": asdict(run),
        "machine": calibration.name.split(":")[0],
        "kernels": len(calibration.ops),
        "predicted_seconds": predicted,
        "step_seconds": [round(s, 7) for s in json.loads(steps.read_text())],
    }


def all_tried(runs: Sequence[Training], rounds: int, folder: Path) -> list[dict[str, Any]]:
    """What `results.json` has of these runs and rounds, after what it lacks was done."""
    file = folder / "results.json"
    results: list[dict[str, Any]] = json.loads(file.read_text()) if file.exists() else []
    known = {(one["round"], json.dumps(one["run"])) for one in results}
    todo = [(number, run) for number in range(1, rounds + 1) for run in runs]
    todo = [one for one in todo if (one[0], json.dumps(asdict(one[1]))) not in known]
    began = time.monotonic()
    for done, (number, run) in enumerate(todo):
        result = tried(run, number, folder)
        results.append(result)
        beside = file.with_suffix(".new")
        beside.write_text(json.dumps(results))
        beside.replace(file)
        took = median(result["step_seconds"])
        left = (time.monotonic() - began) / (done + 1) * (len(todo) - done - 1)
        print(
            f"[{done + 1}/{len(todo)}, {left / 60:.0f} min left] round {number}: "
            + line(
                run.name, took, result["predicted_seconds"], result["predicted_seconds"] / took - 1
            ),
            flush=True,
        )
    return [one for one in results if one["round"] <= rounds and Training(**one["run"]) in runs]


def main() -> int:
    told = _arguments()
    if told.train:
        steps = train(Training(**json.loads(told.train)))
        if os.environ.get("RANK", "0") == "0":
            told.out.write_text(json.dumps(steps))
        end_at_once()
    if told.kernels:
        time_kernels(Training(**json.loads(told.kernels)), told.out)
        end_at_once()
    first, every = (int(word) for word in told.part.split("/"))
    runs = [run for run in RUNS[first % every :: every] if told.only in run.name]
    told.folder.mkdir(parents=True, exist_ok=True)
    results = all_tried(runs, told.rounds, told.folder)
    rows = [Compared.of(run, results) for run in runs]
    for row in rows:
        print(line(row.run.name, row.measured, row.predicted, row.error))
    text = page(rows, told.rounds, results[0]["machine"])
    if told.output:
        told.output.write_text(text)
    print(text.split("\n\n")[2])
    errors, p90 = scored(rows)
    return 0 if mean(errors) <= MEAN_AIM and p90 <= P90_AIM else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", help="configurations whose name has this text")
    parser.add_argument("--part", default="0/1", help="such as 1/3: every third, from the second")
    parser.add_argument("--folder", type=Path, default=Path("build/single-host"))
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--train", help=argparse.SUPPRESS)
    parser.add_argument("--kernels", help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
