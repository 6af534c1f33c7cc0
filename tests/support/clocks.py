"""When ranks are done, step after step: an all-reduce waits for everybody, gossip for its neighbours only.

A max-plus recursion: t_i(k+1) is the latest of i's own work and of what each neighbour j sent, t_j(k) + work_j
+ exchange_ji. A slow rank delays its neighbours in the step in which it is slow, theirs in the next, and so on:
delay spreads one hop per step, and a rank that is slow once is forgotten where others have slack.
"""

from __future__ import annotations

import numpy as np

from foretrain.arrays import Floats
from foretrain.cost.collectives.graphs import Graph


def neighbour_clocks(graph: Graph, work: Floats, exchange: Floats | float) -> Floats:
    """`[k, i]`: when rank i has heard its neighbours in step k, all starting at 0.

    `work[k, i]` are the seconds rank i computes in step k, `exchange` those of each edge of the graph.
    """
    steps, ranks = np.shape(work)
    edge = np.broadcast_to(np.asarray(exchange, dtype=np.float64), graph.src.shape)
    clocks = np.zeros((steps, ranks))
    now = np.zeros(ranks)
    for step in range(steps):
        ready = now + work[step]
        now = ready.copy()
        np.maximum.at(now, graph.dst, ready[graph.src] + edge)
        clocks[step] = now
    return clocks


def joint_clocks(work: Floats, exchange: float) -> Floats:
    """The same for an all-reduce: everybody waits for the slowest."""
    ends = np.cumsum(np.max(work, axis=1) + exchange)
    return np.repeat(ends[:, None], np.shape(work)[1], axis=1)
