"""The training script on two hosts of one process each: network namespaces joined by a cable of a known rate."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from foretrain.measurement.launching import free_port
from foretrain.measurement.protocol import StallProtocol, measure_train
from testbed.hosts import INTERFACE, Hosts, standing
from testbed.topologies import Cable, Graph

PAIR = Graph("pair", 2, (Cable(0, 1),))
PATIENCE = 300.0  # seconds of one run, and of one host's wait for the other


class Pair:
    """Two hosts that stand, with a `torchrun` for each that runs there."""

    def __init__(self, hosts: Hosts, folder: Path, bits_per_second: float) -> None:
        self.hosts, self._rate = hosts, bits_per_second
        self._torchruns = [self._torchrun(rank, folder) for rank in range(PAIR.hosts)]

    def commands(self, script: Sequence[str]) -> list[list[str]]:
        """How the script is started on each host."""
        meeting = ["--master-addr", self.hosts.address(0), "--master-port", str(free_port())]
        return [
            [str(torchrun), "--nnodes", "2", "--node-rank", str(rank), "--nproc-per-node", "1", *meeting, *script]
            for rank, torchrun in enumerate(self._torchruns)
        ]  # fmt: skip

    def printed(self, script: Sequence[str], times_as_fast: float = 1.0) -> str:
        """What the script prints on the first host, with a network so many times as fast."""
        self.hosts.shape(self._rate * times_as_fast)
        started = [
            subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            for words in self.commands(script)
        ]
        try:
            said = [process.communicate(timeout=PATIENCE) for process in started]
            if any(process.returncode for process in started):
                raise RuntimeError("\n".join(errors for _, errors in said))
            return said[0][0]
        finally:
            self.hosts.shape(self._rate)
            for process in started:
                process.kill()

    def measured(
        self, script: Sequence[str], protocol: StallProtocol, between: Callable[[int], None]
    ) -> dict[str, Any]:
        """`measure train`, started on both hosts as a user would; `between` has the machine after each turn."""
        turn = threading.Barrier(PAIR.hosts, timeout=PATIENCE)

        def on(rank: int, command: Sequence[str]) -> dict[str, Any] | None:
            def launched(done: int, of: int) -> None:
                if done % (of // protocol.repeats):
                    return  # the first host has launches of its own
                turn.wait()
                if rank == 0:
                    between(done // (of // protocol.repeats))
                turn.wait()

            try:
                return measure_train(command, protocol, progress=launched)
            except BaseException:
                turn.abort()
                raise

        with ThreadPoolExecutor(PAIR.hosts) as both:
            found = list(both.map(on, range(PAIR.hosts), self.commands(script)))
        assert found[0] is not None  # the first host has the answer
        return found[0]

    def _torchrun(self, rank: int, folder: Path) -> Path:
        place = folder / f"host{rank}" / "torchrun"
        place.parent.mkdir()
        words = self.hosts.command(rank, [sys.executable, "-m", "torch.distributed.run"])
        place.write_text(
            f'#!/bin/sh\nexport GLOO_SOCKET_IFNAME={INTERFACE}\nexec {" ".join(words)} "$@"\n'
        )
        place.chmod(0o755)
        return place


@contextlib.contextmanager
def pair(folder: Path, bits_per_second: float) -> Iterator[Pair]:
    with standing(PAIR, bits_per_second) as hosts:
        yield Pair(hosts, folder, bits_per_second)
