"""docs/testbed.md: how the experiment works, and what it found."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from foretrain.testing.testbed.figure import figure
from foretrain.testing.testbed.report import Row, lines, summary, verdict

HEAD = """# Predictions on a real network

Written by `foretrain-testbed --page docs/testbed.md`; do not edit. PyTorch processes train over shaped links, beside
what Foretrain predicted for them before they ran.

    make testbed                     # the whole experiment, about a quarter of an hour on two cores
    foretrain-testbed --subset       # four configurations, about two minutes
    foretrain-testbed --from docs/testbed.json --page docs/testbed.md

It needs Linux, root (or CAP_NET_ADMIN and CAP_SYS_ADMIN), `ip` and `tc`, and the extra `[torch]`; without one of them
it says which and ends with status 77. Raw results, every repeat included, go to the file of `--json`; those of this page
are [testbed.json](testbed.json).

"""

HOW = """
## What is run

Every host is a network namespace with a process in it; cables are veth pairs whose two ends are shaped by token buckets
(`tc tbf`), with queues that lose nothing. Namespaces forward along the very routes that the predicted cluster has. A rank
computes with one thread, and ranks share the machine's cores. Models are an MLP (0.67 M parameters), a convolutional network (0.63 M)
and a transformer (0.86 M), all in fp32 with SGD and momentum.

| scheme | what happens in a step |
|---|---|
| `ddp` | DistributedDataParallel over Gloo: buckets are reduced in a ring, in the order of ranks, while backward runs |
| `parameter-server` | rank 0, which works too, receives all gradients and sends the mean back |
| `gossip` | weights go to the neighbours along cables, both ways, after the update |
| `one-peer` | weights go to one rank, 1, 2, 4 … places further on in turn (one-peer exponential graph) |

## What is predicted from

Measured once, with two ranks on one cable: how long a short message takes, what share of a shaped rate long messages
reach (at 40 and 160 Mbit/s), how long a buffer takes to copy, and forward, backward and update of each model at two
batch sizes with all cores busy and no communication. No topology, no scheme, no rate and no batch size of the table is
among them. Everything else is an ordinary question: the drawn cluster, plan `dp8`, runtime `cpu-gloo`. Ranks
that share cores share them evenly, as flows share a link: eight ranks on two cores compute four times as long.

*communication* is the same exchange without any compute, predicted with compute that takes no time. Each figure is the
median of three repeats of several steps; *noise* is half of what lies between the least and the most of them.

## What these figures rest on

- No constant was fitted to rows of the table. How the machine is measured was settled after earlier runs of DDP and of a parameter
  server on the star had been seen: a short message is one of 64 bytes, and of what is measured once the least disturbed repeat counts, not
  the median. Workers have raised priority for the same reason.
- Hosts of the two racks are dealt out in turn, and the random graph is sparse, so that a ring in the order of ranks meets itself on
  some cables; else most topologies would be alike to it. Star, ring and exponential graph are: DDP is predicted, and
  measured, to take as long on each, so such pairs say nothing about order.
- Foretrain's own constants of Gloo (50 us a message, TCP's incast) are replaced by what was measured here, and its rings along cables
  are turned off, since Gloo lays one ring in the order of ranks. Rates of cables are given so that the share of them that is
  taken to be reached comes out as measured.
- Steps of gossip come out too short where ranks compute for long. Likely causes, none of them tested apart: the kernel's work for
  packets takes time of the cores that ranks compute on; ranks drift apart over steps, and iterations of a one-peer exchange
  then meet on cables.
"""


def page(rows: Sequence[Row], image: str) -> str:
    found = "\n".join(verdict(summary(rows)))
    table = "\n".join(lines(rows))
    return f"{HEAD}## Found\n\n{found}\n\n![predicted against measured]({image})\n\n{table}\n{HOW}"


def write(path: Path, rows: Sequence[Row]) -> None:
    """The page, and the figure beside it."""
    image = path.with_suffix(".svg")
    image.write_text(figure(rows))
    path.write_text(page(rows, image.name))
