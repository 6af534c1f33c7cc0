"""How communication stalls grow with a model: a family of networks, measured, a law fitted, the simulator beside it.

Sharma et al. (ICDCS 2023) varied ResNets by depth, without residual connections and without batch normalisation, to tell
the number of layers and gradient tensors apart from their bytes. The same is done here with networks small
enough for any machine. The law is linear in causes that have a unit each and is fitted without negative terms:

    stall = per_layer * layers + per_tensor * tensors + per_bucket * buckets * (devices - 1)
          + per_byte * 2 (devices - 1) / devices * bytes
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from foretrain.arrays import Floats
from foretrain.errors import InputError
from foretrain.measurement.launching import free_port
from foretrain.measurement.train_runs import train_run
from studies.stall_scaling.networks import FAMILY, Net
from studies.stall_scaling.prediction import predicted_stalls

__all__ = ["LAW", "fitted_law", "measure_study"]

CHECKOUT = Path(__file__).resolve().parents[2]  # where Python finds the worker
LAW = ("per_layer", "per_tensor", "per_bucket", "per_byte")


def measure_study(
    family: Sequence[Net] = FAMILY,
    *,
    devices: Sequence[int] = (2,),
    batch: int = 4,
    steps: int = 20,
    repeats: int = 3,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:
    """The study document: a row for each network and number of processes, the law, and the simulator's."""
    counts = tuple(dict.fromkeys(devices))
    if not counts or min(counts) < 2:
        raise InputError("a study compares one process with 2 or more: use --devices 2 or 2 4.")
    least = {"batch": (batch, 1), "steps": (steps, 5), "repeats": (repeats, 1)}
    if faults := [f"{k} {n}: must be {low} or more." for k, (n, low) in least.items() if n < low]:
        raise InputError("invalid study:", faults=faults)
    report_progress = progress or (lambda done, total: None)
    orders = {"family": [asdict(net) for net in family], "batch": batch, "steps": steps, "repeats": repeats}  # fmt: skip
    threads = max(1, (os.cpu_count() or 1) // max(counts))
    results: dict[int, dict[str, Any]] = {}
    for number, count in enumerate((1, *counts)):
        results[count] = _results(orders, count, threads)
        report_progress(number + 1, len(counts) + 1)
    rows = [row for count in counts for row in _rows(family, results[1], results[count], count)]
    for count in counts:
        chosen = [row for row in rows if row["devices"] == count]
        curve = results[count]["curve"]
        alone = [row["alone_seconds"] for row in chosen]
        for row, stall in zip(
            chosen, predicted_stalls(family, count, batch, curve, alone), strict=True
        ):
            row["predicted_stall_seconds"] = stall
    return study_document(rows, {count: results[count]["curve"] for count in counts}, batch)


def study_document(
    rows: list[dict[str, Any]], curves: Mapping[int, Any], batch: int
) -> dict[str, Any]:
    measured = np.array([row["stall_seconds"] for row in rows])
    predicted = np.array([row["predicted_stall_seconds"] for row in rows])
    waited = np.array([row["waited_seconds"] for row in rows])
    return {
        "schema_version": 1,
        "batch": batch,
        "rows": rows,
        "curves": {str(count): curve for count, curve in curves.items()},
        "law": fitted_law(rows, measured),
        "predicted_law": fitted_law(rows, predicted),
        "agreement": {
            "median_ratio": float(np.median(predicted / np.maximum(measured, 1e-9))),
            "rank_correlation": rank_correlation(measured, predicted),
            # of what ranks waited for after their own work: without what processes cost each other otherwise
            "median_ratio_waited": float(np.median(predicted / np.maximum(waited, 1e-9))),
            "rank_correlation_waited": rank_correlation(waited, predicted),
        },
    }


def fitted_law(rows: Sequence[Mapping[str, Any]], stalls: Floats) -> dict[str, Any]:
    """Seconds for each cause, none negative, by least squares of relative errors; and how well they fit."""
    from scipy.optimize import nnls

    causes = np.array([_causes(row) for row in rows])
    weight = 1.0 / np.maximum(stalls, 0.05 * max(float(stalls.max(initial=0.0)), 1e-9))
    scale = causes.max(axis=0)
    scale[scale == 0] = 1.0
    seconds = nnls(causes / scale * weight[:, None], stalls * weight)[0] / scale
    fit = causes @ seconds
    left = float(((stalls - fit) ** 2).sum())
    whole = float(((stalls - stalls.mean()) ** 2).sum())
    return {
        **dict(zip(LAW, seconds.tolist(), strict=True)),
        "r_squared": 1.0 - left / whole if whole > 0 else None,
        "median_error": float(np.median(np.abs(fit - stalls) * weight)),
        "shares": dict(
            zip(LAW, (causes * seconds).sum(axis=0) / max(fit.sum(), 1e-12), strict=True)
        ),
    }


def rank_correlation(a: Floats, b: Floats) -> float | None:
    """Spearman's: of the ranks."""
    first, second = (np.argsort(np.argsort(x)).astype(np.float64) for x in (a, b))
    if len(a) < 3 or a.std() == 0 or b.std() == 0:
        return None
    return float(np.corrcoef(first, second)[0, 1])


def _causes(row: Mapping[str, Any]) -> tuple[float, ...]:
    count = row["devices"]
    return (
        float(row["layers"]),
        float(row["tensors"]),
        row["buckets"] * (count - 1.0),
        row["bytes"] * 2.0 * (count - 1) / count,
    )


def _rows(
    family: Sequence[Net], alone: Mapping[str, Any], together: Mapping[str, Any], count: int
) -> list[dict[str, Any]]:
    """T1 - T0 of every network, with what ranks waited for after their own work beside it."""
    rows = []
    for at, net in enumerate(family):
        t0, t1 = train_run("T0", alone["nets"][at]), train_run("T1", together["nets"][at])
        rows.append(
            {
                "net": net.name,
                "kind": net.kind,
                "devices": count,
                **asdict(net),
                **net.facts(),
                "alone_seconds": t0.step_seconds,
                "together_seconds": t1.step_seconds,
                "stall_seconds": max(0.0, t1.step_seconds - t0.step_seconds),
                "waited_seconds": t1.parts["wait"],
                "imbalance_seconds": t1.parts["imbalance"],
                "reduce_alone_seconds": t1.facts["communication"]["seconds"],
                "spread": max(t0.spread, t1.spread),
            }
        )
    return rows


def _results(orders: Mapping[str, Any], processes: int, threads: int) -> dict[str, Any]:
    """What `processes` of the worker measured."""
    with tempfile.TemporaryDirectory(prefix="foretrain-study-") as folder:
        (Path(folder) / "orders.json").write_text(json.dumps(orders), "utf-8")
        words = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(processes)]
        words += ["--master-addr", "127.0.0.1", "--master-port", str(free_port())]
        words += ["-m", "studies.stall_scaling.worker", folder]
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
        done = subprocess.run(words, env=environment, cwd=CHECKOUT, capture_output=True, text=True)
        file = Path(folder) / "results.json"
        if not file.is_file():  # where it is, all is measured, however the processes ended
            raise InputError(
                f"the study's {processes} processes exited with code {done.returncode} before "
                "reporting all results (torch is needed: pip install "
                f"'foretrain[torch]'):\n{done.stderr[-1500:]}"
            )
        results: dict[str, Any] = json.loads(file.read_text("utf-8"))
        return results
