"""Profiler traces written by hand, as PyTorch writes them, for tests that know the answer. Times in microseconds."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

HOST, COMPUTE, NCCL = 1000, 7, 20
ORIGIN = 3_942_838_453_000.0
"""Real traces count from some weeks before they were taken."""


class Written:
    """The trace of one rank, event by event."""

    def __init__(
        self,
        rank: int = 0,
        world: int = 1,
        devices: int = 8,
        host: str = "node0",
        origin: float = ORIGIN,
    ) -> None:
        self.events: list[dict[str, Any]] = []
        self.frame: dict[str, Any] = {
            "schemaVersion": 1,
            "deviceProperties": [{"id": n, "name": "NVIDIA H100 80GB HBM3"} for n in range(devices)],
            "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": world},
            "host_name": host,
            "baseTimeNanoseconds": 1_790_857_026_000_000_000,
        }  # fmt: skip
        self.origin = origin
        self._next = 0

    def event(
        self, cat: str, name: str, at: float, length: float, pid: Any, tid: Any, **args: Any
    ) -> None:
        self.events.append(
            {
                "ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": self.origin + at, "dur": length,
                "args": args,
            }
        )  # fmt: skip

    def mark(self, name: str, at: float, length: float, tid: int = HOST, **args: Any) -> None:
        self.event("user_annotation", name, at, length, HOST, tid, **args)

    def step(self, number: int, at: float, length: float) -> None:
        self.mark(f"ProfilerStep#{number}", at, length)

    def op(self, name: str, at: float, length: float, dims: Any = None, tid: int = HOST) -> int:
        """Its external id."""
        self._next += 1
        more: dict[str, Any] = {"External id": self._next}
        if dims is not None:
            more |= {"Input Dims": dims, "Input type": ["float"] * len(dims)}
        self.event("cpu_op", name, at, length, HOST, tid, **more)
        return self._next

    def launch(
        self, at: float, length: float = 4.0, name: str = "cudaLaunchKernel", tid: int = HOST
    ) -> int:
        """Its correlation id."""
        self._next += 1
        self.event("cuda_runtime", name, at, length, HOST, tid, correlation=self._next)
        return self._next

    def kernel(
        self, name: str, at: float, length: float, launched: int = -1, op: int = -1, stream: int = COMPUTE,
        cat: str = "kernel", **args: Any,
    ) -> None:  # fmt: skip
        ids = {"correlation": launched, "External id": op, "stream": stream, "device": 0}
        self.event(cat, name, at, length, 0, stream, **ids, **args)

    def collective(
        self, at: float, length: float, kind: str = "allreduce", elements: int = 1000, ranks: Any = None,
        launched: int = -1, group: str = "0",
    ) -> None:  # fmt: skip
        """An NCCL kernel with what PyTorch records of its call."""
        call: dict[str, Any] = {
            "Collective name": kind, "In msg nelems": elements, "Out msg nelems": elements, "dtype": "Float",
            "Process Group Name": group,
        }  # fmt: skip
        if ranks is not None:
            call |= {"Group size": len(ranks), "Process Group Ranks": str(list(ranks))}
        name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
        self.kernel(name, at, length, launched, stream=NCCL, **call)

    def text(self) -> str:
        return json.dumps({**self.frame, "traceEvents": self.events, "traceName": "t.json"})

    def save(self, path: Path) -> Path:
        raw = self.text().encode()
        path.write_bytes(gzip.compress(raw, 6) if path.suffix == ".gz" else raw)
        return path


def training(steps: int, layers: int, rank: int = 0, world: int = 8) -> Written:
    """A run as a profiler would see it: layers with launches and kernels, overlapped all-reduces, an update."""
    trace = Written(rank, world)
    whole = layers * 100.0 + 400.0
    for number in range(steps):
        at = number * whole
        trace.step(number, at, whole - 10.0)
        trace.mark("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", at + 5, 40.0)
        for layer in range(layers):
            begin = at + 60 + layer * 100.0
            op = trace.op(
                "aten::addmm", begin, 30.0, [[4096], [8, 4096], [4096, 4096 + layer % 50]]
            )
            launched = trace.launch(begin + 10)
            trace.kernel("ampere_sgemm_128x64_tn", begin + 40, 80.0, launched, op)
            if layer % 4 == 3:
                trace.collective(
                    begin + 60, 150.0, ranks=range(world), launched=trace.launch(begin + 20)
                )
        begin = at + 60 + layers * 100.0
        trace.mark("Optimizer.step#AdamW.step", begin, 100.0)
        op = trace.op("aten::_foreach_add_", begin + 5, 20.0)
        trace.kernel("multi_tensor_apply_kernel", begin + 60, 120.0, trace.launch(begin + 10), op)
    return trace
