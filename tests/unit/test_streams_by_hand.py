"""Streams, look-ups and the model that asks all families, from tables made up so that terms can be worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from math import expm1
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
from support.hand_device import HAND

from foretrain.cluster.catalog import devices
from foretrain.cluster.device import Device
from foretrain.cost.compute import embedding, memory
from foretrain.cost.compute.base import Estimate, Hardware, Kin, kin_of, latest, slowest, unpacked
from foretrain.cost.compute.calibrated import Calibrated
from foretrain.cost.compute.embedding import EmbeddingTable
from foretrain.cost.compute.memory import StreamingTable
from foretrain.model.ops.base import FORWARD, INPUT_GRADIENT, Kernel

OWN, FAR = Kin("hand", "own"), Kin("hand", "generation")


def known(found: Estimate | None) -> Estimate:
    assert found is not None
    return found


# --- look-ups -----------------------------------------------------------------------------------

LOOKUPS = EmbeddingTable(
    start_seconds=1e-6, forward=0.5, backward=0.25, wide=128, wide_forward=0.8, wide_backward=0.4, cache_rate=4.0,
    cache_share=0.5, spread=0.1,
)  # fmt: skip


def cached(width: int, moved: float, distinct: float, returning: float, forward: bool = True, l2: float | None = 4000) -> float:  # fmt: skip
    """Bytes of a thousand look-ups that come from the cache."""
    shape = np.array([[1e6, width, 1000, distinct, returning]])
    board = replace(HAND, l2_bytes=l2)
    return float(embedding.hits(shape, np.array([moved]), forward, board, LOOKUPS)[0])


def test_rows_met_again_come_from_the_cache_as_far_as_they_fit() -> None:
    # rows of 40 bytes, 600 of them met again; 50 of the 100 that return fit into half of 4,000 bytes
    assert cached(10, 48_000, 400, 100) == pytest.approx(600 * 40 * 0.5)
    assert cached(10, 48_000, 400, 100, l2=1e6) == pytest.approx(600 * 40)
    assert cached(10, 48_000, 400, 100, l2=None) == 0.0
    # backward rows are read and written, beside the index of 8 bytes
    assert cached(10, 88_000, 400, 100, forward=False) == pytest.approx(600 * 80 * 0.5)
    # values of two bytes: all of the hundred rows fit
    assert cached(10, 48_000, 400, 100, forward=False) == pytest.approx(600 * 40)
    assert cached(10, 28_000, 400, 100) == pytest.approx(600 * 20)
    # what is moved beyond four bytes for a value is output
    assert cached(10, 99_000, 400, 100) == pytest.approx(600 * 40 * 0.5)
    assert cached(10, 1_000, 400, 100) == 0.0  # less than the indices
    assert cached(10, 48_000, 2000, 100) == 0.0  # nothing is met again
    assert cached(100, 408_000, 1, 1, l2=1e6) == pytest.approx(0.9 * 408_000)
    # nothing that returns is one row at least, of a byte at least
    assert cached(10, 48_000, 400, 0, l2=20) == pytest.approx(600 * 40 * 10 / 40)


def test_rows_that_a_kernel_meets() -> None:
    assert embedding.met((100, 8, 50)) == pytest.approx((100, 8, 50, *[-100 * expm1(-0.5)] * 2))
    assert embedding.met((100, 8, 50, 20, 5)) == (100, 8, 50, 20, 5)
    assert embedding.met((0, 0, 0))[:3] == (1, 1, 1)


def of_hand(monkeypatch: pytest.MonkeyPatch, kin: Kin = OWN) -> Any:
    monkeypatch.setattr(embedding, "read", lambda _: LOOKUPS)
    monkeypatch.setattr(embedding, "kin_of", lambda *_: kin)

    def estimate(width: int, moved: float, phase: str = FORWARD) -> Estimate:
        one = Kernel("embedding", phase, 0.0, moved, "fp32", (10**6, width, 1000, 400, 100))
        return known(embedding.estimate([one], replace(HAND, l2_bytes=1e6), "fp32"))

    return estimate


def test_estimates_of_look_ups(monkeypatch: pytest.MonkeyPatch) -> None:
    """24 of 48 KB come from the cache at four times the bandwidth of memory."""
    estimate = of_hand(monkeypatch)
    found = estimate(10, 48_000)
    assert found.seconds[0] == pytest.approx(1e-6 + 24e3 / 0.5e12 + 24e3 / 4e12)
    assert (found.spread[0], found.measured[0], found.notes) == (0.1, True, ())
    back = estimate(10, 88_000, INPUT_GRADIENT).seconds[0]
    assert back == pytest.approx(1e-6 + 40e3 / 0.25e12 + 48e3 / 4e12)
    wide = estimate(128, 520_000).seconds[0]  # 600 of a thousand rows of 512 bytes again
    assert wide == pytest.approx(1e-6 + 212.8e3 / 0.8e12 + 307.2e3 / 4e12)
    back = estimate(128, 1_032_000, INPUT_GRADIENT).seconds[0]
    assert back == pytest.approx(1e-6 + 417.6e3 / 0.4e12 + 614.4e3 / 4e12)
    far = of_hand(monkeypatch, FAR)(10, 48_000)
    assert (far.spread[0], far.measured[0]) == (pytest.approx(0.15), False)
    assert len(far.notes) == 1


def test_look_ups_of_any_gpu_but_of_no_cpu() -> None:
    one = Kernel("embedding", FORWARD, 0.0, 48e3, "fp32", (10**6, 10, 1000))
    assert not known(embedding.estimate([one], HAND, "fp32")).measured.any()
    assert embedding.estimate([one], replace(HAND, kind="cpu"), "fp32") is None
    assert embedding.estimate([replace(one, shape=(10, 10))], HAND, "fp32") is None


# --- streams ------------------------------------------------------------------------------------

STREAMS = StreamingTable(
    start_seconds=1e-6, log2_bytes=np.array([10.0, 20.0]), stream=np.array([0.2, 0.8]), spread=0.2,
    log2_row_bytes=np.array([4.0, 8.0]), norm_forward=np.array([0.1, 0.5]), norm_backward=np.array([0.05, 0.25]),
)  # fmt: skip


@pytest.mark.parametrize("kin", [OWN, FAR])
def test_estimates_of_streams_and_norms(monkeypatch: pytest.MonkeyPatch, kin: Kin) -> None:
    monkeypatch.setattr(memory, "read", lambda _: STREAMS)
    monkeypatch.setattr(memory, "kin_of", lambda *_: kin)
    times = 1.0 if kin is OWN else 2.0

    def found(moved: float, *shape: int, phase: str = FORWARD, flops: float = 0.0) -> Estimate:
        one = Kernel("memory", phase, flops, moved, "fp32", shape)
        return known(memory.estimate([one], HAND, "fp32"))

    def seconds(*asked: Any, **more: Any) -> float:
        return float(found(*asked, **more).seconds[0]) - 1e-6

    assert seconds(2.0**10) == pytest.approx(2**10 / 0.2e12)
    assert seconds(2.0**15, 4096) == pytest.approx(2**15 / 0.5e12)  # half way in log2
    assert seconds(2.0**30, 4096) == pytest.approx(2**30 / 0.8e12)
    assert seconds(2.0**10, flops=1e9) == pytest.approx(1e9 / (1e13 * 0.5))  # of any GPU
    # 2^14 elements read and written in 4 bytes: rows of 16 values are 2^6 bytes, half way
    assert seconds(2.0**17, 2**14, 16) == pytest.approx(2**17 / 0.3e12)
    # backward counts three tensors: as many bytes are shorter rows; 3·2^16 of them are rows of 2^6 again
    assert seconds(3 * 2.0**16, 2**14, 16, phase=INPUT_GRADIENT) == pytest.approx(3 * 2**16 / 0.15e12)  # fmt: skip
    assert found(2.0**15).spread[0] == pytest.approx(0.2 * times)
    assert found(2.0**17, 2**14, 16).spread[0] == pytest.approx((0.2**2 + 0.15**2) ** 0.5 * times)
    assert found(2.0**15).measured[0] == (kin is OWN)


def test_norms_and_streams_together_are_as_they_are_alone() -> None:
    moved, rows = np.array([2.0**15, 2.0**17, 0.0]), np.array([0.0, 2.0**6, 0.5])
    assert memory.shares(STREAMS, moved, rows, True).tolist() == pytest.approx([0.5, 0.3, 0.1])
    assert memory.shares(STREAMS, moved, rows, False).tolist() == pytest.approx([0.5, 0.15, 0.05])


# --- whose table, and boards --------------------------------------------------------------------


def test_the_nearest_of_those_measured() -> None:
    def whose(name: str, *measured: str) -> Kin | None:
        return kin_of(devices()[name], measured)

    assert whose("t4", "t4", "v100-sxm2-32gb") == Kin("t4", "own")
    assert whose("a100-sxm4-40gb", "h100-sxm5-80gb", "a100-sxm4-80gb") == Kin("a100-sxm4-80gb", "chip")  # fmt: skip
    far = whose("rtx-4090", "l40s", "h100-sxm5-80gb")
    assert far is not None
    assert far.nearness == "generation"
    assert not far.is_measured
    assert whose("rtx-4090", "l4", "t4") == Kin("l4", "generation")  # second to the L40S
    assert Kin("t4", "own").is_measured
    assert far.notes(HAND, "times") == (
        f"No times for Hand; using the efficiencies measured on {far.name}.",
    )
    assert Kin("t4", "chip").notes(HAND, "times") == ()


def test_a_step_waits_for_the_slowest_board() -> None:
    """Blom's quantile: of two normal values the larger is expected at (2 - 0.375) / 2.25."""
    assert latest(1) == 0.0
    assert latest(2) == pytest.approx(NormalDist().inv_cdf(1.625 / 2.25))
    assert latest(2) == pytest.approx(0.564, abs=0.03)  # 1 / sqrt(pi)
    assert latest(100) == pytest.approx(2.508, abs=0.01)
    assert slowest("t4", 2) == pytest.approx(1 + 0.0314 * latest(2))
    assert slowest("hand", 100) == 1.0


def test_what_products_need_to_know_of_a_device() -> None:
    assert Hardware.of(HAND, "bf16") == Hardware(10.0, 1e14, 1e12)
    assert Hardware.of(replace(HAND, compute_units=None), "fp32") == Hardware(1.0, 1e13, 1e12)
    assert unpacked("ADwAQA==", (2, 1)).tolist() == [[1.0], [2.0]]


# --- the model that asks the families -----------------------------------------------------------


def answers(seconds: float, *notes: str) -> Any:
    def family(kernels: Any, device: Device, dtype: str) -> Estimate:
        count = len(kernels)
        return Estimate(np.full(count, seconds), np.full(count, 0.4), np.ones(count, dtype=np.bool_), f"{dtype} tables", notes)  # fmt: skip

    return family


def test_families_answer_what_they_know_and_the_roofline_the_rest() -> None:
    model = Calibrated(
        {"gemm": answers(1.0, "a"), "memory": answers(1.0 / 64, "b"), "sort": lambda *_: None}
    )
    kernels = [
        Kernel(kind, FORWARD, 1e6, 1e6, "bf16") for kind in ("gemm", "sort", "memory", "gemm")
    ]
    found = model.seconds(kernels, HAND)
    assert found.seconds[[0, 2, 3]].tolist() == [1.0, 1.0 / 64, 1.0]
    assert 0.0 < found.seconds[1] < 1e-4
    assert found.measured.tolist() == [True, False, True, True]
    assert found.spread[[0, 2, 3]].tolist() == [0.4] * 3
    assert found.source[::2] == ("bf16 tables",) * 2
    assert found.source[1].startswith("roofline")
    # what holds for less than a fiftieth of the time is not worth saying
    assert "a" in found.notes
    assert "b" not in found.notes
    three = model.seconds([*kernels, *kernels[2:3] * 3], HAND)  # 1/16 in 2 s
    assert {"a", "b"} <= set(three.notes)


def test_no_answer_beats_the_data_sheet_but_where_nominal_work_is_not_done() -> None:
    quick = dict.fromkeys(("gemm", "conv", "embedding", "attention"), answers(1e-9))
    one = Kernel("gemm", FORWARD, 1e12, 1e9, "bf16")  # 10 ms of arithmetic, 1 ms of traffic
    kinds = [replace(one, kind=kind) for kind in ("gemm", "attention_cudnn", "conv", "embedding")]
    found = Calibrated(quick).seconds([*kinds, replace(one, flops=1e9)], HAND)
    assert found.seconds.tolist() == pytest.approx([1e-2, 1e-2, 1e-9, 1e-9, 1e-3])


def test_nothing_asked_is_nothing_answered() -> None:
    assert Calibrated({}).seconds([], HAND).seconds.tolist() == []
