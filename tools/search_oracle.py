"""Searches against brute force over the words of plans, on small tasks drawn by lot.

    python tools/search_oracle.py [--scenarios N] [--seed S] [--devices N] [--again FILE.jsonl] [-o FILE.jsonl]

Every scenario is searched as a user would search it, without constraints, and solved by `brute_force` on its own. A row
has the best plan by brute force, the plan found first, and by how much it is behind.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from brute_force import best_of_all
from in_space import not_searched

from foretrain import search
from foretrain.errors import InputError
from foretrain.plan.short_form import Words
from foretrain.planning.explain import estimate
from foretrain.planning.task import Task
from foretrain.resolving import ask
from foretrain.runtime.presets import presets

SAME = 0.002
"""By which the plan found may be behind the best one."""


def _small(zoo: str, **overrides: int) -> dict[str, Any]:
    return {"zoo": zoo, "overrides": overrides}


DENSE: tuple[Any, ...] = (
    _small("gpt2", num_hidden_layers=12),
    _small("gpt3-1.3b", num_hidden_layers=12),
    _small("gpt3-6.7b", num_hidden_layers=12),
    _small("llama3-8b", num_hidden_layers=12),
    _small("llama2-13b", num_hidden_layers=14),
    _small("qwen2.5-1.5b", num_hidden_layers=13),
    _small("bert-large", num_hidden_layers=12),
)
EXPERTS: tuple[Any, ...] = (
    _small("mixtral-8x7b", num_hidden_layers=12, hidden_size=1024, intermediate_size=3584),
    _small("qwen3-30b-a3b", num_hidden_layers=12, num_experts=8),
)
IMAGES: tuple[Any, ...] = ("resnet50", "vgg16", "vit-b")
TABLES: tuple[Any, ...] = ("dlrm-small", "neumf")
KINDS: Mapping[str, tuple[Any, ...]] = {
    "dense": DENSE, "experts": EXPERTS, "images": IMAGES, "tables": TABLES,
}  # fmt: skip
NODES = (
    "dgx-a100-80gb", "dgx-a100-40gb", "dgx-h100", "dgx-1-v100-32gb", "aws:g5.12xlarge", "aws:p3.8xlarge", "dgx-b200",
)  # fmt: skip
UNLIKE = (
    ("dgx-h100", "dgx-a100-80gb"),
    ("dgx-a100-80gb", "dgx-1-v100-32gb"),
    ("dgx-a100-40gb", "aws:g5.12xlarge"),
)
CPUS = ("cpu-gloo", "cpu-eager")


@dataclass(frozen=True)
class Question:
    """What is asked of `search`."""

    kind: str
    model: Any
    on: Mapping[str, Any]
    batch: int
    runtime: str
    seq: int | None

    @property
    def name(self) -> str:
        model = self.model if isinstance(self.model, str) else self.model["zoo"]
        nodes = " + ".join(f"{n['count']} x {n['used']} of {n['node']}" for n in self.on["nodes"])
        seq = f", seq {self.seq}" if self.seq else ""
        return f"{model} on {nodes}, batch {self.batch}{seq}, {self.runtime}"

    def keywords(self) -> dict[str, Any]:
        words = {"on": self.on, "batch": self.batch, "runtime": self.runtime, "seq": self.seq}
        return {name: value for name, value in words.items() if value is not None}

    def task(self) -> Task:
        return Task.of(ask(self.model, **self.keywords()))


@dataclass(frozen=True)
class Outcome:
    """A scenario solved twice. Seconds are None where nothing fits."""

    scenario: str
    simulated: int
    fitting: int
    best: str
    best_seconds: float | None
    found: str
    found_seconds: float | None
    plans_searched: int
    cause: str
    cpu_brute: float
    cpu_search: float

    @property
    def gap(self) -> float | None:
        if self.best_seconds is None or self.found_seconds is None:
            return None
        return self.found_seconds / self.best_seconds - 1.0

    @property
    def is_good(self) -> bool:
        if self.best_seconds is None:
            return True  # whatever the search finds beyond words (strategies per layer) is welcome
        return self.gap is not None and self.gap <= SAME


def questions(seed: int, devices: int = 8) -> Iterator[Question]:
    """Without end, always the same for a seed; every stack has its turn, on so many devices at most."""
    lot = random.Random(seed)
    stacks = [name for name in presets() if name not in CPUS]
    while True:
        lot.shuffle(stacks)
        for stack in stacks:
            yield _question(lot, stack, devices)


SIZES = ((2, 1), (4, 1), (2, 2), (2, 2), (4, 2), (8, 1))
"""Devices used of a node, and nodes."""


def _question(lot: random.Random, stack: str, most: int) -> Question:
    kind = lot.choices([*KINDS], (6, 2, 1, 1))[0]
    model = lot.choice(KINDS[kind])
    if lot.random() < 0.2:
        nodes = [{"node": node, "count": 1, "used": 2} for node in lot.choice(UNLIKE)]
    else:
        used, count = lot.choice([one for one in SIZES if one[0] * one[1] <= most])
        nodes = [{"node": lot.choice(NODES), "count": count, "used": used}]
        if used == 8 and nodes[0]["node"].startswith("aws:"):
            nodes[0] |= {"used": 4, "count": 2}
    devices = sum(node["count"] * node["used"] for node in nodes)
    batch = devices * lot.choice((2, 3, 4, 6))
    if kind in ("images", "tables"):
        batch *= 16
    seq = lot.choice((512, 1024, 2048)) if kind in ("dense", "experts") else None
    if model == _small("bert-large", num_hidden_layers=12):
        seq = 512
    return Question(kind, model, {"nodes": nodes}, batch, stack, seq)


def solved(question: Question) -> Outcome | None:
    """None where the lot has put together what does not go together."""
    try:
        task = question.task()
    except InputError:
        return None
    started = time.process_time()
    best = best_of_all(task)
    between = time.process_time()
    if not best.simulated:
        return None
    try:
        result = search(question.model, **question.keywords())
    except InputError as error:
        return _outcome(
            question,
            task,
            best,
            f"refused: {str(error).splitlines()[0]}",
            None,
            0,
            between - started,
            0,
        )
    ended = time.process_time()
    first = result.best[0] if result.best else None
    text = (first.plan.text or "strategies per layer") if first else "nothing fits"
    seconds = first.simulation.step_seconds if first else None
    return _outcome(
        question, task, best, text, seconds, result.plans_valid, between - started, ended - between
    )


def again(known: Outcome, question: Question) -> Outcome:
    """Searched once more, held against the best plan that is known."""
    task = question.task()
    started = time.process_time()
    try:
        result = search(question.model, **question.keywords())
    except InputError as error:
        return replace(known, found=f"refused: {str(error).splitlines()[0]}", found_seconds=None)
    ended = time.process_time()
    first = result.best[0] if result.best else None
    text = (first.plan.text or "strategies per layer") if first else "nothing fits"
    seconds = first.simulation.step_seconds if first else None
    best = known.best_seconds
    is_behind = best is not None and (seconds is None or seconds > best * (1 + SAME))
    cause = _cause(task, task.words(known.best), text) if is_behind else ""
    return replace(
        known, found=text, found_seconds=seconds, plans_searched=result.plans_valid, cause=cause,
        cpu_search=ended - started,
    )  # fmt: skip


def _outcome(
    question: Question,
    task: Task,
    best: Any,
    text: str,
    seconds: float | None,
    plans: int,
    brute: float,
    searched: float,
) -> Outcome:
    words = best.words
    cause = ""
    if words is not None and (seconds is None or seconds > best.seconds * (1 + SAME)):
        cause = _cause(task, words, text)
    return Outcome(
        question.name, best.simulated, best.fitting, task.text(words) if words else "nothing fits",
        best.seconds if words else None, text, seconds, plans, cause, brute, searched,
    )  # fmt: skip


def _cause(task: Task, words: Words, found: str) -> str:
    """Whether the search looked at the best plan, and if not, what of it."""
    lacking = not_searched(task, words)
    if lacking:
        return "not in the space: " + ", ".join(lacking)
    row = estimate(task, words)
    return f"in the space; estimated {row.seconds:.6g} s"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--scenarios", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--devices", type=int, default=8, help="devices of a scenario at most")
    parser.add_argument("-o", type=Path, default=None, dest="out")
    parser.add_argument(
        "--again", type=Path, default=None, help="best plans known from a run before"
    )
    options = parser.parse_args()
    rows: list[Outcome] = []
    known = {}
    if options.again:
        read = (Outcome(**json.loads(line)) for line in options.again.read_text().splitlines())
        known = {row.scenario: row for row in read}
    for question in questions(options.seed, options.devices):
        if len(rows) >= (len(known) if options.again else options.scenarios):
            break
        if options.again:
            row = again(known[question.name], question) if question.name in known else None
        else:
            row = solved(question)
        if row is None:
            continue
        rows.append(row)
        mark = "ok  " if row.is_good else "MISS"
        gap = "" if row.gap is None else f"{100 * row.gap:+.2f} %"
        print(
            f"{mark} {row.scenario}: {row.simulated} simulated ({row.cpu_brute:.0f} s), "
            f"best {row.best}, found {row.found} {gap} {row.cause}",
            file=sys.stderr,
            flush=True,
        )
        if options.out:
            with options.out.open("a") as file:
                file.write(json.dumps(asdict(row)) + "\n")
    good = sum(row.is_good for row in rows)
    print(f"{good} of {len(rows)} within {100 * SAME:g} %")


if __name__ == "__main__":
    main()
