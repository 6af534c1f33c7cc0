"""Does a plan fit in memory, and what would make it fit?"""

from __future__ import annotations

from dataclasses import replace
from typing import Unpack

from foretrain.advice.facade import fixes, machines
from foretrain.analysis.answers import FitAnswer
from foretrain.asked import OF_JOBS, AskedStep, ModelLike
from foretrain.keywords import keywords
from foretrain.resolving import ask
from foretrain.simulate import simulate_scenario


@keywords(AskedStep, of_jobs=OF_JOBS)
def fit(model: ModelLike, **question: Unpack[AskedStep]) -> FitAnswer:
    """Check whether a plan fits in memory, and which changes would make it fit, the fastest first.

    Args:
        model: as for `predict`.
        **question: the keywords of `predict` but those of a job.

    >>> from foretrain import fit
    >>> answer = fit("llama3-8b", on="1 x dgx-h100", plan="dp8", batch=64, micro_batch=1, runtime="megatron")
    >>> answer.fits, answer.changes[0].change
    (False, 'zero2')
    """
    found = simulate_scenario(ask(model, **question))
    if found.memory.fits:
        return FitAnswer(found.prediction, True, ())
    changes = (*fixes(found), *machines(found))
    return FitAnswer(replace(found.prediction, what_would_help=changes), False, changes)
