"""How well measured attention and expert layers are told on shapes the fit has not seen.

    python bench/kernels_attention.py        writes docs/kernels-attention.md

Needs the sources of tools/distil_attention.py and tools/distil_grouped.py. Shapes are split by a hash: one half is fitted, the other scored.
What ships is fitted to all of them. The roofline beside it is `Roofline` on the same kernels, plus what the
harness of a table adds.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tools"))

import distil_attention as distil  # noqa: E402
import distil_grouped as grouped  # noqa: E402
from attention_rows import SYSTEMS, Row, cache_bytes, shapes  # noqa: E402

from foretrain.arrays import Floats  # noqa: E402
from foretrain.cluster.catalog import devices  # noqa: E402
from foretrain.cost.compute import Roofline  # noqa: E402
from foretrain.model.ops.base import FORWARD, INPUT_GRADIENT, Kernel  # noqa: E402

PAGE = ROOT / "docs" / "kernels-attention.md"
GROUPED = (
    "## Expert layers",
    "",
    "Grouped GEMMs in whole expert layers of aiconfigurator-core (TensorRT-LLM, evenly spread tokens, "
    "32 or more per expert), same split. The roofline has the same harness added. *untuned*: series left out "
    "because they ran on a kernel that was not tuned, at all sizes at least a quarter slower than the fit; the last "
    "column is the mean error with them. `fp8` is per tensor. The A100 has no evenly spread readings of a "
    "kernel that trains, and on the L40S the fit is no better than the roofline: both stay with it.",
    "",
    "| device | form | n | mean error | p90 | roofline mean | roofline p90 | untuned | mean with them |",
    "|---|---|--:|--:|--:|--:|--:|--:|--:|",
)
DEEPEP = (
    "Not covered yet: dispatch and combine of tokens by DeepEP, which are custom kernels instead of "
    "the library's all-to-all (its published rates: 153 to 158 GB/s inside a node of H800, 43 to 58 GB/s over "
    "InfiniBand).",
    "",
)
PHASES = {"forward": FORWARD, "backward": INPUT_GRADIENT}


@dataclass(frozen=True)
class Line:
    """Errors of one device, kernel and direction."""

    device: str
    kernel: str
    direction: str
    source: str
    errors: Floats
    roofline: Floats

    def row(self) -> str:
        mine, other = np.abs(self.errors), np.abs(self.roofline)
        return (
            f"| {self.device} | {self.kernel} | {self.direction} | {self.source} | {len(mine):,} "
            f"| {mine.mean():.1%} | {np.quantile(mine, 0.9):.1%} | {other.mean():.1%} "
            f"| {np.quantile(other, 0.9):.1%} |"
        )


def kernels(rows: Sequence[Row], direction: str) -> list[Kernel]:
    columns = shapes(rows, direction)
    kind = {"flash": "attention"}
    return [
        Kernel(
            kind.get(row.kernel, f"attention_{row.kernel}"), PHASES[direction], flops, moved, "bf16",
            (row.batch, row.heads, row.kv_heads, row.seq, row.seq, row.head_dim),
        )
        for row, flops, moved in zip(rows, columns.flops, columns.moved, strict=True)
    ]  # fmt: skip


def by_roofline(rows: Sequence[Row], direction: str) -> Floats:
    total = np.zeros(len(rows))
    for index, row in enumerate(rows):
        ways = ("forward", "backward") if row.direction == "both" else (direction,)
        for way in ways:
            total[index] += (
                Roofline().seconds(kernels([row], way), devices()[row.device]).seconds[0]
            )
    return total


def relative(found: Floats, rows: Sequence[Row]) -> Floats:
    off: Floats = found / np.array([row.seconds for row in rows]) - 1.0
    return off


def score(device: str, sources: distil.Sources) -> list[Line]:
    """Fitted on one half, scored on the other."""
    speeds, fitted = distil.fit_device(device, sources.half())
    apart = [row for row in sources.tables[device] if not row.is_fitted]
    harness = fitted.call + cache_bytes(apart) / (distil.hardware(device).bandwidth * fitted.cache)
    plain = by_roofline(apart, "forward") + harness
    name = apart[0].kernel
    lines = [
        Line(
            device,
            name,
            "forward",
            "table",
            relative(distil.predicted(fitted, apart), apart),
            relative(plain, apart),
        )
    ]
    for kernel, both_ways in speeds.items():
        for direction, speed in both_ways.items():
            ways = (direction, "both") if direction == "backward" else (direction,)
            rows = [
                row
                for row in sources.known(device, kernel, *ways)
                if not row.is_fitted and row.device == device
            ]
            if rows:
                found = distil.both(speed, both_ways["forward"], rows, direction)
                told = relative(by_roofline(rows, direction), rows)
                label = (
                    "backward (or both)" if any(r.direction == "both" for r in rows) else direction
                )
                lines.append(Line(device, kernel, label, "cited", relative(found, rows), told))
    return lines


def score_layers(device: str, form: str) -> str | None:
    """A row of the table of expert layers."""
    layers = grouped.read(grouped.folder(), device, form)
    if len(layers.seconds) < grouped.FEWEST:
        return None
    board = grouped.hardware(device, form)
    x, tuned = grouped.fit(layers, board)
    apart = layers.where(~layers.is_fitted)
    kept = tuned[~layers.is_fitted]
    mine = np.abs(grouped.predicted(x, apart, board) / apart.seconds - 1.0)
    other = np.abs(layers_by_roofline(x, apart, form) / apart.seconds - 1.0)[kept]
    untuned = len(np.unique(layers.series[~tuned])), len(np.unique(layers.series))
    return (
        f"| {device} | {form} | {int(kept.sum()):,} | {mine[kept].mean():.1%} "
        f"| {np.quantile(mine[kept], 0.9):.1%} | {other.mean():.1%} | {np.quantile(other, 0.9):.1%} "
        f"| {untuned[0]} of {untuned[1]} | {mine.mean():.1%} |"
    )


def layers_by_roofline(x: Floats, layers: grouped.Layers, form: str) -> Floats:
    total = grouped.harness(x, layers, grouped.hardware(layers.device, form))
    for n, k in ((layers.inner * layers.gates, layers.hidden), (layers.hidden, layers.inner)):
        shape, flops, moved = grouped.kernel_columns(layers, n, k)
        kernels = [
            Kernel("grouped_gemm", FORWARD, f, b, form, tuple(int(side) for side in row))
            for row, f, b in zip(shape, flops, moved, strict=True)
        ]
        total = total + Roofline().seconds(kernels, devices()[layers.device]).seconds
    return total


def page(lines: Sequence[Line], layers: Sequence[str]) -> str:
    return "\n".join(
        [
            "# Accuracy of attention times",
            "",
            "Made by `bench/kernels_attention.py`. Half of the shapes, chosen by a hash, is fitted; the figures are of the "
            "other half. *table*: prefills of aiconfigurator-core in 16 bit, causal, at least 256 keys, 1,024 tokens and half "
            "a wave of blocks, with the cache writes they contain; *cited*: FlashAttention's charts and the points of "
            "`tools/attention_points.yaml` (read off charts to about one per cent). Errors are of seconds, relative.",
            "",
            "`flash` is FlashAttention-2 on A100, H100 and H200, FlashInfer on L40S and TensorRT-LLM's kernels, "
            "which are used instead, on Blackwell; `flash3` is FlashAttention-3.",
            "",
            "| device | kernel | direction | source | n | mean error | p90 | roofline mean | roofline p90 |",
            "|---|---|---|---|--:|--:|--:|--:|--:|",
            *(line.row() for line in lines),
            "",
            *GROUPED,
            *layers,
            "",
            *DEEPEP,
        ]
    )


def main() -> None:
    sources = distil.read_sources()
    lines = [line for device in SYSTEMS for line in score(device, sources)]
    layers = [
        score_layers(device, form)
        for device in grouped.DEVICES
        for form in grouped.FORMS
        if form in grouped.forms_of(device)
    ]
    text = page(lines, [layer for layer in layers if layer])
    PAGE.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
