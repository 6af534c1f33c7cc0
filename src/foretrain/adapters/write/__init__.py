"""Launch files: a question in the words of the software that is to run it.

One file per target, one row each in `TARGETS`. A target's module has `TITLE`, `runtimes(job)` (the presets that
stand for it) and `write(job, account)`, which gives files by name, `launch.sh` among them, and accounts for every
word of the plan.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from foretrain.adapters.write.exported import Exported
from foretrain.adapters.write.job import Account, ExportJob
from foretrain.adapters.write.launching import SCRIPT, remarked
from foretrain.errors import InputError, ModelError, hint
from foretrain.scenario import Scenario
from foretrain.simulate import compile_scenario

__all__ = ["TARGETS", "Exported", "expect_target", "export", "stacks_of"]

# Names, not modules, so that one target does not load the others.
TARGETS: dict[str, str] = {
    "megatron": "megatron",
    "deepspeed": "deepspeed",
    "torchrun": "torchrun",
    "accelerate": "accelerate",
    "nanotron": "nanotron",
}


def expect_target(target: str) -> str:
    """The name of a target, or an error that lists them."""
    if target not in TARGETS:
        raise InputError(f"unknown target {target!r}.{hint(target, TARGETS)}")
    return target


def stacks_of(question: Scenario, target: str) -> tuple[str, ...]:
    """The presets that the files of a target stand for, the nearest first."""
    module: Any = import_module(f"{__name__}.{TARGETS[expect_target(target)]}")
    names: tuple[str, ...] = module.runtimes(ExportJob.of(question))
    return names


def export(question: Scenario, target: str) -> Exported:
    """The launch files of a question for one target, and what of its plan they cannot say."""
    module: Any = import_module(f"{__name__}.{TARGETS[expect_target(target)]}")
    model = question.workload.model
    if model.trained_parameters < model.parameters:
        raise ModelError(
            f"{model.name} has frozen weights: launch files for adapters are not supported. "
            "Export the run without peft, and add the adapters to the files."
        )
    compile_scenario(
        question
    )  # a plan that this model cannot follow is refused here, not by a cluster
    job = ExportJob.of(question)
    account = Account(job)
    files: dict[str, str] = module.write(job, account)
    own, name = module.runtimes(job), question.runtime.name
    warnings: tuple[str, ...] = ()
    if name not in own:
        warnings = (
            f"--runtime {name} with --to {target}: the plan is for {name}; {module.TITLE} differs in "
            f"overlap, fusion and memory use. Use --runtime {own[0]}, or leave --runtime out.",
        )
    cannot = account.close(target)
    assumed = account.assumed
    script = remarked(files[SCRIPT], cannot, warnings, assumed)
    return Exported(
        target, files | {SCRIPT: script}, cannot, assumptions=assumed, warnings=warnings
    )
