"""The keywords of a question about a training step: `predict` takes them, and so does all that asks about the same."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypedDict

from foretrain.cluster.cluster import Cluster
from foretrain.keywords import JobWords
from foretrain.model.graph import Model
from foretrain.model.optimizer import Optimizer
from foretrain.model.precision import Precision
from foretrain.model.workload import DataSource
from foretrain.plan.plan import Plan
from foretrain.runtime import Runtime
from foretrain.scenario import Measured

if TYPE_CHECKING:
    from foretrain.cluster.stragglers import Spread

ModelLike: TypeAlias = str | Path | Mapping[str, Any] | Model
ClusterLike: TypeAlias = str | Path | Mapping[str, Any] | Cluster


class StackOptions(TypedDict, total=False):
    """What is asked of a step, whatever its plan and batch; None and what is left out is as `predict` has it."""

    micro_batch: int | None
    seq: int | None
    precision: str | Precision | None
    optimizer: str | Optimizer | None
    runtime: str | Runtime | None
    runtime_options: Mapping[str, Any] | None
    data: DataSource | None
    stragglers: str | Mapping[int, float] | Spread | None
    measured: Measured | None
    headroom: float | str | None


class StepOptions(StackOptions, total=False):
    """The same of a step of one plan: all but what it runs on."""

    plan: str | Mapping[str, Any] | Plan | None
    batch: int | str | None


class Options(StepOptions, JobWords, total=False):
    """The same of a job: all but what it runs on."""


class Asked(Options):
    """The keywords of `predict`."""

    on: ClusterLike


class AskedStep(StepOptions):
    """The keywords of `predict` that are about one step."""

    on: ClusterLike


OF_JOBS = tuple(JobWords.__annotations__)


def command_line(question: Mapping[str, Any]) -> str | None:
    """The `foretrain predict` command that asks the same; None where a value has no words, such as a `Cluster`."""
    words = {name: value for name, value in question.items() if value is not None}
    options: Mapping[str, Any] = words.pop("runtime_options", {})
    slow = words.get("stragglers")
    if isinstance(slow, Mapping):
        words["stragglers"] = ",".join(f"{rank}:{factor!r}" for rank, factor in slow.items())
    if not all(isinstance(value, _WORDS) for value in (*words.values(), *options.values())):
        return None
    return shlex.join(["foretrain", "predict", *_arguments(words, options)])


_WORDS = (str, Path, bool, int, float)
"""Kinds of values that a command line can hold."""


def _arguments(words: Mapping[str, Any], options: Mapping[str, Any]) -> Iterator[str]:
    yield str(words["model"])
    for name, value in words.items():
        if name != "model":
            yield f"--{name.replace('_', '-')}"
            yield str(value)
    for name, value in options.items():
        yield "--set"
        yield f"{name}={word_of(value)}"


def word_of(value: object) -> str:
    """A value as it is written on a command line."""
    return str(value).lower() if isinstance(value, bool) else str(value)
