"""Backend: the device on which things are timed. One code for CPUs and GPUs.

`CpuBackend` reads the clock around calls, which return when they are done. `CudaBackend` puts events on the stream
around them, since calls return when they are issued. Tests have one of their own without any torch.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from foretrain.errors import InputError, hint
from foretrain.units import parse_bytes

BACKENDS = ("cpu", "cuda")
DTYPES = {"fp32": "float32", "tf32": "float32", "fp16": "float16", "bf16": "bfloat16"}

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # malloc.h of glibc
NEVER = 2**31 - 1

Call = Callable[[int], object]
"""Told which of several in a row it is."""


class Backend(Protocol):
    """Where kernels run and how their time is told."""

    name: str  # cpu | cuda
    device: str  # as keys of measurements name it: cpu, or the GPU's name
    threads: int | None  # of CPUs
    cache_bytes: float  # of the last level: what a step leaves there is read faster

    def elapsed(self, call: Call, calls: int, before: Call | None = None) -> float:
        """Seconds of `call(0) … call(calls - 1)` in a row, until the last is done. `before` runs before each and is
        not counted."""
        ...

    def normal(self, *shape: int, dtype: str = "fp32") -> Any:
        """A tensor of numbers from a standard normal distribution."""
        ...

    def integers(self, high: int, *shape: int) -> Any:
        """A tensor of whole numbers from 0 to `high` - 1."""
        ...


def torch_module() -> Any:
    """torch, or how to get it."""
    try:
        import torch
    except ImportError:
        raise InputError(
            "measuring needs PyTorch, which is not installed. Run: pip install 'foretrain[torch]'"
        ) from None
    return torch


class CpuBackend:
    name = "cpu"
    device = "cpu"

    def __init__(self, threads: int | None = None) -> None:
        self.torch = torch_module()
        if threads is not None:
            if not 1 <= threads <= 4096:
                raise InputError(f"threads: {threads} must be between 1 and 4096.")
            self.torch.set_num_threads(threads)
        self.threads: int | None = int(self.torch.get_num_threads())
        self.cache_bytes = last_level_cache()
        keep_memory()

    def elapsed(self, call: Call, calls: int, before: Call | None = None) -> float:
        clock, spent = time.perf_counter, 0.0
        if before is not None:
            for number in range(calls):
                before(number)
                began = clock()
                call(number)
                spent += clock() - began
            return spent
        began = clock()
        for number in range(calls):
            call(number)
        return clock() - began

    def normal(self, *shape: int, dtype: str = "fp32") -> Any:
        return self.torch.randn(shape, dtype=_dtype(self.torch, dtype))

    def integers(self, high: int, *shape: int) -> Any:
        return self.torch.randint(0, high, shape)


class CudaBackend:
    name = "cuda"
    threads: int | None = None

    def __init__(self) -> None:
        self.torch = torch_module()
        if not self.torch.cuda.is_available():
            raise InputError("PyTorch finds no CUDA device; use cpu.")
        self.index = self.torch.device("cuda", 0)
        self.torch.cuda.set_device(self.index)
        about = self.torch.cuda.get_device_properties(self.index)
        self.device = str(about.name)
        self.cache_bytes = float(getattr(about, "L2_cache_size", 0) or 0)

    def elapsed(self, call: Call, calls: int, before: Call | None = None) -> float:
        cuda = self.torch.cuda
        marks = []
        for number in range(calls):
            if before is not None:
                before(number)
            if before is not None or number == 0:
                first, last = (cuda.Event(enable_timing=True) for _ in range(2))
                marks.append((first, last))
                first.record()
            call(number)
            if before is not None or number == calls - 1:
                last.record()
        marks[-1][1].synchronize()
        return sum(float(first.elapsed_time(last)) for first, last in marks) / 1e3

    def normal(self, *shape: int, dtype: str = "fp32") -> Any:
        return self.torch.randn(shape, dtype=_dtype(self.torch, dtype), device=self.index)

    def integers(self, high: int, *shape: int) -> Any:
        return self.torch.randint(0, high, shape, device=self.index)


def backend(name: str = "", threads: int | None = None) -> Backend:
    """A backend by name; without one CUDA where there is any, else the CPU."""
    if name not in ("", *BACKENDS):
        raise InputError(f"unknown device {name!r}.{hint(name, BACKENDS)}")
    if name == "":
        name = "cuda" if torch_module().cuda.is_available() else "cpu"
    return CudaBackend() if name == "cuda" else CpuBackend(threads)


def _dtype(torch: Any, dtype: str) -> Any:
    if dtype not in DTYPES:
        raise InputError(f"kernels in {dtype} cannot be timed with native PyTorch ops.")
    return getattr(torch, DTYPES[dtype])


def keep_memory() -> bool:
    """Ask the C library to keep what is freed; whether it could be asked.

    glibc gives large blocks back to the kernel when they are freed and gets them anew, page fault by page fault: a
    tenth to a fifth of a training step on CPUs that depends on everything else the process allocated. (PyTorch's
    tuning guide advises an allocator that keeps memory, for the same reason.)
    """
    if not sys.platform.startswith("linux"):
        return False
    import ctypes

    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # another C library
        return False
    return bool(mallopt(M_MMAP_MAX, 0)) and bool(mallopt(M_TRIM_THRESHOLD, NEVER))


def last_level_cache() -> float:
    """Bytes of the last-level cache as Linux tells it, 0 where it is not told."""
    sizes = [0.0]
    for file in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        try:
            sizes.append(
                parse_bytes(file.read_text().strip().replace("K", "KiB").replace("M", "MiB"))
            )
        except (OSError, InputError):
            continue
    return max(sizes)
