"""Folding is exact where replicas wait for neighbours only: one sender per class gives the answer of every sender.

Small clusters, some with slow devices, whose ranks differ in what they send over which links.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, assume, event, given, settings
from hypothesis import strategies as st
from support.plans import clusters, plan_words, tiny_model
from support.verify import verify

from foretrain.cluster.cluster import Cluster
from foretrain.cluster.stragglers import with_stragglers
from foretrain.errors import PlanError
from foretrain.simulate import answer, compile_scenario
from foretrain.testing.asking import ask

QUIET = settings(
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
EXACT = 1e-9
GRAPHS = ("ring_bidirectional", "ring_left", "exponential2", "star", "binary_tree", "torus2d")
GOSSIP = (
    *(f"neighbour_all_reduce({name})" for name in (*GRAPHS, "one_peer_exponential2")),
    "inner_outer_all_reduce",
    "inner_outer_all_reduce(1)",
    *(f"hierarchical_neighbour_all_reduce({name})" for name in GRAPHS[:3]),
)


class Asked:
    """A question under a short name: hypothesis writes out what it drew."""

    def __init__(self, question, name):
        self.question, self.name = question, name

    def __repr__(self):
        return self.name


@st.composite
def gossip_questions(draw):
    cluster = draw(clusters())
    devices = cluster.device_count
    assume(devices > 1)
    if draw(st.booleans()):
        slow = draw(
            st.dictionaries(st.integers(0, devices - 1), st.sampled_from((1.5, 2.0)), max_size=2)
        )
        cluster = with_stragglers(cluster, slow) if slow else cluster
    model, words, multiple = "cnn", f"dp{devices}", 1
    if draw(st.booleans()):
        model = draw(st.sampled_from(("gpt", "cnn")))
        words, multiple = draw(plan_words(devices, model))
    replicas = next(int(word[2:]) for word in words.split() if word.startswith("dp"))
    assume(replicas > 1)
    runtime = draw(st.sampled_from(("ddp", "ddp", "bluefog", "horovod")))
    options = {"synchronises": draw(st.sampled_from(GOSSIP))}
    for habit in draw(
        st.lists(
            st.sampled_from(("overlaps_gradients", "overlap_slows", "clips_gradients")), unique=True
        )
    ):
        options[habit] = draw(st.booleans())
    options["synchronises_at"] = draw(st.sampled_from(("gradient", "forward", "adapted")))
    options["bucket_bytes"] = draw(st.sampled_from((1e5, 4e6, 1e9)))
    try:
        question = ask(
            tiny_model(model), on=cluster, plan=words, batch=replicas * multiple * draw(st.integers(1, 2)),
            micro_batch=1, runtime=runtime, runtime_options=options,
        )  # fmt: skip
    except PlanError:
        assume(False)
        raise
    used = [run.used for run in cluster.runs for _ in range(run.count)]
    return Asked(question, f"{model} on {cluster.name} {used}: {words}, {runtime} {options}")


@settings(QUIET, max_examples=200)
@given(gossip_questions())
def test_folded_gossip_equals_every_rank(asked):
    question = asked.question
    graph, whole = compile_scenario(question), compile_scenario(question, is_folded=False)
    verify(graph)
    verify(whole)
    event("folded" if graph.fold.classes < whole.fold.classes else "nothing to fold")
    event(
        "several subgroups"
        if any(len(p.examples) > 1 for p in graph.fold.subgroups.values())
        else "one"
    )
    folded, every = answer(question), answer(question, is_folded=False)
    step = every.step_seconds
    assert folded.step_seconds == pytest.approx(step, rel=EXACT)
    for name, seconds in folded.stalls.items():
        assert seconds == pytest.approx(every.stalls[name], abs=EXACT * step), name
    assert sum(every.stalls.values()) == pytest.approx(step, rel=1e-12)


@pytest.mark.parametrize("runtime", ["bluefog", "horovod"])
def test_domains_whose_slow_ranks_stand_at_unlike_places_are_alike(runtime):
    """What a domain copies into its buffer takes as long as its slowest rank does, wherever that stands."""
    data = {
        "name": "four",
        "nodes": [{"node": "dgx-a100-80gb"}] * 4,
        "network": {"topology": "star"},
    }
    cluster = with_stragglers(Cluster.of(data).placed([2, 1, 1, 2]), {1: 1.5, 4: 1.5})
    options = {"synchronises": "hierarchical_neighbour_all_reduce(ring_bidirectional)"}
    question = ask(
        tiny_model("gpt"), on=cluster, plan="dp6 buckets=25MB", batch=6, micro_batch=1,
        runtime=runtime, runtime_options=options,
    )  # fmt: skip
    assert compile_scenario(question).fold.rank_class.tolist() == [0, 1, 2, 2, 1, 0]
    folded, every = answer(question), answer(question, is_folded=False)
    assert folded.step_seconds == pytest.approx(every.step_seconds, rel=EXACT)
