"""Launch files of plans that stacks can run: does the reader of the software take them, and what do they run?

For every preset that launch files stand for, and twelve models on machines: the plans that come first in a quick search and
others drawn by lot from the space that search looks through. Each is exported and given to the reader of its software
(`tests/support/launch_readers.py`), read back and predicted again.

    python tools/exported_plans.py [--plans N] [--only PRESET] [--seed N]
"""

from __future__ import annotations

import argparse
import random
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from support.launch_readers import judged

from foretrain.adapters.read.launch import read
from foretrain.adapters.read.launch.rerun import as_run
from foretrain.adapters.write import TARGETS, stacks_of
from foretrain.errors import InputError
from foretrain.exports import SAME, export_scenario
from foretrain.planning.space import space
from foretrain.planning.task import Task
from foretrain.resolving import ask
from foretrain.runtime import presets
from foretrain.scenario import Scenario
from foretrain.simulate import simulate_scenario

# model, machines, batch: small and large, dense and of experts, old and new.
PAIRS = (
    ("gpt2-xl", "1 x dgx-a100-80gb", 64),
    ("bert-large", "1 x dgx-a100-80gb", 256),
    ("resnet50", "2 x dgx-a100-80gb", 1024),
    ("gpt3-13b", "4 x dgx-a100-80gb", 128),
    ("megatron-39b", "8 x dgx-a100-80gb", 256),
    ("llama3-8b", "2 x dgx-h100", 64),
    ("qwen3-8b", "1 x dgx-h100", 64),
    ("qwen2.5-14b", "2 x dgx-h100", 128),
    ("llama3.1-70b", "8 x dgx-h100", 128),
    ("mixtral-8x7b", "4 x dgx-h100", 128),
    ("deepseek-v2-lite", "2 x dgx-h100", 128),
    ("deepseek-v3", "32 x dgx-h100", 1024),
)
KINDS = ("whole", "other", "refused", "wrong")
"""What became of a plan: its files run it; they run another one and say so, with both figures; no files are made, and the
reason is named; or something is wrong."""


@dataclass(frozen=True)
class Outcome:
    preset: str
    target: str
    model: str
    plan: str
    kind: str
    why: tuple[str, ...] = ()


def outcomes(preset: str, pair: tuple[str, str, int], plans: int, seed: int) -> Iterator[Outcome]:
    """Of plans for one preset on one pair."""
    for asked in drawn(preset, pair, plans, seed):
        text = f"{asked.plan.text} micro={asked.plan.schedule.micro_batch}"
        for target in targets_of(asked):
            yield Outcome(preset, target, pair[0], text, *fate(asked, target))


def targets_of(asked: Scenario) -> list[str]:
    return [target for target in TARGETS if asked.runtime.name in stacks_of(asked, target)]


def fate(asked: Scenario, target: str) -> tuple[str, tuple[str, ...]]:
    """What became of a plan, and why."""
    try:
        made = export_scenario(asked, target)
    except InputError as refusal:
        return "refused", refusal.faults or (str(refusal),)
    run = as_run(read(target, made.files), asked, asked.runtime)
    faults = judged(made, run)
    if faults:
        return "wrong", tuple(faults)
    is_other = made.runs_step_seconds is not None
    if not is_other and not _is_same(asked, run):
        return "wrong", ("another step than was predicted, without a word",)
    if is_other and not made.cannot:
        return "wrong", (f"runs {made.runs}, without a reason",)
    return ("other", made.cannot) if is_other else ("whole", ())


def _is_same(asked: Scenario, run: Scenario) -> bool:
    if asked.sha256 == run.sha256:
        return True
    one, other = (simulate_scenario(each).step_seconds for each in (asked, run))
    return abs(one - other) <= SAME * max(one, other)


def drawn(preset: str, pair: tuple[str, str, int], plans: int, seed: int) -> Iterator[Scenario]:
    """The plan that the quick search chooses, and others by lot; nothing where the stack does not train the model."""
    model, machines, batch = pair
    try:
        first = ask(model, on=machines, batch=batch, runtime=preset)
    except InputError:
        return
    yield first
    task = Task.of(first)
    lot = random.Random(f"{preset} {pair} {seed}")
    for text in _texts(task, lot, plans - 1):
        try:
            yield ask(model, on=machines, batch=batch, runtime=preset, plan=text)
        except InputError:  # drawn from the space, but refused: search's matter
            continue


def _texts(task: Task, lot: random.Random, count: int) -> Iterator[str]:
    try:
        plans = space(task)
    except InputError:
        return
    parts = list(plans.parts())
    seen: set[str] = set()
    for _ in range(20 * count):
        if len(seen) >= count or not parts:
            return
        choices, _counts = plans.choices(lot.choice(parts))
        if not len(choices):
            continue
        text = task.text(choices.words(lot.randrange(len(choices))))
        if text not in seen:
            seen.add(text)
            yield text


@cache
def exported_presets() -> tuple[str, ...]:
    """Those that the files of some target stand for."""
    found = set()
    for plan in ("zero0", "zero1", "zero3"):
        asked = ask("llama3-8b", on="1 x dgx-h100", batch=8, plan=plan, micro_batch=1)
        found |= {name for target in TARGETS for name in stacks_of(asked, target)}
    return tuple(name for name in presets() if name in found)


def main() -> None:
    given = argparse.ArgumentParser(description=__doc__)
    given.add_argument("--plans", type=int, default=4)
    given.add_argument("--seed", type=int, default=1)
    given.add_argument("--only", choices=exported_presets())
    args = given.parse_args()
    every: list[Outcome] = []
    for preset in exported_presets() if args.only is None else (args.only,):
        found = [one for pair in PAIRS for one in outcomes(preset, pair, args.plans, args.seed)]
        every += found
        counts = Counter(one.kind for one in found)
        print(
            f"{preset}: {len(found)} exports",
            *(f"{counts[kind]} {kind}" for kind in KINDS),
            sep="; ",
            flush=True,
        )
        for one in found:
            if one.kind == "wrong":
                print(f"  WRONG {one.target} {one.model} {one.plan}: {' | '.join(one.why)}")
    _reasons(every)
    sys.exit(any(one.kind == "wrong" for one in every))


def _reasons(every: list[Outcome]) -> None:
    for kind in ("other", "refused"):
        lines = Counter(
            (one.target, line.split(": ", 1)[-1])
            for one in every
            if one.kind == kind
            for line in one.why
        )
        print(f"\n{kind}:")
        for (target, line), count in lines.most_common(60):
            print(f"  {count:4} {target}: {line}")


if __name__ == "__main__":
    main()
