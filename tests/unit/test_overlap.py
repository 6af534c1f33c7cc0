"""What runs beside kernels: exchanges in pieces, and kernels that communication slows."""

from __future__ import annotations

import pytest
from support.programs import program_of

from foretrain import predict
from foretrain.cluster.cluster import Cluster
from foretrain.compile.execution import Communication, Item
from foretrain.cost.interference import pair
from foretrain.errors import InputError
from foretrain.simulate import compile_scenario, cost_scenario
from foretrain.testing.asking import ask

TENSOR = {"on": "1 x dgx-h100", "plan": "tp8 sp", "batch": 8, "seq": 4096, "runtime": "megatron"}
DATA = {"on": "2 x dgx-a100-80gb", "plan": "dp16", "batch": 512, "seq": 512, "runtime": "ddp"}


def in_pieces(value: bool, **more: bool) -> dict[str, bool]:
    return {"tp_comm_overlap": value, "tp_dgrad_overlap": False, **more}


def test_gathers_and_reductions_go_beside_their_products():
    apart = compile_scenario(ask("llama3-8b", **TENSOR, runtime_options=in_pieces(False)))
    joined = compile_scenario(ask("llama3-8b", **TENSOR, runtime_options=in_pieces(True)))
    paired = [item for item in joined.items if item.in_pieces]
    assert {item.beside.collective for item in paired} == {"all_gather", "reduce_scatter"}
    assert all(item.beside.purpose == "tensor" for item in paired)
    assert not any(item.in_pieces for item in apart.items)

    def exchanged(graph):
        """Bytes of tensor-parallel exchange of the whole step, wherever they stand."""
        items = [graph.items[i] for task in graph.task_shape for i in _items(graph, task)]
        works = [w for item in items for w in (item.work, item.beside)]
        return sum(w.bytes for w in works if isinstance(w, Communication) and w.purpose == "tensor")

    assert exchanged(joined) == pytest.approx(exchanged(apart))


def _items(graph, shape):
    return graph.shape_items[graph.shape_ptr[shape] : graph.shape_ptr[shape + 1]]


def test_all_but_one_piece_of_the_product_hides_the_exchange():
    alone, joined = (_item_seconds(value) for value in (False, True))
    paired = [item for item in joined if item.in_pieces]
    assert paired
    for item in paired:
        kernel, moving = alone[Item(item.work)], alone[Item(item.beside)]
        assert joined[item] == pytest.approx(kernel + max(0.0, moving - kernel * 7 / 8))


def _item_seconds(value):
    options = in_pieces(value, overlap_slows=False)
    question = ask("llama3-8b", **TENSOR, runtime_options=options)
    graph = compile_scenario(question)
    costs = cost_scenario(question, graph)
    return {item: costs.item_seconds[0, n] for n, item in enumerate(graph.items)}


def test_two_that_overlap_take_no_longer_than_one_after_the_other():
    for kernel, moving in ((1.0, 0.5), (0.5, 1.0), (1.0, 0.0)):
        both = pair(kernel, moving, 1.9, 1.1)
        assert max(kernel, moving) <= both <= kernel + moving


def test_reductions_beside_backward_slow_it_and_the_loss_is_communications():
    free = predict("bert-large", **DATA, runtime_options={"overlap_slows": False})
    felt = predict("bert-large", **DATA, runtime_options={"overlap_slows": True})
    assert felt.step_seconds > free.step_seconds
    assert felt.stalls["compute"] == pytest.approx(free.stalls["compute"], rel=1e-6)
    lost = felt.stalls["network"] + felt.stalls["interconnect"]
    assert lost > free.stalls["network"] + free.stalls["interconnect"]
    assert sum(felt.stalls.values()) == pytest.approx(felt.step_seconds, rel=1e-12)


def test_what_kernels_lose_beside_a_reduction_is_blamed_on_its_links():
    """One device on each of two machines: nothing goes over the links inside them."""
    near = Cluster.of("1 x dgx-a100-80gb").first(2)
    far = Cluster.of({
        "name": "apart",
        "nodes": [{"node": "dgx-a100-80gb", "count": 2, "used": 1}],
        "network": {"topology": "star"},
    })  # fmt: skip
    for on, cause, other in ((far, "network", "interconnect"), (near, "interconnect", "network")):
        words = {**DATA, "on": on, "plan": "dp2", "batch": 64}
        free, felt = (
            predict("bert-large", **words, runtime_options={"overlap_slows": slows})
            for slows in (False, True)
        )
        assert felt.stalls[cause] > free.stalls[cause]
        assert felt.stalls[other] == pytest.approx(0.0, abs=1e-12)


def test_priorities_share_a_link_in_proportion():
    from foretrain.engine import simulate

    # two flows of equal volume on one link: with priority 3 the first takes three quarters of it
    program = program_of(
        [0.0, 0.0],
        volume=[3.0 / 3.0, 3.0],
        route=[0, 1],
        routes=[[(0, 3.0)], [(0, 1.0)]],
        capacity=[4.0],
    )
    run = simulate(program)
    assert run.end.tolist() == pytest.approx([1.0, 1.5])


def test_priorities_move_the_wait_but_not_the_bytes():
    plan = {
        "on": "4 x dgx-a100-80gb",
        "plan": "tp2 pp2 dp8 zero1 sp",
        "batch": 64,
        "seq": 2048,
        "runtime": "nemo",
    }
    same = predict("llama3-8b", **plan)
    first = predict("llama3-8b", **plan, runtime_options={"priorities": "pipeline:8"})
    assert [link.bytes for link in first.links] == pytest.approx(
        [link.bytes for link in same.links]
    )
    alike = predict(
        "llama3-8b", **plan, runtime_options={"priorities": "pipeline:4,data:4,tensor:4,weights:4"}
    )
    assert alike.step_seconds == pytest.approx(same.step_seconds, rel=1e-9)


@pytest.mark.parametrize("value", ["tensr:2", "tensor:0", "tensor:x", "tensor"])
def test_priorities_that_make_no_sense_are_named(value):
    with pytest.raises(InputError, match="priorities"):
        predict(
            "gpt2",
            on="1 x dgx-a100-80gb",
            plan="dp8",
            batch=8,
            runtime_options={"priorities": value},
        )
