"""The default compute model: conformance, known figures, substitutions, and the table behind it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest

from foretrain.cluster.catalog import devices
from foretrain.cluster.device import Device
from foretrain.cost.calibration.efficiencies import table
from foretrain.cost.compute import KernelCosts, Roofline
from foretrain.errors import ClusterError
from foretrain.model.ops.base import FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT, Kernel
from foretrain.testing.cost import attention, check_compute_model, gemm

A100 = devices()["a100-sxm4-80gb"]
H100 = devices()["h100-sxm5-80gb"]
V100 = devices()["v100-sxm2-32gb"]


def teraflops(kernel: Kernel, device: Device) -> float:
    return float(kernel.flops / Roofline().seconds([kernel], device).seconds[0] / 1e12)


def test_the_roofline_conforms_on_the_whole_catalogue() -> None:
    assert check_compute_model(Roofline()) > 500


@pytest.mark.parametrize(
    ("device", "low", "high"), [(A100, 240, 260), (H100, 600, 700), (V100, 75, 100)]
)
def test_a_large_product_runs_at_the_sustained_rate(
    device: Device, low: float, high: float
) -> None:
    dtype = "fp16" if device is V100 else "bf16"
    assert low < teraflops(gemm(4096, 4096, 4096, dtype), device) < high


def test_small_and_skinny_products_are_far_from_peak() -> None:
    assert teraflops(gemm(512, 512, 512, "bf16"), A100) < 80
    row = gemm(16, 8192, 8192, "bf16")
    seconds = Roofline().seconds([row], A100).seconds[0]
    # bound by reading the weight
    assert seconds == pytest.approx(row.bytes / (A100.memory_bandwidth * 0.86), rel=0.05)


def test_one_tile_more_than_a_full_wave_starts_another() -> None:
    """Twelve by nine 128 x 256 tiles fill 108 units exactly; one more row of tiles needs a second wave."""
    full = gemm(12 * 128, 9 * 256, 8192, "bf16")
    over = gemm(12 * 128 + 8, 9 * 256, 8192, "bf16")
    times = Roofline().seconds([full, over], A100).seconds
    assert times[1] > 1.2 * times[0]


def test_splitting_k_helps_few_tiles_with_a_long_k() -> None:
    narrow = gemm(256, 256, 65536, "bf16")
    known = table()
    whole = Roofline(replace(known, splits=(1,))).seconds([narrow], A100).seconds[0]
    assert Roofline().seconds([narrow], A100).seconds[0] < 0.4 * whole


@pytest.mark.parametrize(
    ("device", "head_dim", "causal", "seq", "published"),
    [
        (A100, 128, False, 4096, 196),
        (A100, 128, True, 2048, 155),
        (A100, 64, True, 1024, 119),
        (A100, 64, False, 16384, 176),
        (H100, 128, True, 4096, 294),
        (H100, 64, False, 2048, 274),
    ],
)
def test_attention_follows_the_published_charts(
    device: Device, head_dim: int, causal: bool, seq: int, published: float
) -> None:
    """Forward and backward together, hidden size 2048 and 16 k tokens (charts of the FlashAttention-2 repository)."""
    heads, batch = 2048 // head_dim, 16384 // seq
    both = [attention(batch, heads, seq, head_dim, "bf16", p) for p in (FORWARD, INPUT_GRADIENT)]
    if causal:
        both = [replace(kernel, flops=kernel.flops / 2) for kernel in both]
    seconds = Roofline().seconds(both, device).seconds.sum()
    reached = sum(kernel.flops for kernel in both) / seconds / 1e12
    assert reached == pytest.approx(published, rel=0.12)


def test_an_implementation_with_rates_of_its_own_is_used_where_known() -> None:
    flash = attention(4, 16, 4096, 128, "bf16")
    cudnn = replace(flash, kind="attention_cudnn")
    assert teraflops(cudnn, H100) > 1.4 * teraflops(flash, H100)
    assert teraflops(cudnn, A100) == teraflops(flash, A100)


def test_memory_bound_kernels_run_at_the_streaming_rate() -> None:
    kernel = Kernel("memory", FORWARD, 1e8, 1.2e9, "fp32", (100_000_000,))
    rate = kernel.bytes / Roofline().seconds([kernel], V100).seconds[0]
    assert rate == pytest.approx(0.90 * V100.memory_bandwidth, rel=0.01)


def test_a_depthwise_convolution_is_slow_and_a_dense_one_is_not() -> None:
    pixels = 32 * 28 * 28
    dense = Kernel(
        "conv",
        FORWARD,
        2.0 * pixels * 256 * 256 * 9,
        2e7,
        "bf16",
        (32, 256, 256, 28, 28, 3, 3, 1, 1),
    )
    depthwise = Kernel(
        "conv", FORWARD, 2.0 * pixels * 256 * 9, 2e7, "bf16", (32, 256, 256, 28, 28, 3, 3, 1, 256)
    )
    assert teraflops(dense, A100) > 90
    assert teraflops(depthwise, A100) < 5
    gradient = replace(dense, phase=WEIGHT_GRADIENT)
    assert teraflops(gradient, A100) > 80


@pytest.mark.parametrize(
    ("name", "wanted", "runs_at"),
    [
        ("v100-sxm2-32gb", "bf16", "fp32"),
        ("v100-sxm2-32gb", "tf32", "fp32"),
        ("a100-sxm4-80gb", "fp8", "bf16"),
        ("h100-sxm5-80gb", "fp4", "fp8"),
    ],
)
def test_missing_formats_run_in_another_and_say_so(name: str, wanted: str, runs_at: str) -> None:
    device = devices()[name]
    asked, stand_in = gemm(4096, 4096, 4096, wanted), gemm(4096, 4096, 4096, runs_at)
    costs = Roofline().seconds([asked, asked], device)
    assert costs.seconds[0] == Roofline().seconds([stand_in], device).seconds[0]
    assert len(costs.notes) == 1
    assert wanted in costs.notes[0]
    assert runs_at in costs.notes[0]


def test_a_format_nothing_stands_in_for_is_an_error() -> None:
    with pytest.raises(ClusterError, match="does not support int3"):
        Roofline().seconds([gemm(8, 8, 8, "int3")], A100)


def test_an_unknown_device_is_less_certain_and_says_so() -> None:
    stranger = replace(A100, name="x1", title="Stranger X1", architecture="x", compute_units=None)
    kernel = gemm(4096, 4096, 4096, "bf16")
    known, unknown = (Roofline().seconds([kernel], device) for device in (A100, stranger))
    assert unknown.spread[0] > known.spread[0]
    assert any("Stranger X1" in note for note in unknown.notes)
    assert known.notes == ()


def test_every_catalogue_device_has_efficiencies_of_its_own() -> None:
    assert [device.name for device in devices().values() if not table().of(device)[1]] == []


def test_shares_are_shares_and_cited() -> None:
    for entry in table().devices.values():
        assert len(entry.source) > 20, entry.name
        shares = [*entry.gemm.values(), *entry.conv.values(), entry.grouped, entry.memory]
        shares += [entry.embedding, entry.vector]
        for kind in entry.attention.values():
            shares += [kind.forward, kind.backward, kind.narrow]
            assert kind.half_length >= 0
        assert all(0.05 < share <= 1.0 for share in shares), entry.name
        assert 0 < entry.start_seconds < 1e-5
        assert "other" in entry.gemm
        assert "flash" in entry.attention


@dataclass(frozen=True)
class _Wrong:
    """A model with one fault."""

    fault: str

    def seconds(self, kernels: Sequence[Kernel], device: Device) -> KernelCosts:
        costs = Roofline().seconds(kernels, device)
        seconds = costs.seconds.copy()
        match self.fault:
            case "above peak":
                seconds *= 0.3
            case "not finite" if len(seconds):
                seconds[-1] = np.nan
            case "company":
                seconds += len(kernels) * 1e-9
            case "shrinks":
                seconds = np.maximum(seconds, 1.0) / np.array([1 + k.bytes for k in kernels])
        return replace(costs, seconds=seconds)


@pytest.mark.parametrize(
    ("fault", "complaint"),
    [
        ("above peak", "data sheet"),
        ("not finite", "not finite"),
        ("company", "single calls"),
    ],
)
def test_the_kit_notices_a_wrong_model(fault: str, complaint: str) -> None:
    with pytest.raises(AssertionError, match=complaint):
        check_compute_model(_Wrong(fault), on=[A100])


def test_the_kit_notices_time_that_shrinks_with_work() -> None:
    from foretrain.testing.cost import check_monotone

    with pytest.raises(AssertionError, match="quicker"):
        check_monotone(_Wrong("shrinks"), [gemm(64, 64, 64, "bf16")], A100)


def test_a_thousand_kernels_take_milliseconds() -> None:
    from time import perf_counter

    sizes = np.random.default_rng(0).integers(64, 8192, (1000, 3))
    kernels = [gemm(int(m), int(n), int(k), "bf16") for m, n, k in sizes]
    start = perf_counter()
    Roofline().seconds(kernels, H100)
    assert perf_counter() - start < 0.1  # about 4 ms on an idle core
