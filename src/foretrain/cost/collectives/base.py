"""What every collective algorithm answers.

An algorithm is a *pattern* of steady flows (who sends to whom, in which share) and the *volume* that each
unit of that pattern carries, plus the *steps* whose latencies add up. The pipelined form is exact for long
messages on its ideal topology; latency is paid once in front.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False, slots=True)
class Flows:
    """Flow i of group `group[i]` sends `weight[i]` of the algorithm's volume from rank `src[i]` to `dst[i]`."""

    group: Ints
    src: Ints
    dst: Ints
    weight: Floats


@dataclass(frozen=True, slots=True)
class Steps:
    """Hops that follow one another, inside a domain and between domains."""

    inside: float
    between: float


class Algorithm(Protocol):
    """One way to carry out some collectives. `pattern` names the flows, so that equal ones are shared."""

    name: str
    pattern: str
    collectives: tuple[str, ...]

    def flows(self, groups: Ints, domain_of: Ints) -> Flows: ...

    def volume(self, collective: str, size: float, ranks: int) -> float: ...

    def steps(self, collective: str, ranks: int, domains: int) -> Steps: ...
