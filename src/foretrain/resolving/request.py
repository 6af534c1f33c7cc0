"""Request: what a door hands over. Only what was said is in it; `resolve` fills in the rest and notes what it took."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from os import PathLike
from types import NoneType
from typing import TYPE_CHECKING, Any

from foretrain.asked import ClusterLike, ModelLike
from foretrain.cluster.cluster import Cluster, Described
from foretrain.errors import InputError, RuntimePresetError
from foretrain.keywords import JobWords, counted_by
from foretrain.limits import shown
from foretrain.model.graph import Model
from foretrain.model.optimizer import Optimizer
from foretrain.model.precision import Precision
from foretrain.model.workload import DataSource
from foretrain.plan.plan import Plan
from foretrain.runtime import Runtime
from foretrain.scenario import Measured

if TYPE_CHECKING:
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

    def __post_init__(self) -> None:
        faults = [*self._wrong_kinds()]
        if faults:
            raise InputError("invalid arguments:", faults=faults)
        for name in ("batch", "micro_batch", "seq"):  # counts of other libraries become ours
            object.__setattr__(self, name, counted_by(getattr(self, name)))

    def _wrong_kinds(self) -> Iterator[str]:
        """Values of a kind that a keyword does not take."""
        for name, (kinds, expected) in _KINDS.items():
            value = getattr(self, name)
            if not isinstance(value, kinds):
                yield f"{name}: {shown(value)} is not {expected}."
        if isinstance(self.runtime_options, Mapping):
            for key in self.runtime_options:
                if not isinstance(key, str):
                    yield f"runtime_options: {shown(key)} is not the name of an option."
        # without a look at the values of its properties, which may take long
        if self.measured is not None and "digest" not in dir(self.measured):
            yield f"measured: {shown(self.measured)} is not what foretrain.calibrate() makes."


_KINDS: Mapping[str, tuple[tuple[type, ...], str]] = {
    "model": ((str, PathLike, Mapping, Model), "a name, a path, a mapping or a Model"),
    "on": (
        (str, PathLike, Mapping, Cluster, Described),
        "a text such as '2 x dgx-h100', a path, a mapping or a Cluster",
    ),
    "plan": (
        (str, Mapping, Plan, NoneType),
        "a text such as 'tp8 dp2', a mapping or a Plan",
    ),
    "precision": ((str, Precision, NoneType), "a name such as 'bf16' or a Precision"),
    "optimizer": ((str, Optimizer, NoneType), "a name such as 'adamw' or an Optimizer"),
    "runtime": ((str, Runtime, NoneType), "a name such as 'megatron' or a Runtime"),
    "runtime_options": ((Mapping,), "a mapping such as {'attention': 'flash'}"),
    "data": ((DataSource, NoneType), "a DataSource"),
}


class Notes:
    """Defaults that were taken, and what a reader should know besides."""

    def __init__(self, request: Request | None = None) -> None:
        self.strict = request is None or request.strict
        self.assumptions = [] if request is None else list(request.assumptions)
        self.warnings = [] if request is None else list(request.warnings)
        self.unknown = 0 if request is None else request.unknown

    def assume(self, what: str, why: str, word: str) -> None:
        """`word` is what the user would write to have it otherwise."""
        self.assumptions.append(f"{what}: {why} ({word})")

    def warn(self, text: str) -> None:
        self.warnings.append(text)

    def unknown_switch(self, text: str, fault: InputError | None = None) -> None:
        """A switch that nothing here answers to: a mistake of the user, or something of a run that we do not know."""
        if self.strict and fault is not None:
            raise fault
        self.unknown += 1
        self.warnings.append(text)

    def contradiction(self, one: str, other: str, used: str) -> None:
        """Two switches that cannot both be: a mistake of the user, or a run of which one has to be believed."""
        conflict = f"{one} and {other} contradict each other"
        if self.strict:
            raise RuntimePresetError(f"{conflict}. Specify only one of them.")
        self.warnings.append(f"{conflict}; {used} is used.")
