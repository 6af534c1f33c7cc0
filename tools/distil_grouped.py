"""Distils measured expert layers into `cost/calibration/compute/grouped/<device>.json`.

    python tools/distil_grouped.py        (tables: see attention_rows.py)

A reading of aiconfigurator-core is a whole expert layer: rows gathered, the first product (gate and up), the
activation, the second product, rows scattered. The two products follow `cost/compute/grouped.py`; the rest is
its bytes at a share of bandwidth, a time per routed entry and a start, which belong to the harness and do not ship.
Used are evenly spread tokens, whole powers of two of them (what the harness tunes its kernels for), 32 or more
per expert, on up to eight expert-parallel ranks.

Some series (a layer at one split over all numbers of tokens) ran on an untuned kernel, several times slower than
their neighbours at every size; training tunes its kernels, so series whose median is 25 % slower than the fit
are left out, in scoring too, and counted.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from attention_rows import ROOT, SYSTEMS, tables_folder
from numpy.typing import NDArray
from scipy.optimize import least_squares

from foretrain.arrays import Floats
from foretrain.cluster.catalog import devices
from foretrain.cost.compute.base import Hardware
from foretrain.cost.compute.grouped import Grouped, products_seconds

TARGET = ROOT / "src" / "foretrain" / "cost" / "calibration" / "compute" / "grouped"
DATE = "2026-11-15"
FORMS = {"bf16": ("bfloat16", 2.0), "fp8": ("fp8", 1.0), "fp4": ("nvfp4", 0.5625)}
KERNELS = ("moe_torch_flow_cutlass", "moe_torch_flow_nongated", "moe_torch_flow")
LEFT_OUT = ("a100-sxm4-80gb", "l40s")
"""Devices that stay with the roofline. The A100's TensorRT-LLM tables hold no evenly spread tokens, and SGLang's
Triton kernel is not what trains there: a fit to it is 26 % off. On the L40S the fit is no better than the roofline
(7.1 against 6.7 % in bf16, 8.5 against 7.6 % in fp8)."""
DEVICES = tuple(device for device in SYSTEMS if device not in LEFT_OUT)
TOKENS = tuple(2**power for power in range(8, 15))
START = 4e-6
UNTUNED = -0.25
FEWEST = 100  # readings of a device and form that a fit needs
PRIORS = np.array([np.log(0.85), np.log(250.0), 0.0, np.log(0.8), 0.5, 0.5, np.log(2e-5), np.log(0.7), np.log(3e-10)])  # fmt: skip
WIDTHS = np.array([0.05, 0.7, 2.0, 0.15, 2.0, 2.0, 1.0, 0.15, 1.0]) * 0.1
"""What is expected of rate, fill, tail, memory, two tiles, start, passes and entries, and how firmly: products and
passes are measured together only, so their split leans on what single products and passes reach."""


@dataclass(frozen=True)
class Layers:
    """Readings of one device and form, as columns."""

    device: str
    width: float  # bytes of an operand
    experts: Floats
    rows: Floats  # per expert
    inner: Floats
    hidden: Floats
    tokens: Floats
    entries: Floats
    gates: Floats  # 2 with a gate, 1 without
    series: Floats
    seconds: Floats
    is_fitted: NDArray[np.bool_]

    def where(self, mask: NDArray[np.bool_]) -> Layers:
        columns = {k: v[mask] for k, v in self.__dict__.items() if isinstance(v, np.ndarray)}
        return Layers(**{**self.__dict__, **columns})


def read(folder: Path, device: str, form: str) -> Layers:
    from pyarrow import parquet

    dtype, width = FORMS[form]
    readings: dict[tuple[float, ...], list[float]] = {}
    for path in sorted(folder.glob(f"{SYSTEMS[device]}/moe/trtllm/*/moe_perf.parquet")):
        table = parquet.read_table(
            path, filters=[("moe_dtype", "=", dtype), ("distribution", "=", "balanced")]
        )
        for given in table.to_pylist():
            if size := _size(given):
                readings.setdefault(size, []).append(given["latency"] * 1e-3)
    return _columns(device, width, readings)


def _size(given: dict[str, Any]) -> tuple[float, ...] | None:
    """Series and tokens of a usable reading."""
    ep, experts = given["moe_ep_size"], given["num_experts"]
    inner = given["inter_size"] / given["moe_tp_size"]
    rows = given["num_tokens"] * given["topk"] / experts
    gates = 1.0 if given["kernel_source"].endswith("nongated") else 2.0
    usable = (
        given["kernel_source"] in KERNELS
        and given["num_tokens"] in TOKENS
        and ep <= 8
        and experts >= ep
        and rows >= 32
        and rows * experts / ep >= 1024
        and inner >= 256
    )
    layer = (given["hidden_size"], inner, given["topk"], experts, ep, gates, given["num_tokens"])
    return tuple(float(value) for value in layer) if usable else None


def _columns(device: str, width: float, readings: dict[tuple[float, ...], list[float]]) -> Layers:
    sizes = sorted(readings)
    names = sorted({size[:-1] for size in sizes})
    series = np.array([float(names.index(size[:-1])) for size in sizes])
    columns = np.array(sizes, dtype=np.float64).reshape(-1, 7).T
    hidden, inner, topk, experts, ep, gates, tokens = columns
    fitted = [hashlib.sha256(repr(size).encode()).digest()[0] % 2 == 0 for size in sizes]
    return Layers(
        device, width, experts / ep, tokens * topk / experts, inner, hidden, tokens,
        tokens * topk, gates, series, np.array([np.median(readings[size]) for size in sizes]),
        np.array(fitted, dtype=np.bool_),
    )  # fmt: skip


def hardware(device: str, form: str) -> Hardware:
    found = devices()[device]
    return Hardware(
        float(found.compute_units or 1), found.required_peak(form), found.memory_bandwidth
    )


def predicted(x: Floats, layers: Layers, board: Hardware) -> Floats:
    """Seconds of whole layers."""
    products = np.zeros(len(layers.seconds))
    for n, k in ((layers.inner * layers.gates, layers.hidden), (layers.hidden, layers.inner)):
        shape, flops, moved = kernel_columns(layers, n, k)
        products += products_seconds(shape, flops, moved, made(x), board)
    return products + harness(x, layers, board)


def kernel_columns(layers: Layers, n: Floats, k: Floats) -> tuple[Floats, Floats, Floats]:
    """Shape, FLOPs and bytes of a product of every layer."""
    shape = np.stack([layers.experts, layers.rows, n, k], axis=1)
    area = layers.rows * k + k * n
    moved = layers.experts * (layers.width * area + 2.0 * layers.rows * n)
    return shape, 2.0 * shape.prod(axis=1), moved


def harness(x: Floats, layers: Layers, board: Hardware) -> Floats:
    """What is not product: activation, gathering, scattering, sorting."""
    local = layers.experts * layers.rows
    passes = 2.0 * local * (layers.inner * (layers.gates + 1.0) + 3.0 * layers.hidden)
    passes = passes + 2.0 * layers.tokens * layers.hidden
    result: Floats = (
        np.exp(x[6]) + passes / (board.bandwidth * np.exp(x[7])) + layers.entries * np.exp(x[8])
    )
    return result


def made(x: Floats, spread: float = 0.08) -> Grouped:
    share = 1.0 / (1.0 + np.exp(-x))
    return Grouped(
        rate=float(np.exp(x[0])), smaller=(float(share[4]), float(share[5])), fill=float(np.exp(x[1])),
        tail=float(share[2]), memory=float(np.exp(x[3])), start=START, spread=spread,
    )  # fmt: skip


def fit(layers: Layers, board: Hardware) -> tuple[Floats, NDArray[np.bool_]]:
    """Parameters, fitted to the rows of `is_fitted`, and which rows belong to tuned series."""
    x = PRIORS
    tuned = np.ones(len(layers.seconds), dtype=np.bool_)
    for _ in range(3):
        part = layers.where(tuned & layers.is_fitted)

        def off(x: Floats, part: Layers = part) -> Floats:
            logs = np.log(predicted(x, part, board) / part.seconds)
            return np.append(logs, (x - PRIORS) / WIDTHS * 0.1)

        solved = least_squares(off, x, loss="soft_l1", f_scale=0.1, diff_step=1e-4)
        x = np.asarray(solved.x, dtype=np.float64)
        logs = np.log(predicted(x, layers, board) / layers.seconds)
        slow = {
            s for s in np.unique(layers.series) if np.median(logs[layers.series == s]) < UNTUNED
        }
        tuned = ~np.isin(layers.series, sorted(slow))
    return x, tuned


def forms_of(device: str) -> list[str]:
    found = devices()[device]
    return [form for form in FORMS if found.peak(form) is not None]


def folder() -> Path:
    found = tables_folder()
    if found is None:
        raise SystemExit(
            "aiconfigurator-core is not installed and FORETRAIN_AICONFIGURATOR is not set."
        )
    return found


def distilled(device: str, form: str) -> tuple[Grouped, int] | None:
    """Fitted to all readings, and to how many; None where there are few."""
    layers = read(folder(), device, form)
    if len(layers.seconds) < FEWEST:
        return None
    every = Layers(**{**layers.__dict__, "is_fitted": np.ones(len(layers.seconds), dtype=np.bool_)})
    board = hardware(device, form)
    x, tuned = fit(every, board)
    off = np.log(predicted(x, every, board) / every.seconds)[tuned]
    return made(x, max(0.05, round(float(np.sqrt(np.mean(off**2))), 3))), int(tuned.sum())


def _plain(speed: Grouped) -> dict[str, Any]:
    values = {name: getattr(speed, name) for name in speed.__slots__}
    return {
        key: [round(v, 3) for v in value] if isinstance(value, tuple) else float(f"{value:.4g}")
        for key, value in values.items()
    }


def main() -> None:
    TARGET.mkdir(parents=True, exist_ok=True)
    for device in DEVICES:
        found = {form: distilled(device, form) for form in forms_of(device)}
        forms = {form: _plain(pair[0]) for form, pair in found.items() if pair}
        count = sum(pair[1] for pair in found.values() if pair)
        text = {
            "device": device,
            "source": f"aiconfigurator-core 0.12.0 ({count} evenly spread expert layers of "
            f"{SYSTEMS[device]}, trtllm)",
            "method": "tools/distil_grouped.py: tiles of all experts on compute units, fitted in log time",
            "date": DATE,
            "forms": forms,
        }
        (TARGET / f"{device}.json").write_text(json.dumps(text) + "\n")
        print(device, json.dumps(forms))


if __name__ == "__main__":
    main()
