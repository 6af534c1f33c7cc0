"""How a training script is launched, and the same script on one device or one host."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn

from foretrain.errors import InputError

# Options of torchrun that say where processes run: their value is kept, or replaced.
_PLACING = {
    "--nproc-per-node", "--nnodes", "--node-rank", "--master-addr", "--master-port", "--rdzv-backend",
    "--rdzv-endpoint", "--rdzv-id", "--rdzv-conf",
}  # fmt: skip
_WITH_VALUE = _PLACING | {
    "--max-restarts", "--monitor-interval", "--start-method", "--role", "--log-dir", "-r", "--redirects",
    "-t", "--tee", "--local-addr", "--logs-specs", "--local-ranks-filter", "--duplicate-stdout-filters",
    "--duplicate-stderr-filters", "--numa-binding", "--signals-to-handle", "--rdzv-timeout",
}  # fmt: skip
DEFAULT_PORT = 29500


@dataclass(frozen=True, slots=True)
class Launch:
    """A command, taken apart as far as where its processes run. `placing` is empty for a plain command."""

    head: tuple[str, ...]  # the launcher: `torchrun`, `python -m torch.distributed.run`; or nothing
    placing: tuple[tuple[str, str], ...]
    other: tuple[str, ...]  # further options of the launcher
    script: tuple[str, ...]

    @classmethod
    def of(cls, command: Sequence[str]) -> Launch:
        if not command:
            raise InputError(
                "no command to measure. Pass it after two dashes: foretrain measure train -- "
                "torchrun --nproc-per-node 2 train.py"
            )
        head = _launcher(command)
        if not head:
            return cls((), (), (), tuple(command))
        placing: dict[str, str] = {}
        other: list[str] = []
        at = head
        while at < len(command) and command[at].startswith("-"):
            at = _option(command, at, placing, other)
        if at >= len(command) and not any(word in ("-m", "--module") for word in other):
            raise InputError(f"{' '.join(command)!r} contains no script.")
        rest = tuple(command[at:])
        return cls(tuple(command[:head]), tuple(placing.items()), tuple(other), rest)

    @property
    def is_placed(self) -> bool:
        return bool(self.head)

    @property
    def per_host(self) -> int:
        """Processes that the launcher starts on a host."""
        text = dict(self.placing).get("--nproc-per-node", "1")
        if text.isdigit():
            return int(text)
        import torch  # `gpu`, `cpu`, `auto`: what torchrun would count

        devices = torch.cuda.device_count()
        return devices if devices and text in ("gpu", "auto") else os.cpu_count() or 1

    @property
    def hosts(self) -> int:
        text = dict(self.placing).get("--nnodes", "1").split(":")[-1]
        return int(text) if text.isdigit() else 1

    @property
    def host_rank(self) -> int:
        text = dict(self.placing).get("--node-rank", os.environ.get("PET_NODE_RANK", "0"))
        return int(text) if text.isdigit() else 0

    @property
    def words(self) -> list[str]:
        placed = [
            word for pair in self.placing for word in ((pair[0], pair[1]) if pair[1] else pair[:1])
        ]
        return [*self.head, *placed, *self.other, *self.script]

    def on_one_host(self, processes: int) -> Launch:
        """The same script with `processes` on this host alone."""
        placing = (
            ("--nproc-per-node", str(processes)),
            ("--nnodes", "1"),
            ("--master-addr", "127.0.0.1"),
            ("--master-port", str(free_port())),
        )
        kept = tuple(word for word in self.other if word != "--standalone")
        return replace(self, placing=placing, other=kept)

    def numbered(self, number: int) -> Launch:
        """The same again at a meeting point of its own, the same one on every host."""
        if not self.is_placed or self.hosts == 1:
            return self.on_one_host(self.per_host) if self.is_placed else self
        placing = dict(self.placing)
        if "--rdzv-endpoint" in placing and placing.get("--rdzv-backend", "static") != "static":
            placing["--rdzv-id"] = f"{placing.get('--rdzv-id', 'foretrain')}-{number}"
        else:
            placing["--master-port"] = str(int(placing.get("--master-port", DEFAULT_PORT)) + number)
        return replace(self, placing=tuple(placing.items()))


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def end_at_once(code: int = 0) -> NoReturn:
    """End a process of several whose work is done and written, without taking Python down.

    Gloo's threads can outlive their group. One that lets go of its last tensor while Python shuts down aborts the
    process (PyTorch issue 190489): 4 of 100 trainings by DistributedDataParallel on two busy cores.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _launcher(command: Sequence[str]) -> int:
    """How many words name a torchrun launcher; none for anything else."""
    if Path(command[0]).name == "torchrun":
        return 1
    module = ("torch.distributed.run", "torch.distributed.launch")
    if len(command) > 2 and command[1] == "-m" and command[2] in module:
        return 3
    return 0


def _option(command: Sequence[str], at: int, placing: dict[str, str], other: list[str]) -> int:
    """Take one option of the launcher; where the next word is."""
    name, equals, value = command[at].partition("=")
    spelled = name.replace("_", "-") if name.startswith("--") else name
    if spelled in ("-m", "--module", "--no-python"):
        other.append(command[at])
        return at + 1
    if spelled in _WITH_VALUE and not equals:
        if at + 1 >= len(command):
            raise InputError(f"{command[at]}: a value is missing.")
        value, at = command[at + 1], at + 1
    if spelled in _PLACING:
        placing[spelled] = value
    elif spelled in _WITH_VALUE:
        other.extend((spelled, value))
    else:
        other.append(command[at])
    return at + 1
