"""What a software stack does besides the model's own work: adding up gradients, copying, hosts that are late."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from estimate_gaps import gaps

from foretrain import predict
from foretrain.compile.execution import CHAIN, Communication, Compute, ExecutionGraph
from foretrain.cost.collectives.selector import reported_latency
from foretrain.model.graph import Op
from foretrain.model.ops import family
from foretrain.model.ops.base import KernelChoices
from foretrain.model.precision import precision
from foretrain.planning.task import Task
from foretrain.scenario import Scenario
from foretrain.simulate import answer, compile_scenario, cost_scenario
from foretrain.testing.asking import ask

PLAIN = {
    "kernel_slowdown": 1.0,
    "adds_gradients": False,
    "copies_gathered": False,
    "clips_gradients": False,
    "host_delay_on_network": 0.0,
}


def asked(plan: str, on: str = "dgx-h100", **options: Any) -> Scenario:
    return ask(
        "llama2-7b",
        on=on,
        plan=plan,
        batch=64,
        seq=2048,
        runtime="nanotron",
        runtime_options=PLAIN | options,
    )


def kernels(graph: ExecutionGraph) -> list[tuple[Compute, int]]:
    """Kernels of the first rank class, each with how often it runs."""
    counts = np.zeros(len(graph.items), dtype=int)
    for task in np.flatnonzero((graph.task_class == 0) & (graph.task_kind == CHAIN)):
        shape = graph.task_shape[task]
        low, high = graph.shape_ptr[shape], graph.shape_ptr[shape + 1]
        np.add.at(counts, graph.shape_items[low:high], 1)
    pairs = zip(graph.items, counts.tolist(), strict=True)
    return [(item.work, n) for item, n in pairs if n and isinstance(item.work, Compute)]


def moved(question: Scenario, part: str = "") -> float:
    """Bytes that memory-bound kernels move in a step, of all ops or of one."""
    found = kernels(compile_scenario(question))
    return sum(w.kernel.bytes * n for w, n in found if w.kernel.kind == "memory" and part in w.op)


def test_adding_up_reads_both_gradients_and_writes_the_sum() -> None:
    plan = "dp8 micro=1"
    extra = moved(asked(plan, adds_gradients=True)) - moved(asked(plan))
    parameters = asked(plan).workload.model.parameters
    micro_batches = 64 // 8
    cleared = 4 + (4 - 2)  # the buffer is set to zero, and the update reads it in fp32
    assert extra == pytest.approx(parameters * (micro_batches * (2 + 4 + 4) + cleared), rel=1e-3)


def test_clipping_takes_a_norm_and_scales() -> None:
    plain = asked("dp8", adds_gradients=True)
    clipped = asked("dp8", adds_gradients=True, clips_gradients=True)
    extra = moved(clipped, "optimizer") - moved(plain, "optimizer")
    assert extra == pytest.approx(plain.workload.model.parameters * 3 * 4)


def test_gathered_weights_are_copied_rank_by_rank() -> None:
    def copies(plan: str) -> int:
        graph = compile_scenario(asked(plan, copies_gathered=True))
        return sum(n for work, n in kernels(graph) if work.op == "optimizer.copies")

    tensors = 6 * 32 + 3  # two norms and four products a layer; embedding, last norm, head
    assert copies("dp8 zero1") == 8 * tensors
    assert copies("tp2 dp4 zero1") == 4 * tensors
    assert copies("dp8") == 0


def test_hosts_are_late_only_where_pipelines_cross_the_network() -> None:
    def host(plan: str, on: str, delay: float) -> float:
        question = asked(plan, on=on, host_delay_on_network=delay)
        graph = compile_scenario(question)
        costs = cost_scenario(question, graph)
        return float(costs.seconds.sum())

    for plan, on in (("tp2 pp4", "dgx-h100"), ("tp8 dp2", "2 x dgx-h100")):
        assert host(plan, on, 1e-3) == host(plan, on, 0.0)
    assert host("tp4 pp2 dp2", "2 x dgx-h100", 1e-3) > host("tp4 pp2 dp2", "2 x dgx-h100", 0.0)


def test_delays_of_a_group_add_up() -> None:
    """Bound by the host, a step grows by the delay times the ranks that meet in a collective."""

    def growth(tp: int) -> float:
        def step(delay: float) -> float:
            return predict(
                "llama2-7b", on="2 x dgx-h100", plan=f"tp{tp} pp2 dp{8 // tp}", batch=128, micro_batch=1,
                seq=256, runtime="nanotron", runtime_options=PLAIN | {"host_delay_on_network": delay},
            ).step_seconds * (8 // tp)  # fmt: skip

        return step(4e-4) - step(2e-4)

    assert growth(8) / growth(4) == pytest.approx(2.0, rel=0.05)


def test_pace_scales_kernels_alone() -> None:
    def step(pace: float, host: float) -> float:
        options = {"kernel_slowdown": pace, "host_seconds_per_kernel": host}
        options["host_seconds_per_collective"] = host
        return predict(
            "llama2-7b", on="dgx-h100", plan="dp8 micro=1", batch=64, seq=2048, runtime="nanotron",
            runtime_options=PLAIN | options,
        ).step_seconds  # fmt: skip

    assert step(1.5, 0.0) / step(1.0, 0.0) == pytest.approx(1.5, rel=0.05)
    assert step(1.1, 1e-2) == pytest.approx(step(1.0, 1e-2), rel=0.02)


def test_composed_rms_norms_move_more_and_compiling_fuses_them() -> None:
    def passes(**options: Any) -> float:
        question = ask(
            "llama3-8b", on="dgx-h100", plan="dp8 zero3", batch=8, seq=2048, runtime="torchtitan",
            runtime_options=options,
        )  # fmt: skip
        return moved(question, "ln1")

    assert passes() > 8 * passes(fuses_norms=True)
    assert passes(fuses_elementwise=True) == passes(fuses_norms=True)


def llama_op(name: str) -> Op:
    blocks = ask("llama2-7b", on="dgx-h100", plan="dp8", batch=8, seq=64).workload.model.blocks
    return next(op for block in blocks for op in block.ops if op.name == name)


def bytes_per_element(op: Op, **choices: Any) -> tuple[float, float]:
    """What the kernels of an op move in bf16, forward and backward, per element of what comes out of it."""
    made = sum(op.elements(tensor) for tensor in op.outputs)
    said, chosen = precision("bf16"), KernelChoices(**choices)
    passes = (family(op).forward(op, said, chosen), family(op).backward(op, said, chosen))
    forward, backward = (sum(kernel.bytes for kernel in kernels) / made for kernels in passes)
    return forward, backward


def test_composed_norms_move_what_autograd_dispatches() -> None:
    """Bytes of aten's kernels, counted by a dispatch mode over LlamaRMSNorm and its backward pass."""
    norm = llama_op("ln1")
    assert bytes_per_element(norm, fuses_elementwise=False, fuses_norms=False) == (36, 92)


@pytest.mark.parametrize(
    ("form", "moved"), [("halves", (20, 30)), ("complex", (20, 20)), ("matrices", (36, 36)), ("copies", (18, 18))]
)  # fmt: skip
def test_rotary_positions_move_what_their_form_dispatches(
    form: str, moved: tuple[float, float]
) -> None:
    rope = llama_op("rope")
    assert bytes_per_element(rope, fuses_elementwise=False, rotary=form) == pytest.approx(moved)
    assert bytes_per_element(rope, fuses_elementwise=True, rotary=form) == (4, 4)


def test_layer_norm_is_one_kernel_everywhere() -> None:
    model = ask("gpt2", on="dgx-h100", plan="dp8", batch=8, seq=1024).workload.model
    norm = next(op for block in model.blocks for op in block.ops if op.kind == "norm")
    assert len(family(norm).forward(norm, precision("bf16"), KernelChoices(fuses_norms=False))) == 1


def test_efa_tells_the_tuner_its_latency() -> None:
    """aws-ofi-nccl reports 75 us for p5; NCCL adds it to every hop between nodes."""
    assert reported_latency("efa") == pytest.approx(75e-6)
    assert reported_latency("infiniband") == 0.0


def test_fsdp_reduces_a_block_at_once() -> None:
    def scatters(**options: Any) -> list[float]:
        question = ask(
            "llama2-7b", on="dgx-h100", plan="zero3", batch=8, seq=2048, runtime="fsdp",
            runtime_options=options,
        )  # fmt: skip
        graph = compile_scenario(question)
        works = [graph.items[graph.shape_items[graph.shape_ptr[s]]].work for s in graph.task_shape]
        return [
            w.bytes
            for w in works
            if isinstance(w, Communication) and w.collective == "reduce_scatter"
        ]

    whole, pieces = scatters(), scatters(reduces_blocks=False)
    assert len(whole) == 32 + 2  # a layer each, embedding and head
    assert len(pieces) > 2 * len(whole)
    assert sum(whole) == pytest.approx(sum(pieces))


def test_scatters_may_wait_for_the_end_of_backward() -> None:
    def step(plan: str, overlaps: bool) -> float:
        options = {"overlaps_scatters": overlaps}
        return predict(
            "llama2-7b", on="2 x dgx-h100", plan=plan, batch=64, seq=2048, runtime="nanotron",
            runtime_options=PLAIN | options,
        ).step_seconds  # fmt: skip

    assert step("dp16 zero1", False) > 1.01 * step("dp16 zero1", True)
    assert step("dp16", False) == step("dp16", True)


def exchanged(question: Scenario, purpose: str) -> dict[str, float]:
    """Bytes of collectives of one purpose, by collective, in a step of the first rank class."""
    graph = compile_scenario(question)
    found: dict[str, float] = {}
    for shape in graph.task_shape[graph.task_class == 0]:
        low, high = graph.shape_ptr[shape], graph.shape_ptr[shape + 1]
        for item in graph.shape_items[low:high]:
            work = graph.items[item].work
            if isinstance(work, Communication) and work.purpose == purpose:
                found[work.collective] = found.get(work.collective, 0.0) + work.bytes
    return found


def test_split_gradients_may_be_all_reduced_all_the_same() -> None:
    scattered = exchanged(asked("dp8 zero1"), "data")
    reduced = exchanged(asked("dp8 zero1", scatters_gradients=False), "data")
    assert set(scattered) == {"reduce_scatter"}
    assert set(reduced) == {"all_reduce"}
    assert reduced["all_reduce"] == pytest.approx(scattered["reduce_scatter"])


def test_weights_are_gathered_once_more_for_what_runs_again() -> None:
    def gathered(plan: str, **options: Any) -> float:
        return exchanged(asked(plan, **options), "weights")["all_gather"]

    full = "dp8 zero3 recompute=full micro=8"
    layers = gathered(full, gathers_rerun=True) - gathered(full)
    assert 0.4 < layers / gathered(full) < 0.5  # not the embedding and the head, which keep theirs
    plain = "dp8 zero3 recompute=selective micro=8"  # attention has no weights
    assert gathered(plain, gathers_rerun=True) == gathered(plain)


def test_a_host_that_lists_parts_is_slower_the_more_ranks_there_are() -> None:
    def step(ranks: int, calls: float) -> float:
        return predict(
            "llama2-7b", on=f"{ranks // 8} x dgx-h100", plan=f"dp{ranks} zero3", batch=ranks, seq=2048,
            micro_batch=1, runtime="fsdp",
            runtime_options={"prefetched_blocks": 0, "calls_per_part": calls, "splits_from": 100_000},
        ).step_seconds  # fmt: skip

    few, many = (step(ranks, 3.0) - step(ranks, 1.0) for ranks in (16, 64))
    assert few > 0
    assert many / few == pytest.approx(4.0, rel=0.1)


def mixture(schedule: str, batch: int, overlap: float) -> Scenario:
    return ask(
        "deepseek-v2-lite", on="2 x dgx-h100", plan=f"pp4 dp4 ep4 {schedule} recompute=full", batch=batch,
        micro_batch=1, seq=2048, runtime="megatron",
        runtime_options={"expert_overlap": overlap, "clips_gradients": False},
    )  # fmt: skip


def test_exchanges_of_experts_hide_under_a_pass_that_goes_the_other_way() -> None:
    def seconds(schedule: str, batch: int, overlap: float) -> float:
        return answer(mixture(schedule, batch, overlap)).step_seconds

    assert seconds("gpipe", 32, 1.0) == pytest.approx(seconds("gpipe", 32, 0.0))  # there is none
    free = answer(mixture("1f1b", 32, 1.0)).stalls
    waited = free["network"] + free["interconnect"]
    shorter = answer(mixture("1f1b", 16, 1.0)).stalls
    assert waited > 0  # while the pipeline fills and drains …
    assert shorter["network"] + shorter["interconnect"] == pytest.approx(waited, rel=0.05)  # … only
    assert seconds("1f1b", 32, 1.0) < seconds("1f1b", 32, 0.0)


def test_searches_estimate_such_exchanges_as_they_are_simulated() -> None:
    where = [
        "micro=1",
        "cp=1",
        "tp=1",
        "pp=2|4",
        "ep=4|8",
        "zero=0|1",
        "order=default",
        "offload=none",
    ]
    found = gaps(Task.of(mixture("1f1b", 64, 1.0)), where, 8, seed=0)
    assert len(found) == 8
    assert max(abs(gap.time) for gap in found) < 0.05
