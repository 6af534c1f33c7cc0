"""The roofline and its tiles on a device made up so that every term can be worked out by hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.hand_device import HAND

from foretrain.cluster.device import Device
from foretrain.cost.calibration.efficiencies import EfficiencyTable, Tile, read_table
from foretrain.cost.compute import Roofline
from foretrain.cost.compute.tiles import Units, gemm_seconds
from foretrain.model.ops.base import FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT, Kernel

START = 1e-6
ROW = {
    "source": "by hand", "gemm": {"bf16": 0.5, "other": 0.8}, "conv": {"bf16": 0.4, "other": 0.25},
    "grouped": 0.5, "memory": 0.5, "embedding": 0.25, "vector": 0.1, "start_seconds": START, "fill": 64,
    "attention": {
        "flash": {"forward": 0.5, "backward": 0.25, "narrow": 0.8, "half_length": 128},
        "cudnn": {"forward": 0.6, "backward": 0.3, "narrow": 1.0, "half_length": 0},
    },
}  # fmt: skip
DATA: Mapping[str, Any] = {
    "devices": {"made-up": ROW, "hand two": {"like": "made-up", "memory": 0.2}, "gpu": ROW, "cpu": ROW},
    "substitutes": {"fp8": ["fp16", "bf16"]}, "tiles": [[128, 128, 1.0]], "splits": [1],
    "narrow_head": 64, "attention_rows": 128, "compute_units": 20,
    "special_convolutions": {"dtypes": ["fp32"], "winograd": 1.5, "least_output": 7},
    "spread": {"gemm": 0.1, "other": 0.3}, "unknown_device_spread": 2.0,
}  # fmt: skip


def known(**changes: Any) -> EfficiencyTable:
    return read_table({**DATA, **changes})


def took(*kernels: Kernel, on: Device = HAND, table: EfficiencyTable | None = None) -> Any:
    """Seconds beside the start, which every kernel pays."""
    found = Roofline(table or known()).seconds(kernels, on).seconds - START
    return found if len(kernels) > 1 else float(found[0])


# --- tiles --------------------------------------------------------------------------------------


def tiled(
    shape: tuple[float, ...], *tiles: Tile, splits: tuple[int, ...] = (1,), count: int = 4
) -> float:
    units = Units(count=count, flops=8e12, bandwidth=1e11, fill=20.0)
    return float(gemm_seconds(np.array([shape]), units, tiles, splits)[0])


def test_tiles_are_taken_in_waves_over_the_depth_and_its_filling() -> None:
    """3 x 2 tiles of 100 x 100 on four units: two waves, each of 2·100·100·(980 + 20) FLOP at half of 2 TFLOP/s."""
    assert tiled((1, 250, 150, 980), Tile(100, 100, 0.5)) == pytest.approx(2 * 2e7 / 1e12)
    # nine of the batch: 54 tiles, 14 waves
    assert tiled((9, 250, 150, 980), Tile(100, 100, 0.5)) == pytest.approx(14 * 2e7 / 1e12)


def test_the_best_tile_is_taken() -> None:
    # one tile of 50 x 200 takes as long as one of 100 x 100 and three instead of six are needed for 150 columns
    wide, square = Tile(50, 200, 1.0), Tile(100, 100, 1.0)
    assert tiled((1, 150, 150, 980), wide, square) == tiled((1, 150, 150, 980), wide)
    assert tiled((1, 150, 150, 980), wide) == pytest.approx(2e7 / 2e12)
    assert tiled((1, 100, 100, 980), square, replace(square, rate=0.5)) == pytest.approx(1e-5)


def test_a_split_depth_pays_for_its_partial_sums() -> None:
    """One tile on four units: a quarter of the depth each, and four partial results written and read in fp32."""
    whole = 2 * 1e4 * 100_020 / 2e12
    parts = 2 * 1e4 * 25_020 / 2e12 + 2 * 4 * 4 * 1e4 / 1e11
    assert tiled((1, 100, 100, 1e5), Tile(100, 100, 1.0)) == pytest.approx(whole)
    assert tiled((1, 100, 100, 1e5), Tile(100, 100, 1.0), splits=(1, 4)) == pytest.approx(parts)
    half = 2 * 1e4 * 50_020 / 2e12 + 2 * 4 * 2 * 1e4 / 1e11
    assert tiled((1, 100, 100, 1e5), Tile(100, 100, 1.0), splits=(2,)) == pytest.approx(half)
    # a batch of three splits into twelve parts, three waves on four units, and three times the partial sums
    three = 3 * 2 * 1e4 * 25_020 / 2e12 + 3 * 2 * 4 * 4 * 1e4 / 1e11
    assert tiled((3, 100, 100, 1e5), Tile(100, 100, 1.0), splits=(4,)) == pytest.approx(three)


# --- products and traffic -----------------------------------------------------------------------

# 10 x 2 tiles on ten units are two waves of depth 640 + 64 at the sustained rate of one unit
WAVES = 2 * 2 * 128 * 128 * (640 + 64)
PRODUCT = Kernel("gemm", FORWARD, 2.0 * 1280 * 256 * 640, 1e6, "bf16", (1, 1280, 256, 640))


def test_a_product_takes_its_waves_at_the_sustained_rate() -> None:
    assert took(PRODUCT) == pytest.approx(WAVES / (1e14 * 0.5 / 10))
    assert took(replace(PRODUCT, dtype="fp32")) == pytest.approx(WAVES / (1e13 * 0.8 / 10))
    assert took(replace(PRODUCT, kind="grouped_gemm")) == pytest.approx(WAVES / (5e12 * 0.5))


def test_work_that_dims_do_not_say_keeps_their_inefficiency() -> None:
    half = replace(PRODUCT, flops=PRODUCT.flops / 2)
    assert took(half) == pytest.approx(took(PRODUCT) / 2)
    bare = replace(PRODUCT, shape=())
    assert took(bare, PRODUCT) == pytest.approx([PRODUCT.flops / 5e13, took(PRODUCT)])


def test_traffic_decides_where_it_takes_longer() -> None:
    assert took(replace(PRODUCT, bytes=1e9)) == pytest.approx(1e9 / (1e12 * 0.5))
    rows = Kernel("embedding", FORWARD, 0.0, 1e9, "fp32")
    assert took(rows) == pytest.approx(1e9 / (1e12 * 0.25))
    arithmetic = Kernel("memory", FORWARD, 1e12, 1e6, "fp32")
    assert took(arithmetic) == pytest.approx(1e12 / (1e13 * 0.1))


def test_partial_sums_of_a_split_depth_go_through_memory() -> None:
    """One tile on ten units: five parts of 20,000, written and read in fp32 at half of 1 TB/s."""
    deep = Kernel("gemm", FORWARD, 2.0 * 128 * 128 * 1e5, 1.0, "bf16", (1, 128, 128, 100_000))
    parts = 2 * 128 * 128 * (20_000 + 64) / 5e12 + 2 * 4 * 5 * 128 * 128 / 0.5e12
    assert took(deep, table=known(splits=[5])) == pytest.approx(parts)


def test_units_that_a_device_does_not_state_are_the_tables() -> None:
    # twenty units take the twenty tiles in one wave, each at a twentieth of the rate
    assert took(PRODUCT, on=replace(HAND, compute_units=None)) == pytest.approx(WAVES / 2 / 2.5e12)


# --- convolutions -------------------------------------------------------------------------------

GROUPED = (2, 140, 128, 10, 64, 3, 2, 1, 2)  # 1280 output pixels, windows of 70·6 values


@pytest.mark.parametrize(
    ("phase", "waves", "depth"),
    [
        (FORWARD, 2, 420),  # two groups of 1280 x 64 with depth 420: 2·10·1 tiles
        (WEIGHT_GRADIENT, 1, 1280),  # 64 x 420 with the pixels as depth: 2·1·4 tiles
        (INPUT_GRADIENT, 2, 384),  # 1280 x 70 with 64·6 as depth: 2·10·1 tiles
    ],
)
def test_a_convolution_is_an_implicit_product_per_group(phase: str, waves: int, depth: int) -> None:
    one = Kernel("conv", phase, 2.0 * 2 * 1280 * 64 * 420, 1e3, "bf16", GROUPED)
    assert took(one) == pytest.approx(waves * 2 * 128 * 128 * (depth + 64) / (1e14 * 0.4 / 10))


def gain(*shape: int, dtype: str = "fp32", **changes: Any) -> float:
    """How much quicker a convolution is than by the general algorithm."""
    one = Kernel("conv", FORWARD, 1e12, 1e3, dtype, shape)
    plain = known(**changes, special_convolutions={**DATA["special_convolutions"], "dtypes": []})
    return float(took(one, table=plain) / took(one, table=known(**changes)))


def test_which_convolutions_have_an_algorithm_of_their_own() -> None:
    assert gain(2, 64, 64, 7, 9, 3, 3, 1, 1) == pytest.approx(1.5)
    assert gain(2, 64, 64, 9, 6, 3, 3, 1, 1) == pytest.approx(1.0)  # output too small
    assert gain(2, 64, 64, 9, 9, 3, 3, 2, 1) == pytest.approx(1.0)
    assert gain(2, 64, 64, 9, 9, 3, 3, 1, 2) == pytest.approx(1.0)
    assert gain(2, 64, 64, 9, 9, 3, 1, 1, 1) == pytest.approx(1.0)
    # a product of matrices, at the rate of products: 0.8 of peak against 0.25
    assert gain(2, 64, 64, 5, 5, 1, 1, 1, 1) == pytest.approx(0.8 / 0.25)
    assert gain(2, 64, 64, 5, 5, 1, 1, 2, 1) == pytest.approx(1.0)
    assert gain(2, 64, 64, 9, 9, 3, 3, 1, 1, dtype="bf16") == pytest.approx(1.0)
    assert gain() == pytest.approx(1.0)  # no dims are told
    slow_products = {"made-up": {**ROW, "gemm": {"other": 0.2}}}
    assert gain(2, 64, 64, 5, 5, 1, 1, 1, 1, devices=slow_products) == pytest.approx(1.0)


# --- attention ----------------------------------------------------------------------------------

# 2·3 heads of ceil(300 / 128) blocks are 18 on ten units: two waves, 20 / 18 of the time
IDLE = 20 / 18
DENSE = 2.0 * 2 * 3 * 300 * 512 * 64  # FLOP of one product


def fused(flops: float, phase: str = FORWARD, head: int = 64, kind: str = "attention") -> Kernel:
    return Kernel(kind, phase, flops, 1.0, "bf16", (2, 3, 3, 300, 512, head))


def test_attention_pays_for_short_rows_idle_units_and_narrow_heads() -> None:
    # all 512 keys are seen, and half the rate is reached at 128
    whole = 2 * DENSE / (1e14 * 0.5) * (1 + 128 / 512) * IDLE / 0.8
    assert took(fused(2 * DENSE)) == pytest.approx(whole)
    half = DENSE / (1e14 * 0.5) * (1 + 128 / 256) * IDLE / 0.8
    assert took(fused(DENSE)) == pytest.approx(half)
    # more than the dense product is no longer row
    assert took(fused(4 * DENSE)) == pytest.approx(2 * whole)
    back = 5 * DENSE / (1e14 * 0.25) * (1 + 128 / 512) * IDLE / 0.8
    assert took(fused(5 * DENSE, INPUT_GRADIENT)) == pytest.approx(back)
    wide = 2 * DENSE * 65 / 64
    assert took(fused(wide, head=65)) == pytest.approx(wide / 5e13 * 1.25 * IDLE)


def test_attention_by_another_implementation_and_without_dims() -> None:
    assert took(fused(2 * DENSE, kind="attention_cudnn")) == pytest.approx(2 * DENSE / 6e13 * IDLE)
    bare = replace(fused(DENSE), shape=())
    assert took(bare) == pytest.approx(DENSE / 5e13)
    assert took(bare, fused(DENSE))[1] == pytest.approx(took(fused(DENSE)))
    few = took(fused(2 * DENSE), on=replace(HAND, compute_units=None))  # 18 blocks on twenty units
    assert few == pytest.approx(2 * DENSE / 5e13 * 1.25 * IDLE / 0.8)


# --- which row, and how certain -----------------------------------------------------------------


def test_the_row_of_a_device_its_architecture_or_its_kind() -> None:
    table = known()
    own, is_own = table.of(replace(HAND, name="hand two"))
    assert (own.memory, own.vector, is_own) == (0.2, 0.1, True)
    assert table.of(HAND)[1]
    assert not table.of(replace(HAND, architecture="other"))[1]
    assert table.of(replace(HAND, architecture="other", kind="cpu"))[1]


def test_how_certain_a_kernel_is() -> None:
    strange = Kernel("sort", FORWARD, 1.0, 1.0, "fp32")
    found = Roofline(known()).seconds([PRODUCT, strange], HAND)
    assert found.spread.tolist() == [0.1, 0.3]
    assert not found.measured.any()
    assert found.notes == ()
    other = replace(HAND, architecture="other")
    unknown = Roofline(known()).seconds([PRODUCT, strange], other)
    assert unknown.spread.tolist() == [0.2, 0.6]
    assert unknown.notes == ("No measured efficiencies for Hand; using those of gpu.",)
    assert unknown.source == ("roofline, efficiencies of gpu",) * 2


def test_a_format_runs_in_the_first_one_there_is() -> None:
    eight = replace(PRODUCT, dtype="fp8")
    found = Roofline(known()).seconds([PRODUCT, eight], HAND)
    assert found.seconds[0] == found.seconds[1]
    assert [note.split(";")[0] for note in found.notes] == ["Hand has no fp8 units"]
