"""Measured times of kernels bound by memory, read from the public tables: one list of readings.

NeuSight (Lee et al., ASPLOS 2025) times eager FP32 calls; Aceso's profiler (Liu et al., EuroSys 2024, and Mist,
EuroSys 2025, with the same profiler) times 16-bit transformer ops and FP32 WideResNet ops forward and backward.
"""

from __future__ import annotations

import ast
import csv
import gzip
import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from math import prod
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDER = Path(os.environ.get("FORETRAIN_TRUTH", ROOT.parent / "shared" / "truth"))
MIB = 2.0**20

NEUSIGHT = {
    "Tesla P4": "p4",
    "Tesla P100-PCIE-16GB": "p100-pcie-16gb",
    "Tesla V100-PCIE-32GB": "v100-pcie-32gb",
    "Tesla T4": "t4",
    "NVIDIA A100-PCIE-40GB": "a100-pcie-40gb",
    "NVIDIA A100 80GB PCIe": "a100-pcie-80gb",
    "NVIDIA L4": "l4",
    "NVIDIA H100 80GB HBM3": "h100-sxm5-80gb",
    "AMD Instinct MI100": "mi100",
    "AMD Instinct MI210": "mi210",
    "AMD Instinct MI250": "mi250",
}
PROFILER = {
    "V100-32GB (Aceso)": "v100-sxm2-32gb",
    "v100-sxm2-32gb-seq2048 (Mist/Aceso profiler)": "v100-sxm2-32gb",
    "a100-sxm4-40gb (Mist/Aceso profiler)": "a100-sxm4-40gb",
    "a100-sxm4-40gb-larger-model (Mist/Aceso profiler)": "a100-sxm4-40gb",
    "a10g (Mist/Aceso profiler)": "a10g",
    "l4 (Mist/Aceso profiler)": "l4",
}
PASSES = {"add": 3, "mul": 3, "div": 3, "addu": 2, "mulu": 2, "divu": 2, "gelu": 2, "relu": 2, "tanh": 2}  # fmt: skip
"""Tensors read and written. Powers are left out: they are bound by arithmetic on some devices."""
CALLS = {"add": "add", "mul": "mul", "tanh": "tanh"}
POOLED = {
    "a100-pcie-40gb": "a100-sxm4-40gb",
    "v100-pcie-32gb": "v100-sxm2-32gb",
    "mi250": "mi210",
}
"""Boards of one chip with one memory rate, measured in different campaigns: one table for both."""


@dataclass(frozen=True, slots=True)
class Reading:
    """`group` shares what the way of measuring adds: a lead before the kernel and a shortest time."""

    device: str
    group: str
    phase: str
    moved: float  # bytes read and written, as the model's kernels count them
    row: float  # bytes of a row that is reduced; 0 for kernels that only stream
    seconds: float
    key: str
    beside: float = 0.0  # bytes that other, streaming kernels move in the same reading

    @property
    def is_fitted(self) -> bool:
        """In the half that the scored tables are made from: a stable hash of the shape."""
        return hashlib.sha256(self.key.encode()).digest()[0] % 2 == 0


def rows(name: str) -> Iterator[dict[str, str]]:
    path = FOLDER / name
    with (
        gzip.open(path, "rt", encoding="utf-8")
        if name.endswith(".gz")
        else path.open(encoding="utf-8") as stream
    ):
        yield from csv.DictReader(stream)


def eager() -> Iterator[Reading]:
    """Element-wise ops and layer norm in FP32."""
    for name in ("elementwise", "layernorm"):
        for row in rows(f"neusight_kernels_{name}.csv.gz"):
            op = row["op"]
            if op != "ln" and op not in PASSES:
                continue
            batch, width = int(row["B"]), int(row["H"])
            yield Reading(
                device=NEUSIGHT[row["device"]],
                group=f"neusight {op}",
                phase="forward",
                moved=4.0 * batch * width * PASSES.get(op, 2),
                row=4.0 * width if op == "ln" else 0.0,
                seconds=float(row["latency_ms"]) * 1e-3,
                key=f"{op} {batch} {width}",
            )


def in_models() -> Iterator[Reading]:
    """Element-wise ops and layer norm met inside whole models (FP32, one kernel between two events)."""
    for row in rows("neusight_label_per_op.csv.gz"):
        device = NEUSIGHT.get(row["device"].replace("_", " "))
        if device is None or row["dtype"] != "torch.float32" or not row["output_shape"]:
            continue
        call = _call(row["target"])
        if call is None:
            continue
        out = prod(ast.literal_eval(row["output_shape"]))
        read = [prod(shape) for shape in ast.literal_eval(row["input_shapes"])]
        # broadcast operands run other, slower kernels
        if out < 2**16 or any(1 < size < out for size in read):
            continue
        is_norm = call == "ln"
        yield Reading(
            device=device,
            group=f"model {call}",
            phase="forward",
            moved=4.0 * (2 * out if is_norm else sum(read) + out),
            row=4.0 * ast.literal_eval(row["output_shape"])[-1] if is_norm else 0.0,
            seconds=float(row["fw_latency"]) * 1e-3,
            key=f"{call} {row['input_shapes']}",
        )


def _call(target: str) -> str | None:
    if target.rsplit(".", 1)[-1] in ("ln_1", "ln_2", "ln_f", "self_attn_layer_norm"):
        return "ln"
    words = target.split()
    return CALLS.get(words[2].rstrip(">")) if target.startswith("<built-in") else None


HIDDEN = {"350M": 1024, "1.3B": 2048, "2.6B": 2560, "6.7B": 4096, "13B": 5120, "22B": 6144, "20B": 6144, "40B": 8192}  # fmt: skip


def profiled() -> Iterator[Reading]:
    """16-bit ops of GPT and FP32 batch norm and ReLU of WideResNet: forward and backward apart."""
    for row in rows("op_profiles_aceso_format.csv"):
        if row["tp"] != "1" or row["algo"] != "0":
            continue
        for phase, moved, reduced, beside in _profile(row):
            column = "forward-compute" if phase == "forward" else "backward-compute"
            name = row["op_name"].split("-")[-1].rstrip("123") or "op"
            yield Reading(
                device=PROFILER[row["gpu"]],
                group=f"profiler {name} {phase}",
                phase=phase,
                moved=moved,
                row=reduced,
                seconds=float(row[column]) * 1e-6,
                key=f"{row['op_name']} {row['size']} {row['micro_batch']} {phase}",
                beside=beside,
            )


def _profile(row: dict[str, str]) -> Iterator[tuple[str, float, float, float]]:
    """(phase, bytes as our kernels count them, bytes of a reduced row, bytes streamed beside)."""
    kept, given = float(row["activations"]) * MIB, float(row["input_size"]) * MIB
    match row["family"], row["op_name"]:
        case "gpt", "enc-MLP-gelu":
            yield "forward", 2 * kept, 0.0, 0.0
        case "gpt", "enc-attention-dropout":  # the mask is half a 16-bit tensor
            yield "forward", kept / 1.5 * 2.5, 0.0, 0.0
            yield "backward", kept / 1.5 * 2.5, 0.0, 0.0
        case "gpt", "enc-1st-layernorm" if row["size"] in HIDDEN:
            yield "forward", 2 * given, 2.0 * HIDDEN[row["size"]], 0.0
            # the gradient of the skip connection is added in the same op
            yield "backward", 3 * given, 2.0 * HIDDEN[row["size"]], 3 * given
        case "resnet", name if name.endswith("relu") or name == "relu1":
            yield "forward", 2 * kept, 0.0, 0.0
            yield "backward", 3 * kept, 0.0, 0.0
        case "resnet", name if name.split("-")[-1].startswith("bn"):
            yield "forward", 3 * kept, 0.0, 0.0
            yield "backward", 5 * kept, 0.0, 0.0


@cache
def readings() -> tuple[Reading, ...]:
    """Everything; a shape that a group holds twice is taken once."""
    seen: dict[tuple[str, str, str], Reading] = {}
    for source in (eager(), in_models(), profiled()):
        for reading in source:
            name = POOLED.get(reading.device, reading.device)
            seen.setdefault((name, reading.group, reading.key), replace(reading, device=name))
    return tuple(seen.values())
