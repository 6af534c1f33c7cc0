"""A real training script whose bottleneck can be chosen: an MLP on records that are read from a file and prepared.

    python train.py --data FOLDER [--reads 64] [--rounds 4] [--width 512] [--depth 4] [--workers 1] [--time 60]

`--reads` random records of 4 KiB are read for every sample (without readahead, as shuffled access does), `--rounds`
hashes of 64 KiB prepare it. Under torchrun it trains with DistributedDataParallel over gloo. With `--time` it
measures itself, by the clock alone: the seconds of so many steps (and of a second's worth of them, as far as the epoch goes) are
printed as JSON.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import time

import numpy as np
import torch
from torch import nn

from foretrain.measure import watch
from foretrain.measurement.backend import keep_memory

RECORD = 4096
UNTIMED = 12  # first steps, which find batches that were prepared while the process started


class Records(torch.utils.data.Dataset):
    """Samples made of random records of one file, each record in one sample: a cold epoch reads nothing twice."""

    def __init__(self, folder: str, reads: int, rounds: int, features: int) -> None:
        self.path = os.path.join(folder, "records.bin")
        self.reads, self.rounds, self.features = reads, rounds, features
        self.order = np.random.default_rng(0).permutation(os.path.getsize(self.path) // RECORD)
        self.block = bytes(65536)
        self.handle = -1

    def __len__(self) -> int:
        return len(self.order) // self.reads

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if self.handle < 0:
            self.handle = os.open(self.path, os.O_RDONLY)
            os.posix_fadvise(self.handle, 0, 0, os.POSIX_FADV_RANDOM)
        digest = b""
        for record in self.order[index * self.reads : (index + 1) * self.reads].tolist():
            digest = os.pread(self.handle, RECORD, record * RECORD)[:64]
        for _ in range(self.rounds):
            digest = hashlib.sha256(digest + self.block).digest()
        return torch.full((self.features,), digest[0] / 255.0), digest[0] % 10


def network(width: int, depth: int, features: int) -> nn.Module:
    layers: list[nn.Module] = [nn.Linear(features, width), nn.ReLU()]
    for _ in range(depth):
        layers += [nn.Linear(width, width), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(width, 10))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True)
    for name, default in (
        ("reads", 1), ("rounds", 1), ("width", 64), ("depth", 1), ("batch", 16), ("workers", 1),
        ("features", 64), ("time", 0),
    ):  # fmt: skip
        parser.add_argument(f"--{name}", type=int, default=default)
    return parser.parse_args()


def main() -> None:
    told = arguments()
    several = int(os.environ.get("WORLD_SIZE", "1")) > 1
    if several:
        torch.distributed.init_process_group("gloo")
    keep_memory()  # else a step is a fifth slower or not, by what else the process has allocated
    torch.manual_seed(0)
    model = network(told.width, told.depth, told.features)
    if several:
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    data = Records(told.data, told.reads, told.rounds, told.features)
    sampler = torch.utils.data.distributed.DistributedSampler(data) if several else None
    loader = torch.utils.data.DataLoader(
        data,
        told.batch,
        shuffle=sampler is None,
        sampler=sampler,
        num_workers=told.workers,
        drop_last=True,
    )
    ends = []
    for inputs, targets in watch(loader, model, optimizer, data=told.data):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
        ends.append(time.perf_counter())
        if told.time and len(ends) > UNTIMED + told.time and ends[-1] > ends[UNTIMED] + 1.0:
            break
    if told.time:
        print(json.dumps({"step_seconds": np.diff(ends[UNTIMED:]).tolist()}), flush=True)
    if several:
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
