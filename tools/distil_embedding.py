"""Distil measured table look-ups into `cost/calibration/compute/embedding/<device>.json`.

    FORETRAIN_TRUTH=<folder of the tables> python tools/distil_embedding.py

Kernel times of DLRM on one V100 (Lin et al. 2024, profiles in the notebooks of owensgroup/ml_perf_model): batched
look-ups forward and backward with SGD, and a micro-benchmark of small tables. GPT's embeddings (rows of a
thousand values and more) from the profiles of Mist (EuroSys 2025).
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass

import numpy as np
from streaming_rows import FOLDER, MIB, ROOT, rows

from foretrain.cluster.catalog import devices
from foretrain.cost.compute.embedding import EmbeddingTable, estimate, hits
from foretrain.model.ops.base import FORWARD, WEIGHT_GRADIENT, Kernel
from foretrain.model.ops.skew import seen
from foretrain.model.zoo.dlrm import ROWS

TARGET = ROOT / "src" / "foretrain" / "cost" / "calibration" / "compute" / "embedding"
DEVICE = "v100-sxm2-32gb"
MODELS = {"DLRM_default": ((1_000_000,) * 8, 64, 100), "DLRM_MLPerf": (ROWS, 128, 1)}
"""Rows of the tables, values of a row, look-ups per sample and table; rows are drawn evenly."""
OTHERS = 5.5  # tensors that adding positions and dropout move beside GPT's two look-ups
OTHERS_BACKWARD = 2.5
STREAM = 0.85
FIXED = {
    "start_seconds": 1.5e-6,
    "wide": 512,
    "cache_rate": 3.16,  # 2,847 of 900 GB/s (Lin et al., V100)
    "cache_share": 0.9,
    "spread": 0.2,
}


@dataclass(frozen=True)
class Lookup:
    what: str
    kernel: Kernel
    seconds: float


def kernel(sizes: tuple[int, ...], width: int, bag: int, batch: int, is_forward: bool) -> Kernel:
    """As `EmbeddingBag` makes it, in FP32."""
    lookups = batch * len(sizes) * bag
    passes = 1 if is_forward else 2
    moved = lookups * (8.0 + 4.0 * passes * width) + 4.0 * batch * len(sizes) * width
    phase = FORWARD if is_forward else WEIGHT_GRADIENT
    met = round(sum(seen(size, batch * bag, 0.0)[0] for size in sizes))
    return Kernel("embedding", phase, 0.0, moved, "fp32", (sum(sizes), width, lookups, met, met))


def profiled() -> list[Lookup]:
    found = []
    for row in rows("dlrm_kernel_times_v100.csv"):
        if row["op"] in ("LookupFunction", "LookupFunctionBackward"):
            is_forward = row["op"] == "LookupFunction"
            made = kernel(*MODELS[row["model"]], int(row["batch"]), is_forward)
            what = f"{row['model']} {'forward' if is_forward else 'backward'}"
            found.append(Lookup(what, made, float(row["gpu_time_us_mean"]) * 1e-6))
    return found


def small_tables() -> list[Lookup]:
    """Forward; the backward rows are of an older kernel that Lin et al. replaced."""
    found = []
    for row in rows("dlrm_embedding_microbench_v100.csv"):
        if "forward" in row["kernel"]:
            tables, size, *others = (
                int(row[c]) for c in ("T_tables", "E_rows", "D_dim", "L_bag", "B")
            )
            made = kernel((size,) * tables, *others, is_forward=True)
            found.append(Lookup("small tables forward", made, float(row["kernel_us"]) * 1e-6))
    return found


def share(found: list[Lookup], known: EmbeddingTable) -> float:
    """Of the memory bandwidth, median in log."""
    device = devices()[DEVICE]
    said = []
    for one in found:
        shape = np.array([one.kernel.shape], dtype=np.float64)  # as the kernel says it
        moved = np.array([one.kernel.bytes])
        cached = hits(shape, moved, one.kernel.phase == FORWARD, device, known)[0]
        left = one.seconds - known.start_seconds
        left -= cached / (device.memory_bandwidth * known.cache_rate)
        said.append((one.kernel.bytes - cached) / left / device.memory_bandwidth)
    return float(np.median(said))


def wide() -> tuple[float, float]:
    """GPT's embedding op grows with the batch by two look-ups (tokens and positions) and some streaming."""
    times: dict[str, dict[int, tuple[float, float, float]]] = {}
    for row in rows("op_profiles_aceso_format.csv"):
        is_mine = row["gpu"].startswith("v100-sxm2") and row["op_name"] == "encoder-embedding"
        if is_mine and row["tp"] == "1" and row["algo"] == "0":
            kept = (float(row[c]) for c in ("output_size", "forward-compute", "backward-compute"))
            times.setdefault(row["size"], {})[int(row["micro_batch"])] = tuple(kept)  # type: ignore[assignment]
    found: tuple[list[float], list[float]] = ([], [])
    rate = devices()[DEVICE].memory_bandwidth
    for by_batch in times.values():
        few, many = by_batch[min(by_batch)], by_batch[max(by_batch)]
        size = (many[0] - few[0]) * MIB
        for column, passes, others in ((1, 2, OTHERS), (2, 3, OTHERS_BACKWARD)):
            seconds = (many[column] - few[column]) * 1e-6 - others * size / (rate * STREAM)
            found[column - 1].append(2 * passes * size / seconds / rate)
    return float(np.median(found[0])), float(np.median(found[1]))


def document() -> dict[str, object]:
    known = EmbeddingTable(forward=1.0, backward=1.0, wide_forward=1.0, wide_backward=1.0, **FIXED)  # type: ignore[arg-type]
    default = [one for one in profiled() if one.what.startswith("DLRM_default")]
    forward = [one for one in default if one.kernel.phase == FORWARD]
    backward = [one for one in default if one.kernel.phase != FORWARD]
    wide_forward, wide_backward = wide()
    return {
        "about": "Written by tools/distil_embedding.py, do not edit.",
        "source": "DLRM kernel times on V100 (Lin et al. 2024, owensgroup/ml_perf_model notebooks); GPT embedding op profiles of Mist (EuroSys 2025)",
        "method": "shares of bandwidth set on DLRM_default (rows drawn evenly); DLRM_MLPerf and small tables held apart; wide rows from the growth with the batch",
        "date": "2026-11-15",
        **FIXED,
        "forward": round(share(forward, known), 3),
        "backward": round(share(backward, known), 3),
        "wide_forward": round(wide_forward, 3),
        "wide_backward": round(wide_backward, 3),
    }


def scored() -> dict[str, list[float]]:
    """Signed errors of the shipped table by what was measured."""
    found: dict[str, list[float]] = {}
    for one in (*profiled(), *small_tables()):
        said = estimate([one.kernel], devices()[DEVICE], "fp32")
        assert said is not None
        found.setdefault(one.what, []).append(float(said.seconds[0] / one.seconds - 1.0))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.parse_args()
    if not FOLDER.is_dir():
        parser.error(f"no measurements in {FOLDER}; name their folder in FORETRAIN_TRUTH")
    TARGET.mkdir(parents=True, exist_ok=True)
    path = TARGET / f"{DEVICE}.json"
    path.write_text(json.dumps(document(), indent=1) + "\n", encoding="utf-8")
    print(f"{path.relative_to(ROOT)}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
