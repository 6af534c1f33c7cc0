"""Backends: the clock around calls on CPUs, events around them on GPUs."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from foretrain.errors import InputError
from foretrain.measurement import backend as backends
from foretrain.measurement.backend import CpuBackend, CudaBackend, backend, last_level_cache


class FakeCuda:
    """Enough of torch for a GPU: a stream on which every call takes a millisecond, whatever the host does."""

    def __init__(self, is_there: bool = True) -> None:
        self.is_there, self.stream, self.waited = is_there, 0.0, 0
        self.cuda = SimpleNamespace(
            is_available=lambda: self.is_there,
            set_device=lambda _: None,
            get_device_properties=lambda _: SimpleNamespace(name="Fake 1000", L2_cache_size=4e6),
            Event=lambda enable_timing: FakeEvent(self),
        )
        self.float32 = "float32"

    def device(self, kind: str, index: int) -> str:
        return f"{kind}:{index}"

    def randn(self, shape: tuple[int, ...], dtype: str, device: str) -> Any:
        return shape, dtype, device

    def randint(self, low: int, high: int, shape: tuple[int, ...], device: str) -> Any:
        return low, high, shape, device

    def kernel(self, _: int) -> None:
        self.stream += 1e-3


class FakeEvent:
    def __init__(self, torch: FakeCuda) -> None:
        self.torch, self.at = torch, 0.0

    def record(self) -> None:
        self.at = self.torch.stream

    def synchronize(self) -> None:
        self.torch.waited += 1

    def elapsed_time(self, later: FakeEvent) -> float:
        return 1e3 * (later.at - self.at)


def test_a_gpu_is_timed_by_its_own_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = FakeCuda()
    monkeypatch.setattr(backends, "torch_module", lambda: torch)
    gpu = backend()
    assert isinstance(gpu, CudaBackend)
    assert (gpu.name, gpu.device, gpu.threads, gpu.cache_bytes) == ("cuda", "Fake 1000", None, 4e6)
    assert gpu.elapsed(torch.kernel, 7) == pytest.approx(7e-3)
    assert torch.waited == 1
    assert gpu.elapsed(torch.kernel, 3, lambda _: torch.kernel(0)) == pytest.approx(3e-3)
    assert torch.stream == pytest.approx(13e-3)
    assert gpu.normal(2, 3) == ((2, 3), "float32", "cuda:0")
    assert gpu.integers(9, 4) == (0, 9, (4,), "cuda:0")


def test_what_is_not_there_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="unknown device 'gpu'"):
        backend("gpu")
    monkeypatch.setattr(backends, "torch_module", lambda: FakeCuda(is_there=False))
    with pytest.raises(InputError, match="no CUDA device"):
        backend("cuda")


def test_a_cpu_is_timed_by_the_clock() -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    cpu = CpuBackend(1)
    assert (cpu.name, cpu.device, cpu.threads) == ("cpu", "cpu", 1)
    assert cpu.elapsed(lambda _: time.sleep(2e-3), 5) >= 1e-2
    assert cpu.normal(2, 3).shape == (2, 3)
    assert 0 <= int(cpu.integers(5, 100).max()) < 5
    with pytest.raises(InputError, match="threads"):
        CpuBackend(0)
    with pytest.raises(InputError, match="fp8"):
        cpu.normal(2, dtype="fp8")


def test_the_cache_is_told_in_bytes() -> None:
    assert last_level_cache() == 0.0 or 2**15 <= last_level_cache() < 2**34
