"""Links: what the analysis counts on them, and how every renderer shows it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from foretrain.analysis.links import MOST_WITH_FLOWS, link_kind, link_use
from foretrain.analysis.prediction import LinkFlows, LinkUse, Prediction
from foretrain.cost.network import network_of
from foretrain.report import document_of, links, network, render, text, trace
from foretrain.scenario import Scenario
from foretrain.simulate import answer, compile_scenario, cost_scenario
from foretrain.testing.asking import ask
from foretrain.testing.exporters import bare_prediction, sample_prediction

QUESTIONS: dict[str, dict[str, Any]] = {
    "pipeline": {"on": "2 x dgx-h100", "plan": "tp4 pp2 dp2 zero1", "batch": 16, "seq": 2048},
    "context": {"on": "2 x dgx-h100", "plan": "tp2 cp2 pp2 dp2 zero3", "batch": 8, "seq": 2048},
    "mesh": {"on": "1 x aws:p3.16xlarge", "plan": "tp2 pp2 dp2", "batch": 8, "seq": 1024},
    "pcie": {"on": "2 x aws:g5.48xlarge", "plan": "tp2 dp8", "batch": 16, "seq": 1024},
}


def _question(name: str) -> Scenario:
    return ask("llama3-8b", micro_batch=1, **QUESTIONS[name])


@pytest.fixture(scope="module")
def answers() -> dict[str, Prediction]:
    return {name: answer(_question(name)) for name in QUESTIONS}


@pytest.fixture(scope="module")
def big() -> Prediction:
    return answer(
        ask(
            "gpt3-175b",
            on="128 x dgx-a100-80gb",
            plan="tp8 pp16 dp8 recompute=full",
            batch=256,
            seq=2048,
            micro_batch=1,
        )
    )


# --- analysis -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", QUESTIONS)
def test_folding_does_not_change_what_links_carry(
    name: str, answers: dict[str, Prediction]
) -> None:
    """Of each kind the busiest link carries as much when every rank is simulated by itself."""

    def busiest(prediction: Prediction) -> dict[str, float]:
        found: dict[str, float] = {}
        for link in prediction.links:
            found[link.kind] = max(found.get(link.kind, 0.0), link.bytes)
        return found

    folded, whole = busiest(answers[name]), busiest(answer(_question(name), is_folded=False))
    assert folded.keys() == whole.keys()
    assert folded
    for kind, amount in folded.items():
        assert amount == pytest.approx(whole[kind], rel=1e-9), kind


@pytest.mark.parametrize("name", QUESTIONS)
def test_traffic_and_flows_add_up_to_the_bytes_of_a_link(
    name: str, answers: dict[str, Prediction]
) -> None:
    for link in answers[name].links:
        assert sum(amount for _, amount in link.traffic) == pytest.approx(link.bytes, rel=1e-9)
        assert link.flows is not None
        assert link.flows.bytes.sum() == pytest.approx(link.bytes, rel=1e-9)
        assert len(set(link.flows.task.tolist())) == len(link.flows.task)
        purposes = {what.split()[0] for label in link.flows.labels for what in label.split(", ")}
        assert purposes == {what for what, _ in link.traffic}


def test_sends_between_stages_are_told_by_their_ends(answers: dict[str, Prediction]) -> None:
    found = {link.name: link for link in answers["pipeline"].links}
    out, back = found["network.nic0->fabric"], found["network.nic8->fabric"]
    assert (out.from_stages, out.to_stages) == ((0,), (1,))
    assert (back.from_stages, back.to_stages) == ((1,), (0,))
    assert dict(out.traffic).keys() == {"pipeline"}
    # 16 sequences in two replicas are eight sends, the activation split over the four ranks of a stage
    per_send = 2048 * 4096 * 2 / 4
    assert out.bytes == pytest.approx(8 * per_send)


def test_a_link_lists_the_stage_of_most_bytes_first(big: Prediction) -> None:
    found = {link.name: link for link in big.links}
    # tied embeddings join the first and the last stage, but most bytes are a stage's own gradients
    assert found["network.nic0->fabric"].from_stages == (0, 15)
    assert found["network.nic960->fabric"].from_stages == (15, 0)


def test_only_the_busiest_are_kept_and_only_some_with_flows(big: Prediction) -> None:
    assert len(big.links) > MOST_WITH_FLOWS
    with_flows = [link.flows is not None for link in big.links]
    assert with_flows == [k < MOST_WITH_FLOWS for k in range(len(big.links))]
    shares = [link.share for link in big.links]
    assert shares == sorted(shares, reverse=True)


def test_counts_and_the_limit_are_taken_over() -> None:
    question = _question("pipeline")
    graph = compile_scenario(question)
    costs = cost_scenario(question, graph)
    name = network_of(question.cluster).link_name
    counts = np.arange(10, 10 + len(costs.network_routes.capacity))
    found = link_use(graph, costs, name, 1.0, limit=2, counts=counts)
    assert len(found) == 2
    assert all(link.count >= 10 for link in found)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("domain3.device0->switch", "device->switch"),
        ("domain0.device12->switch0.1 (sends)", "device->switch (sends)"),
        ("network.fabric->nic64", "fabric->nic"),
        ("odd", "odd"),
    ],
)
def test_kinds_are_names_without_numbers(name: str, kind: str) -> None:
    assert link_kind(name) == kind


def test_the_document_holds_every_kind(big: Prediction) -> None:
    rows = big.to_dict()["links"]
    assert len(rows) == len(big.links)
    assert rows[0].keys() == {
        "link", "tier", "bytes", "bandwidth", "share", "kind", "count", "traffic", "from_stages", "to_stages",
    }  # fmt: skip
    assert sum(rows[0]["traffic"].values()) == pytest.approx(rows[0]["bytes"])


# --- words --------------------------------------------------------------------------------------


def _link(name: str, share: float, stage: int = 0, **more: Any) -> LinkUse:
    is_network = name.startswith("network.")
    return LinkUse(
        name, is_network, share * 1e9, 1e9, share, link_kind(name), traffic=(("data", share * 1e9),),
        from_stages=(stage,), to_stages=(stage,), **more,
    )  # fmt: skip


def _with(*found: LinkUse) -> Prediction:
    return replace(sample_prediction(), links=found)


def test_rows_merge_what_differs_by_rounding_only() -> None:
    prediction = _with(
        _link("domain0.device0->switch", 0.5, 0, count=8),
        _link("domain1.device0->switch", 0.496, 1, count=8),
        _link("domain2.device0->switch", 0.49, 2, count=8),
        _link("domain0.device0->switch (sends)", 0.49, 0, count=8),
        _link("network.nic0->fabric", 0.2, 0, count=16),
        _link("network.fabric->nic0", 0.2, 0, count=16),
    )
    found = links.rows(prediction, 9)
    assert [(row.name, links.stages_text(row.stages), row.count) for row in found] == [
        ("device → switch", "stages 0–1", 16),
        ("device → switch", "stage 2", 8),
        ("device → switch (sends)", "stage 0", 8),
        ("nic ↔ fabric", "stage 0", 32),
    ]


@pytest.mark.parametrize(
    ("stages", "text"),
    [((), ""), ((3,), "stage 3"), ((0, 1, 2, 5), "stages 0–2, 5"), ((9, 4), "stages 4, 9")],
)
def test_stages_are_told_in_runs(stages: tuple[int, ...], text: str) -> None:
    assert links.stages_text(stages) == text


def test_tips_say_everything() -> None:
    link = replace(_link("network.nic0->fabric", 0.25, count=64), to_stages=(1, 2))
    assert links.tip(link).splitlines() == [
        "network.nic0->fabric",
        "busy 25 % of the step",
        "238.4 MiB per step over 1.0 GB/s",
        "data 100 %",
        "from stage 0 to stages 1–2",
        "one of 64 links like it",
    ]


# --- terminal and Markdown ----------------------------------------------------------------------


@pytest.mark.parametrize(("share", "is_shown"), [(0.049, False), (0.051, True)])
def test_links_are_worth_a_table_above_a_twentieth(share: float, is_shown: bool) -> None:
    prediction = _with(_link("domain0.device0->switch", share))
    assert ("\nLinks\n" in str(render(prediction, "txt"))) is is_shown
    assert ("## Links" in str(render(prediction, "md"))) is is_shown


def test_a_terminal_shows_the_five_busiest() -> None:
    many = [_link(f"domain0.device{k}->switch", 0.9 - 0.1 * k, k) for k in range(8)]
    shown = str(render(_with(*many), "txt")).partition("\nLinks\n")[2].partition("\n\n")[0]
    assert len(shown.splitlines()) == 1 + 5
    assert "90 %" in shown
    assert "50 %" in shown


@pytest.mark.parametrize("width", [20, 40, 71, 72, 80])
def test_the_table_fits_a_terminal(big: Prediction, width: int) -> None:
    lines = (
        text.render(document_of(big), width)
        .partition("\nLinks\n")[2]
        .partition("\n\n")[0]
        .splitlines()
    )
    assert lines
    assert max(map(len, lines)) <= width


# --- the drawing --------------------------------------------------------------------------------


def test_nodes_that_look_alike_are_one_box(big: Prediction) -> None:
    found = [(box.stages, box.nodes) for box in network.boxes(big)]
    assert found == [((0,), 8), (tuple(range(1, 15)), 112), ((15,), 8)]
    drawn = network.drawing(big)
    assert [box.title for box in drawn.boxes] == [
        "stage 0 · 8 nodes",
        "stages 1–14 · 112 nodes",
        "stage 15 · 8 nodes",
    ]


def test_every_device_of_a_switched_node_is_joined(big: Prediction) -> None:
    drawn = network.drawing(big)
    box = drawn.boxes[0]
    assert [rect.text for rect in box.rects] == [*"01234567", "switch", "network cards"]
    spokes = [line for line in box.lines if "device0->switch" in line.tip]
    assert len(spokes) == 8
    assert spokes[5].tip.startswith("device5: like\ndomain0.device0->switch")
    assert {word for *_, word in box.words} == {"out", "in"}


def test_a_mesh_is_drawn_as_arcs(answers: dict[str, Prediction]) -> None:
    drawn = network.drawing(answers["mesh"])
    (box,) = drawn.boxes
    assert box.title == "stages 0–1 · 1 node"
    assert len(box.lines) == len(answers["mesh"].links)
    assert all("Q" in line.path for line in box.lines)
    assert not drawn.has_network


def test_devices_are_dealt_over_bridges_as_the_known_ones_are(
    answers: dict[str, Prediction],
) -> None:
    drawn = network.drawing(answers["pcie"])
    (box,) = drawn.boxes
    assert [rect.text for rect in box.rects][8:] == ["bridge0", "bridge1", "network cards"]
    assert sum("->bridge" in line.tip and "L" in line.path for line in box.lines) == 8


def test_two_stages_of_a_node_have_their_own_colours() -> None:
    low, high = _link("domain0.device0->switch", 0.1, 0), _link("domain0.device4->switch", 0.9, 1)
    sample = _with(low, high)
    lanes = tuple(replace(lane, stage=lane.stage // 2) for lane in sample.timeline.lanes)
    question = {**sample.question, "devices": 16, "nodes": 2}
    drawn = network.drawing(
        replace(sample, question=question, timeline=replace(sample.timeline, lanes=lanes))
    )
    assert drawn.boxes[0].title == "stages 0–1 · 2 nodes"
    styles = [line.cls for line in drawn.boxes[0].lines]
    assert styles == ["u2"] * 4 + ["u5"] * 4


def test_links_between_switches_stand_in_the_fabric() -> None:
    drawn = network.drawing(
        _with(_link("network.leaf0->spine1", 0.6), _link("network.nic0->leaf0", 0.1))
    )
    assert [part.text for part in drawn.fabric] == ["leaf → spine 60 %"]
    assert sum(len(box.words) + len(box.lines) for box in drawn.boxes) == 2  # and its stub


def test_many_kinds_of_nodes_are_cut_and_said() -> None:
    many = [_link(f"domain{k}.device0->switch", 0.01 * 1.1**k, k) for k in range(30)]
    drawn = network.drawing(_with(*many))
    assert len(drawn.boxes) == network.MOST_BOXES
    assert drawn.left_out == 30 - network.MOST_BOXES
    assert f"{drawn.left_out} more kinds of nodes" in str(render(_with(*many), "html"))


def test_racks_of_many_devices_stay_readable() -> None:
    sample = _with(_link("domain0.device40->switch", 0.1))
    drawn = network.drawing(replace(sample, question={"devices": 72, "nodes": 1}))
    devices = [r.text for r in drawn.boxes[0].rects if r.cls == "device"]
    assert devices == [*"0123456", "…"]


def test_a_page_says_how_many_links_a_bar_stands_for() -> None:
    page = str(render(_with(_link("domain0.device0->switch", 0.5, count=8)), "html"))
    assert "one of 8 links like it" in page.partition("Most utilized links")[2]


def test_without_links_there_is_no_section() -> None:
    assert "card full network" not in str(render(bare_prediction(), "html"))
    assert "card full network" in str(render(sample_prediction(), "html"))


@pytest.mark.parametrize(
    ("share", "style"), [(0.0, "u0"), (0.01, "u1"), (0.3, "u3"), (0.8, "u5"), (1.7, "u5")]
)
def test_colours_follow_the_legend(share: float, style: str) -> None:
    assert links.use_class(share) == style


# --- trace --------------------------------------------------------------------------------------


def _flows(prediction: Prediction) -> tuple[dict[str, Any], list[dict[str, Any]], dict[int, str]]:
    document = json.loads(trace.render(document_of(prediction)))
    events = document["traceEvents"]
    (pid,) = (
        e["pid"] for e in events if e["name"] == "process_name" and e["args"]["name"] == "links"
    )
    names = {
        e["tid"]: e["args"]["name"]
        for e in events
        if e["pid"] == pid and e["name"] == "thread_name"
    }
    return document["otherData"], [e for e in events if e.get("cat") == "flow"], names


def test_the_trace_shows_the_flows_of_every_link(answers: dict[str, Prediction]) -> None:
    for prediction in answers.values():
        other, flows, names = _flows(prediction)
        assert other["flows_left_out"] == other["links_left_out"] == 0
        moved: dict[str, float] = {}
        for event in flows:
            name = names[event["tid"]].partition(" (")[0]
            moved[name] = moved.get(name, 0.0) + event["args"]["bytes"]
            rate = event["args"]["bytes"] / (event["dur"] * 1e-6)
            assert event["args"]["bytes_per_second"] == pytest.approx(rate, rel=1e-2)
        expected: dict[str, float] = {}
        for link in prediction.links:
            name = link.name.partition(" (")[0]
            expected[name] = expected.get(name, 0.0) + link.bytes
        assert moved == pytest.approx(expected, rel=1e-6)


def test_flows_at_the_same_time_lie_on_threads_of_their_own() -> None:
    sample = sample_prediction()
    first = sample.links[0]
    assert first.flows is not None
    task = np.repeat(first.flows.task[:2], 3)
    number = np.zeros(6, dtype=np.int32)
    crowded = replace(first, flows=LinkFlows(task, np.ones(6), number, ("data all-reduce",)))
    _, flows, names = _flows(replace(sample, links=(crowded,)))
    assert len(flows) == 6
    assert len(names) == 3
    assert len(set(names.values())) == 1


def test_the_trace_is_bounded_and_says_so(
    monkeypatch: pytest.MonkeyPatch, answers: dict[str, Prediction]
) -> None:
    prediction = answers["pipeline"]
    whole = len(_flows(prediction)[1])
    monkeypatch.setattr(trace, "MAX_FLOWS", 50)
    other, flows, _ = _flows(prediction)
    assert len(flows) == 50
    assert other["flows_left_out"] == whole - 50
    monkeypatch.setattr(trace, "MAX_LINKS", 1)
    other, _, names = _flows(prediction)
    assert other["links_left_out"] == len(prediction.links) - 1
    assert {name.partition(" ")[0] for name in names.values()} == {prediction.links[0].name}


def test_a_crowd_beyond_all_threads_is_counted() -> None:
    sample = sample_prediction()
    count = trace.MAX_THREADS + 3
    number = np.zeros(count, dtype=np.int32)
    crowded = replace(sample.links[0], flows=LinkFlows(number, np.ones(count), number, ("x",)))
    other, flows, _ = _flows(replace(sample, links=(crowded,)))
    assert (len(flows), other["flows_left_out"]) == (trace.MAX_THREADS, 3)
