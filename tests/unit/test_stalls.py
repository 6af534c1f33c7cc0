"""Stalls add up to the step and name the right cause."""

from __future__ import annotations

import numpy as np
import pytest
from support.plans import tiny_model

from foretrain.analysis.explain import explain
from foretrain.analysis.prediction import STALLS
from foretrain.analysis.stalls import stalls
from foretrain.cluster.cluster import Cluster
from foretrain.model.workload import DataSource
from foretrain.simulate import answer, compile_scenario, cost_scenario, simulate
from foretrain.testing.asking import ask

NODE = "1 x dgx-a100-80gb"
NO_HOST = {"host_seconds_per_kernel": 0.0, "host_seconds_per_collective": 0.0}


def predicted(model, plan, on=NODE, batch=16, micro=1, data=None, runtime="megatron", **options):
    return answer(
        ask(
            tiny_model(model), on=on, plan=plan, batch=batch, micro_batch=micro, runtime=runtime,
            runtime_options=options, data=data,
        )
    )  # fmt: skip


PLANS = (
    "dp8",
    "tp8",
    "tp2 pp2 dp2 zero1 sp",
    "pp4 dp2",
    "cp2 dp4 zero3",
    "pp2 vpp2 dp4",
    "pp4 zb-h1 dp2",
)


@pytest.mark.parametrize("runtime", ["megatron", "nemo", "fsdp", "ddp"])
@pytest.mark.parametrize("plan", PLANS)
def test_stalls_add_up_to_the_step_on_every_stage(plan, runtime):
    p = predicted("gpt", plan, runtime=runtime)
    assert tuple(p.stalls) == STALLS
    for part in (p.stalls, *p.stalls_by_stage):
        assert sum(part.values()) == pytest.approx(p.step_seconds, rel=1e-12)
        assert min(part.values()) >= -1e-12 * p.step_seconds


@pytest.mark.parametrize("plan", PLANS)
def test_rounding_is_all_that_is_left_over(plan):
    """What `stalls` adds to make the sum exact must be rounding, not a hidden mistake."""
    question = ask(tiny_model("gpt"), on=NODE, plan=plan, batch=16, micro_batch=1)
    graph = compile_scenario(question)
    costs = cost_scenario(question, graph)
    run = simulate(graph, costs)
    step = float(run.end.max())
    from foretrain.analysis import stalls as module

    walk = module._Walk(graph, costs, run)
    order, owner = graph.chains
    walk.add_busy(order, owner)
    walk.add_idle(order, owner, step)
    assert np.abs(walk.out.sum(axis=1) - step).max() <= 1e-9 * step
    found = pytest.approx(walk.out, rel=1e-6, abs=1e-9 * step)
    assert stalls(graph, costs, run, step).by_class == found


def test_one_device_without_host_time_only_computes():
    p = predicted("gpt", "", on=Cluster.of(NODE).first(1), **NO_HOST)
    for name in STALLS:
        assert (p.stalls[name] > 0) == (name in ("compute", "optimizer"))


def test_a_slow_host_starves_the_device():
    slow = predicted("gpt", "", on=Cluster.of(NODE).first(1), host_seconds_per_kernel=1e-3)
    assert slow.bottleneck == "host"
    graphs = predicted(
        "gpt", "", on=Cluster.of(NODE).first(1), host_seconds_per_kernel=1e-3, uses_cuda_graphs=True
    )
    assert graphs.stalls["host"] == 0.0


def test_tensor_parallel_waits_are_interconnect_inside_and_network_between_nodes():
    inside = predicted("gpt", "tp8", **NO_HOST)
    between = predicted("gpt", "tp8", on=Cluster.of("8 x dgx-a100-80gb").placed([1] * 8), **NO_HOST)
    assert inside.stalls["interconnect"] > 0
    assert inside.stalls["network"] == 0
    assert between.stalls["network"] > inside.stalls["interconnect"]
    assert between.stalls["interconnect"] == 0


def test_a_pipeline_has_a_bubble_and_more_micro_batches_shrink_it():
    few, many = (
        predicted("gpt", "pp4", batch=b, on=Cluster.of(NODE).first(4), **NO_HOST) for b in (4, 32)
    )
    assert (
        few.stalls["bubble"] / few.step_seconds > 2 * many.stalls["bubble"] / many.step_seconds > 0
    )


def test_a_slow_machine_is_waited_for():
    mixed = Cluster.of(
        {"nodes": [{"node": "dgx-a100-80gb", "used": 1}, {"node": "dgx-1-v100-32gb", "used": 1}]}
    )
    even = Cluster.of({"nodes": [{"node": "dgx-a100-80gb", "used": 1, "count": 2}]})
    waits = []
    for cluster in (mixed, even):
        question = ask(
            tiny_model("gpt"), on=cluster, plan="dp2", batch=32, micro_batch=8, precision="fp16",
            runtime_options=NO_HOST,
        )  # fmt: skip
        p = answer(question)
        waits.append(p.stalls["imbalance"] / p.step_seconds)
    assert waits[0] > 0.05
    assert waits[1] == 0


def test_gradients_that_overlap_stall_less():
    buckets = {"bucket_bytes": 25e6, "first_bucket_bytes": 25e6}
    apart, beside = (
        predicted(
            "gpt", "dp8", batch=128, micro=16, overlaps_gradients=overlaps, **buckets, **NO_HOST
        )
        for overlaps in (False, True)
    )
    assert beside.stalls["interconnect"] < apart.stalls["interconnect"]
    assert beside.step_seconds < apart.step_seconds


@pytest.mark.parametrize(
    ("source", "stall"),
    [
        (DataSource(bytes_per_sample=1e11), "fetch"),
        (DataSource(bytes_per_sample=1.0, prep_seconds_per_sample=100.0), "prep"),
    ],
)
def test_data_that_comes_late_is_named(source, stall):
    disk = {
        "nodes": [
            {"node": "dgx-a100-80gb", "host": {"cpu_cores": 64, "storage_bandwidth": "3GB/s"}}
        ]
    }
    p = predicted("cnn", "dp8", on=disk, data=source)
    assert p.bottleneck == stall
    assert p.stalls[stall] > 0.9 * p.step_seconds


def test_what_would_help_points_at_the_bottleneck():
    p = predicted("gpt", "tp8", on=Cluster.of("8 x dgx-a100-80gb").placed([1] * 8), **NO_HOST)
    assert p.bottleneck == "network"
    assert p.what_would_help[0].change == "half the network latency"  # small messages, far apart
    for remedy in p.what_would_help:
        assert remedy.speedup == pytest.approx(p.step_seconds / remedy.step_seconds)
        assert remedy.step_seconds < p.step_seconds


def test_an_explanation_says_which_stage_is_slow_where_there_are_several_and_what_helps_most():
    def told(document) -> str:
        return " ".join(explain(document).paragraphs)

    pipeline = told(predicted("llama", "pp4 dp2"))
    assert "has the longest compute time" in pipeline
    one = predicted("llama", "dp8")
    alone = told(one)
    assert "has the longest compute time" not in alone
    assert f"{one.what_would_help[0].speedup:.2f}×" in alone
    bare = {k: v for k, v in one.to_dict().items() if k != "what_would_help"}
    assert "Memory peaks" in alone
    assert "Largest gain" not in told(bare)


def test_late_hosts_are_the_hosts_stall_and_kernels_twice_as_fast_leave_them_as_late():
    def asked(**options):
        return predicted("cnn", "dp8", runtime="ddp", **options)

    late, prompt = asked(jitter_seconds=0.05), asked(jitter_seconds=0.0)
    assert late.step_seconds > prompt.step_seconds + 0.05
    assert late.stalls["host"] - prompt.stalls["host"] == pytest.approx(
        late.step_seconds - prompt.step_seconds, rel=1e-6
    )
    assert late.stalls["optimizer"] == pytest.approx(prompt.stalls["optimizer"])
    for remedy in late.what_would_help:
        if remedy.change == "kernels twice as fast":
            slower = asked(jitter_seconds=0.05, kernel_slowdown=0.5)
            assert remedy.step_seconds == pytest.approx(slower.step_seconds, rel=1e-6)
