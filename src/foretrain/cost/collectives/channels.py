"""Channels: parallel paths through a group, each leaving a domain through another rank's port.

As many channels as the smallest domain has ranks. In a domain every channel has an entry, spread evenly over
its ranks; it visits all of them around the local ring and leaves from the rank before its entry.
"""

from __future__ import annotations

import numpy as np

from foretrain.arrays import Ints
from foretrain.cost.collectives.base import members


def local_paths(layout: Ints) -> list[list[Ints]]:
    """For each channel and domain: its ranks in the order in which the channel passes them."""
    domains = members(layout)
    count = min(len(ranks) for ranks in domains)
    return [
        [np.roll(ranks, -(channel * len(ranks) // count)) for ranks in domains]
        for channel in range(count)
    ]


def channel_rings(layout: Ints) -> list[Ints]:
    """One closed ring over all ranks per channel."""
    if int(layout.max()) == 0:
        return [np.arange(len(layout))]
    return [np.concatenate(paths) for paths in local_paths(layout)]
