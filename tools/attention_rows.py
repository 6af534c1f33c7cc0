"""Measured attention as columns: the tables of aiconfigurator-core, FlashAttention's charts and cited points.

`pip install aiconfigurator-core pyarrow` in an environment of its own puts the tables where they are found, or
FORETRAIN_AICONFIGURATOR names the wheel or a folder it was unpacked in. The charts are looked for in the folder
FORETRAIN_TRUTH names, or beside the checkout in `shared/truth`; the points are in `attention_points.yaml`.
"""

from __future__ import annotations

import atexit
import csv
import hashlib
import os
import shutil
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from foretrain.arrays import Floats
from foretrain.cost.compute.attention import PRODUCTS, Shapes

ROOT = Path(__file__).resolve().parents[1]
FOLDER = Path(os.environ.get("FORETRAIN_TRUTH", ROOT.parent / "shared" / "truth"))
INSIDE = "aiconfigurator_core/systems/data"
SYSTEMS = {
    "a100-sxm4-80gb": "a100_sxm",
    "h100-sxm5-80gb": "h100_sxm",
    "h200-sxm5-141gb": "h200_sxm",
    "b200-sxm": "b200_sxm",
    "b300-sxm": "b300_sxm",
    "gb200-nvl72": "gb200",
    "gb300-nvl72": "gb300",
    "l40s": "l40s",
}
FRAMEWORK = (
    "sglang"  # its prefill calls FlashAttention and its kin; trtllm's adds a pass over q, k and v
)
LEFT_OUT = ("triton",)  # kernels no training stack runs
SHORTEST, FEWEST_TOKENS, FEWEST_WAVES = 256, 1024, 0.5
"""Prefills smaller than these split keys among blocks as training kernels do not."""
BOARDS = {"A100-80GB-SXM4": "a100-sxm4-80gb", "H100-80GB-SXM5": "h100-sxm5-80gb"}
KERNELS = {"FlashAttention-2": "flash", "FlashAttention-3": "flash3", "cuDNN": "cudnn"}
PASSES = {"fwd": "forward", "fwd+bwd": "both"}


@dataclass(frozen=True)
class Row:
    """One measured kernel (or forward and backward together)."""

    device: str
    kernel: str
    direction: str  # forward | backward | both
    batch: int
    heads: int
    kv_heads: int
    seq: int
    head_dim: int
    v_dim: int
    visible: float
    seconds: float
    source: str

    @property
    def key(self) -> str:
        parts = (self.batch, self.heads, self.kv_heads, self.seq, self.head_dim, self.visible)
        return repr((self.kernel, self.direction, *parts))

    @property
    def is_fitted(self) -> bool:
        """Whether the row is in the half that scoring fits on."""
        return hashlib.sha256(self.key.encode()).digest()[0] % 2 == 0

    @property
    def forward_flops(self) -> float:
        scores = float(self.batch) * self.heads * self.seq * self.seq * self.visible
        return 2.0 * scores * (self.head_dim + self.v_dim)


def shapes(rows: Iterable[Row], direction: str) -> Shapes:
    """The kernels of `rows` in one direction, as the model sees them."""
    rows = list(rows)
    times = PRODUCTS[direction] / PRODUCTS["forward"]
    columns = np.array(
        [(row.batch, row.heads, row.seq, row.seq, row.head_dim) for row in rows], dtype=np.float64
    ).T
    flops = np.array([row.forward_flops * times for row in rows])
    reads = 1.0 if direction == "forward" else 2.0
    moved = np.array(
        [
            2.0
            * reads
            * row.batch
            * row.seq
            * (row.heads + row.kv_heads)
            * (row.head_dim + row.v_dim)
            for row in rows
        ]
    )
    return Shapes(*columns, flops, moved)


def cache_bytes(rows: Iterable[Row]) -> Floats:
    """What a prefill moves besides attention: keys and values read and written to the cache."""
    return np.array(
        [4.0 * row.batch * row.seq * row.kv_heads * (row.head_dim + row.v_dim) for row in rows]
    )


def tables_folder() -> Path | None:
    """Where the tables of aiconfigurator-core are, if anywhere."""
    if named := os.environ.get("FORETRAIN_AICONFIGURATOR"):
        place = _unpacked(Path(named)) if Path(named).is_file() else Path(named)
        return place / INSIDE if (place / INSIDE).is_dir() else place
    spec = find_spec("aiconfigurator_core")
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(spec.submodule_search_locations[0]) / "systems" / "data"


@cache
def _unpacked(wheel: Path) -> Path:
    """A folder with the tables of a wheel, gone when the process ends."""
    place = tempfile.mkdtemp(prefix="aiconfigurator-")
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    with zipfile.ZipFile(wheel) as packed:
        wanted = [n for n in packed.namelist() if "/attention/" in n or "/moe/" in n]
        packed.extractall(place, wanted)
    return Path(place)


def table(folder: Path, device: str) -> list[Row]:
    """Prefill rows of a device in 16 bit, without a window, in training's sizes; medians of repeats."""
    from pyarrow import parquet

    pattern = f"{SYSTEMS[device]}/attention/{FRAMEWORK}/*/context_attention_perf.parquet"
    readings: dict[tuple[int, ...], list[float]] = {}
    for path in sorted(folder.glob(pattern)):
        for given in parquet.read_table(path).to_pylist():
            if _is_usable(given):
                kv_heads = given["num_key_value_heads"] or given["num_heads"]
                size = (
                    given["batch_size"],
                    given["num_heads"],
                    kv_heads,
                    given["isl"],
                    given["head_dim"],
                )
                readings.setdefault(size, []).append(given["latency"] * 1e-3)
    kernel = "flash3" if device.startswith(("h100", "h200")) else "flash"
    return [
        Row(
            device,
            kernel,
            "forward",
            *size,
            size[-1],
            0.5,
            float(np.median(times)),
            "aiconfigurator",
        )
        for size, times in sorted(readings.items())
    ]


def _is_usable(given: Mapping[str, Any]) -> bool:
    return (
        given["attn_dtype"] == given["kv_cache_dtype"] == "bfloat16"
        and given["kernel_source"] not in LEFT_OUT
        and not given.get("window_size")
        and given["head_dim"] <= 256
        and given["isl"] >= SHORTEST
        and given["batch_size"] * given["isl"] >= FEWEST_TOKENS
    )


def charts() -> Iterator[Row]:
    """FlashAttention's benchmark charts."""
    with (FOLDER / "flash_attention_bench.csv").open(newline="") as file:
        for given in csv.DictReader(file):
            if given["impl"] in KERNELS:
                heads, width = int(given["heads"]), int(given["head_dim"])
                yield Row(
                    BOARDS[given["gpu"]], KERNELS[given["impl"]], PASSES[given["pass_"]],
                    int(given["batch"]), heads, heads, int(given["seqlen"]), width, width,
                    0.5 if given["causal"] == "True" else 1.0,
                    float(given["time_ms"]) * 1e-3, "FlashAttention charts",
                )  # fmt: skip


def points() -> Iterator[Row]:
    """The cited points."""
    data = yaml.safe_load(Path(__file__).with_name("attention_points.yaml").read_text())
    for given in data["points"]:
        for place, seq in enumerate(given["seq"]):
            batch = given.get("batch") or given["tokens"] // seq
            share = min(given.get("window", seq), seq) / seq
            row = Row(
                given["device"], given["kernel"], given["pass"],
                batch, given["heads"], given.get("kv_heads", given["heads"]), seq,
                given["head_dim"], given.get("v_dim", given["head_dim"]),
                share - share * share / 2 if given["causal"] else share, 0.0, given["source"],
            )  # fmt: skip
            if "ms" in given:
                took = given["ms"][place] * 1e-3
            else:
                times = PRODUCTS[given["pass"]] / PRODUCTS["forward"]
                took = row.forward_flops * times / (given["tflops"][place] * 1e12)
            yield Row(**{**row.__dict__, "seconds": took})
