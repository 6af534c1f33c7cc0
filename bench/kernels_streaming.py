"""Accuracy of streaming kernels, norms, convolutions and look-ups: measured against our tables and the roofline.

python bench/kernels_streaming.py [--report FILE]    default docs/kernels-streaming.md

Half of the shapes (by a hash) is fitted, the other half is scored. Both models are given what the way of measuring
adds. The measurements are not part of the project; tools/streaming_rows.py says where they are looked for.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tools"))

import distil_conv  # noqa: E402
import distil_embedding  # noqa: E402
import distil_streaming  # noqa: E402
from conv_rows import Convolution  # noqa: E402
from streaming_rows import FOLDER  # noqa: E402

from foretrain.arrays import Floats  # noqa: E402
from foretrain.cases import scenario_from_case  # noqa: E402
from foretrain.cluster.catalog import devices  # noqa: E402
from foretrain.cost.calibration.efficiencies import table  # noqa: E402
from foretrain.cost.compute import ComputeModel, Roofline  # noqa: E402
from foretrain.cost.compute.calibrated import Calibrated  # noqa: E402
from foretrain.model.ops.base import (  # noqa: E402
    FORWARD,
    INPUT_GRADIENT,
    WEIGHT_GRADIENT,
    Kernel,
)
from foretrain.simulate import answer  # noqa: E402

BOARDS = {"V100": "v100-sxm2-16gb", "TITAN Xp": "titan-xp", "P100": "p100-pcie-16gb"}
NETWORKS = {"ResNet50": "resnet50", "Inception-V3": "inception-v3"}


@dataclass(frozen=True)
class Line:
    device: str
    what: str
    errors: Floats
    baseline: Floats | None  # the roofline's errors; None where the device is not in the catalog

    def text(self) -> str:
        plain = "–" if self.baseline is None else _percent(self.baseline)
        return f"| {self.device} | {self.what} | {len(self.errors):,} | {_percent(self.errors)} | {plain} |"


def _percent(errors: Floats) -> str:
    return f"{100 * errors.mean():.1f} % / {100 * np.quantile(errors, 0.9):.1f} %"


def streaming() -> Iterator[Line]:
    for device, rows in distil_streaming.by_device().items():
        known = devices().get(device)
        share = table().of(known)[0].memory if known else 1.0
        for score in distil_streaming.scored(device, rows, share):
            yield Line(device, score.what, score.errors, score.baseline if known else None)


# --- convolutions -------------------------------------------------------------------------------


def convolutions() -> Iterator[Line]:
    for score in distil_conv.scored():
        known = devices().get(score.device)
        plain = None
        if known is not None:
            said = _summed(Roofline(), score.rows, score.device) + distil_conv.lead(score.rows)
            plain = np.abs(said / np.array([row.seconds for row in score.rows]) - 1.0)
        yield Line(score.device, score.what, score.errors, plain)


def _summed(model: ComputeModel, rows: Sequence[Convolution], name: str) -> Floats:
    """Seconds of each reading's kernels: one forward, both gradients backward."""
    owner, kernels = [], []
    for index, row in enumerate(rows):
        phases = (FORWARD,) if row.phase == "forward" else (INPUT_GRADIENT, WEIGHT_GRADIENT)
        for phase in phases:
            if phase != INPUT_GRADIENT or row.shape[1] > 4:
                owner.append(index)
                kernels.append(_kernel(row.shape, phase))
    seconds = model.seconds(kernels, devices()[name]).seconds
    return np.bincount(owner, weights=seconds, minlength=len(rows))


def _kernel(shape: tuple[int, ...], phase: str) -> Kernel:
    batch, channels, filters, height, width, kernel_h, kernel_w, stride, _ = shape
    pixels = batch * height * width
    values = pixels * (channels * stride**2 + filters) + channels * filters * kernel_h * kernel_w
    flops = 2.0 * pixels * channels * filters * kernel_h * kernel_w
    return Kernel("conv", phase, flops, 4.0 * values, "fp32", shape)


# --- whole steps of CNNs, which nothing was fitted on -------------------------------------------


@dataclass(frozen=True)
class Step:
    device: str
    network: str
    batch: int
    measured: float
    said: float
    plain: float


def steps() -> Iterator[Step]:
    with (FOLDER / "dlrm_cnn_e2e_single_gpu.csv").open(encoding="utf-8", newline="") as stream:
        for row in csv.DictReader(stream):
            device, network, batch = BOARDS[row["platform"]], NETWORKS[row["model"]], int(row["batch"])  # fmt: skip
            question = scenario_from_case(_case(device, network, batch))
            measured = float(row["measured_ms"]) * 1e-3
            said, plain = (
                answer(question, compute=model).step_seconds for model in (Calibrated(), Roofline())
            )
            yield Step(device, network, batch, measured, said, plain)


def _case(device: str, network: str, batch: int) -> dict[str, object]:
    return {
        "id": f"{network} {device} {batch}",
        "model": {"zoo": network},
        "cluster": {"device": device, "devices_per_node": 1, "nodes": 1},
        "devices": 1,
        "plan": {"dp": 1, "tp": 1, "pp": 1},
        "batch": {"global": batch, "micro": batch, "per_device": batch},
        "precision": "fp32",
        "optimizer": "sgd",
        "runtime": "ddp",
        "runtime_options": {},
    }


# --- the page -----------------------------------------------------------------------------------

HEAD = """# Accuracy of memory-bound kernels, convolutions and embedding lookups

Written by `python bench/kernels_streaming.py`, do not edit. Errors are absolute and relative, mean / 90th percentile, on
the half of the measured shapes that was not fitted (selected by a hash of the shape), compared with the data-sheet roofline under
the same harness: the benchmark overhead before a kernel starts is added to both. Readings within 30 % (convolutions: 60 %)
of a device's shortest call are excluded: they measure the call, not the kernel. [DATA_SOURCES.md](../DATA_SOURCES.md) has the sources.

| device | kernels | shapes | tables, mean / p90 | roofline, mean / p90 |
|---|---|---|---|---|
"""
LIMITS = """
## Not measured

- Norms are distinguished from other memory-bound kernels by a second entry in their shape, the length of a row.
- Backward of norms is measured on V100, A100, A10G and L4; elsewhere it is assumed to be 0.55 of the forward efficiency.
- 3x3 convolutions forward are measured on every device named; 1x1, strided and 7x7 kernels and both gradients on V100 only,
  and the other devices use the same factors. cuDNN's choices vary: in a trial with gradient-boosted trees in place
  of the quadratic the held-out error was still 14 % on V100, 19 % on A100 and 13 % on T4.
- No measurements of 16-bit or tf32 convolutions were available (the WideResNet profiles are FP32). One share of peak per chip and
  format is set on whole ResNet-50 steps (four runs of the fitted half of the open cases); memory format is not distinguished within a dtype.
- Depth-wise convolutions and optimizer kernels are not measured: the first are modeled as vector arithmetic at an assumed efficiency, the
  second as memory-bound.
- Embedding lookups are measured with uniformly distributed rows. For skewed tables, distinct and repeated rows follow from Zipf's
  law, not from measured kernels.
"""


def page() -> str:
    lines = [line.text() for line in (*streaming(), *convolutions())]
    text = (
        HEAD
        + "\n".join(lines)
        + "\n\n## Embedding lookups on V100\n\n| kernel | readings | mean error |\n|---|---|---|\n"
    )
    for what, errors in distil_embedding.scored().items():
        fitted = " (fitted)" if what.startswith("DLRM_default") else ""
        text += f"| {what}{fitted} | {len(errors)} | {100 * np.mean(errors):+.0f} % |\n"
    text += "\n## Whole FP32 training steps of CNNs, not used for fitting\n\n"
    text += "Measured by Lin et al. 2024 with eager PyTorch on one GPU; host overhead is that of the runtime preset.\n\n"
    text += (
        "| device | network | batch | measured | tables | roofline |\n|---|---|---|---|---|---|\n"
    )
    found = list(steps())
    for step in found:
        said, plain = (100 * (value / step.measured - 1) for value in (step.said, step.plain))
        text += f"| {step.device} | {step.network} | {step.batch} | {1e3 * step.measured:.1f} ms | {said:+.0f} % | {plain:+.0f} % |\n"
    means = [100 * np.mean([abs(getattr(s, n) / s.measured - 1) for s in found]) for n in ("said", "plain")]  # fmt: skip
    text += f"| mean of absolute errors | | | | {means[0]:.1f} % | {means[1]:.1f} % |\n"
    text += "\nInception-v3 at batch 64 on V100 is inconsistent with batch 32 (205.7 vs. 158.8 ms) and questionable.\n"
    return text + LIMITS


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    default = ROOT / "docs" / "kernels-streaming.md"
    parser.add_argument("--report", type=Path, default=default)
    chosen = parser.parse_args()
    if not FOLDER.is_dir():
        parser.error(f"no measurements in {FOLDER}; name their folder in FORETRAIN_TRUTH")
    text = page()
    chosen.report.write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
