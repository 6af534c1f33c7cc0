"""Writes `docs/search-quality.md`: how good estimates are against simulations, and searches against looking at all.

    python tools/search_quality.py [--plans N] [--pairs N] [--seed S] [--cases DIR] [-o docs/search-quality.md]

Plans are drawn evenly from all of a space that fit, on the stacks below. Small searches drawn by lot are simulated in
full. Measured plans come from case files, which are not part of the project (`FORETRAIN_CASES`, or `shared/cases/open`
beside the checkout); without them that part is left out and said so.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from estimate_gaps import Agreement, Exhausted, Gap, exhausted, gaps
from measured_plans import measured_part, share
from plan_sets import LEAST_SET, NEAR
from small_searches import Drawn, drawn

from foretrain.planning.planner import LEAST_SIMULATED
from foretrain.planning.task import Task
from foretrain.report.md import table
from foretrain.resolving import ask

HERE = Path(__file__).resolve().parents[1]
STACKS: tuple[tuple[str, str, int, str, str], ...] = (
    ("gpt3-175b", "128 x dgx-a100-80gb", 1536, "megatron", "bf16"),
    ("llama3-8b", "2 x dgx-h100", 128, "megatron", "bf16"),
    ("mixtral-8x7b", "8 x dgx-h100", 256, "megatron", "bf16"),
    ("llama3-70b", "32 x dgx-h100", 512, "megatron-bridge", "bf16"),
    ("llama3-8b", "4 x aws:p4d.24xlarge", 256, "nemo", "bf16"),
    ("gpt3-13b", "8 x dgx-a100-80gb", 512, "megatron-deepspeed", "bf16"),
    ("gpt3-13b", "4 x dgx-a100-40gb", 256, "deepspeed", "bf16"),
    ("gpt3-6.7b", "4 x dgx-1-v100-32gb", 256, "deepspeed-2021", "fp16"),
    ("llama3-8b", "8 x dgx-h100", 256, "fsdp", "bf16"),
    ("llama3-8b", "4 x dgx-a100-80gb", 128, "fsdp2", "bf16"),
    ("llama3-70b", "16 x dgx-h100", 256, "torchtitan", "bf16"),
    ("llama3-70b", "16 x dgx-h100", 512, "nanotron", "bf16"),
    ("bert-large", "4 x aws:p3.16xlarge", 1024, "ddp", "fp16"),
    ("bert-large", "4 x dgx-1-v100-32gb", 512, "horovod", "fp16"),
    ("resnet50", "4 x aws:p3.16xlarge", 2048, "ddp", "fp16"),
    ("wide-resnet-13b", "4 x aws:p3dn.24xlarge", 1536, "alpa", "fp16"),
)
SAME = 0.005
PAGE = """# Search quality

Written by `tools/search_quality.py`; do not edit. The first two parts use the simulator as the reference; see the
[accuracy page](accuracy.md) for how close it is to real runs.

## Estimates vs. simulations

{plans} plans of each space, sampled evenly from those that fit (seed {seed}); nothing is pinned. Gaps are
|estimated / simulated − 1|, tau is Kendall's between the two orders of the plans. Wanted: median ≤ 0.5 %, p95 ≤ 5 %,
tau ≥ 0.95. *Unfit* counts plans that fit as estimated but not as simulated; the search simulates what it recommends,
so none of these is ever recommended.

{stacks}

Over all {total} plans: median {median}, p95 {p95}; of pairs of plans of one space, {ordered} are in the same order (tau
{tau}).

{worst}

## Search vs. exhaustive evaluation

{pairs} random small searches (seed {seed}; models, clusters, runtimes and constraints), every plan simulated.
The plan found first is the best one, or within {same} of it, in {equal} of them{others}. Searches where nothing fits
are {empty} of these, and the search says so in {agreed}. A search simulates the {simulated} plans that it estimates to
be best, or all where fewer fit: in {chosen} of these searches more do, and there its estimates had to choose.

{searches}

## Measured plans

Sets of {least} or more measured plans of one model, cluster and batch. A set counts if the plan ranked first
is within {near} of the one measured as best. Wanted: 80 %. The table of sets has simulated over measured times of the
best plan and of the first; where the second is far from one, the run was slower than others like it.

{measured}
"""


def task_of(model: str, on: str, batch: int, runtime: str, precision: str) -> Task:
    asked = ask(model, on=on, batch=batch, runtime=runtime, precision=precision)
    return Task(asked.workload, asked.cluster, asked.runtime)


def compared(plans: int, seed: int) -> Iterator[tuple[str, tuple[Gap, ...]]]:
    for model, on, batch, runtime, precision in STACKS:
        yield (
            f"{model}, {on}, {runtime}",
            gaps(task_of(model, on, batch, runtime, precision), (), plans, seed),
        )


def searched(pairs: int, seed: int) -> Iterator[tuple[Drawn, Exhausted]]:
    """So many with something to choose from, and those met on the way in which nothing, or one plan, fits."""
    left = pairs
    for one in drawn(seed):
        if not left:
            return
        found = exhausted(one.task, one.where)
        if found.plans:
            left -= found.fitting > 1
            yield one, found


def _stacks(found: Mapping[str, Sequence[Gap]]) -> str:
    head = ["space", "plans", "median", "p95", "tau", "memory: median", "p95", "unfit"]
    rows = []
    for name, each in found.items():
        a = Agreement.of(each)
        figures = [share(a.median), share(a.p95), f"{a.tau:.3f}", share(a.memory_median)]
        rows.append([name, str(a.plans), *figures, share(a.memory_p95), str(a.unfit)])
    return table(head, rows)


def _ordered(found: Iterable[Sequence[Gap]]) -> tuple[float, float]:
    """Pairs of plans of one space: the share in the same order, and the tau over all of them."""
    same = other = 0
    for rows in found:
        e, s = (np.array([getattr(r, n) for r in rows]) for n in ("estimated_seconds", "seconds"))
        signs = np.sign(np.subtract.outer(e, e)) * np.sign(np.subtract.outer(s, s))
        same, other = same + int((signs > 0).sum()), other + int((signs < 0).sum())
    return same / max(same + other, 1), (same - other) / max(same + other, 1)


def page(
    found: Mapping[str, Sequence[Gap]],
    pairs: Sequence[tuple[Drawn, Exhausted]],
    measured: str,
    options: argparse.Namespace,
) -> str:
    every = [row for rows in found.values() for row in rows]
    whole, (ordered, tau) = Agreement.of(every), _ordered(found.values())
    lost = [one.lost for _, one in pairs if one.best and one.found]
    equal = sum(value <= SAME for value in lost)
    empty = [one for _, one in pairs if not one.best]
    worst = sorted(every, key=lambda row: -abs(row.time))[:5]
    more = [f"; the others lose {', '.join(share(v) for v in sorted(lost) if v > SAME)}"]
    return PAGE.format(
        plans=options.plans,
        seed=options.seed,
        stacks=_stacks(found),
        total=whole.plans,
        median=share(whole.median),
        p95=share(whole.p95),
        ordered=share(ordered),
        tau=f"{tau:.3f}",
        worst="Largest errors: "
        + "; ".join(f"`{r.plan}` {100 * r.time:+.0f} %" for r in worst)
        + ".",
        pairs=len(pairs),
        same=share(SAME),
        equal=f"{equal} of {len(lost)}",
        others=more[0] if equal < len(lost) else "",
        empty=len(empty),
        agreed=f"{sum(one.agrees for one in empty)} of {len(empty)}",
        simulated=LEAST_SIMULATED,
        chosen=sum(one.fitting > LEAST_SIMULATED for _, one in pairs),
        searches=_searches(pairs),
        least=LEAST_SET,
        near=share(NEAR),
        measured=measured,
    )


def _searches(pairs: Sequence[tuple[Drawn, Exhausted]]) -> str:
    head = ["search", "plans", "fit", "found", "behind the best"]
    rows = [
        [d.name, str(e.plans), str(e.fitting), e.found or "nothing fits", share(e.lost) if e.found else ""]
        for d, e in pairs
    ]  # fmt: skip
    return table(head, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    beside = HERE.parent / "shared" / "cases" / "open"
    parser.add_argument("--plans", type=int, default=60, help="drawn from each space")
    parser.add_argument("--pairs", type=int, default=60, help="small searches")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--cases", type=Path, default=Path(os.environ.get("FORETRAIN_CASES", beside))
    )
    parser.add_argument("-o", type=Path, default=HERE / "docs" / "search-quality.md", dest="out")
    options = parser.parse_args()
    found = {}
    for name, rows in compared(options.plans, options.seed):
        found[name] = rows
        print(name, Agreement.of(rows), file=sys.stderr)
    pairs = []
    for one in searched(options.pairs, options.seed):
        pairs.append(one)
        print(one[0].name, one[1], file=sys.stderr)
    options.out.write_text(page(found, pairs, measured_part(options.cases), options))


if __name__ == "__main__":
    main()
