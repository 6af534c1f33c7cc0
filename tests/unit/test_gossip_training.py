"""Whole steps under runtimes that fuse by cycles or exchange weights, and what sockets cost them."""

from __future__ import annotations

import pytest

from foretrain.compile.execution import COLLECTIVE, Communication
from foretrain.resolving import ask
from foretrain.simulate import answer, compile_scenario, cost_scenario

QUESTION = {"plan": "", "micro_batch": 64, "precision": "fp32", "optimizer": "sgd"}
NEIGHBOURS = {"synchronises": "inner_outer_all_reduce", "fusion_copies": 2}


def question(nodes: int = 2, runtime: str = "horovod", **options: object):
    on = f"{nodes} x p3.16xlarge"
    return ask(
        "resnet50", on=on, batch=512 * nodes, runtime=runtime, runtime_options=options, **QUESTION
    )


def collectives(graph) -> list[Communication]:
    rows = [int(s) for s in graph.task_shape[graph.task_kind == COLLECTIVE]]
    return [graph.shape(row)[0].work for row in rows]


def step(*args, **kwargs) -> float:
    return answer(question(*args, **kwargs)).step_seconds


def test_a_shorter_cycle_reduces_more_often_and_always_everything():
    counts = []
    for cycle in (1e-3, 5e-3, 20e-3, 1.0):
        found = collectives(compile_scenario(question(cycle_seconds=cycle)))
        assert sum(work.bytes for work in found) == pytest.approx(4 * 25_557_032)
        counts.append(len(found))
    assert counts == sorted(counts, reverse=True)
    assert counts[0] > 2 * counts[1] > 2 * counts[2] > counts[3] >= 2  # 64 MiB hold not all


def test_horovod_declines_with_the_number_of_nodes():
    steps = [step(nodes) for nodes in (1, 2, 4, 8, 16)]
    assert steps == sorted(steps)
    assert steps[-1] > 1.2 * steps[0]


def test_neighbour_exchange_hardly_declines():
    first, last = (step(n, "bluefog", synchronises_at="forward", **NEIGHBOURS) for n in (2, 16))
    assert last == pytest.approx(first, rel=0.01)


def test_the_earlier_weights_go_the_more_is_hidden():
    at = {
        word: step(4, "bluefog", synchronises_at=word, **NEIGHBOURS)
        for word in ("forward", "adapted")
    }
    gradients = step(4, "bluefog", synchronises_at="gradient", **NEIGHBOURS)
    assert at["forward"] < at["adapted"]
    assert at["adapted"] == pytest.approx(gradients)  # fp32: weights are as large as gradients


def test_adapted_weights_have_the_size_of_weights_and_the_time_of_gradients():
    made = {}
    for word in ("forward", "adapted", "gradient"):
        options = {"synchronises_at": word, "gradient_bytes": 2.0, "cycle_seconds": 0.0}
        graph = compile_scenario(question(2, "bluefog", **NEIGHBOURS, **options))
        first = int((graph.task_kind == COLLECTIVE).argmax())
        chains_before = int((graph.task_kind[:first] != COLLECTIVE).sum())
        made[word] = sum(w.bytes for w in collectives(graph)), chains_before
    assert made["adapted"][0] == made["forward"][0] == 2 * made["gradient"][0]
    assert made["adapted"][1] > made["forward"][1]


def test_a_slower_coordinator_takes_longer():
    slow = step(16, negotiation_seconds_per_rank=1e-3)
    assert slow > step(16)


def test_a_custom_compute_model_sets_the_pace():
    from foretrain.cost.compute import Roofline

    class Slow(Roofline):
        def seconds(self, kernels, device):
            from dataclasses import replace

            found = Roofline.seconds(self, kernels, device)
            return replace(found, seconds=found.seconds * 4)

    asked = question()
    usual, slow = (
        len(collectives(compile_scenario(asked, compute=c))) for c in (Roofline(), Slow())
    )
    assert slow > 1.5 * usual  # four times as many ticks pass
    assert cost_scenario(asked, compile_scenario(asked)).seconds.sum() > 0
