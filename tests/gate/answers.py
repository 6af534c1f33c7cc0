"""What the code answers to a question of the gate, as numbers by name."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from foretrain import search
from foretrain.errors import InputError
from foretrain.planning.explain import estimate
from foretrain.planning.task import Task
from foretrain.resolving import ask
from foretrain.simulate import answer
from tests.gate.questions import Question

Numbers = dict[str, float | str | None]
REFUSED: Numbers = {"refused": "yes"}
ESTIMATED = ("seconds", "memory", "usable", "work", "pipeline", "data", "update")


def answered(question: Question) -> Numbers:
    """By the simulator and by the estimator; a search answers with its best plans."""
    try:
        return _found(question) if "find" in question else _predicted(question)
    except InputError:
        return REFUSED


def _predicted(question: Question) -> Numbers:
    scenario = ask(**question)
    p = answer(scenario)
    held = p.memory
    numbers: Numbers = {
        "plan": p.question["plan"] if isinstance(p.question["plan"], str) else "tree",
        "step": p.step_seconds,
        "low": p.interval[0],
        "high": p.interval[1],
        "mfu": p.mfu,
        "hfu": p.hfu,
        "peak": held.peak_bytes,
        "allocated": held.allocated_bytes,
        "usable": held.usable_bytes,
        **{f"memory.{kind}": value for kind, value in held.by_kind.items()},
        **{f"stall.{name}": value for name, value in p.stalls.items()},
        "tasks": float(len(p.timeline)),
    }
    return numbers | _estimated(scenario)


def _estimated(scenario: Any) -> Numbers:
    plan = scenario.plan
    if not plan.text:
        return {}
    task = Task.of(scenario)
    try:
        words = replace(task.words(plan.text), micro=plan.schedule.micro_batch)
        seen = estimate(task, words)
    except InputError:
        return {"estimate": "refused"}
    return {f"estimate.{name}": getattr(seen, name) for name in ESTIMATED}


def _found(question: Question) -> Numbers:
    asked = {name: value for name, value in question.items() if name != "find"}
    result = search(asked.pop("model"), top=question["find"], **asked)
    counts = result.to_dict()
    numbers: Numbers = {name: float(counts[name]) for name in ("plans_valid", "plans_fitting")}
    for row in result.rows():
        for name in ("plan", "step_seconds", "peak_bytes"):
            numbers[f"{row['list']}.{row['rank']}.{name}"] = row[name]
    return numbers
