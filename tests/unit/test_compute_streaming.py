"""Measured streaming kernels, convolutions and look-ups: tables load, answer sanely and match cited readings."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import yaml

from foretrain.cluster.catalog import devices
from foretrain.cost.compute import conv, embedding, memory
from foretrain.cost.compute.base import Estimate, names
from foretrain.model.ops.base import FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT, Kernel

TABLES = Path(memory.__file__).parents[1] / "calibration" / "compute"
V100, A100, H100 = (devices()[n] for n in ("v100-sxm2-32gb", "a100-sxm4-80gb", "h100-sxm5-80gb"))
PHASES = (FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT)
MIB = 2.0**20


def stream(moved: float, phase: str = FORWARD) -> Kernel:
    return Kernel("memory", phase, 0.0, moved, "fp32", (int(moved) // 8,))


def norm(elements: int, width: int, phase: str = FORWARD, value: float = 2.0) -> Kernel:
    moved = elements * value * (2 if phase == FORWARD else 3)
    return Kernel("memory", phase, 8.0 * elements, moved, "fp32", (elements, width))


def convolution(shape: tuple[int, ...], phase: str = FORWARD, dtype: str = "fp32") -> Kernel:
    batch, channels, filters, height, width, side, _, stride, groups = shape
    pixels = batch * height * width
    flops = 2.0 * pixels * channels * filters * side * side / groups
    moved = 4.0 * (pixels * (channels * stride**2 + filters) + channels * filters * side**2)
    return Kernel("conv", phase, flops, moved, dtype, shape)


def known(found: Estimate | None) -> Estimate:
    assert found is not None
    return found


# --- the files ----------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["memory", "conv", "embedding"])
def test_every_file_says_where_it_comes_from(family: str) -> None:
    files = sorted((TABLES / family).glob("*.json"))
    assert files
    assert sum(path.stat().st_size for path in files) < 50_000
    for path in files:
        data = json.loads(path.read_text("utf-8"))
        assert data["method"], path.name
        assert data["date"], path.name
        forms = [data[f] for f in ("fp32", "tf32", "tensor") if f in data] or [data]
        assert all(form["source"] for form in forms), path.name


@pytest.mark.parametrize("name", names("memory"))
def test_shares_are_shares_and_more_bytes_take_longer(name: str) -> None:
    table = memory.read(name)
    for column in (table.stream, table.norm_forward, table.norm_backward):
        assert ((column > 0.05) & (column < 1.0)).all()
    moved = np.exp2(np.linspace(0, 44, 400))
    share = memory.shares(table, moved, np.zeros(400), is_forward=True)
    assert (np.diff(moved / share) > 0).all()


# --- memory -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("device", "moved", "seconds", "within"),
    [
        # Aceso's profiler, V100: ReLU of 171.5 MiB in FP32 forward and backward (WideResNet 500M, batch 16)
        ("v100-sxm2-32gb", 2 * 171.5 * MIB, 441e-6, 0.08),
        ("v100-sxm2-32gb", 3 * 171.5 * MIB, 660e-6, 0.08),
        # Mist's profiler, A100: backward of dropout on 1,280 MiB with a byte mask
        ("a100-sxm4-40gb", 2.5 * 1280 * MIB, 2436e-6, 0.06),
        # NeuSight, H100: sum of two FP32 tensors of 50.3 M values
        ("h100-sxm5-80gb", 12 * 50_331_648, 202e-6, 0.08),
    ],
)
def test_streaming_readings(device: str, moved: float, seconds: float, within: float) -> None:
    found = known(memory.estimate([stream(moved)], devices()[device], "fp32"))
    assert found.seconds[0] == pytest.approx(seconds, rel=within)
    assert found.measured.all()


def test_layer_norm_is_slower_than_streaming_and_slowest_backward() -> None:
    elements, width = 8 * 2048 * 4096, 4096
    forward = known(memory.estimate([norm(elements, width)], V100, "fp32"))
    plain = known(memory.estimate([stream(norm(elements, width).bytes)], V100, "fp32"))
    backward = known(memory.estimate([norm(elements, width, INPUT_GRADIENT)], V100, "fp32"))
    # Aceso's profiler, V100, 16-bit GPT 6.7B, micro-batch 8: 545 us forward, 1,913 us backward with a sum of
    # two gradients (403 MB, about 500 us) in it
    assert forward.seconds[0] == pytest.approx(545e-6, rel=0.12)
    assert backward.seconds[0] == pytest.approx(1913e-6 - 500e-6, rel=0.15)
    assert plain.seconds[0] < 0.8 * forward.seconds[0]
    assert forward.spread[0] > plain.spread[0]


def test_nothing_to_move_takes_the_start_alone() -> None:
    found = known(memory.estimate([Kernel("memory", FORWARD, 0.0, 0.0, "fp32")], V100, "fp32"))
    assert found.seconds[0] == memory.read("v100-sxm2-32gb").start_seconds


def test_stragglers_stream_at_their_own_rate() -> None:
    slow = V100.scaled(memory_bandwidth=0.5)
    kernels = [stream(1e9)]
    fast, late = (known(memory.estimate(kernels, d, "fp32")).seconds[0] for d in (V100, slow))
    assert late == pytest.approx(2 * fast, rel=0.01)


def test_unmeasured_devices_borrow_and_say_so() -> None:
    found = known(memory.estimate([stream(1e9)], devices()["b200-sxm"], "fp32"))
    own = known(memory.estimate([stream(1e9)], H100, "fp32"))
    assert not found.measured.any()
    assert found.spread[0] > own.spread[0]
    assert "h100-sxm5-80gb" in found.notes[0]


# --- convolutions -------------------------------------------------------------------------------

WIDE_RESNET = [
    # Aceso's profiler, V100, FP32 WideResNet 500M: shape, forward and backward in us
    ((32, 224, 448, 56, 56, 3, 3, 1, 1), 5853.6, 10352.6),
    ((32, 448, 896, 56, 56, 1, 1, 1, 1), 8415.3, 12775.4),
    ((32, 448, 896, 28, 28, 3, 3, 2, 1), 13624.2, 29541.9),
    ((32, 3, 224, 112, 112, 7, 7, 2, 1), 5066.9, 6711.1),
]


@pytest.mark.parametrize(("shape", "forward", "backward"), WIDE_RESNET)
def test_convolution_readings(shape: tuple[int, ...], forward: float, backward: float) -> None:
    times = [known(conv.estimate([convolution(shape, p)], V100, "fp32")).seconds[0] for p in PHASES]
    tried = yaml.safe_load((conv.TABLES / "conv.yaml").read_text())["tried"]["v100-sxm2-32gb"][
        "fp32"
    ]
    times = [seconds / tried for seconds in times]  # the profiler took the library's first guess
    both = times[2] + (times[1] if shape[1] > 3 else 0.0)
    assert times[0] == pytest.approx(forward * 1e-6, rel=0.25)
    assert both == pytest.approx(backward * 1e-6, rel=0.25)


def test_winograd_beats_the_implicit_product_only_where_it_can_be_used() -> None:
    same = (32, 640, 1280, 56, 56, 3, 3, 1, 1)
    strided = (32, 640, 1280, 56, 56, 3, 3, 2, 1)
    quick, plain = (
        known(conv.estimate([convolution(s)], V100, "fp32")).seconds[0] for s in (same, strided)
    )
    peak = V100.required_peak("fp32")
    assert convolution(same).flops / quick > 1.5 * peak  # 2.5 of peak was measured
    assert convolution(strided).flops / plain < peak


@pytest.mark.parametrize("dtype", ["fp32", "fp16"])
@pytest.mark.parametrize("phase", PHASES)
def test_convolutions_of_any_size_are_finite_and_grow(dtype: str, phase: str) -> None:
    for side, stride, groups in ((1, 1, 1), (3, 1, 1), (3, 2, 1), (3, 1, 64), (7, 2, 1)):
        shapes = [
            (b, 64, 64, 56, 56, side, side, stride, groups) for b in (1, 16, 256, 4096, 65536)
        ]
        kernels = [convolution(shape, phase, dtype) for shape in shapes]
        found = known(conv.estimate(kernels, V100, dtype))
        assert np.isfinite(found.seconds).all()
        assert (found.seconds > 0).all()
        assert (np.diff(found.seconds) > 0).all()
        # eight times the batch is never quicker than a third of eight times the time
        for (small, large), (a, b) in zip(pairwise(found.seconds[2:]), pairwise(shapes[2:]), strict=True):  # fmt: skip
            assert large / small == pytest.approx(b[0] / a[0], rel=0.4)


def test_matrix_units_are_quicker_and_not_called_measured() -> None:
    shape = (256, 256, 256, 14, 14, 3, 3, 1, 1)
    plain = known(conv.estimate([convolution(shape)], A100, "fp32"))
    half = known(conv.estimate([convolution(shape, dtype="fp16")], A100, "fp16"))
    assert half.seconds[0] < 0.3 * plain.seconds[0]
    assert plain.measured[0]
    assert not half.measured[0]


@pytest.mark.parametrize("phase", PHASES)
def test_convolutions_alone_as_in_company(phase: str) -> None:
    shapes = [(8 + i, 32 + 7 * i, 64 + 5 * i, 7 + i, 9 + i, 3, 3, 1, 1) for i in range(23)]
    kernels = [convolution(shape, phase) for shape in shapes]
    together = known(conv.estimate(kernels, V100, "fp32")).seconds
    alone = [known(conv.estimate([kernel], V100, "fp32")).seconds[0] for kernel in kernels]
    assert together.tolist() == alone


def test_kernels_without_dims_are_left_to_the_roofline() -> None:
    assert conv.estimate([Kernel("conv", FORWARD, 1e9, 1e6, "fp32")], V100, "fp32") is None
    lookup = Kernel("embedding", FORWARD, 0.0, 1e6, "fp32")
    assert embedding.estimate([lookup], V100, "fp32") is None


# --- look-ups -----------------------------------------------------------------------------------


def lookup(rows: int, width: int, lookups: int, out: int, phase: str = FORWARD) -> Kernel:
    passes = 1 if phase == FORWARD else 2
    moved = lookups * (8.0 + 4.0 * passes * width) + 4.0 * out * width
    return Kernel("embedding", phase, 0.0, moved, "fp32", (rows, width, lookups))


def test_look_up_readings() -> None:
    """DLRM on V100 (Lin et al. 2024), batch 2,048: 8 tables of a million rows, 64 values, 100 look-ups each."""
    sizes = (8_000_000, 64, 8 * 2048 * 100, 8 * 2048)
    forward = known(embedding.estimate([lookup(*sizes)], V100, "fp32"))
    backward = known(embedding.estimate([lookup(*sizes, WEIGHT_GRADIENT)], V100, "fp32"))
    assert forward.seconds[0] == pytest.approx(522e-6, rel=0.05)
    assert backward.seconds[0] == pytest.approx(1277e-6, rel=0.05)


def test_rows_looked_up_again_come_from_the_cache() -> None:
    table = embedding.read("v100-sxm2-32gb")
    kernels = [lookup(rows, 128, 1 << 20, 1 << 14) for rows in (1_000, 10_000, 100_000, 10**9)]
    shape = np.array([embedding.met(kernel.shape) for kernel in kernels])
    moved = np.array([kernel.bytes for kernel in kernels])
    cached = embedding.hits(shape, moved, True, V100, table)
    assert (np.diff(cached) <= 0).all()
    assert cached[0] > 0.85 * moved[0]
    assert cached[-1] < 1e-3 * moved[-1]
    blind = replace(V100, l2_bytes=None)
    assert not embedding.hits(shape, moved, True, blind, table).any()
