"""ResNet-50 under Horovod and BlueFog: published runs against predictions, row by row.

python bench/gossip.py [--report FILE]    default docs/gossip.md

The runs are not part of the project. They are looked for in `FORETRAIN_CASES` or beside the checkout in
`shared/cases/open`.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

from foretrain.cases import predict_case

ROOT = Path(__file__).resolve().parents[1]
FOLDER = Path(os.environ.get("FORETRAIN_CASES", ROOT.parent / "shared" / "cases" / "open"))
FILE = FOLDER / "bluefog_b64.jsonl"
READING_ERROR = 163.0  # images/s, as the cases state: the runs were read off a figure
METHODS = {
    "allreduce": "Horovod",
    "hierarchical_neighbor_allreduce": "BlueFog hierarchical",
    "neighbor_allreduce": "BlueFog neighbours",
}
MEAN_TARGET = 0.08


@dataclass(frozen=True)
class Scored:
    """One run, and what is predicted of it."""

    method: str
    devices: int
    quality: str
    samples: int
    measured: float
    predicted: float

    @property
    def error(self) -> float:
        return self.predicted / self.measured - 1.0

    @property
    def rates(self) -> tuple[float, float]:
        """Images per second, measured and predicted."""
        return self.samples / self.measured, self.samples / self.predicted


def scored(cases: Iterable[Mapping[str, Any]]) -> list[Scored]:
    rows = []
    for case in cases:
        answer = predict_case({key: value for key, value in case.items() if key != "measured"})
        rows.append(
            Scored(
                METHODS[case["runtime_options"]["sync"]],
                case["devices"],
                case["quality"],
                case["batch"]["global"],
                case["measured"]["step_time_s"],
                answer["step_seconds"],
            )
        )
    return rows


def read(path: Path = FILE) -> list[Scored]:
    return scored(json.loads(line) for line in path.read_text().splitlines() if line.strip())


def mean_error(rows: Iterable[Scored], quality: str) -> float:
    errors = [abs(row.error) for row in rows if row.quality == quality]
    return sum(errors) / len(errors)


def orders(rows: Iterable[Scored]) -> list[tuple[int, str, str, bool]]:
    """(devices, slower, faster, is it predicted so?) of all pairs that the reading error lets one tell apart."""
    found = []
    for one, other in combinations(rows, 2):
        if one.devices != other.devices:
            continue
        slower, faster = sorted((one, other), key=lambda row: row.rates[0])
        if faster.rates[0] - slower.rates[0] > 2**0.5 * READING_ERROR:
            is_so = slower.rates[1] < faster.rates[1]
            found.append((one.devices, slower.method, faster.method, is_so))
    return found


def decline(rows: Iterable[Scored], method: str) -> list[tuple[int, float, float]]:
    """(devices, measured, predicted): images/s per device over those of the smallest run of one node."""
    mine = sorted((row for row in rows if row.method == method), key=lambda row: row.devices)
    base = next(row for row in mine if row.devices == 8)
    return [
        (row.devices, base.measured / row.measured, base.predicted / row.predicted)
        for row in mine
        if row.devices >= 8
    ]


def table(rows: list[Scored]) -> list[str]:
    lines = [
        "| method | GPUs | quality | measured, ms | predicted, ms | error | measured, images/s | predicted |",
        "|---|---:|---|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        rates = row.rates
        lines.append(
            f"| {row.method} | {row.devices} | {row.quality} | {row.measured * 1e3:.1f} |"
            f" {row.predicted * 1e3:.1f} | {row.error:+.1%} | {rates[0]:,.0f} | {rates[1]:,.0f} |"
        )
    return lines


def verdicts(rows: list[Scored]) -> list[str]:
    medium, low = (mean_error(rows, quality) for quality in ("medium", "low"))
    told = orders(rows)
    wrong = [f"{n} GPUs: {slower} < {faster}" for n, slower, faster, is_so in told if not is_so]
    right = len(told) - len(wrong)
    lines = [
        f"- mean error of rows of medium quality {medium:.1%} (target {MEAN_TARGET:.0%},"
        f" {'met' if medium <= MEAN_TARGET else 'missed'}); of low quality {low:.1%}",
        f"- order of throughput: {right} of {len(told)} pairs outside the digitization error are right"
        + (f"; wrong: {', '.join(wrong)}" if wrong else ""),
    ]
    for method in METHODS.values():
        steps = ", ".join(
            f"{said:.2f} ({seen:.2f}) on {n}" for n, seen, said in decline(rows, method)
        )
        lines.append(
            f"- {method}, throughput per GPU relative to 8 GPUs, measured in brackets: {steps}"
        )
    return lines


PAGE = """# Overlapped and decentralized data parallelism

Written by `bench/gossip.py`; do not edit. How data-parallel runtimes overlap communication with backward, and how
accurately published runs of two of them are predicted.

## Gradient fusion

| runtime | what is fused | when |
|---|---|---|
| DDP (`ddp`, most others) | tensors in the order backward produces them, up to a bucket of 25 MiB (the first: 1 MiB) | when the bucket is full, the rest at the end |
| Horovod (`horovod`) | what is ready at a cycle of its background thread, up to 64 MiB | every 5 ms, after all ranks agreed (1 ms and 128 MiB from 0.21: `cycle_seconds=1ms`, `bucket_bytes=128MiB`) |
| BlueFog (`bluefog`) | the same, up to 8 MiB including receive buffers (`fusion_copies`) | every 0.5 ms, after rank 0 has received requests from all |

*Cycles* (`cycle_seconds`) are why Horovod scales worse than its bytes suggest: ResNet-50 has about 25 of them in a backward pass,
each with its own all-reduce, and each of those has the latency of a ring, which grows with the number of ranks. Before that, ranks
agree on what to reduce: `negotiation_rounds` trips over a binary tree of small messages and the coordinator's time for each rank.
If negotiation takes longer than a cycle, cycles become less frequent and buffers larger. Tensors that share a buffer are copied in
and out. Tensors that become ready after a cycle wait for the next.

`synchronises_at` defines when synchronization starts: `gradient` as backward produces gradients; `forward` (adapt while
communicating) on weights from the forward pass on, so that it overlaps the whole step; `adapted` (adapt then combine) on weights
updated as backward produces their gradients. `synchronises` is the collective used: see [collectives](collectives.md).

In a neighbor exchange, a rank sends as soon as it is ready and waits, before its update, only for the ranks that send to it (in a
hierarchical one, a domain for the domains that send to it): a slow rank delays only its neighbors in that step. Ranks that send over
different links finish at different times, and are simulated separately.

Over sockets (Ethernet), NCCL cannot use LL128 between nodes, and every hop between nodes takes a TCP message of 50 us, which NCCL's
tuner does not take into account.

```python
>>> from foretrain import predict
>>> question = dict(on="8 x p3.16xlarge", plan="dp64", batch=4096, micro_batch=64, precision="fp32", optimizer="sgd")
>>> horovod = predict("resnet50", **question, runtime="horovod")
>>> gossip = {"synchronises": "inner_outer_all_reduce", "synchronises_at": "forward", "fusion_copies": 2}
>>> bluefog = predict("resnet50", **question, runtime="bluefog", runtime_options=gossip)
>>> horovod.step_seconds > bluefog.step_seconds
True

```

## ResNet-50 on 4 to 128 V100 (p3.16xlarge, 25 Gb/s, 64 images per GPU)

Published by BlueFog as a figure, digitized to within 163 images/s: rows below 32 GPUs have low quality.

{table}

{verdicts}

## Caveats

- No constant was fitted to these rows. Cycles, buffers and messages per cycle are those of the sources named in
  `runtime/presets.yaml`; 50 us for a TCP message and 5 us to read one rank's requests are classes, not measurements.
- Mechanisms were chosen with these rows in view, so they are not an independent test. That kernels of a hierarchical exchange
  wait on all devices of a node (and slow them down like a collective within the node) explains the gap between the two BlueFog
  rows and was not tested elsewhere. Horovod and the hierarchical exchange are predicted within 1 % of each
  other on 16 and 32 GPUs, and their order there is uncertain: with a bandwidth efficiency of Ethernet of 0.60
  instead of 0.58 (two measurements found 0.46 and 0.70) it is wrong on 32.
- Horovod's decline is underestimated. Not modeled: the slowest of many TCP connections determining the speed, random delays of
  ranks, and hooks that fire when the host launches a kernel, not when the device completes it.
"""


def page(rows: list[Scored]) -> str:
    return PAGE.replace("{table}", "\n".join(table(rows))).replace(
        "{verdicts}", "\n".join(verdicts(rows))
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--report", metavar="FILE", default=str(ROOT / "docs" / "gossip.md"))
    options = parser.parse_args()
    if not FILE.is_file():
        parser.error(f"no {FILE.name} in {FOLDER}; name the folder of cases in FORETRAIN_CASES")
    rows = read()
    Path(options.report).write_text(page(rows), encoding="utf-8")
    print("\n".join([*table(rows), "", *verdicts(rows)]))


if __name__ == "__main__":
    main()
