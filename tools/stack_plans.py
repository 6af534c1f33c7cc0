"""Searches of every stack, held against what it can run: winners, runners-up, and what predictions advise.

    python tools/stack_plans.py [--stacks megatron,ddp] [--pairs llama3-8b] [--kept FILE] [-o docs/stack-plans.md]

Every stack is asked for the best plans of twelve pairs of a model and a cluster, and then what would help its winner, and
what would help the plan that it takes by itself. Every plan named is held against the rules of the stack, and those of
the main stacks against a table written by hand (`tests/support/stack_limits.py`). Answers are kept in a file, line by
line; questions that it has are not asked again.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(HERE / "tests"))  # for the table by hand

from support.stack_limits import LIMITS, complaints  # noqa: E402

from foretrain import predict, search  # noqa: E402
from foretrain.errors import InputError, UnsupportedPlanError  # noqa: E402
from foretrain.plan.plan import Plan  # noqa: E402
from foretrain.plan.plan_words import words_of  # noqa: E402
from foretrain.plan.short_form import Words  # noqa: E402
from foretrain.plan.supported import refusals, warned  # noqa: E402
from foretrain.planning.task import Task  # noqa: E402
from foretrain.report.md import table  # noqa: E402
from foretrain.runtime import presets  # noqa: E402

TOP = 6


@dataclass(frozen=True, slots=True)
class Pair:
    """A model, a cluster, and constraints that keep a search short."""

    model: str
    on: str
    batch: int
    where: str = "micro=1|2|4, cp<=2, vpp<=4"
    precision: str | None = None

    @property
    def question(self) -> dict[str, Any]:
        asked = {"model": self.model, "on": self.on, "batch": self.batch}
        return asked if self.precision is None else {**asked, "precision": self.precision}

    def __str__(self) -> str:
        return f"{self.model} on {self.on}"


PAIRS = (
    Pair("gpt3-1.3b", "1 x dgx-a100-80gb", 32),
    Pair("llama3-8b", "2 x dgx-h100", 64),
    Pair("llama3-8b", "1 x dgx-h100 + 1 x dgx-a100-80gb", 64, "micro=1|2, cp=1, vpp<=2"),
    Pair("gpt3-13b", "4 x dgx-a100-40gb", 128, "micro=1|2, cp=1, vpp<=2"),
    Pair("llama3-70b", "8 x dgx-h100", 128, "micro=1, cp=1, vpp<=2"),
    Pair("llama3-8b", "1 x hgx-mi300x", 64),
    Pair("mixtral-8x7b", "2 x dgx-h100", 64, "micro=1, cp=1, vpp<=2"),
    Pair("deepseek-v2-lite", "2 x dgx-h100", 96, "micro=1, cp=1, vpp<=2"),
    Pair("bert-large", "2 x aws:p3.16xlarge", 256, "micro=2|4, cp=1, vpp<=2", "fp16"),
    Pair("vit-l", "1 x dgx-b200", 256, "micro=8|32, cp=1, vpp<=2", "mxfp8"),
    Pair("resnet50", "2 x aws:p3.16xlarge", 1024, "", "fp16"),
    Pair("dlrm-mlperf", "1 x dgx-h100", 65536, ""),
)


@dataclass(frozen=True, slots=True)
class Named:
    """A plan that an answer names, and what is wrong with it."""

    role: str  # winner, runner-up, advice, by itself
    plan: str
    faults: tuple[str, ...]


@dataclass(slots=True)
class Found:
    """All plans named for a stack and a pair; or why there are none."""

    stack: str
    pair: Pair
    named: list[Named] = field(default_factory=list)
    refused: str = ""
    faults: list[str] = field(default_factory=list)  # of the answer itself
    seconds: float = 0.0  # of the processor

    @property
    def wrong(self) -> list[str]:
        rows = [f"{one.role} {one.plan}: {fault}" for one in self.named for fault in one.faults]
        return [*rows, *self.faults]


def found(stack: str, pair: Pair) -> Found:
    """What a stack is told for a pair."""
    answer, start = Found(stack, pair), time.process_time()
    try:
        _ask(answer)
    except InputError as error:
        answer.refused = " ".join(str(error).split())
        if isinstance(error, UnsupportedPlanError) and stack in LIMITS:
            answer.faults += _wrongly_refused(stack, pair)
    answer.seconds = time.process_time() - start
    return answer


def _wrongly_refused(stack: str, pair: Pair) -> Iterator[str]:
    """Work that is refused must be refused by the table too, whatever the plan."""
    generic = search(**pair.question, runtime="generic", where="micro=1", top=1)
    every = (Words(dp=8, zero=zero, micro=1) for zero in (0, 3))
    if not all(complaints(stack, words, generic.task.facts) for words in every):
        yield "refused, though the table by hand has a plan"


def _ask(answer: Found) -> None:
    pair, stack = answer.pair, answer.stack
    result = search(**pair.question, runtime=stack, where=pair.where, top=TOP)
    task: Task = result.task
    for number, row in enumerate(result.best):
        answer.named.append(_held("runner-up" if number else "winner", row.plan, task))
    told = [row.plan.text for row in result.best if row.plan.text][:1]
    for plan in (*told, None):
        _advice(answer, plan, task)


def _held(role: str, plan: Plan, task: Task) -> Named:
    """A plan against rules and table; whatever the rules say of it a prediction must say too."""
    words = replace(words_of(plan, task.runtime), micro=plan.schedule.micro_batch)
    faults = [
        *refusals(task.runtime, words, task.facts),
        *(f"by hand: {what}" for what in complaints(task.runtime.name, words, task.facts)),
        *warned(task.runtime, plan, task.facts),
    ]
    return Named(role, plan.text or "layer by layer", tuple(dict.fromkeys(faults)))


def _advice(answer: Found, plan: str | None, task: Task) -> None:
    """What would help a plan; None: the one that the stack takes by itself."""
    pair = answer.pair
    try:
        seen = predict(**pair.question, runtime=answer.stack, plan=plan)
    except InputError as error:
        if plan is not None:
            answer.faults.append(f"the winner {plan} cannot be predicted: {error}")
        return
    answer.faults += [f"{plan or 'by itself'}: {w}" for w in seen.warnings if "cannot run" in w]
    for row in seen.what_would_help:
        if row.kind == "plan":
            answer.named.append(_held("advice", _pasted(row.paste, task), task))


def _pasted(paste: str, task: Task) -> Plan:
    """The plan of options to paste."""
    words = shlex.split(paste)
    options = dict(zip(words[::2], words[1::2], strict=True))
    stack = options.get("--runtime", task.runtime.name)
    assert stack == task.runtime.name, f"{paste}: of another stack"
    plan = task.plan(task.words(options["--plan"]))
    micro = int(options.get("--micro-batch", 1))
    schedule = replace(plan.schedule, micro_batch=micro)
    return replace(plan, root=replace(plan.root, schedule=schedule))


# --- the page ---------------------------------------------------------------------------------------------


def page(rows: list[Found]) -> str:
    stacks = list(dict.fromkeys(row.stack for row in rows))
    pairs = list(dict.fromkeys(row.pair for row in rows))
    cells = {(row.stack, row.pair): _cell(row) for row in rows}
    body = [[stack, *(cells.get((stack, pair), "") for pair in pairs)] for stack in stacks]
    count = Counter(one.role for row in rows for one in row.named)
    wrong = [f"- {row.stack}, {row.pair}: {text}" for row in rows for text in row.wrong]
    refused = Counter(re.sub(r"\s+", " ", row.refused) for row in rows if row.refused)
    return PAGE.format(
        pairs=len(rows),
        of=len(PAIRS) * len(presets()),
        searched=sum(not row.refused for row in rows),
        plans=sum(count.values()),
        by_role=", ".join(f"{number:,} {role}" for role, number in count.items()),
        by_hand=sum(row.stack in LIMITS for row in rows),
        questions="\n".join(f"{n}. {pair}: batch {pair.batch:,}, `{pair.where or 'all plans'}`" for n, pair in enumerate(pairs, 1)),
        table=table(["stack", *map(str, range(1, len(pairs) + 1))], body),
        wrong="\n".join(wrong) or "None.",
        refused="\n".join(f"- {number} x {text}" for text, number in refused.most_common()) or "None.",
    )  # fmt: skip


def _cell(row: Found) -> str:
    if row.refused:
        return "–"
    return f"{len(row.named)}" + (f" (**{len(row.wrong)}**)" if row.wrong else "")


PAGE = """# Searches of every stack

Written by `tools/stack_plans.py`; do not edit. Every stack is asked for its best plans for twelve models and clusters, then
what would help the winner and the plan that the stack takes by itself. Every plan that an answer names must be one that
the stack [can run](runtime.md#what-a-stack-can-run): by the rules of its preset, and for the main stacks ({by_hand} of
the questions) by a table that was written by hand from the same sources. Continuous integration asks a few of the questions
again.

{pairs} of {of} questions were asked, {searched} have an answer; {plans:,} plans are named ({by_role}).

{questions}

## Plans named

Plans that were held against the tables; in bold those that the stack cannot run; – where it has no plan for the model, empty where
it was not asked.

{table}

## Plans that a stack cannot run

{wrong}

## Questions without an answer

{refused}
"""


def kept_in(file: Path) -> list[Found]:
    """Answers of an earlier call."""
    lines = file.read_text("utf-8").splitlines() if file.exists() else []
    return [_read(json.loads(line)) for line in lines]


def _read(row: dict[str, Any]) -> Found:
    named = [Named(one["role"], one["plan"], tuple(one["faults"])) for one in row["named"]]
    return Found(**{**row, "pair": Pair(**row["pair"]), "named": named})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--stacks", default=",".join(presets()))
    parser.add_argument("--pairs", default="", help="part of a model's name")
    parser.add_argument("-o", "--output", type=Path, default=HERE / "docs/stack-plans.md")
    parser.add_argument("--kept", type=Path, default=Path("stack-plans.jsonl"))
    options = parser.parse_args()
    pairs = [pair for pair in PAIRS if options.pairs in str(pair)]
    rows = kept_in(options.kept)
    known = {(row.stack, row.pair) for row in rows}
    asked = [(stack, pair) for stack in options.stacks.split(",") for pair in pairs]
    for stack, pair in asked:
        if (stack, pair) in known:
            continue
        row = found(stack, pair)
        rows.append(row)
        with options.kept.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(row)) + "\n")
        told = row.refused[:100] or f"{len(row.named)} plans"
        print(f"{row.seconds:6.1f} s  {row.stack}, {row.pair}: {told}", flush=True)
        for text in row.wrong:
            print(f"    {text}", flush=True)
    rows.sort(key=lambda row: ([*presets()].index(row.stack), PAIRS.index(row.pair)))
    options.output.write_text(page(rows), "utf-8")


if __name__ == "__main__":
    main()
