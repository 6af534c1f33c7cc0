"""docs/testbed.md: how the experiment works, and what it found."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from testbed.figure import figure
from testbed.report import Row, lines, summary, verdict

HEAD = """# Predictions on a real network

Written by `make testbed`; do not edit. PyTorch processes train over shaped links; the measurements are
compared with predictions made before the runs.

    make testbed                       # the whole experiment, about a quarter of an hour on two cores
    python -m testbed.main --subset    # four configurations, about two minutes
    python -m testbed.main --from docs/testbed.json --page docs/testbed.md

It is run from a checkout and is no part of the installed package. It needs Linux, root (or CAP_NET_ADMIN and
CAP_SYS_ADMIN), `ip` and `tc`, and the extra `[torch]`; otherwise it reports what is missing and exits with status 77. Raw results, including every repeat, are written to the file of `--json`;
those of this page are [testbed.json](testbed.json).

"""

HOW = """
## Experiment

Every host is a network namespace with one process; cables are veth pairs whose two ends are shaped by token buckets
(`tc tbf`), with lossless queues. Namespaces forward along the same routes as in the predicted cluster. A rank computes with
one thread, and ranks share the cores of the machine. Models are an MLP (0.67 M parameters), a convolutional network (0.63 M)
and a transformer (0.86 M), all in fp32 with SGD and momentum.

| scheme | a step |
|---|---|
| `ddp` | DistributedDataParallel over Gloo: buckets are reduced in a ring, in rank order, during backward |
| `parameter-server` | rank 0, which also trains, receives all gradients and sends the mean back |
| `gossip` | weights are exchanged with neighbors along cables, both ways, after the update |
| `one-peer` | weights are sent to one rank, 1, 2, 4 … positions ahead in turn (one-peer exponential graph) |

## Inputs of the predictions

Measured once, with two ranks on one cable: the latency of a short message, the fraction of a shaped rate that long messages
reach (at 40 and 160 Mbit/s), the time to copy a buffer, and forward, backward and update of each model at two batch sizes
with all cores busy and no communication. No topology, scheme, rate or batch size of the table is among them. Everything else
is an ordinary prediction: the explicit cluster, plan `dp8`, runtime `cpu-gloo`. Ranks share cores evenly, as flows share a
link: eight ranks on two cores compute four times as long.

*communication* is the same exchange without compute, predicted with zero compute time. Each figure is the median of three
repeats of several steps; *noise* is half of the range between the lowest and the highest.

## Caveats

- No constant was fitted to rows of the table. How the machine is measured was decided after seeing earlier runs of DDP and of a parameter
  server on the star: a short message has 64 bytes, and the fastest repeat of a one-time measurement is used, not the median. Workers
  have raised priority for the same reason.
- Hosts alternate between the two racks, and the random graph is sparse, so that a ring in rank order overlaps itself on some
  cables; otherwise most topologies would be equivalent for it. Star, ring and exponential graph are: DDP is predicted, and measured, to
  take equally long on each, so such pairs say nothing about ranking.
- Foretrain's built-in Gloo constants (50 us per message, TCP incast) are replaced by the measurements, and rings along cables are
  disabled, since Gloo uses one ring in rank order. Cable rates are specified such that the assumed bandwidth efficiency matches
  the measured one.
- Gossip steps are predicted too short if ranks compute for long. Likely causes, not tested separately: packet processing in the kernel
  uses cores that ranks compute on; ranks drift apart over steps, and iterations of a one-peer exchange then collide on cables.
"""


def page(rows: Sequence[Row], image: str) -> str:
    found = "\n".join(verdict(summary(rows)))
    table = "\n".join(lines(rows))
    return f"{HEAD}## Results\n\n{found}\n\n![predicted vs. measured]({image})\n\n{table}\n{HOW}"


def write(path: Path, rows: Sequence[Row]) -> None:
    """The page, and the figure beside it."""
    image = path.with_suffix(".svg")
    image.write_text(figure(rows))
    path.write_text(page(rows, image.name))
