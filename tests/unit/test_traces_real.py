"""Traces that PyTorch's profiler writes here and now: one process, and two with DDP over gloo."""

from __future__ import annotations

import importlib.util
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from foretrain.adapters.read.kineto import read_trace
from foretrain.measurement.traces import analyse

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None,
    reason="torch is not installed (pip install '.[test]')",
)

SCRIPT = """
import os, sys
import torch
from torch.profiler import ProfilerActivity, profile, schedule
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)
rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10))
if world > 1:
    torch.distributed.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.Adam(model.parameters())
data = DataLoader(TensorDataset(torch.randn(256, 64), torch.randint(0, 10, (256,))), batch_size=32)
plan = schedule(wait=1, warmup=1, active=3, repeat=1)
with profile(activities=[ProfilerActivity.CPU], record_shapes=True, schedule=plan) as profiler:
    for inputs, labels in data:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
        profiler.step()
profiler.export_chrome_trace(sys.argv[1])
if world > 1:
    torch.distributed.destroy_process_group()
    os._exit(0)  # gloo's threads may abort a Python that shuts down
"""


def recorded(folder: Path, world: int, suffix: str) -> list[Path]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    paths = [folder / f"rank{rank}.{suffix}" for rank in range(world)]
    started = []
    for rank, path in enumerate(paths):
        told = {
            "RANK": str(rank),
            "WORLD_SIZE": str(world),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": port,
        }
        command = [sys.executable, "-c", SCRIPT, str(path)]
        started.append(
            subprocess.Popen(command, env={**os.environ, **told}, stderr=subprocess.PIPE, text=True)
        )  # fmt: skip
    for process in started:
        said = process.communicate(timeout=240)[1]
        assert process.returncode == 0, said
    return paths


@pytest.mark.parametrize("suffix", ["json", "json.gz"])
def test_one_process(tmp_path: Path, suffix: str) -> None:
    (path,) = recorded(tmp_path, 1, suffix)
    found = analyse([read_trace(path)])
    assert found.warnings == ()
    assert found.steps == 3
    assert sum(found.stalls.values()) == found.step_seconds
    for name in ("compute", "optimizer", "prep", "host"):
        assert found.stalls[name] > 0, name
    for name in ("interconnect", "network", "imbalance", "bubble", "fetch"):
        assert found.stalls[name] == 0, name
    rows = {(row.name, str(row.dims)): row for row in found.ops}
    layer = rows["aten::addmm", "[[256], [32, 64], [64, 256], [], []]"]
    assert layer.count == 3
    assert layer.seconds > 0
    assert found.overheads[0].stretch == "T1"
    assert found.began is not None


def test_two_ranks_of_ddp(tmp_path: Path) -> None:
    paths = recorded(tmp_path, 2, "json")
    found = analyse([read_trace(path) for path in paths])
    assert (found.world, found.devices_per_node, found.steps) == (2, 2, 3)
    assert sum(found.stalls.values()) == found.step_seconds
    rows = {(row.collective, row.bytes): row for row in found.collectives}
    gradients = 4.0 * (64 * 256 + 256 + 256 * 10 + 10)
    reduced = rows["all_reduce", gradients]
    assert (reduced.count, reduced.ranks) == (6, 2)
    assert 0 < reduced.seconds < found.step_seconds
    # who waits differs from call to call, and a short reduction may be hidden as a whole: how much is exposed is tested
    # on traces written by hand
    assert found.communication_seconds > 0
    assert found.stalls["network"] == 0
    apart = analyse([read_trace(path) for path in paths], devices_per_node=1)
    assert apart.stalls["network"] == pytest.approx(found.stalls["interconnect"])
