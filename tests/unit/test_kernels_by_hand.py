"""Attention and convolutions from tables made up so that every term can be worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from math import log
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support.hand_device import HAND

from foretrain.cluster.device import Device
from foretrain.cost.calibration.efficiencies import Tile
from foretrain.cost.compute import attention, conv
from foretrain.cost.compute.attention import AttentionGrid, Shapes, Speed
from foretrain.cost.compute.base import Estimate, Hardware, Kin
from foretrain.cost.compute.conv import Constants, ConvTable, Window, base_seconds
from foretrain.cost.compute.tiles import Units
from foretrain.model.ops.base import FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT, Kernel

OWN, FAR = Kin("hand", "own"), Kin("hand", "generation")


def known(found: Estimate | None) -> Estimate:
    assert found is not None
    return found


# --- attention ----------------------------------------------------------------------------------

SPEED = Speed(
    start=0.0, overhead=64.0, tail=0.0, memory=0.5, heads=np.array([64.0, 256.0]), rates=np.array([0.25, 1.0]),
    spread=0.1, is_measured=True,
)  # fmt: skip
BOARD = Hardware(units=8.0, peak=8e12, bandwidth=1e12)  # 1 TFLOP/s for each unit
KEY = (
    2 * 2 * 128 * 128 / (0.5 * 1e12)
)  # seconds that a block of 128 queries takes for a key, half way in log2


def fused(
    seq: int = 256, keys: int = 1024, head: int = 128, visible: float = 1.0, heads: int = 4, batch: int = 2
) -> Shapes:  # fmt: skip
    flops = 2 * 2.0 * batch * heads * seq * keys * head * visible
    columns = (np.array([float(x)]) for x in (batch, heads, seq, keys, head, flops, 0.0))
    return Shapes(*columns)


def took(shapes: Shapes, **changes: Any) -> float:
    return float(attention.seconds(shapes, replace(SPEED, **changes), BOARD, 2.0)[0])


def test_blocks_walk_over_their_keys_in_waves() -> None:
    # 2·4 heads of two blocks are two on each of eight units
    assert took(fused()) == pytest.approx(2 * (1024 + 64) * KEY)
    assert took(fused(seq=300)) == pytest.approx(3 * (1024 + 64) * KEY)
    assert took(fused(keys=1000)) == pytest.approx(
        2 * (1024 + 64) * KEY
    )  # filled up to blocks of 128
    assert took(fused(), start=1e-3) == pytest.approx(1e-3 + 2 * 1088 * KEY)


def test_what_a_mask_leaves_and_its_edge() -> None:
    # a quarter of the keys is seen, and 3/4 of one block is computed in vain
    assert took(fused(visible=0.25)) == pytest.approx(2 * (256 + 0.75 * 128 + 64) * KEY)
    # of few blocks the longest decides: half of a triangle's keys are seen by the mean block, all by the last
    few = fused(seq=128, heads=2, batch=1)
    assert took(replace(few, flops=few.flops / 2)) == pytest.approx((1024 + 64) * KEY)
    assert took(replace(few, flops=few.flops / 4)) == pytest.approx((512 + 64) * KEY)
    assert took(fused(batch=0)) == 0.0
    assert took(fused(visible=2.0)) == pytest.approx(2 * 2 * 1088 * KEY)  # no mask explains more


def test_the_end_of_the_last_wave_is_lost_as_far_as_nothing_fills_it() -> None:
    odd = fused(heads=6, batch=1)  # 12 blocks: one wave and a half
    assert took(odd) == pytest.approx(1.5 * 1088 * KEY)
    assert took(odd, tail=1.0) == pytest.approx(2 * 1088 * KEY)
    assert took(odd, tail=0.5) == pytest.approx(1.75 * 1088 * KEY)


def test_rates_by_head_size() -> None:
    # 64: a quarter of the rate, half the work; 40 is filled up to 64 and waits for exponentials besides
    assert took(fused(head=64)) == pytest.approx(2 * 1088 * KEY)
    assert took(fused(head=256)) == pytest.approx(2 * 1088 * KEY)
    assert took(fused(head=40)) == pytest.approx(2 * 1088 * KEY * 64 / 40)
    assert took(fused(head=65)) == pytest.approx(2 * 1088 * KEY * (96 / 128) * 128 / 65)


def test_traffic_decides_where_it_takes_longer() -> None:
    assert took(replace(fused(), moved=np.array([1e9]))) == pytest.approx(1e9 / 0.5e12)


def test_the_grid_is_bilinear_flat_outside_and_of_the_nearest_head() -> None:
    near = np.array([[0.0, 4.0, 5.0], [2.0, 12.0, 30.0], [9.0, 9.0, 9.0]])
    grid = AttentionGrid(
        heads=np.array([64.0, 128.0]), waves=np.array([0.0, 2.0, 3.0]), keys=np.array([8.0, 10.0, 14.0]),
        log=np.stack([near, near + 100.0]),
    )  # fmt: skip

    def at(head: float, waves: float, keys: float) -> float:
        return float(grid.at(*(np.array([x]) for x in (head, waves, keys)))[0])

    # log2 of 2 waves is half way from 0 to 2, of 2^8.5 keys a quarter from 8 to 10
    assert at(64, 2, 2**8.5) == pytest.approx(0.5 * (0.75 * 0 + 0.25 * 4) + 0.5 * (0.75 * 2 + 0.25 * 12))  # fmt: skip
    assert at(64, 2**0.5, 2**11) == pytest.approx(0.75 * (4 + 1 / 4) + 0.25 * (12 + 18 / 4))
    assert at(64, 4, 2**10) == pytest.approx(12)
    assert (at(64, 0.1, 4), at(64, 100, 4), at(64, 0, 2**20)) == (0.0, 9.0, 5.0)
    assert (at(90, 1, 256), at(91, 1, 256), at(512, 1, 256)) == (0.0, 100.0, 100.0)
    assert took(fused(), grid=replace(grid, log=np.zeros((2, 3, 3)) + log(3.0))) == pytest.approx(
        3 * 2 * 1088 * KEY
    )


@pytest.fixture
def one_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "kin_of", lambda device, _: FAR if device.name == "far" else OWN)
    monkeypatch.setattr(attention, "stored", lambda *_: {"implementations": {"flash": 0}})
    monkeypatch.setattr(attention, "_speed", lambda *_: SPEED)
    monkeypatch.setattr(attention, "sustained", lambda *_: 1.0)


@pytest.mark.usefixtures("one_speed")
def test_estimates_of_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten units at 1e13 FLOP/s each; 80 blocks of one wave of eight per unit."""
    flops = 2 * 2.0 * 2 * 20 * 256 * 1024 * 128
    one = Kernel("attention", FORWARD, flops, 0.0, "bf16", (2, 20, 4, 256, 1024, 128))
    wave = 8 * 1088 * 2 * 2 * 128 * 128 / (0.5 * 1e13)

    def found(kernel: Kernel, on: Device = HAND) -> Estimate:
        return known(attention.estimate([kernel], on, "bf16"))

    own = found(one)
    assert own.seconds[0] == pytest.approx(wave)
    assert (own.spread[0], own.measured[0], own.notes) == (0.1, True, ())
    assert own.source == "flash attention forward measured on hand"
    back = found(replace(one, phase=INPUT_GRADIENT, flops=flops * 2.5))
    assert back.seconds[0] == pytest.approx(2.5 * wave)
    older = found(
        replace(one, kind="attention_flash1")
    )  # twice as long, which nobody measured here
    assert older.seconds[0] == pytest.approx(2 * wave)
    assert (older.spread[0], older.measured[0]) == (pytest.approx(0.15), False)
    far = found(one, replace(HAND, name="far"))
    assert (far.spread[0], far.measured[0]) == (pytest.approx(0.15), False)
    # without dims: as many heads of 4096 queries and keys as the FLOPs make
    bare = replace(one, shape=(), flops=3 * 2 * 2.0 * 4096 * 4096 * 128)
    told = replace(bare, shape=(1, 3, 3, 4096, 4096, 128))
    assert found(bare).seconds[0] == found(told).seconds[0]
    least = replace(one, shape=(), flops=1e3)
    assert found(least).seconds[0] == found(replace(least, shape=(1, 1, 1, 4096, 4096, 128))).seconds[0]  # fmt: skip
    assert attention.estimate([one], replace(HAND, compute_units=None), "bf16") is None
    monkeypatch.setattr(attention, "sustained_seconds", lambda _, ideal, share: ideal * share)
    assert found(one).seconds[0] == pytest.approx(flops / 1e14)


def test_the_implementation_asked_for_or_what_stands_in_its_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        attention, "stored", lambda *_: {"implementations": {"flash": 0, "cudnn": 0}}
    )
    monkeypatch.setattr(attention, "_speed", lambda *asked: asked)
    names = [attention.speed_of("hand", wanted, "forward")[0] for wanted in ("cudnn", "flash3")]
    assert names == ["cudnn", "flash"]


# --- convolutions -------------------------------------------------------------------------------

CONSTANTS = Constants(
    rate=0.5, stream=0.5, fill=16.0, tiles=(Tile(64, 32, 1.0),), splits=(1,), align=8, vector=0.1, has_winograd=False,
)  # fmt: skip
FOUR = Units(count=4, flops=4e12, bandwidth=1e11, fill=16.0)  # 1 TFLOP/s for each unit
TILE = 2 * 64 * 32 / 1e12  # seconds for each of the depth


def direct(*shape: int, phase: str = FORWARD, **changes: Any) -> float:
    dims = np.array([shape], dtype=np.float64)
    return float(base_seconds(dims, phase, FOUR, replace(CONSTANTS, **changes))[0])


@pytest.mark.parametrize(
    ("phase", "waves", "depth"),
    [
        (FORWARD, 10, 24 * 6),  # 640 pixels x 128: 10·4 tiles, channels filled up from 20 to 24
        (WEIGHT_GRADIENT, 3, 640),  # 128 x 144: 2·5 tiles
        (
            INPUT_GRADIENT,
            10,
            128 * 6 / 4,
        ),  # a product for each of 2·2 places: 2560 pixels x 24, 40 tiles
    ],
)
def test_a_convolution_is_an_implicit_product(phase: str, waves: int, depth: float) -> None:
    one = direct(2, 20, 126, 10, 32, 3, 2, 2, 1, phase=phase)
    assert one == pytest.approx(waves * (depth + 16) * TILE)


def test_convolutions_in_groups_and_of_stride_one() -> None:
    # five groups of 640 pixels x 32 (filled up from 26) with depth 8·6 (from 4): 50 tiles
    assert direct(2, 20, 130, 10, 32, 3, 2, 1, 5) == pytest.approx(13 * (48 + 16) * TILE)
    # stride 1: one place, the whole window; 2x1 windows have no more than two places
    back = {"phase": INPUT_GRADIENT}
    assert direct(2, 20, 126, 10, 32, 3, 2, 1, 1, **back) == pytest.approx(3 * (128 * 6 + 16) * TILE)  # fmt: skip
    assert direct(2, 20, 126, 10, 32, 2, 1, 2, 1, **back) == pytest.approx(5 * (128 + 16) * TILE)


def test_a_split_depth_pays_for_its_partial_sums() -> None:
    few = (1, 8, 32, 8, 8, 10, 10, 1, 1)  # one tile of depth 800
    assert direct(*few) == pytest.approx(816 * TILE)
    parts = (200 + 16) * TILE + 2 * 4 * 4 * 64 * 32 / 1e11
    assert direct(*few, splits=(1, 4)) == pytest.approx(min(parts, 816 * TILE))
    assert direct(*few, splits=(4,)) == pytest.approx(parts)
    # three groups in halves: six tiles on four units, and three times the partial sums of two
    three = 2 * (400 + 16) * TILE + 2 * 4 * 2 * 3 * 64 * 32 / 1e11
    assert direct(1, 24, 96, 8, 8, 10, 10, 1, 3, splits=(2,)) == pytest.approx(three)
    assert direct(*few, tiles=(Tile(64, 32, 0.5), Tile(32, 32, 0.9))) == pytest.approx(
        816 * TILE / 2 / 0.9
    )


@pytest.mark.parametrize(
    ("phase", "waves", "depth"),
    [
        (FORWARD, 9, 20),  # 36 products of 2·2·3 tiles x 24 filters
        (INPUT_GRADIENT, 9, 24),  # … x 20 channels
        (WEIGHT_GRADIENT, 9, 12),  # 20 x 24 over the tiles
    ],
)
def test_winograd_multiplies_less_and_moves_its_tiles(phase: str, waves: int, depth: int) -> None:
    """F(4x4, 3x3): 36 products for 16 outputs, the transformed tiles written and read (Lavin and Gray 2016)."""
    one = (2, 20, 24, 5, 10, 3, 3, 1, 1)
    values = 2 * 5 * 10 * 44 + 2 * 36 * (12 * 44 + 20 * 24)
    expected = waves * (depth + 16) * TILE + 4 * values / 1e11
    slow = {"phase": phase, "align": 10_000}  # the implicit product takes long
    assert direct(*one, **slow, has_winograd=True) == pytest.approx(expected)
    assert direct(*one, **slow) > 10 * expected
    both = base_seconds(np.array([one, (*one[:7], 2, 1)], dtype=np.float64), phase, FOUR, replace(CONSTANTS, align=10_000, has_winograd=True))  # fmt: skip
    assert both[0] == pytest.approx(expected)
    assert both[1] == direct(*one[:7], 2, 1, **slow)
    for other in ((*one[:7], 2, 1), (*one[:7], 1, 2), (*one[:5], 1, 3, 1, 1), (*one[:5], 3, 1, 1, 1)):  # fmt: skip
        assert direct(*other, **slow, has_winograd=True) == direct(*other, **slow)


def test_kinds_of_convolutions() -> None:
    shapes = {
        "depthwise": (1, 64, 64, 9, 9, 3, 3, 1, 2), "stem": (1, 4, 64, 9, 9, 3, 3, 1, 1), "3x3": (1, 5, 64, 9, 9, 3, 3, 1, 1),
        "1x1": (1, 5, 64, 9, 9, 1, 1, 2, 1), "strided": (1, 5, 64, 9, 9, 3, 3, 2, 1), "other": (1, 5, 64, 9, 9, 5, 5, 1, 1),
    }  # fmt: skip
    assert conv.kinds(np.array(list(shapes.values()), dtype=np.float64)).tolist() == list(shapes)


def test_features_are_in_the_direction_of_the_phase() -> None:
    one = np.array([[2, 16, 64, 4, 16, 3, 3, 1, 1]], dtype=np.float64)
    assert conv.features(one, FORWARD).tolist() == [[4, 6, 7, 3]]
    assert conv.features(one, INPUT_GRADIENT).tolist() == [[6, 4, 7, 3]]


WINDOW = Window(
    low=np.zeros(4), high=np.full(4, 8.0), hinges=np.array([[2.0], [4.0], [6.0], [7.0]]),
    weights=np.arange(1.0, 20.0),
)  # fmt: skip


def test_the_window_is_a_quadratic_with_hinges_and_flat_outside() -> None:
    x = np.array([[3.0, 5.0, 1.0, 8.0]])
    middle = [-1.0, 1.0, -3.0, 4.0]
    squares = [middle[i] * middle[j] for i in range(4) for j in range(i, 4)]
    columns = [1.0, *middle, *squares, 1.0, 1.0, 0.0, 1.0]
    assert WINDOW.terms(x).tolist() == [columns]
    assert WINDOW.at(x)[0] == pytest.approx(np.dot(columns, np.arange(1.0, 20.0)))
    assert WINDOW.at(np.array([[3.0, 5.0, 1.0, 99.0]])) == WINDOW.at(x)


def table(**changes: Any) -> ConvTable:
    kinds = {"3x3": 2.0, "1x1": 3.0, "depthwise": 1.0, "stem": 5.0, "other": 4.0}
    phases = {FORWARD: 1.0, INPUT_GRADIENT: 1.5, WEIGHT_GRADIENT: 2.5}
    plain = ConvTable(
        constants=CONSTANTS,
        factors={kind: {phase: one * times for phase, times in phases.items()} for kind, one in kinds.items()},
        log2_flops=np.array([20.0, 24.0]), small=np.array([log(4.0), 0.0]), window=None,
        measured=frozenset({("1x1", FORWARD)}), spread=0.3, start_seconds=1e-6, source="by hand",
    )  # fmt: skip
    return replace(plain, **changes)


def of_hand(monkeypatch: pytest.MonkeyPatch, kin: Kin = OWN, **changes: Any) -> Any:
    """Estimates of convolutions from a table, beside the start."""
    monkeypatch.setattr(conv, "read", lambda *_: table(**changes))
    monkeypatch.setattr(conv, "kin_of", lambda *_: kin)
    monkeypatch.setattr(
        conv, "devices", lambda: {"hand": HAND, "other": replace(HAND, name="other")}
    )

    def estimate(shape: tuple[int, ...], phase: str = FORWARD, share: float = 1.0, moved: float = 1.0) -> Estimate:  # fmt: skip
        flops = 2.0 * np.prod(shape[:7]) / shape[8] * share
        found = known(conv.estimate([Kernel("conv", phase, flops, moved, "fp32", shape)], HAND, "fp32"))  # fmt: skip
        return replace(found, seconds=found.seconds - 1e-6)

    return estimate


UNIT = 2 * 64 * 32 / (0.5e13 / 10)  # seconds of a tile for each of the depth, on a unit of the hand


def test_estimates_of_convolutions(monkeypatch: pytest.MonkeyPatch) -> None:
    estimate = of_hand(monkeypatch)
    point = (2, 64, 128, 64, 64, 1, 1, 1, 1)  # 128·4 tiles of depth 64 on ten units: 52 waves
    base = 52 * (64 + 16) * UNIT
    assert estimate(point).seconds[0] == pytest.approx(base * 3.0)  # more than 2^24 FLOP: large
    assert estimate(point, INPUT_GRADIENT).seconds[0] == pytest.approx(26 * 144 * UNIT * 4.5)
    assert estimate(point, share=0.5).seconds[0] == pytest.approx(base * 3.0 / 2)
    small = (2, 64, 128, 4, 4, 1, 1, 1, 1)  # 2^19 FLOP: one wave, and four times that
    assert estimate(small).seconds[0] == pytest.approx(80 * UNIT * 3.0 * 4.0)
    # half way from 2^20 to 2^24: the same in the logarithm
    middle = (2, 64, 128, 8, 16, 1, 1, 1, 1)
    assert estimate(middle).seconds[0] == pytest.approx(2 * 80 * UNIT * 3.0 * 2.0)
    strided = (2, 64, 128, 64, 64, 5, 5, 2, 1)  # … the FLOPs of which the stride says nothing
    assert estimate(strided).seconds[0] == pytest.approx(52 * (64 * 25 + 16) * UNIT * 4.0)
    assert estimate(point, moved=1e10).seconds[0] == pytest.approx(1e10 / 0.5e12)


def test_partial_sums_go_through_memory_and_dims_are_asked_of_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    estimate = of_hand(monkeypatch, constants=replace(CONSTANTS, splits=(4,)))
    deep = (1, 1024, 32, 8, 8, 5, 5, 1, 1)  # one tile of depth 25,600 in four parts
    parts = (6400 + 16) * UNIT + 2 * 4 * 4 * 64 * 32 / 0.5e12
    assert estimate(deep).seconds[0] == pytest.approx(parts * 4.0)
    kernels = [Kernel("conv", FORWARD, 1e9, 1.0, "fp32", shape) for shape in (deep, ())]
    assert conv.estimate(kernels, HAND, "fp32") is None


def test_how_certain_convolutions_are(monkeypatch: pytest.MonkeyPatch) -> None:
    point, square, deep = ((2, 64, 64, 9, 9, s, s, 1, g) for s, g in ((1, 1), (3, 1), (3, 64)))
    estimate = of_hand(monkeypatch)
    assert (estimate(point).spread[0], estimate(point).measured[0]) == (0.3, True)
    assert estimate(square).spread[0] == pytest.approx((0.3**2 + 0.25**2) ** 0.5)
    assert not estimate(square).measured[0]
    assert estimate(deep).spread[0] == 0.5
    far = of_hand(monkeypatch, FAR)(point)
    assert (far.spread[0], far.measured[0]) == (pytest.approx(0.45), False)


def test_depthwise_convolutions_may_be_plain_vector_arithmetic(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    deep = (32, 64, 64, 32, 32, 3, 3, 1, 64)
    flops = 2.0 * 32 * 64 * 1024 * 9
    quick = of_hand(monkeypatch, constants=replace(CONSTANTS, rate=0.01))
    assert quick(deep).seconds[0] == pytest.approx(flops / (1e13 * 0.1))
    slow = of_hand(monkeypatch, constants=replace(CONSTANTS, vector=1e-6))
    # 64 groups of 512 x 1 tiles of depth 8·9 on ten units
    waves = np.ceil(64 * 512 / 10)
    assert slow(deep).seconds[0] == pytest.approx(waves * (72 + 16) * UNIT)


def test_the_window_corrects_three_by_three_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """But for weight gradients; log 7 in the middle of the measured range, where nothing else counts."""
    middle = np.full(4, 20.0)
    window = Window(-middle, middle, np.full((4, 1), 20.0), np.array([log(7.0)] + [0.0] * 18))
    plain, corrected = {}, {}
    shapes = {side: (2, 64, 128, 64, 64, side, side, 1, 1) for side in (1, 3)}
    for found, changes in ((plain, {}), (corrected, {"window": window})):
        estimate = of_hand(monkeypatch, **changes)
        found.update({(side, p): estimate(shapes[side], p).seconds[0] for side in shapes for p in (FORWARD, WEIGHT_GRADIENT)})  # fmt: skip
    times = {key: corrected[key] / plain[key] for key in plain}
    assert times[3, FORWARD] == pytest.approx(7.0)
    assert times[3, WEIGHT_GRADIENT] == times[1, FORWARD] == 1.0
    small = (1, 8, 8, 8, 8, 3, 3, 1, 1)  # what small convolutions take more is in the window
    ratio = of_hand(monkeypatch, window=window)(small).seconds[0] / of_hand(monkeypatch)(small).seconds[0]  # fmt: skip
    assert ratio == pytest.approx(7.0 / 4.0)


def test_what_training_runs_say_beside_the_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    point = (2, 64, 128, 64, 64, 1, 1, 1, 1)
    plain = of_hand(monkeypatch)(point).seconds[0]
    said: dict[str, Any] = {"most": {}, "tried": {"hand": {"fp32": 0.5}}}
    monkeypatch.setattr(conv, "load_own_yaml", lambda _: said)
    assert of_hand(monkeypatch)(point).seconds[0] == pytest.approx(plain / 2)
    assert of_hand(monkeypatch, Kin("other", "chip"))(point).seconds[0] == pytest.approx(plain / 2)
    said["most"] = {"kin": {"fp32": 0.01}}  # by the name of the kin
    ideal = 2.0 * 8192 * 64 * 128 / 1e13
    assert of_hand(monkeypatch, Kin("kin", "chip"))(point).seconds[0] == pytest.approx(ideal / 0.01)


def test_another_generation_reaches_another_share_of_its_peak(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shares = {"hand": 0.8, "other": 0.4}
    rows = {
        name: (SimpleNamespace(gemm_share=lambda _, s=s: s), True) for name, s in shares.items()
    }
    monkeypatch.setattr(conv, "table", lambda: SimpleNamespace(of=lambda device: rows[device.name]))
    point = (2, 64, 128, 64, 64, 1, 1, 1, 1)
    times = []
    for nearness in ("chip", "generation"):
        estimate = of_hand(monkeypatch, Kin("other", nearness))
        times.append(estimate(point).seconds[0])
    assert times[1] == pytest.approx(times[0] * 0.4 / 0.8)
