"""Request: what a door hands over. Only what was said is in it; `resolve` fills in the rest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from foretrain.asked import ClusterLike, ModelLike
from foretrain.model.optimizer import Optimizer
from foretrain.model.precision import Precision
from foretrain.model.workload import DataSource
from foretrain.plan.plan import Plan
from foretrain.runtime import Runtime
from foretrain.scenario import Measured

if TYPE_CHECKING:
    from foretrain.analysis.job_words import JobWords
    from foretrain.cluster.stragglers import Spread

AUTO = "auto"
"""The plan that a quick search finds."""


@dataclass(frozen=True)
class Request:
    """Words of a question; None where nothing was said.

    `plan` may be a mapping of plan words (`{"tp": 8, "zero": 1}`), which is what a short form is read into. `batch` counts
    samples, or is text with a unit (`"4Mtok"`). A request that is not `strict` describes a run that somebody had: a
    switch that nobody here knows is then named and widens the interval, instead of being a mistake.
    """

    model: ModelLike
    on: ClusterLike
    plan: str | Mapping[str, Any] | Plan | None = None
    batch: int | str | None = None
    micro_batch: int | None = None
    seq: int | None = None
    precision: str | Precision | None = None
    optimizer: str | Optimizer | None = None
    runtime: str | Runtime | None = None
    runtime_options: Mapping[str, Any] = field(default_factory=dict)
    data: DataSource | None = None
    stragglers: str | Mapping[int, float] | Spread | None = None
    measured: Measured | None = None
    headroom: float | str | None = None
    job: JobWords = field(default_factory=dict)  # type: ignore[assignment]  # all its keys are optional
    is_searched: bool = (
        False  # the plan is what is looked for: only a stack that can split models will do
    )
    target: str = ""  # launch files that are asked for, which name a stack
    id: str = ""
    strict: bool = True
    assumptions: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    unknown: int = 0  # words of the run that nothing here answers to
