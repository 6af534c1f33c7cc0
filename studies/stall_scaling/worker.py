"""One process of the study: trains every network of the family in turn and times it.

python -m torch.distributed.run --nproc-per-node 2 -m studies.stall_scaling.worker FOLDER
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as group
from torch import nn

from foretrain.measurement.launching import end_at_once
from foretrain.measurement.ranks import Ranks
from foretrain.measurement.step_events import StepEvents, clock_of
from studies.stall_scaling.networks import CLASSES, PIXELS, Net

WARMUP = 4
CURVE_BYTES = tuple(2**power for power in range(8, 25, 2))
CURVE_REPEATS = 7


class Unit(nn.Module):
    """A convolution, normalised or not, with a shortcut or not."""

    def __init__(self, inputs: int, net: Net, has_shortcut: bool) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, net.width, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(net.width) if net.is_normed else nn.Identity()
        self.has_shortcut = has_shortcut

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.norm(self.conv(x))
        return torch.relu(y + x if self.has_shortcut else y)


class Chain(nn.Module):
    def __init__(self, net: Net) -> None:
        super().__init__()
        units = [Unit(3, net, False)]
        units += [Unit(net.width, net, net.is_residual) for _ in range(net.depth)]
        self.units = nn.Sequential(*units)
        self.head = nn.Linear(net.width, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.head(self.units(x).mean(dim=(2, 3)))
        return y


def trained(net: Net, batch: int, steps: int, ranks: Ranks) -> dict[str, Any]:
    """The steps of one network, as a launch of the stall protocol reports them."""
    torch.manual_seed(0)
    model: Any = Chain(net)
    if ranks.world > 1:
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    images, labels = torch.randn(batch, 3, PIXELS, PIXELS), torch.zeros(batch, dtype=torch.long)
    clock, device = clock_of(model)
    events = StepEvents(model, [optimizer], clock)
    ranks.wait()
    for step in range(WARMUP + steps + 1):
        if step == WARMUP:
            events.keep_last_gradient_only()
        events.begin()
        events.got()
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    events.begin()
    measured = {
        "passes": events.parts()[WARMUP:],
        "updates": events.updates()[WARMUP:],
        "cpu_seconds": 0.0,
    }
    events.remove()
    return {
        "run": "T1" if ranks.world > 1 else "T0",
        "world": ranks.world,
        "hosts": ranks.hosts,
        "device": device,
        "workers": 0,
        "batch": batch,
        "communication": ranks.reduce_alone(model),
        "ranks": ranks.gathered(measured),
    }


def curve(ranks: Ranks) -> list[list[float]]:
    """Bytes and seconds of an all-reduce alone."""
    rows = []
    for size in CURVE_BYTES if ranks.world > 1 else ():
        buffer = torch.zeros(size // 4)
        taken = []
        for _ in range(CURVE_REPEATS):
            group.barrier()
            began = time.perf_counter()
            group.all_reduce(buffer)
            taken.append(time.perf_counter() - began)
        rows.append([float(size), ranks.largest(statistics.median(taken[2:]))])
    return rows


def main() -> None:
    folder = Path(sys.argv[1])
    orders = json.loads((folder / "orders.json").read_text("utf-8"))
    family = [Net(**fields) for fields in orders["family"]]
    group.init_process_group("gloo")
    ranks = Ranks.here()
    results: dict[str, Any] = {"nets": [[] for _ in family], "curve": curve(ranks)}
    for _ in range(orders["repeats"]):
        for at, net in enumerate(family):
            results["nets"][at].append(trained(net, orders["batch"], orders["steps"], ranks))
    if ranks.rank == 0:
        part = folder / "results.part"
        part.write_text(json.dumps(results), "utf-8")
        part.replace(folder / "results.json")
    ranks.leave()
    end_at_once()


if __name__ == "__main__":
    main()
