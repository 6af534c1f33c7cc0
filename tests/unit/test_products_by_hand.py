"""Measured products, plain and grouped, from tables made up so that every term can be worked out by hand."""

from __future__ import annotations

from base64 import b64encode
from dataclasses import replace
from math import exp, log
from typing import Any
from zlib import compress

import numpy as np
import pytest
from support.hand_device import HAND

from foretrain.cluster.catalog import devices
from foretrain.cluster.device import Device
from foretrain.cost.compute import gemm as products
from foretrain.cost.compute import grouped
from foretrain.cost.compute.base import Estimate, Hardware, Kin
from foretrain.cost.compute.gemm import GemmTable, on_another, sustained_seconds
from foretrain.cost.compute.grouped import Grouped, products_seconds
from foretrain.model.ops.base import FORWARD, Kernel

KNOTS = np.log([1.0, 16.0])
CORNERS = np.add.outer(np.add.outer([0.0, 1.0], [0.0, 2.0]), [0.0, 4.0])  # [m, n, k], linear …
CORNERS[1, 1, 1] += 8.0  # … but for one corner


def table(**changes: Any) -> GemmTable:
    plain = GemmTable(
        "hand", "bf16", "by hand", peak=1e14, bandwidth=1e12, units=4.0, tiles=(), knots=(KNOTS,) * 3,
        grid=CORNERS, spread=0.1,
    )  # fmt: skip
    return replace(plain, **changes)


def logs(batch: float, m: float, n: float, k: float, **changes: Any) -> float:
    """The logarithm of seconds that a table says."""
    asked = (np.array([dim]) for dim in (batch, m, n, k))
    return float(np.log(table(**changes).seconds(*asked)[0]))


# --- tables of plain products ------------------------------------------------------------------


def test_the_table_is_linear_between_knots_in_the_logarithms() -> None:
    # 2, 4 and 8 lie a quarter, half and three quarters of the way from 1 to 16
    assert logs(1, 2, 4, 8) == pytest.approx(0.25 + 1.0 + 3.0 + 8 * 0.25 * 0.5 * 0.75)
    assert logs(1, 16, 1, 16) == pytest.approx(5.0)
    three = np.log([1.0, 4.0, 64.0])
    bent = np.zeros((3, 2, 2)) + np.array([0.0, 1.0, 5.0])[:, None, None]
    assert logs(1, 2, 1, 1, knots=(three, KNOTS, KNOTS), grid=bent) == pytest.approx(0.5)
    assert logs(1, 16, 1, 1, knots=(three, KNOTS, KNOTS), grid=bent) == pytest.approx(3.0)
    assert logs(1, 4, 1, 1, knots=(three, KNOTS, KNOTS), grid=bent) == pytest.approx(1.0)


def test_beyond_the_table_time_grows_as_the_work_does() -> None:
    # without waves the whole of every dim, with them the part that waves do not hold already
    assert logs(1, 32, 1, 64) == pytest.approx(5.0 + log(2) + log(4))
    waved = {"tiles": ((100.0, 100.0, 0.75),), "units": 1000.0}
    assert logs(1, 32, 1, 64, **waved) == pytest.approx(5.0 + 0.25 * log(2) + log(4))


def test_waves_of_tiles_count_by_their_share() -> None:
    # 2 x 3 tiles of 8 x 4 on four units are two waves, of 4 x 2 tiles of 4 x 6 too; one tile is one
    tiles = ((8.0, 4.0, 0.5), (4.0, 6.0, 0.25))
    flat = {"grid": np.zeros((2, 2, 2)), "tiles": tiles}
    assert logs(1, 15, 11, 1, **flat) == pytest.approx(0.75 * log(2))
    assert logs(1, 8, 4, 1, **flat) == pytest.approx(0.0)
    assert logs(4, 3, 3, 1, **flat) == pytest.approx(0.0)  # one tile of each of the batch
    assert logs(5, 3, 3, 1, **flat) == pytest.approx(0.75 * log(2))


def test_a_batch_lengthens_the_longer_side_or_is_an_axis() -> None:
    assert logs(4, 4, 2, 1) == pytest.approx(logs(1, 16, 2, 1))
    assert logs(4, 2, 4, 1) == pytest.approx(logs(1, 2, 16, 1))
    assert logs(4, 2, 2, 1) == pytest.approx(logs(1, 8, 2, 1))
    batched = {"knots": (KNOTS,) * 4, "grid": np.stack([CORNERS, CORNERS + 3.0])}
    assert logs(4, 2, 4, 8, **batched) == pytest.approx(logs(1, 2, 4, 8) + 1.5)


def test_a_table_is_read_from_its_steps() -> None:
    """Rises of 1 and 300 along n, of a step of 0.5 each, over a low of -8."""
    rises = np.array([[[1, 300], [2, 5]]], dtype=np.uint32)
    planes = np.concatenate([(rises % 256).ravel(), (rises // 256).ravel()]).astype(np.uint8)
    data = {
        "device": "hand", "form": "bf16", "source": "us", "peak": 1.0, "bandwidth": 2.0, "units": 3.0,
        "tiles": [[128, 64, 0.5]], "spread": 0.1, "m": [4], "n": [1, 8], "k": [2, 16], "low": -8.0, "step": 0.5,
        "grid": b64encode(compress(planes.tobytes())).decode(),
    }  # fmt: skip
    read = GemmTable.read(data)
    assert read.grid.tolist() == [[[-7.5, 142.5], [-7.0, -4.5]]]
    assert [knots.tolist() for knots in read.knots] == [[log(4)], [0, log(8)], [log(2), log(16)]]
    assert (read.start, read.waved) == (pytest.approx(exp(-7.5)), 0.5)


# --- carried over to a device -------------------------------------------------------------------


def test_a_product_slows_by_what_bounds_it() -> None:
    """Half the arithmetic and 2/3 of the memory: 2.0 and 1.5 times as long."""

    def on(slower: float, narrower: float, arithmetic: float, traffic: float) -> float:
        one = (np.array([x]) for x in (1.0, arithmetic, traffic))
        return float(on_another(*one, slower, narrower)[0])

    assert on(2.0, 1.5, arithmetic=0.9, traffic=0.1) == pytest.approx(1.8)
    assert on(2.0, 1.5, arithmetic=0.5, traffic=0.9) == pytest.approx(1.5)
    assert on(2.0, 1.5, arithmetic=7.0, traffic=0.9) == pytest.approx(2.0)
    assert on(1.5, 2.0, arithmetic=0.1, traffic=0.9) == pytest.approx(1.8)
    assert on(1.5, 2.0, arithmetic=0.9, traffic=0.5) == pytest.approx(1.5)
    assert on(1.5, 2.0, arithmetic=0.9, traffic=7.0) == pytest.approx(2.0)
    assert on(1.0, 2.0, arithmetic=0.9, traffic=0.9) == pytest.approx(1.8)
    assert on(2.0, 1.0, arithmetic=0.9, traffic=0.9) == pytest.approx(1.8)
    assert on(1.0, 1.0, arithmetic=0.1, traffic=0.1) == 1.0


CONSTANTS = {
    "reached": {"arithmetic": 0.5, "memory": 0.25}, "streaming": 0.8, "stand_in_spread": 0.05, "kept_up": 0.75,
    "power": {"from": 0.2, "full": 0.6}, "sustained": {"kin": {"bf16": 0.5}}, "boards": {}, "inside": {},
}  # fmt: skip
START = 1e-4
PRODUCT = Kernel("gemm", FORWARD, 2.0 * 1e9, 1e3, "bf16", (1, 1000, 1000, 1000))


@pytest.fixture
def flat(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every product takes a millisecond, 0.1 ms of it for the start."""
    wide = (np.log([1.0, 1e6]),) * 3
    one = table(knots=wide, grid=np.full((2, 2, 2), log(1e-3)), start=START)
    monkeypatch.setattr(products, "constants", lambda: CONSTANTS)
    monkeypatch.setattr(products, "table_of", lambda device, _: (one, KIN[device.name]))


KIN = {"hand": Kin("hand", "own"), "far": Kin("hand", "generation"), "near": Kin("kin", "chip")}


def estimate(*kernels: Kernel, on: Device = HAND, dtype: str = "bf16") -> Estimate:
    found = products.estimate(kernels, on, dtype)
    assert found is not None
    return found


def took(one: Kernel, on: Device = HAND, dtype: str = "bf16") -> float:
    return float(estimate(one, on=on, dtype=dtype).seconds[0])


@pytest.mark.usefixtures("flat")
def test_what_dims_do_not_say_keeps_their_inefficiency_beyond_the_start() -> None:
    assert took(PRODUCT) == pytest.approx(1e-3)
    assert took(replace(PRODUCT, flops=4e9)) == pytest.approx(START + 2 * 9e-4)
    assert took(replace(PRODUCT, flops=1e9)) == pytest.approx(START + 9e-4 / 2)
    assert took(replace(PRODUCT, flops=0.0, shape=(1, 0, 8, 8))) == pytest.approx(START)
    cube = replace(PRODUCT, shape=(), flops=5e8)
    assert took(cube) == pytest.approx(1e-3)


@pytest.mark.usefixtures("flat")
def test_traffic_is_a_floor_and_what_is_added_comes_on_top() -> None:
    assert took(replace(PRODUCT, bytes=8e9)) == pytest.approx(8e9 / 0.8e12)
    # of 8 GB a quarter is the buffer that the product is added to
    both = replace(PRODUCT, bytes=8e9, added=2e9)
    assert took(both) == pytest.approx((6e9 + 2e9) / 0.8e12)
    assert took(replace(PRODUCT, bytes=8e8, added=8e8)) == pytest.approx(1e-3 + 1e-3)


@pytest.mark.usefixtures("flat")
def test_a_board_with_other_rates() -> None:
    """What bounds a product is told by half of the measured board's peak and a quarter of its bandwidth."""
    slow = replace(HAND.scaled(compute=0.5), name="hand")
    heavy = replace(PRODUCT, flops=2.0 * 4e10, shape=(1, 1000, 1000, 40000))
    assert took(heavy, slow) == pytest.approx(2e-3)  # arithmetic alone would take 1.6 ms
    light = replace(PRODUCT, flops=2.0 * 1.5e10, shape=(1, 1000, 1000, 15000))
    assert took(light, slow) == pytest.approx(2 * 0.6e-3)  # 3e10 FLOP at half of 1e14
    assert took(PRODUCT, slow) == pytest.approx(1e-3)
    narrow = HAND.scaled(memory_bandwidth=0.25)
    # 125 MB at a quarter of the table's 1 TB/s take half of the time, which becomes four times as long
    assert took(replace(PRODUCT, bytes=1.25e8), narrow) == pytest.approx(4 * 0.5e-3)
    assert took(replace(PRODUCT, bytes=2e7), narrow) == pytest.approx(1e-3)


@pytest.mark.usefixtures("flat")
def test_whose_table_it_is_and_how_certain() -> None:
    own, far = estimate(PRODUCT), estimate(PRODUCT, on=replace(HAND, name="far"))
    assert (own.measured.tolist(), own.spread.tolist(), own.notes) == ([True], [0.1], ())
    assert far.measured.tolist() == [False]
    assert far.spread[0] == pytest.approx(0.15)
    assert far.notes == (
        "No GEMM measurements for Hand; using those of hand, scaled by peak FLOP/s.",
    )
    twice = replace(HAND, peak_flops=(("tf32", 5e13),))
    heavy = replace(PRODUCT, dtype="tf32", flops=2.0 * 2e10, shape=(1, 1000, 1000, 20000))
    deeper = estimate(heavy, on=twice, dtype="tf32")
    assert deeper.measured.tolist() == [False]  # a 16-bit product of twice the depth
    assert deeper.seconds[0] == pytest.approx(1e-3)
    assert deeper.spread[0] == pytest.approx(0.15)


def test_a_tf32_product_is_a_16_bit_one_of_twice_the_depth(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "table_of", lambda *_: (table(start=0.0), KIN["hand"]))
    twice = replace(HAND, peak_flops=(("tf32", 5e13), ("bf16", 1e14)))
    one = Kernel("gemm", FORWARD, 2.0 * 2 * 4 * 4, 1.0, "tf32", (1, 2, 4, 4))
    assert took(one, twice, "tf32") == pytest.approx(exp(logs(1, 2, 4, 8)))
    assert took(replace(one, dtype="bf16"), twice) == pytest.approx(exp(logs(1, 2, 4, 4)))


# --- long runs ----------------------------------------------------------------------------------


def test_clocks_fall_as_far_as_units_are_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "constants", lambda: CONSTANTS)
    ideal = np.array([0.1, 0.3, 0.5, 0.9]) * 2.0
    took = sustained_seconds(np.full(4, 2.0), ideal, 0.5)
    assert took.tolist() == pytest.approx([2.0, 2.5, 3.5, 4.0])
    assert sustained_seconds(np.full(4, 2.0), ideal, 1.0).tolist() == [2.0] * 4


@pytest.mark.usefixtures("flat")
def test_what_a_board_holds_over_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    near = replace(HAND, name="near")
    busy = replace(PRODUCT, flops=4e10, shape=(1, 1000, 1000, 20000))  # 0.4 of peak in 1 ms
    assert took(busy) == pytest.approx(1e-3)
    assert took(busy, near) == pytest.approx(1.5e-3)  # half way from 0.2 to 0.6, to half the clock
    more = CONSTANTS | {"sustained": {}, "inside": {"near": {"bf16": 1.6}}, "boards": {"kin": {"fp16": 1.25}}}  # fmt: skip
    monkeypatch.setattr(products, "constants", lambda: more)
    assert took(PRODUCT) == pytest.approx(1e-3)
    assert took(PRODUCT, near) == pytest.approx(1e-3 / (1.25 * 1.6 * 0.75))


def test_the_nearest_table_wins_and_the_best_form_among_equals(monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    def whose(name: str, dtype: str) -> str:
        found = products.table_of(devices()[name], dtype)
        assert found is not None
        return f"{found[0].name}.{found[0].form} {found[1].nearness}"

    assert whose("h100-sxm5-80gb", "tf32") == "h100-sxm5-80gb.bf16 own"
    assert whose("l4", "bf16") == "l4.fp16 own"  # rather than the L40S, which has one in bf16
    assert whose("a10g", "bf16") == "a10g.fp16 own"
    assert whose("h100-sxm5-80gb", "mxfp8") == "h100-sxm5-80gb.fp8 own"
    assert products.table_of(devices()["h100-sxm5-80gb"], "int8") is None
    monkeypatch.setattr(products, "_measured", lambda: dict.fromkeys(("bf16", "fp16"), ("hand",)))
    monkeypatch.setattr(products, "_read", lambda name: name)
    formats = {dtype: products.table_of(HAND, dtype) for dtype in ("tf32", "fp16")}
    assert formats == {"tf32": ("hand.bf16", KIN["hand"]), "fp16": ("hand.fp16", KIN["hand"])}


# --- many experts in one launch -----------------------------------------------------------------

SPEED = Grouped(
    rate=0.5, smaller=(0.5, 0.25), fill=24.0, tail=0.0, memory=0.5, start=1e-5, spread=0.2
)
UNITS = Hardware(units=8.0, peak=8e12, bandwidth=1e12)
BIGGEST = 2 * 128 * 256 * 1024 / 0.5e12  # seconds of a tile of 128 x 256 with depth 1000 + 24


def experts(
    shape: tuple[float, ...], speed: Grouped = SPEED, work: float = 1.0, moved: float = 0.0
) -> float:
    nominal = 2.0 * float(np.prod(shape))
    columns = (np.array([x]) for x in (shape, nominal * work, moved))
    return float(products_seconds(*columns, speed, UNITS)[0])


def test_tiles_of_all_experts_share_the_units_in_waves() -> None:
    # four experts of one tile are half a wave, which takes as long as a whole one; 24 are three waves
    assert experts((4, 100, 200, 1000)) == pytest.approx(BIGGEST)
    assert experts((12, 100, 500, 1000)) == pytest.approx(3 * BIGGEST)
    assert experts((6, 200, 200, 1000)) == pytest.approx(1.5 * BIGGEST)
    assert experts((6, 200, 200, 1000), replace(SPEED, tail=0.5)) == pytest.approx(1.75 * BIGGEST)
    assert experts((4, 100, 200, 1000), work=0.5) == pytest.approx(BIGGEST / 2)


def test_the_best_of_the_tiles_counts() -> None:
    # 4 x 2 tiles of 128 x 128 are one wave of half the work at 0.8 of the rate
    half = replace(SPEED, smaller=(0.8, 0.3))
    assert experts((4, 100, 200, 1000), half) == pytest.approx(BIGGEST / 2 / 0.8)
    # 4 x 2 x 2 tiles of 64 x 128 are two waves of a quarter of the work at 0.9
    small = replace(SPEED, smaller=(0.5, 0.9))
    assert experts((4, 100, 200, 1000), small) == pytest.approx(2 * BIGGEST / 4 / 0.9)


def test_arithmetic_and_traffic_overlap_less_the_nearer_they_are() -> None:
    moved = BIGGEST * 1e12 * 0.5
    assert experts((4, 100, 200, 1000), moved=moved) == pytest.approx(BIGGEST * 2**0.25)
    assert experts((4, 100, 200, 1000), work=0.0, moved=moved) == pytest.approx(BIGGEST)


def test_an_expert_layer_starts_is_added_and_never_beats_its_batched_product(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(grouped, "_measured", lambda: {"bf16": ("hand",)})
    monkeypatch.setattr(grouped, "_speed", lambda *_: replace(SPEED, rate=0.05))
    monkeypatch.setattr(grouped, "kin_of", lambda device, _: KIN[device.name])
    monkeypatch.setattr(products, "estimate", lambda *_: None)
    monkeypatch.setattr(products, "constants", lambda: CONSTANTS)
    one = Kernel("grouped_gemm", FORWARD, 2.0 * 1e8, 1e3, "bf16", (5, 100, 200, 1000))
    tile = 2 * 128 * 256 * 1024 / (1e14 * 0.05 / 10)  # half a wave of the hand's ten units

    def seconds(kernel: Kernel, on: Device = HAND) -> Estimate:
        found = grouped.estimate([kernel], on, "bf16")
        assert found is not None
        return found

    assert seconds(one).seconds[0] == pytest.approx(1e-5 + tile)
    added = replace(one, bytes=1e3 + 8e8, added=8e8)
    assert seconds(added).seconds[0] == pytest.approx(1e-5 + tile + 1e-3)
    # eight cubes where no dims are told: 2·8·500³ FLOP, 32 tiles of 128 x 256 in 6.4 waves of depth 500 + 24
    cubes = replace(one, flops=2.0 * 8 * 500**3, shape=())
    waves = 8 * 4 * 2 / 10
    assert seconds(cubes).seconds[0] == pytest.approx(1e-5 + waves * tile * 524 / 1024)
    few = replace(one, flops=2.0 * 8 * 100**3, shape=())  # eight tiles for ten units
    assert seconds(few).seconds[0] == pytest.approx(1e-5 + tile * 124 / 1024)
    own, far = seconds(one), seconds(one, replace(HAND, name="far"))
    assert (own.spread[0], own.measured[0]) == (0.2, True)
    assert (far.spread[0], far.measured[0]) == (pytest.approx(0.3), False)
    assert grouped.estimate([one], HAND, "fp32") is None
    assert grouped.estimate([one], replace(HAND, compute_units=None), "bf16") is None
    slow = Estimate(np.array([1.0]), np.array([0.1]), np.array([True]), "a batched product")
    monkeypatch.setattr(products, "estimate", lambda *_: slow)
    assert seconds(one).seconds[0] == 1.0
    monkeypatch.setattr(products, "estimate", lambda *_: None)
    monkeypatch.setattr(grouped, "sustained_seconds", lambda _, ideal, share: ideal * share)
    assert seconds(one).seconds[0] == pytest.approx(one.flops / 1e14)
