"""Public measurements of matrix products, as columns.

Three collections are read where they are found:

- `aiconfigurator-core` (PyPI wheel, or a folder it was unpacked in), which FORETRAIN_AICONFIGURATOR names: 16-bit,
  fp8 and fp4 products as inference engines run them. Reading it needs pandas and pyarrow.
- `neusight_kernels_{linear,bmm}.csv.gz`: fp32 products, called eagerly.
- `op_profiles_aceso_format.csv`: fp16 layers of GPT models, forward and backward.

The last two are looked for in the folder FORETRAIN_TRUTH names, or beside the checkout in `shared/truth`.
"""

from __future__ import annotations

import csv
import gzip
import io
import os
import re
import zipfile
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foretrain.arrays import Floats
from foretrain.cluster.catalog import devices
from foretrain.cluster.device import Device

Shape = tuple[int, int, int, int]  # batch, m, n, k

ROOT = Path(__file__).resolve().parents[1]
FOLDER = Path(os.environ.get("FORETRAIN_TRUTH", ROOT.parent / "shared" / "truth"))
AICONFIGURATOR = os.environ.get("FORETRAIN_AICONFIGURATOR", "")
INSIDE = "aiconfigurator_core/systems/data/"

SYSTEMS = {
    "a100_sxm": "a100-sxm4-80gb",
    "h100_sxm": "h100-sxm5-80gb",
    "h200_sxm": "h200-sxm5-141gb",
    "b200_sxm": "b200-sxm",
    "b300_sxm": "b300-sxm",
    "gb200": "gb200-nvl72",
    "gb300": "gb300-nvl72",
    "l40s": "l40s",
    "rtx_pro_6000_server": "rtx-pro-6000",
}
NEUSIGHT = {  # but for the P4: no table fits its large products (spread 0.4)
    "Tesla P100-PCIE-16GB": "p100-pcie-16gb",
    "Tesla V100-PCIE-32GB": "v100-pcie-32gb",
    "Tesla T4": "t4",
    "NVIDIA A100-PCIE-40GB": "a100-pcie-40gb",
    "NVIDIA A100 80GB PCIe": "a100-pcie-80gb",
    "NVIDIA L4": "l4",
    "NVIDIA H100 80GB HBM3": "h100-sxm5-80gb",
    "AMD Instinct MI100": "mi100",
    "AMD Instinct MI210": "mi210",
}
PROFILED = {
    "V100-32GB (Aceso)": "v100-sxm2-32gb",
    "v100-sxm2-32gb-seq2048 (Mist/Aceso profiler)": "v100-sxm2-32gb",
    "a10g (Mist/Aceso profiler)": "a10g",
    "l4 (Mist/Aceso profiler)": "l4",
    "a100-sxm4-40gb (Mist/Aceso profiler)": "a100-sxm4-40gb",
}
BOTH_GRADIENTS = ("V100-32GB (Aceso)", "a10g (Mist/Aceso profiler)")
"""Profiles whose backward is about two forwards. In the others it is about one, so it is taken for the input's
gradient alone; the profiles do not say."""


def device(name: str) -> Device:
    return devices()[name]


@dataclass(frozen=True, eq=False)
class Readings:
    """Products of one device in one format, each shape once."""

    device: str
    form: str
    source: str
    shape: Floats  # rows of batch, m, n, k
    seconds: Floats
    floor: float = 0.0  # readings near it time the call, not the kernel

    def __len__(self) -> int:
        return len(self.seconds)

    def chosen(self, rows: NDArray[np.bool_]) -> Readings:
        return Readings(
            self.device, self.form, self.source, self.shape[rows], self.seconds[rows], self.floor
        )


def _gathered(
    name: str, form: str, source: str, found: dict[Shape, list[float]], floor: float = 0.0
) -> Readings:
    """The quickest reading of each shape: what disturbs a measurement only ever slows it."""
    keys = sorted(found)
    return Readings(
        name,
        form,
        source,
        np.array(keys, dtype=np.float64).reshape(len(keys), 4),
        np.array([min(found[key]) for key in keys]),
        floor,
    )


# --- aiconfigurator-core --------------------------------------------------------------------------


@cache
def _files() -> dict[str, Any]:
    """Path below the data folder -> something pandas reads."""
    place = Path(AICONFIGURATOR) if AICONFIGURATOR else None
    if place is None or not place.exists() or find_spec("pyarrow") is None:
        return {}
    if place.is_file():
        wheel = zipfile.ZipFile(place)
        return {
            name.removeprefix(INSIDE): lambda name=name: io.BytesIO(wheel.read(name))
            for name in wheel.namelist()
            if name.startswith(INSIDE) and name.endswith(".parquet")
        }
    base = place / INSIDE if (place / INSIDE).is_dir() else place
    return {
        path.relative_to(base).as_posix(): lambda path=path: path
        for path in base.rglob("*.parquet")
    }


def _frames(system: str, table: str) -> Iterator[tuple[str, Any]]:
    """The newest collection of each engine; vllm's leaves weights unset, which multiply too quickly."""
    newest: dict[str, str] = {}
    for path in sorted(_files(), key=_version):
        parts = path.split("/")
        if parts[0] == system and parts[-1] == f"{table}_perf.parquet" and parts[2] != "vllm":
            newest[parts[2]] = path
    if not newest:
        return
    import pandas  # type: ignore[import-untyped, unused-ignore]

    for engine, path in newest.items():
        yield engine, pandas.read_parquet(_files()[path]())


def _version(path: str) -> list[int]:
    """Numbers of the folder that names an engine's version: 0.5.14 comes after 0.5.6."""
    return [int(number) for number in re.findall(r"\d+", path.split("/")[-2])]


WORDS = {"bf16": "bfloat16", "fp8": "fp8", "fp4": "nvfp4"}


def _quantising(system: str) -> dict[tuple[int, int], float]:
    """Seconds that TensorRT-LLM takes to find the scale of an fp8 operand `(m, k)` and apply it."""
    found: dict[tuple[int, int], float] = defaultdict(float)
    for table in ("computescale", "scale_matrix"):
        for engine, frame in _frames(system, table):
            if engine == "trtllm":
                for m, k, latency in zip(frame.m, frame.k, frame.latency, strict=True):
                    found[int(m), int(k)] += float(latency) * 1e-3
    return dict(found)


LEAST_LEFT = 0.4
"""An fp8 call of which quantising takes more than the rest of this says nothing of its product: it is left out
(a third to a half of all shapes, those with few columns; a tenth to a quarter of the large ones)."""


def aiconfigurator(form: str) -> Iterator[Readings]:
    """Products of `form` (bf16, fp8, fp4) by device.

    fp8 is per-tensor scaling, what Transformer Engine runs on Hopper: TensorRT-LLM's call less its passes that
    quantise the input, or SGLang's call (quantising in it) where that is quicker still. fp4 is NVFP4 with the input quantised in the call.
    """
    for system, name in SYSTEMS.items():
        found: dict[Shape, list[float]] = defaultdict(list)
        apart = _quantising(system) if form == "fp8" else {}
        if form == "fp8" and not apart:
            continue
        unknown: set[Shape] = set()
        for engine, frame in _frames(system, "gemm"):
            rows = frame[frame.gemm_dtype == WORDS[form]]
            for m, n, k, latency in zip(rows.m, rows.n, rows.k, rows.latency, strict=True):
                seconds = float(latency) * 1e-3
                if engine == "trtllm" and form == "fp8":
                    left = seconds - apart.get((int(m), int(k)), 0.0)
                    if left < LEAST_LEFT * seconds:
                        unknown.add((1, int(m), int(n), int(k)))
                        continue
                    seconds = left
                found[1, int(m), int(n), int(k)].append(seconds)
        for shape in unknown:
            found.pop(shape, None)
        if found:
            yield _gathered(name, form, "aiconfigurator-core, TensorRT-LLM and SGLang rows", found)


# --- NeuSight -------------------------------------------------------------------------------------


def neusight() -> Iterator[Readings]:
    """fp32 products, single and batched, without tf32."""
    found: dict[str, dict[Shape, list[float]]] = defaultdict(lambda: defaultdict(list))
    for op in ("linear", "bmm"):
        path = FOLDER / f"neusight_kernels_{op}.csv.gz"
        if not path.is_file():
            return
        with gzip.open(path, "rt", encoding="utf-8", newline="") as stream:
            for row in csv.DictReader(stream):
                if row["device"] not in NEUSIGHT:
                    continue
                shape = (int(row["B"]), int(row["M"]), int(row["N"]), int(row["K"]))
                found[NEUSIGHT[row["device"]]][shape].append(float(row["latency_ms"]) * 1e-3)
    for name, rows in found.items():
        floor = float(np.quantile([min(times) for times in rows.values()], 0.02))
        yield _gathered(name, "fp32", "NeuSight kernels", rows, floor)


# --- profiles of GPT layers -----------------------------------------------------------------------

LAYERS = {
    "enc-attention-qkv": ("columns", 3, 1),
    "enc-MLP-GEMM-1": ("columns", 4, 1),
    "enc-attention-dense": ("rows", 1, 1),
    "enc-MLP-GEMM-2": ("rows", 1, 4),
}
"""How tensor parallelism splits the weight, and its columns and rows in hidden sizes."""


@dataclass(frozen=True)
class Profile:
    """One layer: its forward product, and seconds without an exchange in them, or None."""

    device: str
    batch: int
    m: int
    n: int
    k: int
    forward: float | None
    backward: float | None
    gradients: int  # products in backward: that of the input, and maybe that of the weight


def profiles() -> list[Profile]:
    """An exchange ends the forward of a layer split by rows and the backward of one split by columns."""
    path = FOLDER / "op_profiles_aceso_format.csv"
    if not path.is_file():
        return []
    with path.open(encoding="utf-8", newline="") as stream:
        rows = [
            row
            for row in csv.DictReader(stream)
            if row["family"] == "gpt" and row["algo"] == "0" and row["gpu"] in PROFILED
        ]
    groups: dict[tuple[str, ...], dict[str, dict[str, str]]] = defaultdict(dict)
    for row in rows:
        key = tuple(row[name] for name in ("gpu", "size", "micro_batch", "tp"))
        groups[key][row["op_name"]] = row
    return [profile for key, ops in groups.items() for profile in _layers(key[0], int(key[3]), ops)]


def _layers(gpu: str, tp: int, ops: dict[str, dict[str, str]]) -> Iterator[Profile]:
    weights = float(ops["enc-attention-qkv"]["weights"]) * 2**20 / 2
    hidden = round((weights * tp / 3) ** 0.5)
    tokens = round(float(ops["enc-1st-layernorm"]["input_size"]) * 2**20 / 2 / hidden)
    yield from _attention(gpu, hidden // tp, tokens, ops)
    for op, (split, wide, deep) in LAYERS.items():
        n, k = wide * hidden, deep * hidden
        n, k = (n // tp, k) if split == "columns" else (n, k // tp)
        forward = float(ops[op]["forward-compute"]) * 1e-6
        backward = float(ops[op]["backward-compute"]) * 1e-6
        yield Profile(
            PROFILED[gpu],
            1,
            tokens,
            n,
            k,
            forward if split == "columns" or tp == 1 else None,
            backward if split == "rows" or tp == 1 else None,
            2 if gpu in BOTH_GRADIENTS else 1,
        )


def _attention(
    gpu: str, hidden: int, tokens: int, ops: dict[str, dict[str, str]]
) -> Iterator[Profile]:
    """Scores and context of unfused attention, a batch of heads; scores keep their square matrices."""
    first, second = ops["enc-attention-score"], ops["enc-attention-context"]
    seq = tokens // int(first["micro_batch"])
    heads = round(float(first["activations"]) * 2**20 / 2 / seq**2)
    size = hidden * tokens // seq // heads
    for row, n, k in ((first, seq, size), (second, size, seq)):
        forward, backward = (float(row[f"{way}-compute"]) * 1e-6 for way in ("forward", "backward"))
        yield Profile(PROFILED[gpu], heads, seq, n, k, forward, backward, 2)


def profiled() -> Iterator[Readings]:
    """fp16 products of GPT layers by device: forward, attention's too, and backward where it is one product."""
    found: dict[str, dict[Shape, list[float]]] = defaultdict(lambda: defaultdict(list))
    for p in profiles():
        if p.forward is not None and p.m > 0:
            found[p.device][p.batch, p.m, p.n, p.k].append(p.forward)
        if p.backward is not None and p.gradients == 1:
            found[p.device][p.batch, p.m, p.k, p.n].append(p.backward)
    for name, rows in found.items():
        yield _gathered(name, "fp16", "GPT layer profiles of Aceso and Mist", rows)
