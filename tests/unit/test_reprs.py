"""What a console shows of a value is a line or two, never a dump of its fields."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest

import foretrain
from foretrain.resolving import ask

ON = "1 x dgx-h100"
LONGEST = 260


@cache
def prediction() -> foretrain.Prediction:
    return foretrain.predict("gpt2", on=ON, plan="tp2 dp4", batch=64, tokens=1e9, usd_per_hour=2.5)


def met() -> Iterator[tuple[str, Any]]:
    p = prediction()
    yield from (("prediction", p), ("job", p.job), ("memory", p.memory), ("timeline", p.timeline))
    yield from (("stage", p.memory.by_stage[0]), ("links", p.links), ("link", p.links[0]))
    yield "graph", foretrain.compile_graph("gpt2", on=ON, plan="tp2 dp4", batch=64)
    found = foretrain.search("gpt2", on=ON, batch=32, where="tp<=2, pp=1, vpp=1, cp=1, no offload", top=2)  # fmt: skip
    best = found.best[0]
    yield from (("found", found), ("best", found.best), ("ranked", best), ("task", found.task))
    yield from (("simulation", best.simulation), ("seen", found.pareto[0]), ("told", found.told[0]))
    yield "why", found.why("tp=1")
    offers = foretrain.recommend("gpt2", tokens=1e9, batch=64, instances=["aws:p4d*"], max_devices=8)  # fmt: skip
    offer = offers.offers[0]
    yield from (("offers", offers), ("offer", offer), ("candidate", offer.candidate))
    yield from (("node", offer.candidate.node), ("wanted", offers.job))
    swept = foretrain.sweep("gpt2", on=ON, vary={"plan": ["dp8", "tp5"]}, batch=64)
    yield from (("sweep", swept), ("point", swept.points[0]), ("failed", swept.points[1]))
    asked = ask("gpt2", on=ON, plan="dp8", batch=64)
    yield from (("scenario", asked), ("cluster", asked.cluster), ("workload", asked.workload))
    yield from (("device", asked.cluster.devices[0]), ("block", asked.workload.model.blocks[0]))
    yield "export", foretrain.export("gpt2", to="torchrun", on=ON, plan="dp8", batch=64)


@cache
def values() -> dict[str, Any]:
    return dict(met())


@pytest.mark.parametrize("name", [
    "prediction", "job", "memory", "timeline", "stage", "links", "link", "graph", "found", "best", "ranked", "task",
    "simulation", "seen", "told", "why", "offers", "offer", "candidate", "node", "wanted", "sweep", "point", "failed",
    "scenario", "cluster", "workload", "device", "block", "export",
])  # fmt: skip
def test_a_console_shows_a_line(name: str) -> None:
    text = repr(values()[name])
    assert len(text) <= LONGEST, text
    assert "array(" not in text
    assert text[0] in "<[("


def test_names_say_what_it_is() -> None:
    shown = {name: repr(value) for name, value in values().items()}
    assert shown["job"].startswith("<JobTotals: 1.00 B tokens, 15,259 steps in ")
    assert shown["memory"].startswith("<Memory: fits: ")
    assert shown["graph"].startswith("<Compiled: ")
    assert shown["point"].startswith("<SweepPoint plan=dp8: ")
    assert "must divide" in shown["failed"]


@pytest.mark.parametrize("name", ["graph", "ranked", "point", "found", "sweep", "offers"])
def test_notebooks_show_the_page(name: str) -> None:
    assert "<table" in values()[name]._repr_html_()


def test_long_lists_are_cut() -> None:
    steps = prediction().critical_path
    assert repr(steps).count("PathStep(") == min(len(steps), 5)
    assert (" more]" in repr(steps)) == (len(steps) > 5)


def test_a_compiled_step_is_an_answer(tmp_path: Any) -> None:
    graph = values()["graph"]
    assert graph.to_dict()["question"]["model"] == "gpt2"
    graph.save(tmp_path / "graph.html")
    assert "gpt2 on 1 x dgx-h100" in (tmp_path / "graph.html").read_text()
    assert pickle.loads(pickle.dumps(graph)).asked.sha256 == graph.asked.sha256
