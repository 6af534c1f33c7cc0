"""Parameter servers: workers push gradients to the servers and pull the sum.

One server: 2·alpha + 2(n-1)·M·beta, everything through one port. Sharded over s ranks of the group: 2·s messages
per worker, (n-1)/s of the buffer into each server per phase. With s = n it is a reduce-scatter and an all-gather.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from foretrain.arrays import Ints
from foretrain.cost.collectives.base import FromProgram, Steps
from foretrain.cost.collectives.program import CollectiveProgram, Round
from foretrain.errors import InputError


@dataclass(frozen=True)
class ParameterServer(FromProgram):
    """`servers` of the group's ranks hold a shard each (0: all of them), evenly spread over the group.

    They work too, unless `is_dedicated`: then the first ranks only serve and the others only work.
    """

    servers: int = 1
    is_dedicated: bool = False
    name = "parameter_server"
    collectives = ("parameter_server",)

    def __post_init__(self) -> None:
        if self.servers < 0 or (self.is_dedicated and self.servers == 0):
            raise InputError(
                f"parameter_server: {self.servers} servers; must be 1 or more, or 0 for all."
            )

    @property
    def pattern(self) -> str:
        return f"parameter_server({self.servers}{', dedicated' if self.is_dedicated else ''})"

    def places(self, ranks: int) -> tuple[Ints, Ints]:
        """Ranks that work, ranks that serve."""
        count = min(self.servers or ranks, ranks - self.is_dedicated)
        if self.is_dedicated:
            return np.arange(count, ranks), np.arange(count)
        return np.arange(ranks), np.arange(count) * ranks // count

    def volume(self, collective: str, size: float, ranks: int) -> float:
        return size * _stretch(self, ranks)

    def steps(self, collective: str, ranks: int, domains: int) -> Steps:
        _, servers = self.places(ranks)
        hops = 2 * max(1, len(servers) - (len(servers) == ranks))
        return Steps(0, hops) if domains > 1 else Steps(hops, 0)

    def program(
        self, collective: str, size: float, layout: Ints, chunks: int = 1
    ) -> CollectiveProgram:
        workers, servers = self.places(len(layout))
        count = len(servers)
        home = np.searchsorted(servers, workers, side="right") - 1
        if self.is_dedicated:
            home = np.arange(len(workers)) % count
        push = []
        for turn in range(
            count
        ):  # every worker starts with another server, its own last to be missed
            server = servers[(home + turn) % count]
            away = server != workers
            if away.any():
                push.append(Round.of(workers[away], server[away], size / count))
        pull = [Round(r.dst, r.src, r.bytes) for r in push]
        return CollectiveProgram(len(layout), (*push, *pull))

    def fan_in(self, ranks: int) -> float:
        workers, servers = self.places(ranks)
        own = not self.is_dedicated and len(servers) == 1  # the one server does not send to itself
        return float(max(1, -(-len(workers) // len(servers)) - own))


@lru_cache(maxsize=256)
def _stretch(servers: ParameterServer, ranks: int) -> float:
    """Pushes and pulls follow one another; as steady flows a server's port would carry them both at once.

    2 for one server, 2(n-1)/(n+s-2) for s of n, 1 where all serve.
    """
    program = servers.program("parameter_server", 1.0, np.zeros(ranks, dtype=np.int64))
    overlapped = float(max(program.sent().max(), program.received().max()))
    return program.seconds(0.0, 1.0) / overlapped
