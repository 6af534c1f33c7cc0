"""One rank of the testbed: `python -m testbed.worker RANK RANKS ADDRESS PORT JOBS RESULTS`.

Reads jobs, runs them one after the other with PyTorch and Gloo, writes its times. A single thread computes, on one
core: ranks r, r + cores, r + 2·cores … share a core.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from foretrain.measurement.launching import end_at_once
from testbed.jobs import DDP, GOSSIP, ONE_PEER, SERVER, Job, Times, partner
from testbed.models import module, sample

FIRST_BUCKET = 1 << 20  # of DistributedDataParallel, in bytes; further ones hold 25 MiB
SERVING = 0
PRIORITY = -15  # before ordinary work of the machine, which would be taken for the model's
_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG of prctl(2)
Exchange = Callable[[list[torch.Tensor], int], None]


def main(words: list[str]) -> None:
    rank, ranks = int(words[0]), int(words[1])
    ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    _come_first()
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[rank % len(cores)]})
    torch.set_num_threads(1)
    torch.set_num_interop_threads(1)
    meeting = f"tcp://{words[2]}:{words[3]}"
    dist.init_process_group("gloo", meeting, timedelta(seconds=120), ranks, rank)
    jobs = [Job.of(row) for row in json.loads(Path(words[4]).read_text())]
    results = []
    for job in jobs:
        results.append(asdict(_RUN[job.kind](job)))
        dist.barrier()
    Path(words[5]).write_text(json.dumps(results))
    dist.barrier()
    dist.destroy_process_group()
    end_at_once()


def _come_first() -> None:
    """Priority among processes and, where the kernel groups these by session, among groups (sched(7), autogroup)."""
    with suppress(OSError):  # permitted to make namespaces, but not this: figures are then noisier
        os.setpriority(os.PRIO_PROCESS, 0, PRIORITY)
        Path("/proc/self/autogroup").write_text(str(PRIORITY))


def repeated(job: Job, step: Callable[[int], None], warm: int = 1) -> Times:
    """`repeats` times `steps` steps, after warm ones that do not count and set all ranks in pace."""
    began, ended, turn = [], [], 0
    for _ in range(job.repeats):
        dist.barrier()
        for number in range(warm + job.steps):
            if number == warm:
                began.append(time.perf_counter())
            step(turn)
            turn += 1
        ended.append(time.perf_counter())
        warm = 1
    return Times(tuple(began), tuple(ended))


def train(job: Job) -> Times:
    model = module(job.model)
    loss = nn.CrossEntropyLoss()
    x, y = sample(job.model, job.batch)
    wrapped = DistributedDataParallel(model) if job.scheme == DDP else model
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=1e-3, momentum=0.9)
    exchange = _exchange(job)

    def step(turn: int) -> None:
        optimizer.zero_grad()
        loss(wrapped(x), y).backward()
        if job.scheme == SERVER:
            exchange([p.grad for p in model.parameters() if p.grad is not None], turn)
        optimizer.step()
        if job.scheme in (GOSSIP, ONE_PEER):
            exchange([p.data for p in model.parameters()], turn)

    return repeated(job, step, warm=2)  # DDP lays its buckets anew after the first step


def exchange_alone(job: Job) -> Times:
    tensors = [p.data for p in module(job.model).parameters()]
    exchange = _exchange(job)
    return repeated(job, lambda turn: exchange(tensors, turn), warm=2)


def compute(job: Job) -> Times:
    """Forward, backward and update without communication, on as many ranks as there are cores."""
    model = module(job.model)
    loss = nn.CrossEntropyLoss()
    x, y = sample(job.model, job.batch)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    phases: dict[str, list[float]] = {"forward": [], "backward": [], "update": []}

    def step(turn: int) -> None:
        clock = [time.perf_counter()]
        found = loss(model(x), y)
        clock.append(time.perf_counter())
        found.backward()
        clock.append(time.perf_counter())
        optimizer.step()
        optimizer.zero_grad()
        clock.append(time.perf_counter())
        for name, start, end in zip(phases, clock, clock[1:], strict=False):
            phases[name].append(end - start)

    times = repeated(job, step, warm=3)
    return Times(times.began, times.ended, {name: tuple(s[3:]) for name, s in phases.items()})


def transfer(job: Job) -> Times:
    """A message there and one back, as a step."""
    buffer = torch.zeros(job.batch // 4)
    rank = dist.get_rank()

    def step(turn: int) -> None:
        for sender in (0, 1):
            if rank == sender:
                dist.send(buffer, 1 - sender)
            elif rank == 1 - sender:
                dist.recv(buffer, sender)

    return repeated(job, step)


def copy(job: Job) -> Times:
    """What `average` does beside its messages, for one neighbour and a buffer of `batch` bytes."""
    tensors = [torch.zeros(job.batch // 16) for _ in range(4)]
    return repeated(job, lambda turn: average(tensors, [], []))


def _exchange(job: Job) -> Exchange:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    if job.scheme == SERVER:
        return serve if rank == SERVING else push
    if job.scheme == GOSSIP:
        to = [b for a, b in job.edges if a == rank]
        heard = [a for a, b in job.edges if b == rank]
        return lambda tensors, turn: average(tensors, to, heard)
    if job.scheme == ONE_PEER:

        def one_peer(tensors: list[torch.Tensor], turn: int) -> None:
            to, heard = partner(rank, ranks, turn)
            average(tensors, [to], [heard])

        return one_peer
    return reduce_buckets


def reduce_buckets(tensors: list[torch.Tensor], turn: int) -> None:
    """What DistributedDataParallel sends: the last tensors up to its first bucket, then all others."""
    buckets: list[list[torch.Tensor]] = [[]]
    filled = 0
    for tensor in reversed(tensors):
        buckets[-1].append(tensor)
        filled += tensor.numel() * 4
        if len(buckets) == 1 and filled >= FIRST_BUCKET:
            buckets.append([])
    flat = [_flat(bucket) for bucket in buckets if bucket]
    _finish([dist.all_reduce(bucket, async_op=True) for bucket in flat])


def push(tensors: list[torch.Tensor], turn: int) -> None:
    """A worker: its gradients to the server, the mean back."""
    flat = _flat(tensors)
    sent = dist.isend(flat, SERVING)
    answer = torch.empty_like(flat)
    _finish([dist.irecv(answer, SERVING), sent])
    _store(tensors, answer)


def serve(tensors: list[torch.Tensor], turn: int) -> None:
    """The server, which works too: gradients of all others, then the mean to all of them."""
    flat = _flat(tensors)
    others = [rank for rank in range(dist.get_world_size()) if rank != SERVING]
    heard = [torch.empty_like(flat) for _ in others]
    _finish([dist.irecv(b, rank) for b, rank in zip(heard, others, strict=True)])
    for buffer in heard:
        flat += buffer
    flat /= len(others) + 1
    _finish([dist.isend(flat, rank) for rank in others])
    _store(tensors, flat)


def average(tensors: list[torch.Tensor], to: list[int], heard: list[int]) -> None:
    """Weights to some neighbours; the mean of one's own and what others sent."""
    flat = _flat(tensors)
    buffers = [torch.empty_like(flat) for _ in heard]
    works = [dist.irecv(b, rank) for b, rank in zip(buffers, heard, strict=True)]
    works += [dist.isend(flat, rank) for rank in to]
    _finish(works)
    mean = flat.clone()
    for buffer in buffers:
        mean += buffer
    _store(tensors, mean / (len(heard) + 1))


def _finish(works: Sequence[dist.Work | None]) -> None:
    for work in works:
        if work is not None:  # None: this rank takes no part
            work.wait()


def _flat(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.cat([tensor.reshape(-1) for tensor in tensors])


def _store(tensors: Sequence[torch.Tensor], flat: torch.Tensor) -> None:
    parts = torch.split(flat, [tensor.numel() for tensor in tensors])
    for tensor, value in zip(tensors, parts, strict=True):
        tensor.copy_(value.view_as(tensor))


_RUN: dict[str, Callable[[Job], Times]] = {
    "train": train,
    "exchange": exchange_alone,
    "compute": compute,
    "transfer": transfer,
    "copy": copy,
}

if __name__ == "__main__":
    main(sys.argv[1:])
