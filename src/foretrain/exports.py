"""Export: launch files of the question that `predict` would answer."""

from __future__ import annotations

from dataclasses import replace
from typing import Unpack

from foretrain.adapters.write import Exported, expect_target
from foretrain.adapters.write import export as export_question
from foretrain.asked import OF_JOBS, AskedStep, ModelLike
from foretrain.keywords import keywords
from foretrain.resolving import request_of, resolve


@keywords(AskedStep, of_jobs=OF_JOBS)
def export(model: ModelLike, *, to: str, **question: Unpack[AskedStep]) -> Exported:
    """Generate launch files of a plan for a training framework, and list what it cannot express.

    Args:
        model: as for `predict`.
        to: `megatron`, `deepspeed`, `torchrun`, `accelerate` or `nanotron`.
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
    plan = f"{asked.plan.text} micro={asked.plan.schedule.micro_batch}"
    exported = export_question(asked, to)
    warnings = (*asked.warnings, *exported.warnings)
    return replace(exported, plan=plan, assumptions=asked.assumptions, warnings=warnings)
