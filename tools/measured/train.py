"""A real training script whose bottleneck can be chosen: an MLP on records that are read from a file and prepared.

    python train.py --data FOLDER [--reads 64] [--rounds 4] [--width 512] [--depth 4] [--workers 1]

`--reads` random records of 4 KiB are read for every sample (without readahead, as shuffled access does), `--rounds`
hashes of 64 KiB prepare it. Under torchrun it trains with DistributedDataParallel over gloo.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import time

import numpy as np
import torch
from torch import nn

from foretrain.measurement import watch

RECORD = 4096


class Records(torch.utils.data.Dataset):
    """Samples made of random records of one file."""

    def __init__(self, folder: str, samples: int, reads: int, rounds: int, features: int) -> None:
        self.path = os.path.join(folder, "records.bin")
        self.samples, self.reads, self.rounds, self.features = samples, reads, rounds, features
        self.records = os.path.getsize(self.path) // RECORD
        self.order = np.random.default_rng(0).permutation(self.records)
        self.block = bytes(65536)
        self.handle = -1

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if self.handle < 0:
            self.handle = os.open(self.path, os.O_RDONLY)
            os.posix_fadvise(self.handle, 0, 0, os.POSIX_FADV_RANDOM)
        digest = b""
        for at in range(self.reads):
            record = int(self.order[(index * self.reads + at) % self.records])
            digest = os.pread(self.handle, RECORD, record * RECORD)[:64]
        for _ in range(self.rounds):
            digest = hashlib.sha256(digest + self.block).digest()
        seed = digest[0] if digest else 0
        return torch.full((self.features,), seed / 255.0), seed % 10


def network(width: int, depth: int, features: int) -> nn.Module:
    layers: list[nn.Module] = [nn.Linear(features, width), nn.ReLU()]
    for _ in range(depth):
        layers += [nn.Linear(width, width), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(width, 10))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True)
    for name, default in (
        ("reads", 1), ("rounds", 1), ("width", 64), ("depth", 1), ("batch", 16), ("workers", 1),
        ("samples", 4096), ("features", 64), ("time", 0),
    ):  # fmt: skip
        parser.add_argument(f"--{name}", type=int, default=default)
    told = parser.parse_args()
    several = int(os.environ.get("WORLD_SIZE", "1")) > 1
    if several:
        torch.distributed.init_process_group("gloo")
    torch.manual_seed(0)
    model = network(told.width, told.depth, told.features)
    if several:
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    data = Records(told.data, told.samples, told.reads, told.rounds, told.features)
    sampler = torch.utils.data.distributed.DistributedSampler(data) if several else None
    loader = torch.utils.data.DataLoader(
        data,
        told.batch,
        shuffle=sampler is None,
        sampler=sampler,
        num_workers=told.workers,
        drop_last=True,
    )
    began = time.perf_counter()
    for passes, (inputs, targets) in enumerate(watch(loader, model, optimizer, data=told.data), 1):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
        if told.time and passes == 10:
            began = time.perf_counter()
        if told.time and passes == 10 + told.time:
            print(f"seconds per step: {(time.perf_counter() - began) / told.time:.6f}", flush=True)
            return


if __name__ == "__main__":
    main()
