"""The façade: from a question to a Prediction."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from foretrain import __version__
from foretrain.analysis.critical_path import critical_path
from foretrain.analysis.links import link_use
from foretrain.analysis.memory import memory, notes
from foretrain.analysis.money import money
from foretrain.analysis.operators import busiest_operators, executed_flops
from foretrain.analysis.prediction import Late, LinkUse, Memory, Prediction
from foretrain.analysis.sensitivity import remedies, run_graph
from foretrain.analysis.stalls import stalls
from foretrain.analysis.timeline import timeline
from foretrain.analysis.uncertainty import Known, trust
from foretrain.cluster.cluster import Cluster
from foretrain.compile import ExecutionGraph, compile_step
from foretrain.cost.collectives import chosen
from foretrain.cost.compute import Calibrated, ComputeModel
from foretrain.cost.cost import Costs, cost_graph
from foretrain.cost.drift import with_waits
from foretrain.cost.network import Network, network_of
from foretrain.cost.pace import kernel_seconds
from foretrain.engine import Run, engine_name
from foretrain.errors import InputError
from foretrain.model.graph import Model
from foretrain.model.ops import family
from foretrain.model.optimizer import Optimizer
from foretrain.model.precision import Precision
from foretrain.model.workload import DataSource, Workload
from foretrain.plan.plan import Plan
from foretrain.runtime import Runtime
from foretrain.runtime import runtime as runtime_of

if TYPE_CHECKING:
    from foretrain.cluster.stragglers import Spread
    from foretrain.cost.curves import OwnCurves


class Measured(Protocol):
    """Times of the user's own machine, which stand before what ships (`foretrain.measurement.Calibration`)."""

    @property
    def name(self) -> str: ...

    @property
    def compute(self) -> ComputeModel: ...

    @property
    def curves(self) -> OwnCurves | None: ...


@dataclass(frozen=True)
class Question:
    """Everything a prediction depends on, resolved."""

    workload: Workload
    cluster: Cluster
    plan: Plan
    runtime: Runtime
    id: str = ""
    assumptions: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    is_runtime_known: bool = True  # else a preset stands in for it
    measured: Measured | None = None

    @property
    def compute(self) -> ComputeModel:
        """What times kernels."""
        return compute_of(self.measured)

    def to_dict(self) -> dict[str, Any]:
        w = self.workload
        measured = {} if self.measured is None else {"calibration": self.measured.name}
        return {
            "model": w.model.name,
            "parameters": w.model.parameters,
            "seq_len": w.seq_len,
            "global_batch": w.global_batch,
            "micro_batch": self.plan.schedule.micro_batch,
            "micro_batches": w.global_batch
            // (self.plan.schedule.micro_batch * self.plan.replicas),
            "precision": w.precision.name,
            "optimizer": w.optimizer.name,
            "cluster": self.cluster.name,
            "devices": self.cluster.device_count,
            "nodes": self.cluster.node_count,
            "device": self.cluster.devices[0].name,
            "plan": self.plan.text,
            "runtime": self.runtime.name,
            **measured,
        }


def ask(
    model: str | Path | Mapping[str, Any] | Model,
    *,
    on: str | Path | Mapping[str, Any] | Cluster,
    plan: str | Mapping[str, Any] | Plan = "",
    batch: int | None = None,
    micro_batch: int | None = None,
    seq: int | None = None,
    precision: str | Precision = "bf16",
    optimizer: str | Optimizer = "adam",
    runtime: str | Runtime = "megatron",
    runtime_options: Mapping[str, Any] | None = None,
    data: DataSource | None = None,
    stragglers: str | Mapping[int, float] | Spread | None = None,
    measured: Measured | None = None,
) -> Question:
    """Resolve names into a question; every wrong name is an `InputError`."""
    cluster = Cluster.of(on)
    if stragglers is not None:
        from foretrain.cluster.stragglers import with_stragglers

        cluster = with_stragglers(cluster, stragglers)
    stack = runtime_of(runtime).with_options(runtime_options or {})
    resolved = Plan.of(plan, devices=cluster.device_count, runtime=stack, micro_batch=micro_batch)
    assumptions = []
    if batch is None:
        batch = (
            resolved.replicas * resolved.schedule.micro_batch * max(1, 4 * resolved.schedule.stages)
        )
        assumptions.append(
            f"global batch not given: {batch}, four micro-batches per pipeline stage."
        )
    if batch < 1:
        raise InputError(f"global batch {batch} is not a positive whole number.")
    workload = Workload.of(model, batch, seq, precision, optimizer, data)
    return Question(
        workload, cluster, resolved, stack, assumptions=tuple(assumptions), measured=measured
    )


def predict(
    model: str | Path | Mapping[str, Any] | Model,
    *,
    on: str | Path | Mapping[str, Any] | Cluster,
    plan: str | Mapping[str, Any] | Plan = "",
    batch: int | None = None,
    micro_batch: int | None = None,
    seq: int | None = None,
    precision: str | Precision = "bf16",
    optimizer: str | Optimizer = "adam",
    runtime: str | Runtime = "megatron",
    runtime_options: Mapping[str, Any] | None = None,
    data: DataSource | None = None,
    stragglers: str | Mapping[int, float] | Spread | None = None,
    measured: Measured | None = None,
) -> Prediction:
    """Predict one training step: `predict("llama3-8b", on="2 x dgx-h100", plan="tp4 pp2 dp2 zero1", batch=256)`."""
    question = ask(
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
    )
    return answer(question)


def network_for(question: Question) -> Network:
    """The cluster's links under the question's communication library."""
    return network_on(question.cluster, question.runtime, question.measured)


def network_on(cluster: Cluster, stack: Runtime, measured: Measured | None) -> Network:
    own = None if measured is None else measured.curves
    return network_of(cluster, stack.library, chosen(dict(stack.algorithms)), own)


def compute_of(measured: Measured | None) -> ComputeModel:
    return Calibrated() if measured is None else measured.compute


def compile_question(
    question: Question, *, is_folded: bool = True, compute: ComputeModel | None = None
) -> ExecutionGraph:
    """The execution graph of a question."""
    return compile_step(
        question.workload,
        question.plan,
        _on_devices(question),
        network_for(question),
        is_folded=is_folded,
        pace=partial(kernel_seconds, question.cluster, compute or question.compute),
    )


def _on_devices(question: Question) -> Runtime:
    """Matrix units of Blackwell read FP8 operands in either order, so weights need no second, transposed copy
    (NVIDIA Transformer Engine: non-TN FP8 GEMMs)."""
    kinds = {device.architecture for device in question.cluster.devices}
    if kinds <= {"blackwell", "blackwell-ultra"} and question.runtime.keeps_transposed:
        return replace(question.runtime, keeps_transposed=False)
    return question.runtime


def cost_question(
    question: Question, graph: ExecutionGraph, compute: ComputeModel | None = None
) -> Costs:
    """What the graph's tasks cost on the question's cluster."""
    network, cluster = network_for(question), question.cluster
    costs = cost_graph(
        graph,
        cluster,
        question.runtime,
        network,
        compute or question.compute,
        question.workload.data,
    )
    drift = 0.0 if network.own is None else network.own.drift_between(cluster.devices)
    return with_waits(graph, costs, drift, cluster.device_count)


def answer(
    question: Question, *, is_folded: bool = True, compute: ComputeModel | None = None
) -> Prediction:
    """Compile, cost, simulate, analyse."""
    return simulate_question(question, is_folded=is_folded, compute=compute).prediction


def simulate_question(
    question: Question, *, is_folded: bool = True, compute: ComputeModel | None = None
) -> Simulation:
    """Compile, cost, simulate; what is asked of the result is worked out then."""
    graph = compile_question(question, is_folded=is_folded, compute=compute)
    costs = cost_question(question, graph, compute)
    return Simulation(question, graph, costs, run_graph(graph, costs))


@dataclass(frozen=True, eq=False)
class Simulation:
    """A step that was run. Its time and memory are enough to rank it; where the time went takes as long again."""

    question: Question
    graph: ExecutionGraph
    costs: Costs
    run: Run

    @cached_property
    def step_seconds(self) -> float:
        return float(self.run.end.max())

    @cached_property
    def memory(self) -> Memory:
        cluster = self.question.cluster
        device_kind = np.asarray(cluster.device_kind)[self.graph.fold.examples]
        capacities = np.array([d.memory_bytes for d in cluster.devices])[device_kind]
        return memory(self.graph, self.question.runtime, capacities)

    @cached_property
    def prediction(self) -> Prediction:
        return _prediction(self)


def _prediction(simulated: Simulation) -> Prediction:
    question, graph, costs = simulated.question, simulated.graph, simulated.costs
    run, step, held = simulated.run, simulated.step_seconds, simulated.memory
    counts = graph.fold.counts
    found = stalls(graph, costs, run, step)
    mean = found.mean(counts)
    stages = range(len(graph.stages))
    by_stage = tuple(
        type(found)(found.by_class[graph.fold.stage_of == s]).mean(counts[graph.fold.stage_of == s])
        for s in stages
    )
    sure = trust(graph, costs, found, known_of(question))
    model_flops, peak = _model_flops(question), _peak(question)
    workload = question.workload
    line = timeline(graph, run)
    return Prediction(
        id=question.id,
        step_seconds=step,
        interval=sure.interval(step),
        samples_per_second=workload.global_batch / step,
        tokens_per_second=None if workload.tokens is None else workload.tokens / step,
        mfu=model_flops / step / peak if peak else None,
        hfu=model_flops * _recompute_factor(graph) / step / peak if peak else None,
        memory=held,
        stalls=mean,
        stalls_by_stage=by_stage,
        bottleneck=max(mean, key=lambda name: mean[name]),
        what_would_help=Late(partial(remedies, graph, costs, step)),
        cost=money(question.cluster, step),
        measured_share=sure.measured_share,
        assumptions=question.assumptions,
        warnings=(*question.warnings, *costs.notes, *notes(held)),
        provenance=_provenance(question, costs),
        question=question.to_dict(),
        timeline=line,
        critical_path=Late(partial(critical_path, line)),
        links=Late(partial(_links, question, graph, costs, step)),
        operators=busiest_operators(graph, costs),
    )


def _links(
    question: Question, graph: ExecutionGraph, costs: Costs, step: float
) -> tuple[LinkUse, ...]:
    name = network_for(question).link_name
    return link_use(graph, costs, name, step, counts=costs.network_routes.count)


def known_of(question: Question) -> Known:
    """What the question says, as far as it decides how sure its answer can be."""
    return Known(
        devices=question.cluster.device_count,
        nodes=question.cluster.node_count,
        architecture=question.cluster.devices[0].architecture,
        runtime=question.runtime.name,
        is_runtime_known=question.is_runtime_known,
        assumed=len(question.assumptions),
    )


def _model_flops(question: Question) -> float:
    """Forward and backward FLOPs of the mathematics: three times forward, recomputation not counted."""
    model = question.workload.model
    forward = sum(family(op).flops(op) * block.repeat for block, op in model.ops())
    return 3.0 * forward * question.workload.global_batch


def _recompute_factor(graph: ExecutionGraph) -> float:
    """Work done over work needed: hardware utilisation counts recomputation, model utilisation does not."""
    done, again = executed_flops(graph)
    return done / (done - again) if done > again else 1.0


def _peak(question: Question) -> float | None:
    """FLOP/s of all devices together at the workload's matmul format, where the data sheet has it."""
    cluster, dtype = question.cluster, question.workload.precision.matmul
    peaks = [device.peak(dtype) for device in cluster.devices]
    known = [peak for peak in peaks if peak is not None]
    if len(known) < len(peaks):
        return None
    counts = np.bincount(np.asarray(cluster.device_kind), minlength=len(peaks))
    return float(sum(p * n for p, n in zip(known, counts, strict=True)))


def _provenance(question: Question, costs: Costs) -> dict[str, str]:
    text = json.dumps(question.to_dict(), sort_keys=True, default=str)
    return {
        "version": __version__,
        "calibration": "; ".join(costs.sources[:3]),
        "inputs_sha256": hashlib.sha256(text.encode()).hexdigest(),
        "engine": engine_name(),
    }
