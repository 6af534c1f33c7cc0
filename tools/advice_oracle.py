"""The fastest one-move fix of plans that do not fit, by brute force over the words of plans; nothing of the advice is used.

    python tools/advice_oracle.py [--count N] [--fitting] [--seed S] [--first N] [-o FILE.jsonl]

A misfit is drawn by lot: a model, a cluster, a stack, a plan that the stack runs and that does not fit there. Every text
that differs from it in one choice is asked of `predict`'s own door and simulated, and what does not fit, or what the stack
cannot run, is left out; so are every switch and number format of the stack (`advice/switches.yaml`). A row has the
fastest of them, the first change that `fit` names, and by how much that is behind. `--fitting` draws plans that fit and
compares the first change that `predict` names; it lists none that saves less than 0.5 %.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import combinations, permutations
from pathlib import Path
from typing import Any

import yaml

import foretrain
from foretrain import fit, predict
from foretrain.errors import InputError
from foretrain.plan.constraints import parse, value_in
from foretrain.plan.schedules import SCHEDULES
from foretrain.plan.short_form import Words, said
from foretrain.plan.strategy import EXCHANGES, OFFLOADS
from foretrain.plan.supported import refusals
from foretrain.planning.task import Task
from foretrain.resolving import ask
from foretrain.runtime.presets import presets
from foretrain.scenario import Scenario
from foretrain.simulate import simulate_scenario

SAME = 1e-9
"""By which the change that `fit` names may be behind the fastest one."""
MODELS: Mapping[str, tuple[int, ...]] = {
    "gpt3-6.7b": (1024, 2048), "llama3-8b": (2048, 4096, 8192), "gpt3-13b": (2048,), "llama2-13b": (2048, 4096),
    "mixtral-8x7b": (2048, 4096), "qwen3-30b-a3b": (2048,), "gpt2-xl": (1024,), "bert-large": (512,),
}  # fmt: skip
CLUSTERS = ("1 x dgx-a100-40gb", "2 x dgx-a100-40gb", "1 x dgx-h100", "2 x dgx-h100", "1 x aws:g5.48xlarge", "2 x dgx-1-v100-32gb")  # fmt: skip
OPTIONS = (
    "zero0",
    "zero1",
    "zero2",
    "zero3",
    "sp",
    "no-sp",
    "recompute=selective",
    "recompute=full",
    "vpp2",
)
DEGREES = ("tp", "pp", "cp", "ep", "dp")


@dataclass(frozen=True, slots=True)
class Row:
    asked: Mapping[str, Any]
    brute: str  # the fastest change by brute force, "" where none fits
    brute_seconds: float | None
    named: str  # the first change that `fit` names
    named_seconds: float | None  # … None where it does not fit either
    behind: float
    tried: int
    fitting: int
    seconds: float  # CPU time of `fit`


# --- questions ------------------------------------------------------------------------------------------


def questions(seed: int, *, fits: bool = False) -> Iterator[dict[str, Any]]:
    """Keywords of `predict`, each about a plan that does not fit, or that does."""
    lot = random.Random(seed)
    while True:
        asked = _drawn(lot)
        try:
            scenario = ask(**asked)
            if scenario.warnings or simulate_scenario(scenario).memory.fits != fits:
                continue
        except InputError:
            continue
        yield asked


def _drawn(lot: random.Random) -> dict[str, Any]:
    model, on = lot.choice([*MODELS]), lot.choice(CLUSTERS)
    devices = int(on.split()[0]) * 8
    degrees = {name: lot.choice((1, 1, 2, 4)) for name in ("tp", "pp")}
    degrees["cp"] = lot.choice((1, 1, 1, 2))
    replicas = devices // (degrees["tp"] * degrees["pp"] * degrees["cp"])
    words = [f"{name}{degree}" for name, degree in degrees.items() if degree > 1]
    words += lot.sample(OPTIONS, lot.choice((0, 1, 1, 2)))
    asked = {
        "model": model,
        "on": on,
        "plan": " ".join([*words, f"dp{max(1, replicas)}"]),
        "batch": lot.choice((32, 64, 96, 128)),
        "micro_batch": lot.choice((1, 2, 4, 8)),
        "seq": lot.choice(MODELS[model]),
        "runtime": lot.choice(sorted(set(presets()) - {"torchrec", "hugectr", "cpu-eager"})),
    }
    if lot.random() < 0.25:
        asked["headroom"] = lot.choice(("5%", "10%", "4GiB"))
    return asked


# --- every text that differs in one choice --------------------------------------------------------------


def one_move_away(asked: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Changed keywords. Replicas follow from the other degrees, the micro-batch is the largest that still divides."""
    at = ask(**asked)
    task = Task.of(at)
    now = task.words(at.plan.text)
    micro = at.plan.schedule.micro_batch
    seen = set()
    for changes in _changes(at, now, micro):
        drops = {name for name in changes if name != "micro"}
        written = _written(task, now, changes, drops)
        size = _size(at, written, changes.get("micro", micro))
        if written is None or size is None or (written, size) in seen:
            continue
        seen.add((written, size))
        yield {"plan": written, "micro_batch": size}


def _written(task: Task, now: Words, changes: Mapping[str, Any], drops: set[str]) -> str | None:
    """The words of a plan with some changed, as a text that leaves open what no longer has a meaning."""
    words = {name: getattr(now, name) for name in ("tp", "pp", "vpp", "cp", "ep", "zero", "shard", "sp", "schedule", "recompute", "offload", "exchange", "tables", "buckets", "layers", "order")}  # fmt: skip
    was = dict(words)
    words.update({name: value for name, value in changes.items() if name != "micro"})
    left = task.devices // (words["tp"] * words["pp"] * words["cp"])
    if left < 1 or left * words["tp"] * words["pp"] * words["cp"] != task.devices:
        return None
    open_ = set()
    if (words["tp"] == 1) != (was["tp"] == 1):
        open_.add("sp")
    has_replicas, had = left * words["cp"] > 1, (now.dp or 1) * now.cp > 1
    if has_replicas != had and "zero" not in changes:
        open_.add("zero")
    if not has_replicas or words["zero"] == 0:
        words["shard"] = None
    if words["pp"] != was["pp"]:
        words["layers"] = None
        if words["pp"] == 1 or was["pp"] == 1:
            open_ |= {"schedule", "order"} if words["pp"] == 1 else {"schedule"}
            words["vpp"] = 1
    parts = [f"{name}{words[name]}" for name in ("tp", "pp", "cp", "ep", "vpp")]
    parts.append(f"dp{left}")
    if "zero" not in open_:
        parts.append(f"zero{words['zero'] if has_replicas else 0}")
    if "sp" not in open_:
        parts.append("sp" if words["sp"] else "no-sp")
    if words["pp"] > 1 and words["schedule"] and "schedule" not in open_:
        parts.append(words["schedule"])
    parts.append(f"recompute={words['recompute'] or 'none'}")
    parts += [f"shard={words['shard']}"] * bool(words["shard"])
    if words["offload"]:
        parts.append(f"offload={'+'.join(words['offload'])}")
    parts += [f"cp={words['exchange']}"] * (words["cp"] > 1)
    parts += [f"tables={words['tables']}"]
    if words["buckets"]:
        parts.append(f"buckets={words['buckets'] / 1e6:g}MB")
    if words["layers"]:
        parts.append(f"layers={','.join(map(str, words['layers']))}")
    if words["order"] and "order" not in open_:
        parts.append(f"order={'-'.join(words['order'])}")
    return " ".join(parts)


def _size(at: Scenario, text: str | None, micro: int) -> int | None:
    if text is None:
        return None
    replicas = int(said(text)["dp"])  # type: ignore[call-overload]
    each, rest = divmod(at.workload.global_batch, replicas)
    if rest:
        return None
    return max(size for size in range(1, micro + 1) if each % size == 0)


def _changes(at: Scenario, now: Words, micro: int) -> Iterator[dict[str, Any]]:
    devices, batch = at.cluster.device_count, at.workload.global_batch
    yield from ({"micro": size} for size in range(1, batch + 1) if size != micro and batch // (now.dp or 1) % size == 0)  # fmt: skip
    yield {"sp": not now.sp}
    yield from ({"zero": stage} for stage in range(4))
    yield from ({"zero": now.zero, "shard": size} for size in (None, 2, 4, 8))
    yield from ({"recompute": kind} for kind in ("none", "selective", "full"))
    yield from ({"recompute": f"full*{part / 8:g}"} for part in range(1, 8))
    yield from ({"vpp": chunks, "schedule": None, "layers": None} for chunks in range(1, 33))
    yield from ({"schedule": name, "vpp": 1} for name in SCHEDULES)
    yield from _uneven(at, now)
    yield from _degrees(now, devices)
    yield from ({"buckets": size * 1e6} for size in (5, 25, 100, 400, 1600))
    yield from ({"offload": tuple(some)} for n in range(3) for some in combinations(OFFLOADS, n))
    yield from ({"exchange": how} for how in EXCHANGES)
    yield from ({"tables": how} for how in ("replicated", "rows"))
    yield from ({"order": order} for order in permutations(("tp", "cp", "dp", "pp")))


def _uneven(at: Scenario, now: Words) -> Iterator[dict[str, Any]]:
    """One layer from any stage to any other."""
    if now.pp == 1 or now.vpp > 1:
        return
    layers = max(block.repeat for block in at.workload.model.blocks)
    even = now.layers or tuple(layers // now.pp + (n < layers % now.pp) for n in range(now.pp))
    for giver, taker in permutations(range(now.pp), 2):
        moved = [*even]
        moved[giver] -= 1
        moved[taker] += 1
        if moved[giver] > 0:
            yield {"layers": tuple(moved)}


def _degrees(now: Words, devices: int) -> Iterator[dict[str, Any]]:
    """One degree for replicas, or one for another; experts by themselves."""
    known = {name: getattr(now, name) for name in ("tp", "pp", "cp")}
    sizes = [size for size in range(1, devices + 1) if devices % size == 0]
    for name in known:
        yield from ({name: size} for size in sizes if size != known[name])
    for one, other in permutations(known, 2):
        for size in sizes:
            whole = known[one] * known[other]
            if whole % size == 0 and size != known[one]:
                yield {one: size, other: whole // size}
    yield from ({"ep": size} for size in sizes)


def switched(at: Scenario) -> Iterator[dict[str, Any]]:
    """Every switch and number format that the table has for the stack, where the plan is as it needs."""
    path = Path(foretrain.__file__).parent / "advice" / "switches.yaml"
    table = yaml.safe_load(path.read_text(encoding="utf-8"))
    words, stack = Task.of(at).words(at.plan.text), at.runtime
    for row in table["switches"]:
        needs = parse([row["needs"]])
        values = [value_in(words, one.name) for one in needs]
        is_met = all(v is not None and c.allows(v) for v, c in zip(values, needs, strict=True))
        stands = all(stack.option(k) == v for k, v in row.get("sets", {}).items())
        if stack.name in row["stacks"] and is_met and stands:
            yield {"runtime_options": dict(row["set"])}
    for row in table["precisions"]:
        if stack.name in row["stacks"] and at.workload.precision.name in ("bf16", "fp16"):
            yield {"precision": row["precision"]}


# --- the fastest of them --------------------------------------------------------------------------------


def best_of(asked: Mapping[str, Any]) -> tuple[str, float | None, int, int]:
    """The fastest change that fits, its step, and how many were tried and fit."""
    at = ask(**asked)
    known = {*refusals(at.runtime, Task.of(at).words(at.plan.text), Task.of(at).facts)}
    fitting: list[tuple[float, str]] = []
    tried = 0
    for change in (*one_move_away(asked), *switched(at)):
        try:
            scenario = ask(**{**asked, **change})
            if {
                line.removesuffix(". Predicted as if it could.") for line in scenario.warnings
            } - known:
                continue
            found = simulate_scenario(scenario)
        except InputError:
            continue
        tried += 1
        if found.memory.fits:
            fitting.append((found.step_seconds, str(change)))
    if not fitting:
        return "", None, tried, 0
    seconds, change = min(fitting)
    return change, seconds, tried, len(fitting)


def judged(asked: Mapping[str, Any], *, fits: bool = False) -> Row:
    brute, seconds, tried, fitting = best_of(asked)
    if fits:
        own = predict(**asked)
        seconds = own.step_seconds if seconds is None else min(seconds, own.step_seconds)
        started = time.process_time()
        rows = [one for one in own.what_would_help if one.kind in ("plan", "option")]
        spent = time.process_time() - started
        named = min([own.step_seconds, *(one.step_seconds for one in rows[:1])])
        paste = rows[0].paste if rows else "none"
        return Row(
            dict(asked), brute, seconds, paste, named, named / seconds - 1.0, tried, fitting, spent
        )
    started = time.process_time()
    first = next(iter(fit(**asked).changes), None)
    spent = time.process_time() - started
    has_fix = first is not None and first.fits and first.kind != "machine"
    named = first.step_seconds if first is not None and has_fix else None
    behind = 0.0
    if seconds is not None:
        behind = float("inf") if named is None else named / seconds - 1.0
    paste = "" if first is None else first.paste
    return Row(dict(asked), brute, seconds, paste, named, behind, tried, fitting, spent)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument(
        "--fitting", action="store_true", help="plans that fit, and what makes them faster"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="leave out so many")
    parser.add_argument("-o", "--output", type=Path)
    given = parser.parse_args()
    rows = []
    for number, asked in enumerate(questions(given.seed, fits=given.fitting)):
        if number >= given.count:
            break
        if number < given.first:
            continue
        row = judged(asked, fits=given.fitting)
        rows.append(row)
        sign = "ok " if row.behind <= SAME else "BEHIND"
        print(
            f"{sign} {row.behind:8.2%} {row.fitting:3} of {row.tried:3} fit, fit {row.seconds:.1f} s: {json.dumps(asked)}"
        )
        if row.behind > SAME:
            print(
                f"     brute {row.brute} {row.brute_seconds}; named {row.named} {row.named_seconds}",
                flush=True,
            )
        if given.output:
            with given.output.open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(row)) + "\n")
    right = sum(row.behind <= SAME for row in rows)
    several = sum(row.fitting > 0 for row in rows)
    print(f"{right} of {len(rows)} name the fastest one-move fix; {several} have one")


if __name__ == "__main__":
    main()
