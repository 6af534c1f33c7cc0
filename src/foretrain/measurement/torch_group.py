"""The processes of a job through torch.distributed: gloo between CPUs, NCCL between GPUs."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

from foretrain.errors import InputError
from foretrain.measurement.backend import torch_module
from foretrain.measurement.links import ELEMENT, Shape

SIDE, LENGTH = 256, 2**20  # of the work that ranks do to see how far they drift apart


class TorchGroup:
    """This process among those a launcher started. Use it in a `with`."""

    def __init__(self, backend: str = "", threads: int | None = None) -> None:
        self.torch = torch_module()
        if threads is not None:
            self.torch.set_num_threads(threads)
        self.distributed: Any = self.torch.distributed
        is_cuda = bool(self.torch.cuda.is_available()) and backend != "gloo"
        self.backend = backend or ("nccl" if is_cuda else "gloo")
        if self.backend not in ("gloo", "nccl"):
            raise InputError(f"unknown backend {backend!r}. Known: gloo, nccl.")
        if self.backend == "nccl" and not is_cuda:
            raise InputError("nccl needs GPUs, and PyTorch finds none; use gloo.")
        local = int(os.environ.get("LOCAL_RANK", "0"))
        self.place = self.torch.device("cuda", local) if is_cuda else self.torch.device("cpu")
        if is_cuda:
            self.torch.cuda.set_device(self.place)
        self.device = str(self.torch.cuda.get_device_name(self.place)) if is_cuda else "cpu"
        try:
            self.distributed.init_process_group(self.backend)
        except (RuntimeError, ValueError) as error:
            raise InputError(f"the processes cannot connect to each other: {error}") from None
        self.rank = int(self.distributed.get_rank())
        self.world = int(self.distributed.get_world_size())
        self.per_node = int(os.environ.get("LOCAL_WORLD_SIZE", self.world))
        self._operands: tuple[Any, ...] = ()
        self._groups: dict[tuple[int, ...], Any] = {}

    def __enter__(self) -> TorchGroup:
        return self

    def __exit__(self, fault: object, *_: object) -> None:
        self._groups.clear()  # gloo's threads end with the last that knows their group
        if self.distributed.is_initialized():
            if fault is None:
                self.distributed.barrier()  # nobody hangs up while another still listens
            self.distributed.destroy_process_group()

    def _group(self, shape: Shape) -> Any:
        """All ranks make a group together, whether they are in it or not."""
        if shape.ranks not in self._groups:
            self._groups[shape.ranks] = self.distributed.new_group(list(shape.ranks))
        return self._groups[shape.ranks]

    def call(self, collective: str, size: int, shape: Shape) -> Callable[[int], object] | None:
        group = self._group(shape)
        call = (
            self._collective(collective, size, shape, group) if self.rank in shape.ranks else None
        )
        works = 1.0
        if call is not None:
            try:
                call(0)
            except (RuntimeError, NotImplementedError, ValueError):
                works = 0.0
        flag = self.torch.tensor([works], device=self.place)
        self.distributed.all_reduce(flag, op=self.distributed.ReduceOp.MIN)
        if not float(flag):
            return None
        return call or (lambda _: None)

    def _collective(
        self, collective: str, size: int, shape: Shape, group: Any
    ) -> Callable[[int], object]:
        """Sizes as nccl-tests counts them: the whole buffer on a rank."""
        torch, d, count = self.torch, self.distributed, len(shape.ranks)
        whole = max(count, -(-size // ELEMENT // count) * count)
        full = torch.zeros(whole, device=self.place)
        part = torch.zeros(whole // count, device=self.place)
        match collective:
            case "all_reduce":
                return lambda _: d.all_reduce(full, group=group)
            case "all_gather":
                gather = _named(d, "all_gather_single", "all_gather_into_tensor")
                return lambda _: gather(full, part, group=group)
            case "reduce_scatter":
                scatter = _named(d, "reduce_scatter_single", "reduce_scatter_tensor")
                return lambda _: scatter(part, full, group=group)
            case "all_to_all":
                other = torch.zeros_like(full)
                return lambda _: d.all_to_all_single(other, full, group=group)
            case "broadcast":
                return lambda _: d.broadcast(full, shape.ranks[0], group=group)
        return self._there_and_back(full, shape, group)

    def _there_and_back(self, full: Any, shape: Shape, group: Any) -> Callable[[int], object]:
        """A message one way, then one the other way: calls alternate, so each is one message."""
        first, second = shape.ranks
        d = self.distributed

        def call(number: int) -> None:
            sender, receiver = (first, second) if number % 2 == 0 else (second, first)
            if self.rank == sender:
                d.send(full, receiver, group=group)
            else:
                d.recv(full, sender, group=group)

        return call

    def slowest(self, call: Callable[[int], object] | None, calls: int) -> float:
        self.distributed.barrier()
        self._finish()
        began = time.perf_counter()
        if call is not None:
            for number in range(calls):
                call(number)
            self._finish()
        return self.largest(time.perf_counter() - began)

    def work(self, calls: int) -> float:
        """Products that fit in a cache and sums that do not, in turn: what training steps are made of."""
        if not self._operands:
            make = self.torch.randn
            self._operands = (
                *(make(SIDE, SIDE, device=self.place) for _ in range(2)),
                *(make(LENGTH, device=self.place) for _ in range(3)),
            )
        a, b, x, y, out = self._operands
        self.distributed.barrier()
        self._finish()
        began = time.perf_counter()
        for _ in range(calls):
            self.torch.mm(a, b)
            self.torch.add(x, y, out=out)
        self._finish()
        return time.perf_counter() - began

    def _finish(self) -> None:
        if self.place.type == "cuda":
            self.torch.cuda.synchronize(self.place)

    def largest(self, value: float) -> float:
        return self._reduced(value, self.distributed.ReduceOp.MAX)

    def mean(self, value: float) -> float:
        return self._reduced(value, self.distributed.ReduceOp.SUM) / self.world

    def _reduced(self, value: float, how: Any) -> float:
        tensor = self.torch.tensor([value], dtype=self.torch.float64, device=self.place)
        self.distributed.all_reduce(tensor, op=how)
        return float(tensor)


def _named(module: Any, *names: str) -> Any:
    """A function by the first of its names that this version of torch has."""
    return next(getattr(module, name) for name in names if hasattr(module, name))
