"""The façade: from names to a Prediction, or to the compiled program behind it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Unpack

from foretrain.analysis.answer import Answer
from foretrain.analysis.prediction import Lazy, Prediction, Remedy
from foretrain.asked import OF_JOBS, Asked, AskedStep, ClusterLike, ModelLike
from foretrain.compile.execution import ExecutionGraph
from foretrain.keywords import JobWords, keywords
from foretrain.model.optimizer import Optimizer
from foretrain.model.precision import Precision
from foretrain.model.workload import DataSource
from foretrain.plan.plan import Plan
from foretrain.resolving import ask
from foretrain.runtime import Runtime
from foretrain.scenario import Measured, Scenario
from foretrain.simulate import Simulation, compile_scenario, simulate_scenario

if TYPE_CHECKING:
    from foretrain.cluster.stragglers import Spread


@keywords(Asked)
def predict(
    model: ModelLike,
    *,
    on: ClusterLike,
    plan: str | Mapping[str, Any] | Plan | None = None,
    batch: int | str | None = None,
    micro_batch: int | None = None,
    seq: int | None = None,
    precision: str | Precision | None = None,
    optimizer: str | Optimizer | None = None,
    runtime: str | Runtime | None = None,
    runtime_options: Mapping[str, Any] | None = None,
    data: DataSource | None = None,
    stragglers: str | Mapping[int, float] | Spread | None = None,
    measured: Measured | None = None,
    headroom: float | str | None = None,
    **job: Unpack[JobWords],
) -> Prediction:
    """Predict time, memory, stalls and cost of a training step, or of a whole job if its length is given.

    Arguments not specified get common defaults; `assumptions` of the result lists every default used.

    Args:
        model: a zoo name, a Hugging Face `config.json` or its directory, a Foretrain YAML file, or a `Model`.
        on: the cluster: `"16 x dgx-a100-80gb"`, `"4 x aws:p4d.24xlarge"`, a YAML file, or a `Cluster`.
        plan: the short form (`"tp8 pp16 dp8 zero1"`), the content of a YAML file, or a `Plan`; `"auto"` for the best plan
            of a quick search. Default: the runtime's default plan if it fits, otherwise the same search.
        batch: global batch in samples, or in tokens (`"4Mtok"`).
        micro_batch: samples per micro-batch. Default: the largest that fits.
        seq: tokens per sample. Default: the published sequence length of the model.
        precision: `bf16`, `fp16`, `fp32`, `fp8` …
        optimizer: `adam`, `sgd` …
        runtime: the software stack: `megatron`, `fsdp2`, `ddp` …. Default: chosen by model, plan and cluster.
        runtime_options: options of the runtime: `{"attention": "flash", "compile": True}`.
        data: cost of loading samples. Default: data loading never stalls the step.
        stragglers: slow devices: `{3: 1.5}`, `"3:1.5"` or a distribution such as `"sigma=0.05,seed=1"`.
        measured: calibration of your own machine (`foretrain.calibrate()`).
        headroom: device memory to keep free: a fraction or a size.
        **job: `tokens`, `samples`, `steps` or `epochs` (of `dataset_samples` or `dataset_tokens`) of the whole job,
            `usd_per_hour` of one device, `pue`, and what interrupts it: `mtbf` and `checkpoint_rate` of a node,
            `restart`.

    Returns:
        Seconds, bytes and USD of a step. A plan that does not fit is not an error: `fits` is False.

    Raises:
        InputError: an argument is unknown or impossible.

    >>> from foretrain import predict
    >>> p = predict("llama3-8b", on="2 x dgx-h100", plan="tp4 pp2 dp2 zero1", batch=256, seq=8192)
    >>> p.fits, p.bottleneck
    (True, 'compute')
    """
    scenario = ask(
        model,
        on=on,
        plan=plan,
        batch=batch,
        micro_batch=micro_batch,
        seq=seq,
        precision=precision,
        optimizer=optimizer,
        runtime=runtime,
        runtime_options=runtime_options,
        data=data,
        stragglers=stragglers,
        measured=measured,
        headroom=headroom,
        **job,
    )
    found = simulate_scenario(scenario)
    return replace(found.prediction, what_would_help=Lazy(partial(_helpful, found)))


def _helpful(found: Simulation) -> Sequence[Remedy]:
    """Worked out when it is looked at; what that takes is loaded then, too."""
    from foretrain.advice.facade import what_would_help

    return what_would_help(found)


@dataclass(frozen=True, slots=True, repr=False)
class Compiled(Answer, ExecutionGraph):
    """The compiled program of a step, and of which."""

    asked: Scenario

    def to_dict(self) -> dict[str, Any]:
        return self._report_data()


@keywords(AskedStep, of_jobs=OF_JOBS)
def compile_graph(model: ModelLike, **question: Unpack[AskedStep]) -> Compiled:
    """Return the compiled program of a step: rank classes, streams, tasks and their dependencies.

    Args:
        model: as for `predict`.
        **question: the keywords of `predict` but those of a job.

    >>> from foretrain import compile_graph
    >>> graph = compile_graph("gpt2", on="1 x dgx-h100", plan="tp4 dp2", batch=64)
    >>> len(graph.stages), len(graph.task_kind) > 0
    (1, True)
    """
    asked = ask(model, **question)
    graph = compile_scenario(asked)
    own = {field.name: getattr(graph, field.name) for field in fields(ExecutionGraph)}
    return Compiled(**own, asked=asked)
