"""Measured FP32 convolutions, read from the public tables.

NeuSight (Lee et al., ASPLOS 2025): forward, 3x3, stride 1, on five GPUs. Aceso's profiler (EuroSys 2024): the
convolutions of WideResNets on V100, forward and backward (both gradients in one figure), in FP32: 9.19 MiB for 16
images of 3x224x224 are four bytes a value.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from streaming_rows import FOLDER, MIB, NEUSIGHT, ROOT, rows

__all__ = ["FOLDER", "ROOT", "Convolution", "convolutions"]

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Convolution:
    """`shape` as kernels have it: batch, channels in and out, OUTPUT height and width, kernel, stride, groups."""

    device: str
    source: str
    phase: str  # forward | backward (both gradients)
    shape: Shape
    seconds: float

    @property
    def key(self) -> str:
        return f"{self.shape}"

    @property
    def is_fitted(self) -> bool:
        return hashlib.sha256(self.key.encode()).digest()[0] % 2 == 0


def eager() -> Iterator[Convolution]:
    for row in rows("neusight_kernels_conv.csv.gz"):
        size = int(row["Input_Size"])  # padded by one: as large as the output
        shape = (int(row["B"]), int(row["Input_Channel"]), int(row["Output_Channel"]), size, size, 3, 3, 1, 1)  # fmt: skip
        seconds = float(row["latency_ms"]) * 1e-3
        yield Convolution(NEUSIGHT[row["device"]], "neusight", "forward", shape, seconds)


def wide_resnets() -> Iterator[Convolution]:
    table = [r for r in rows("op_profiles_aceso_format.csv") if r["family"] == "resnet" and r["tp"] == "1" and r["algo"] == "0"]  # fmt: skip
    weights = {(r["size"], r["op_name"]): float(r["weights"]) * MIB / 4 for r in table}
    for row in table:
        base = round(weights[row["size"], "conv1"] / (3 * 49 + 2) / 32) * 32
        wide = round(weights[row["size"], "block-0-0-conv2"] / (9 * base * base))
        shape = _shape(row["op_name"], base, wide, int(row["micro_batch"]))
        if shape is None:
            continue
        expected = shape[1] * shape[2] * shape[5] * shape[6]
        if abs(weights[row["size"], row["op_name"]] / expected - 1) > 0.02:
            continue
        for phase in ("forward", "backward"):
            seconds = float(row[f"{phase}-compute"]) * 1e-6
            yield Convolution("v100-sxm2-32gb", "profiler", phase, shape, seconds)


def _shape(name: str, base: int, wide: int, batch: int) -> Shape | None:
    """Bottleneck blocks of 1x1 to p planes, 3x3 to wide·p, 1x1 to 4p (Zheng et al., OSDI 2022, WideResNet)."""
    if name == "conv1":
        return batch, 3, base, 112, 112, 7, 7, 2, 1
    words = name.split("-")
    if words[0] != "block" or not words[-1].startswith("conv"):
        return None
    stage, block, which = int(words[1]), int(words[2]), words[3]
    planes, size = base * 2**stage, 56 // 2**stage
    is_first = block == 0
    stride = 2 if is_first and stage else 1
    given = (base if stage == 0 else 2 * planes) if is_first else 4 * planes
    match which:
        case "conv1":
            return batch, given, planes, size * stride, size * stride, 1, 1, 1, 1
        case "conv2":
            return batch, planes, wide * planes, size, size, 3, 3, stride, 1
    return batch, wide * planes, 4 * planes, size, size, 1, 1, 1, 1


@cache
def convolutions() -> tuple[Convolution, ...]:
    """Everything, repeated shapes of one device once."""
    seen: dict[tuple[str, str, str], Convolution] = {}
    for source in (eager(), wide_resnets()):
        for conv in source:
            seen.setdefault((conv.device, conv.phase + conv.source, conv.key), conv)
    return tuple(seen.values())
