"""Embedding tables: which rows a step meets, what is exchanged, and what an update reaches."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from foretrain import predict
from foretrain.compile.exchanges import Vectors
from foretrain.compile.execution import Communication, Compute
from foretrain.forecast import compile_graph
from foretrain.model import zoo
from foretrain.model.graph import Op
from foretrain.model.ops import family
from foretrain.model.ops.base import KernelChoices
from foretrain.model.ops.embedding import held_share, listed, parts, popular, rows_met, vectors
from foretrain.model.ops.skew import often, seen
from foretrain.model.optimizer import optimizer
from foretrain.model.precision import precision

FP16 = precision("fp16")
NODE = "1 x dgx-a100-80gb"


def bag(name: str = "dlrm-dcnv2", group: str = "large_tables") -> Op:
    return next(op for _, op in zoo.build(name).ops() if op.name == group)


@pytest.mark.parametrize("skew", [0.0, 0.8, 1.0, 1.3])
def test_rows_met_agree_with_draws(skew: float) -> None:
    rows, draws = 3_000, 5_000
    weights = np.arange(1, rows + 1, dtype=np.float64) ** -skew
    chance = np.random.default_rng(7)
    counts = [chance.multinomial(draws, weights / weights.sum()) for _ in range(40)]
    met, again = seen(rows, draws, skew)
    assert met == pytest.approx(np.mean([(c > 0).sum() for c in counts]), rel=0.02)
    assert again == pytest.approx(np.mean([(c > 1).sum() for c in counts]), rel=0.03)


def test_popular_rows_are_few_and_answer_much() -> None:
    rows, share = often(40_000_000, 55_296, 1.0, 15.0)
    assert rows < 300
    assert share > 0.25
    assert often(10, 55_296, 1.0, 15.0) == (10.0, pytest.approx(1.0))
    assert often(40_000_000, 10, 1.0, 15.0) == (0.0, 0.0)
    assert often(1_000, 55_296, 0.0, 15.0) == (1_000.0, 1.0)
    assert often(40_000_000, 55_296, 0.0, 15.0) == (0.0, 0.0)


def test_a_rank_looks_up_what_its_rows_are_asked_for() -> None:
    whole = bag().local({}, 4096)
    eighth = bag().local({"rows": 8}, 4096)
    (all_of,) = family(whole).forward(whole, FP16, KernelChoices())
    (one,) = family(eighth).forward(eighth, FP16, KernelChoices())
    assert held_share(eighth) == pytest.approx(1 / 8, rel=1e-6)
    assert one.shape[2] == pytest.approx(all_of.shape[2] / 8, rel=1e-5)
    assert one.shape[3] == pytest.approx(all_of.shape[3] / 8, rel=1e-5)
    # the hottest table is in several parts, each of which makes a vector of every sample
    assert 1.0 < 8 * vectors(eighth) / vectors(whole) < 2.0


def test_tables_placed_whole_keep_their_look_ups() -> None:
    op = bag("dlrm-mlperf").local({"table": 11, "bag": 11, "rows": 11}, 1024)
    assert held_share(op) == pytest.approx(1.0)
    (kernel,) = family(op).forward(op, FP16, KernelChoices())
    assert kernel.shape[2] == 1024


def test_parts_even_out_look_ups() -> None:
    bags = tuple(hot for _, hot in listed(bag()))
    assert parts(bags, 1) == (1.0,) * len(bags)
    assert sum(parts(bags, 8)) < sum(parts(bags, 64)) <= sum(bags)
    assert max(parts(bags, 10**6)) == 100


def test_skewed_tables_meet_fewer_rows() -> None:
    op = bag("dlrm-mlperf").local({}, 55_296)
    even = replace(op, attrs=tuple((k, 0.0 if k == "skew" else v) for k, v in op.attrs))
    assert rows_met(op)[0] < 0.7 * rows_met(even)[0]
    assert rows_met(op)[1] < rows_met(op)[0]
    rows, share = popular(op, 55_296, 15.0)
    assert rows < 0.02 * rows_met(op)[0] * len(listed(op))
    assert 0.2 < share < 0.8


def exchanged(model: str, **options: object) -> list[Communication]:
    graph = compile_graph(
        model, on=NODE, plan="dp8 tables=rows", batch=55296, micro_batch=6912, precision="fp16",
        optimizer="plain-sgd", runtime="hugectr", runtime_options=options,
    )  # fmt: skip
    works = [item.work for item in graph.items]
    return [work for work in works if isinstance(work, Communication)]


def test_only_vectors_with_something_in_them_are_sent() -> None:
    sent = [w for w in exchanged("dlrm-mlperf", hot_row_threshold=0) if isinstance(w, Vectors)]
    assert {w.collective for w in sent} == {"all_to_all"}
    # one vector of 128 halves for every sample and large table, an eighth from every rank
    assert sent[0].bytes == pytest.approx(55296 * 11 * 256 / 8)
    assert sent[0].sent(8) == pytest.approx(sent[0].bytes)
    reduced = [w.collective for w in exchanged("dlrm-mlperf", sends_looked_up=False)]
    assert "reduce_scatter" in reduced
    assert "all_gather" in reduced


def test_popular_rows_are_reduced_instead_of_exchanged() -> None:
    def sizes(**options: object) -> dict[str, float]:
        return {w.collective: w.bytes for w in exchanged("dlrm-mlperf", **options)}

    hybrid, plain = sizes(hot_row_threshold=15), sizes(hot_row_threshold=0)
    assert hybrid["all_to_all"] < 0.8 * plain["all_to_all"]
    assert hybrid["all_reduce"] < 0.5 * plain["all_reduce"]
    several = {w.collective: w.bytes for w in exchanged("dlrm-dcnv2", hot_row_threshold=15)}
    assert several == {
        w.collective: w.bytes for w in exchanged("dlrm-dcnv2", hot_row_threshold=0)
    }  # hybrid tables have one look-up


def test_partial_sums_of_a_node_travel_as_one() -> None:
    (work, *_) = [w for w in exchanged("dlrm-dcnv2") if isinstance(w, Vectors)]
    assert work.sent(8) < work.sent(64)
    assert work.inside(8, 8) > 2 * work.sent(8)
    one_hot = Vectors("all_to_all", 8.0, work.group, "reshard", 1.0, (1,) * 8)
    assert one_hot.inside(8, 8) == one_hot.sent(8) == 8.0


def test_rows_that_no_other_rank_holds_are_updated_with_their_gradients() -> None:
    def moved(name: str) -> float:
        graph = compile_graph(
            "dlrm-dcnv2", on=NODE, plan="dp8 tables=rows", batch=55296, micro_batch=6912,
            precision="fp16", optimizer=name, runtime="hugectr",
        )  # fmt: skip
        works = [item.work for item in graph.items]
        (update,) = [w for w in works if isinstance(w, Compute) and w.op == "optimizer.update"]
        return update.kernel.bytes

    dense = 40e6  # parameters of the network and of replicated tables
    assert moved("plain-sgd") < 16 * dense
    # Adagrad reads and writes its fp32 state of every row met
    states = moved("adagrad") - moved("plain-sgd")
    assert 8 * 500_000 * 128 < states < 8 * 900_000 * 128
    assert optimizer("sgd").table_state_bytes == 0.0
    assert optimizer("adagrad").table_state_bytes == 4.0


def test_epilogues_leave_no_activations_and_one_interaction() -> None:
    def seconds(fuses: bool) -> float:
        return predict(
            "dlrm-mlperf", on=NODE, plan="dp8 tables=rows", batch=55296, micro_batch=6912,
            precision="fp16", runtime="hugectr", runtime_options={"fuses_epilogues": fuses},
        ).step_seconds  # fmt: skip

    assert seconds(True) < 0.8 * seconds(False)
    relu = next(op for _, op in zoo.build("dlrm-mlperf").ops() if op.name == "top1_act")
    assert family(relu).forward(relu, FP16, KernelChoices(fuses_epilogues=True)) == ()
    assert family(relu).backward(relu, FP16, KernelChoices(fuses_epilogues=True)) == ()
    assert len(family(relu).forward(relu, FP16, KernelChoices())) == 1
    pairs = next(op for _, op in zoo.build("dlrm-mlperf").ops() if op.name == "interaction")
    (kernel,) = family(pairs).forward(pairs, FP16, KernelChoices(fuses_epilogues=True))
    assert kernel.bytes == 2 * (27 * 128 + 479)
