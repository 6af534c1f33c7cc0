"""Simulate a step: a costed graph on the engine, or a whole scenario, which is compiled and costed first.

`simulate(graph, costs)` says when each task ran; `simulate_scenario` keeps what a search ranks by, and analyses the step
only where someone asks why (`Simulation.prediction`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial

import numpy as np

from foretrain import __version__, engine
from foretrain.analysis.links import link_use
from foretrain.analysis.memory import headroom_note, memory, notes
from foretrain.analysis.operators import busiest_operators, executed_flops
from foretrain.analysis.prediction import Lazy, LazyMapping, LinkUse, Memory, Money, Prediction
from foretrain.analysis.sensitivity import remedies
from foretrain.analysis.stalls import stalls
from foretrain.analysis.timeline import critical_path, timeline
from foretrain.analysis.uncertainty import KnownFacts, trust
from foretrain.cluster.cluster import Cluster
from foretrain.compile import Compilation, ExecutionGraph
from foretrain.cost.collectives import chosen
from foretrain.cost.compute import Calibrated, ComputeModel
from foretrain.cost.cost import Costs, cost_graph
from foretrain.cost.drift import with_waits
from foretrain.cost.host import chain_clock
from foretrain.cost.items import CostedItems
from foretrain.cost.network import Network, network_of
from foretrain.engine import Program, Run
from foretrain.model.ops import training_flops
from foretrain.runtime import Runtime
from foretrain.scenario import Measured, Scenario
from foretrain.units import rounded_seconds


def program(graph: ExecutionGraph, costs: Costs) -> Program:
    """The engine's input."""
    return Program(
        duration=costs.seconds,
        volume=costs.volume,
        route=costs.route,
        stream_ptr=graph.stream_ptr,
        stream_ids=graph.stream_ids,
        succ_ptr=graph.succ_ptr,
        succ=graph.succ,
        route_ptr=costs.routes.ptr,
        route_link=costs.routes.link,
        route_weight=costs.routes.weight,
        route_cap=costs.routes.ceiling,
        capacity=costs.routes.capacity,
        streams=len(graph.streams),
        stream_place=np.array([rank_class for rank_class, _ in graph.streams], dtype=np.int32),
        activity=costs.activity,
        sensitivity=costs.sensitivity,
        slowdown=costs.slowdown,
    )


def simulate(graph: ExecutionGraph, costs: Costs, *, is_graph_known: bool = False) -> Run:
    """When each task ran. `is_graph_known`: the graph was run before, with other costs."""
    return engine.simulate(program(graph, costs), is_graph_known=is_graph_known)


def network_for(scenario: Scenario) -> Network:
    """The cluster's links under the scenario's communication library."""
    return network_on(scenario.cluster, scenario.runtime, scenario.measured)


def network_on(cluster: Cluster, stack: Runtime, measured: Measured | None) -> Network:
    own = None if measured is None else measured.curves
    return network_of(
        cluster, stack.communication.library, chosen(dict(stack.communication.algorithms)), own
    )


def compute_of(measured: Measured | None) -> ComputeModel:
    return Calibrated() if measured is None else measured.compute


def compile_scenario(
    scenario: Scenario, *, is_folded: bool = True, compute: ComputeModel | None = None
) -> ExecutionGraph:
    """The execution graph of a scenario."""
    stages = _stages(scenario, compute)
    return stages.graph(scenario.workload, network_for(scenario), is_folded)


def _stages(scenario: Scenario, compute: ComputeModel | None) -> Compilation:
    """What stages run: as it was compiled for a scenario that has the same, if it was."""
    workload, plan, runtime = scenario.workload, scenario.plan, scenario.runtime
    costs = compute or compute_of(scenario.measured)
    kernel_timer = partial(chain_clock, scenario.cluster, runtime, costs)
    if compute is not None:  # nothing is known of other models of computation, not even equality
        return Compilation(workload, plan, runtime, kernel_timer)
    measured = None if scenario.measured is None else scenario.measured.digest
    any_length = replace(workload, global_batch=1)
    key = (any_length, plan.mesh, plan.root, runtime, scenario.cluster, measured)
    stages = scenario.compiled.get(key)
    if stages is None:
        stages = scenario.compiled[key] = Compilation(workload, plan, runtime, kernel_timer)
    return stages


def cost_scenario(
    scenario: Scenario,
    graph: ExecutionGraph,
    compute: ComputeModel | None = None,
    known: CostedItems | None = None,
) -> Costs:
    """What the graph's tasks cost on the scenario's cluster; `known` as in `cost_graph`."""
    network, cluster = network_for(scenario), scenario.cluster
    costs = cost_graph(
        graph,
        cluster,
        scenario.runtime,
        network,
        compute or compute_of(scenario.measured),
        scenario.workload.data,
        known,
    )
    drift = 0.0 if network.own is None else network.own.drift_between(cluster.devices)
    return with_waits(graph, costs, drift, cluster.device_count)


def peak_memory(scenario: Scenario) -> Memory:
    """What the fullest device holds, without a simulation."""
    return _held(scenario, compile_scenario(scenario))


def _held(scenario: Scenario, graph: ExecutionGraph) -> Memory:
    cluster = scenario.cluster
    device_kind = np.asarray(cluster.device_kind)[graph.fold.examples]
    capacities = np.array([d.memory_bytes for d in cluster.devices])[device_kind]
    return memory(graph, scenario.runtime, capacities, scenario.headroom, scenario.is_runtime_known)


def answer(
    scenario: Scenario, *, is_folded: bool = True, compute: ComputeModel | None = None
) -> Prediction:
    """Compile, cost, simulate, analyse."""
    return simulate_scenario(scenario, is_folded=is_folded, compute=compute).prediction


def simulate_scenario(
    scenario: Scenario, *, is_folded: bool = True, compute: ComputeModel | None = None
) -> Simulation:
    """Compile, cost, simulate; what is asked of the result is worked out then."""
    graph = compile_scenario(scenario, is_folded=is_folded, compute=compute)
    costs = cost_scenario(scenario, graph, compute)
    return Simulation(scenario, graph, costs, simulate(graph, costs), compute)


@dataclass(frozen=True, eq=False)
class Simulation:
    """A step that was run. Its time and memory are enough to rank it; where the time went takes as long again."""

    scenario: Scenario
    graph: ExecutionGraph
    costs: Costs
    run: Run
    compute: ComputeModel | None = (
        None  # that kernels were timed by, where not as the scenario says
    )

    def __repr__(self) -> str:
        return f"<Simulation: {rounded_seconds(self.step_seconds)} per step; {self.scenario!r}>"

    @cached_property
    def step_seconds(self) -> float:
        return self.run.makespan

    @cached_property
    def memory(self) -> Memory:
        return _held(self.scenario, self.graph)

    @cached_property
    def prediction(self) -> Prediction:
        return _prediction(self)


def _prediction(simulated: Simulation) -> Prediction:
    scenario, graph, costs = simulated.scenario, simulated.graph, simulated.costs
    run, step, held = simulated.run, simulated.step_seconds, simulated.memory
    counts = graph.fold.counts
    by_class = stalls(graph, costs, run, step)
    mean = by_class.mean(counts)
    stages = range(len(graph.stages))
    by_stage = tuple(
        type(by_class)(by_class.by_class[graph.fold.stage_of == s]).mean(
            counts[graph.fold.stage_of == s]
        )
        for s in stages
    )
    sure = trust(graph, costs, by_class, known_of(scenario))
    model_flops, peak = _model_flops(scenario), _peak(scenario)
    workload = scenario.workload
    line = timeline(graph, run)
    interval, terms = sure.interval(step), scenario.job
    cost = Money.of_step(scenario.cluster, step, terms.usd_per_device_hour if terms else None)
    job = None
    if terms is not None:
        job = terms.totals(workload, scenario.cluster, step, interval, cost.usd_per_hour)
    return Prediction(
        id=scenario.id,
        step_seconds=step,
        interval=interval,
        samples_per_second=workload.global_batch / step,
        tokens_per_second=None if workload.tokens is None else workload.tokens / step,
        mfu=model_flops / step / peak if peak else None,
        hfu=model_flops * _recompute_factor(graph) / step / peak if peak else None,
        memory=held,
        stalls=mean,
        stalls_by_stage=by_stage,
        bottleneck=max(mean, key=lambda name: mean[name]),
        what_would_help=()
        if not held.fits  # a faster device is no remedy for a full one
        else Lazy(
            partial(
                remedies,
                graph,
                costs,
                step,
                partial(_seconds, graph),
                partial(_on_links, simulated),
                partial(_hosted, simulated),
            )
        ),
        cost=cost,
        measured_share=sure.measured_share,
        assumptions=(
            *scenario.assumptions,
            *headroom_note(scenario.runtime, scenario.headroom),
            *(job.notes if job else ()),
        ),
        warnings=(*scenario.warnings, *costs.notes, *notes(held)),
        provenance=LazyMapping(partial(_provenance, scenario, costs, engine.engine_name())),
        question=LazyMapping(scenario.to_dict),
        timeline=line,
        critical_path=Lazy(partial(critical_path, line)),
        links=Lazy(partial(_links, scenario, graph, costs, step)),
        operators=busiest_operators(graph, costs),
        job=job,
    )


@lru_cache(maxsize=64)
def _rescaled(cluster: Cluster, rate: str, factor: float) -> Cluster:
    return cluster.scaled(**{rate: factor})


def _seconds(graph: ExecutionGraph, costs: Costs) -> float:
    """The step of a graph that was run before, with other costs."""
    return simulate(graph, costs, is_graph_known=True).makespan


def _on_links(simulated: Simulation, rate: str, factor: float) -> Costs:
    """The step's costs with other links, as `whatif` asks for them."""
    scenario, costs = simulated.scenario, simulated.costs
    other = replace(scenario, cluster=_rescaled(scenario.cluster, rate, factor))
    return cost_scenario(other, simulated.graph, known=costs.known.without(rate))


def _hosted(simulated: Simulation, factor: float) -> float | None:
    """The step with other hosts where they take more than launches, as `whatif` has it."""
    scenario = simulated.scenario
    if not scenario.runtime.has_host_in_steps:
        return None
    other = replace(scenario, runtime=scenario.runtime.with_host(factor))
    return simulate_scenario(other, compute=simulated.compute).step_seconds


def _links(
    scenario: Scenario, graph: ExecutionGraph, costs: Costs, step: float
) -> tuple[LinkUse, ...]:
    name = network_for(scenario).link_name
    return link_use(graph, costs, name, step, counts=costs.network_routes.count)


def known_of(scenario: Scenario) -> KnownFacts:
    """What the scenario says, as far as it decides how sure its answer can be."""
    return KnownFacts(
        devices=scenario.cluster.device_count,
        nodes=scenario.cluster.node_count,
        has_experts=scenario.workload.model.has_experts,
        architecture=scenario.cluster.devices[0].architecture,
        runtime=scenario.runtime.name,
        is_runtime_known=scenario.is_runtime_known,
        unknown_switches=scenario.unknown_switches,
    )


def _model_flops(scenario: Scenario) -> float:
    """Forward and backward FLOPs of the mathematics, recomputation not counted."""
    return training_flops(scenario.workload.model) * scenario.workload.global_batch


def _recompute_factor(graph: ExecutionGraph) -> float:
    """Work done over work needed: hardware utilisation counts recomputation, model utilisation does not."""
    done, again = executed_flops(graph)
    return done / (done - again) if done > again else 1.0


def _peak(scenario: Scenario) -> float | None:
    """FLOP/s of all devices together at the workload's matmul format, where the data sheet has it."""
    cluster, dtype = scenario.cluster, scenario.workload.precision.matmul
    peaks = [device.peak(dtype) for device in cluster.devices]
    known = [peak for peak in peaks if peak is not None]
    if len(known) < len(peaks):
        return None
    counts = np.bincount(np.asarray(cluster.device_kind), minlength=len(peaks))
    return float(sum(p * n for p, n in zip(known, counts, strict=True)))


def _provenance(scenario: Scenario, costs: Costs, engine_name: str) -> dict[str, str]:
    return {
        "version": __version__,
        "calibration": "; ".join(costs.sources[:3]),
        "inputs_sha256": scenario.sha256,
        "engine": engine_name,
    }
