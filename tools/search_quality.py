"""Writes `docs/search-quality.md`: how good estimates are against simulations, and searches against looking at all.

    python tools/search_quality.py [--plans N] [--pairs N] [--seed S] [--cases DIR] [-o docs/search-quality.md]

Plans are drawn evenly from all of a space that fit, on the stacks below. Small searches drawn by lot are simulated in
full. Measured plans come from case files, which are not part of the project (`FORETRAIN_CASES`, or `shared/cases/open`
beside the checkout); without them that part is left out and said so.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from foretrain.cases import question_from_case
from foretrain.errors import InputError
from foretrain.forecast import ask
from foretrain.plan.short_form import parse
from foretrain.planning.explain import estimate
from foretrain.planning.task import Task
from foretrain.report.md import table
from foretrain.testing.estimates import Agreement, Exhausted, Gap, exhausted, gaps
from foretrain.testing.small_searches import Drawn, drawn
from foretrain.validation.cases import read_cases
from foretrain.validation.steps import blind, is_timed, step_of

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
GROUPS = ("vtrain_multi", "nanotron", "alpa_ablation")
LEAST_SET = 5
NEAR = 0.05
SAME = 0.005
PAGE = """# Search quality

Written by `tools/search_quality.py`; do not edit. The simulator is the measure of the first two parts: how near it is
to real runs is on the [accuracy page](accuracy.md).

## Estimates against simulations

{plans} plans of each space, drawn evenly from those that fit (seed {seed}); nothing is pinned. Gaps are
|estimated / simulated − 1|, tau is Kendall's between the two orders of the plans. Wanted: median ≤ 3 %, p95 ≤ 10 %,
tau ≥ 0.95. *Unfit* counts plans that fit as estimated but not as simulated; the search simulates what it recommends,
so none of these is ever recommended.

{stacks}

Over all {total} plans: median {median}, p95 {p95}; of pairs of plans of one space, {ordered} are in the same order (tau
{tau}).

{worst}

## Searches against looking at all

{pairs} small searches drawn by lot (seed {seed}; models, clusters, stacks and constraints), every plan simulated.
The plan found first is the best one, or within {same} of it, in {equal} of them{others}. Searches where nothing fits
are {empty} of these, and the search says so in {agreed}.

{searches}

## Measured plans

Sets of {least} or more measured plans of one model, cluster and batch. A set counts where the plan that is ranked first
is within {near} of the one measured as best. Wanted: 80 %.

{measured}
"""


@dataclass(frozen=True)
class Measured:
    """A set of measured plans, and how far its first is behind the best, by the simulator and by the estimator."""

    group: str
    name: str
    plans: int
    simulated: float
    estimated: float


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


def sets_of(cases: Iterable[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    """Cases of one model, cluster, batch and stack."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for case in cases:
        if is_timed(case):
            same = [case["model"], case["cluster"], case["devices"], case["batch"]["global"]]
            same += [case.get("seq_len"), case["precision"], case["runtime"]]
            found.setdefault(json.dumps(same, sort_keys=True), []).append(case)
    return {key: rows for key, rows in found.items() if len(rows) >= LEAST_SET}


def measured(folder: Path) -> Iterator[Measured]:
    for group in GROUPS:
        path = folder / f"{group}.jsonl"
        if path.is_file():
            for rows in sets_of(read_cases([path])).values():
                yield _ranked(group, rows)


def _ranked(group: str, rows: Sequence[Mapping[str, Any]]) -> Measured:
    truth, simulated, estimated = [], [], []
    for case in rows:
        try:
            question = question_from_case(blind(case))
            task = Task(question.workload, question.cluster, question.runtime)
            words = replace(parse(question.plan.text), micro=question.plan.schedule.micro_batch)
            guess = estimate(task, words).seconds
            step = step_of(case)
        except InputError:
            continue
        truth.append(step.measured)
        simulated.append(step.seconds)
        estimated.append(guess)
    best = min(truth)
    first = rows[0]
    name = f"{first['devices']} x {first['cluster']['device']}, batch {first['batch']['global']}"
    behind = [truth[int(np.argmin(order))] / best - 1.0 for order in (simulated, estimated)]
    return Measured(group, name, len(truth), behind[0], behind[1])


def share(value: float) -> str:
    return f"{100 * value:.2f} %" if value < 0.1 else f"{100 * value:.1f} %"


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
    sets: Sequence[Measured],
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
        worst="Furthest off: "
        + "; ".join(f"`{r.plan}` {100 * r.time:+.0f} %" for r in worst)
        + ".",
        pairs=len(pairs),
        same=share(SAME),
        equal=f"{equal} of {len(lost)}",
        others=more[0] if equal < len(lost) else "",
        empty=len(empty),
        agreed=f"{sum(one.agrees for one in empty)} of {len(empty)}",
        searches=_searches(pairs),
        least=LEAST_SET,
        near=share(NEAR),
        measured=_measured(sets, options.cases),
    )


def _searches(pairs: Sequence[tuple[Drawn, Exhausted]]) -> str:
    head = ["search", "plans", "fit", "found", "behind the best"]
    rows = [
        [d.name, str(e.plans), str(e.fitting), f"`{e.found}`" if e.found else "nothing fits", share(e.lost) if e.found else ""]
        for d, e in pairs
    ]  # fmt: skip
    return table(head, rows)


def _measured(sets: Sequence[Measured], folder: Path) -> str:
    if not sets:
        return f"Left out: no case files of {', '.join(GROUPS)} were found."
    head = ["group", "sets", "plans", "simulator: within", "median behind", "estimator: within", "median behind"]  # fmt: skip
    rows = []
    for group in (*GROUPS, "all"):
        mine = [one for one in sets if group in (one.group, "all")]
        if not mine:
            rows.append([group, "0", "0", f"no set of {LEAST_SET} plans", "", "", ""])
            continue
        cells: list[str] = []
        for name in ("simulated", "estimated"):
            behind = [float(getattr(one, name)) for one in mine]
            cells += [f"{sum(v <= NEAR for v in behind)} of {len(mine)}", share(median(behind))]
        rows.append([group, str(len(mine)), str(sum(one.plans for one in mine)), *cells])
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
    sets = list(measured(options.cases))
    options.out.write_text(page(found, pairs, sets, options))


if __name__ == "__main__":
    main()
