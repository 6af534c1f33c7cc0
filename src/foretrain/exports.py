"""Export: launch files of the question that `predict` would answer, read back: what do they run, and how fast?"""

from __future__ import annotations

from dataclasses import replace
from typing import Unpack

from foretrain.adapters.read.launch import read
from foretrain.adapters.read.launch.rerun import as_run, refused
from foretrain.adapters.write import Exported, expect_target, stacks_of
from foretrain.adapters.write import export as export_question
from foretrain.asked import OF_JOBS, AskedStep, ModelLike
from foretrain.errors import InputError, UnsupportedPlanError
from foretrain.keywords import keywords
from foretrain.resolving import request_of, resolve
from foretrain.runtime import Runtime, presets
from foretrain.scenario import Scenario
from foretrain.simulate import Simulation, simulate_scenario

SAME = 1e-3
"""Steps and memory that differ by less are the same."""


@keywords(AskedStep, of_jobs=OF_JOBS)
def export(model: ModelLike, *, to: str, **question: Unpack[AskedStep]) -> Exported:
    """Generate launch files of a plan for a training framework, and list what it cannot express.

    The files are read back: where they run something else than was asked for, both step times are given, and files that
    the framework would refuse are not made.

    Args:
        model: as for `predict`.
        to: `megatron`, `deepspeed`, `torchrun`, `accelerate`, `nanotron`, `torchtitan`, `megatron-bridge`, `maxtext`,
            `axolotl` or `llama-factory`.
        **question: the keywords of `predict` but those of a job. Default of `runtime`: the target's.

    Returns:
        Files by name (`files`), what they cannot express (`cannot`), `warnings`, and `save(folder)`.

    >>> from foretrain import export
    >>> exported = export("gpt2", to="torchrun", on="1 x dgx-h100", plan="dp8", batch=64)
    >>> "launch.sh" in exported.files
    True
    """
    request = request_of(model, question)
    asked = resolve(replace(request, target=expect_target(to)))
    own, stack = stacks_of(asked, to), asked.runtime
    if stack.name not in own:
        stack = resolve(replace(request, runtime=own[0], plan=asked.plan)).runtime
    exported = export_scenario(asked, to, stack)
    warnings = (*asked.warnings, *exported.warnings)
    plan = _plan_of(asked)
    assumptions = (*asked.assumptions, *exported.assumptions)
    return replace(exported, plan=plan, assumptions=assumptions, warnings=warnings)


def export_scenario(asked: Scenario, to: str, stack: Runtime | None = None) -> Exported:
    """The files of a scenario for one target, read back; `stack` is what runs them, if not the scenario's own."""
    exported = export_question(asked, to)
    own = stacks_of(asked, to)
    known = asked.runtime if asked.runtime.name in own else presets()[own[0]]
    run = _as_run(asked, exported, stack or known)
    return exported if run.sha256 == asked.sha256 else _with_figures(exported, asked, run)


def _plan_of(scenario: Scenario) -> str:
    return f"{scenario.plan.text} micro={scenario.plan.schedule.micro_batch}"


def _as_run(asked: Scenario, exported: Exported, stack: Runtime) -> Scenario:
    """What the files run; those that their own stack cannot run are refused."""
    launch = read(exported.target, exported.files)
    title = f"these launch files for {exported.target} would not run:"
    try:
        run = as_run(launch, asked, stack)
    except InputError as error:
        raise UnsupportedPlanError(title, faults=error.faults or (str(error),)) from None
    faults = refused(run, launch)
    if faults:
        raise UnsupportedPlanError(
            f"{title[:-1]}, or run what cannot be predicted. Change the plan, or leave --plan out to have one "
            f"chosen that {stack.title or stack.name} runs:",
            faults=[f"{fault}." for fault in faults],
        )
    return run


def _with_figures(exported: Exported, asked: Scenario, run: Scenario) -> Exported:
    """With the steps of both, if they are two."""
    wanted, real = simulate_scenario(asked), simulate_scenario(run)
    if _is_same(wanted, real):
        return exported
    plan = _plan_of(run)
    beside = " with another model or software, as listed," if plan == _plan_of(asked) else ","
    return exported.with_run(plan, wanted.step_seconds, real.step_seconds, beside)


def _is_same(one: Simulation, other: Simulation) -> bool:
    pairs = (
        (one.step_seconds, other.step_seconds),
        (one.memory.peak_bytes, other.memory.peak_bytes),
    )
    return all(abs(a - b) <= SAME * max(a, b) for a, b in pairs)
