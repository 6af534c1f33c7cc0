"""The testbed without a network: what it draws, asks, counts and shows."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from foretrain.cost.collectives.constants import constants
from foretrain.errors import InputError
from foretrain.model.load import load_model
from testbed import experiment, main, page, report
from testbed.figure import figure
from testbed.jobs import (
    DDP,
    GOSSIP,
    ONE_PEER,
    SERVER,
    Job,
    Times,
    partner,
    per_step,
)
from testbed.models import MODELS, module, sample
from testbed.prediction import Configuration, Line, Machine, expect
from testbed.topologies import TOPOLOGIES

NOTHING = Line(0.0, 0.0)
PHASES = ("forward", "backward", "update")
COMPUTE = {m: {p: Line(0.001, 0.0) for p in PHASES} for m in MODELS}
IDEAL = Machine(2, payload=1.0, message_seconds=0.0, copy=NOTHING, compute=COMPUTE)
MLP_BYTES = 4 * 669_706


@pytest.mark.parametrize("name", list(MODELS))
def test_document_and_module_have_the_same_parameters(name: str) -> None:
    pytest.importorskip("torch")
    built = module(name)
    assert load_model(MODELS[name].document).parameters == sum(
        p.numel() for p in built.parameters()
    )  # type: ignore[arg-type]
    x, y = sample(name, 2)
    assert len(built(x)) == len(y)


@pytest.mark.parametrize("name", list(TOPOLOGIES))
def test_ways_follow_cables(name: str) -> None:
    graph = TOPOLOGIES[name](8)
    number = {end: place for place, end in enumerate(graph.vertices)}
    cables = {(number[c.one], number[c.other]) for c in graph.cables}
    ways = graph.ways()
    assert len(ways) == 8 * 7
    for (one, other), way in ways.items():
        assert (way[0], way[-1]) == (one, other)
        for pair in pairwise(way):
            assert pair in cables or pair[::-1] in cables


def test_all_reduce_is_one_ring_in_the_order_of_ranks() -> None:
    """2(n-1)/n of the buffer over the cable that most neighbours of the ring share."""
    for name, make in TOPOLOGIES.items():
        graph = make(8)
        ways, load = graph.ways(), Counter[tuple[int, int]]()
        for rank in range(8):
            way = ways[rank, (rank + 1) % 8]
            load.update(pairwise(way))
        found = expect(Configuration(graph, 80e6, "mlp", 64, DDP), IDEAL).exchange
        widths = {w: c.width for c in graph.cables for w in _ends(graph.vertices, c)}
        worst = max(count / widths[pair] for pair, count in load.items())
        assert found == pytest.approx(worst * 2 * 7 / 8 * MLP_BYTES / 10e6, rel=1e-6), name


def _ends(vertices, cable):  # type: ignore[no-untyped-def]
    one, other = vertices.index(cable.one), vertices.index(cable.other)
    return (one, other), (other, one)


def test_a_server_takes_everything_through_its_cable() -> None:
    star = TOPOLOGIES["star"](8)
    found = expect(Configuration(star, 80e6, "mlp", 64, SERVER), IDEAL)
    assert found.exchange == pytest.approx(2 * 7 * MLP_BYTES / 10e6, rel=1e-6)
    assert found.step == pytest.approx(found.exchange + 4 * 0.003, rel=1e-6)  # four ranks a core


def test_gossip_along_cables_sends_one_buffer_over_each() -> None:
    ring = TOPOLOGIES["ring"](8)
    edges = experiment.neighbours(ring)
    found = expect(Configuration(ring, 80e6, "mlp", 64, GOSSIP, edges), IDEAL)
    assert found.exchange == pytest.approx(MLP_BYTES / 10e6, rel=1e-6)


def test_one_peer_is_the_mean_of_its_iterations() -> None:
    """On a ring a message over 1, 2, 4 cables shares each with as many others."""
    ring = TOPOLOGIES["ring"](8)
    found = expect(Configuration(ring, 80e6, "mlp", 64, ONE_PEER), IDEAL)
    longest = Counter(
        pair for rank in range(8) for pair in _hops(ring.ways()[rank, (rank + 4) % 8])
    ).most_common(1)[0][1]
    assert found.exchange == pytest.approx((1 + 2 + longest) / 3 * MLP_BYTES / 10e6, rel=1e-6)


def _hops(way: tuple[int, ...]) -> list[tuple[int, int]]:
    return list(pairwise(way))


def test_constants_are_put_back() -> None:
    before = json.dumps(constants(), sort_keys=True)
    expect(Configuration(TOPOLOGIES["ring"](4), 80e6, "mlp", 64, DDP), replace(IDEAL, message_seconds=1e-3))  # fmt: skip
    assert json.dumps(constants(), sort_keys=True) == before


def test_messages_cost_time() -> None:
    configuration = Configuration(TOPOLOGIES["ring"](8), 80e6, "mlp", 64, DDP)
    late = expect(configuration, replace(IDEAL, message_seconds=1e-3))
    assert late.exchange > expect(configuration, IDEAL).exchange + 13e-3


def test_everybody_hears_one_peer() -> None:
    for turn in range(4):
        heard = {rank: partner(rank, 8, turn) for rank in range(8)}
        assert all(heard[to][1] == rank for rank, (to, _) in heard.items())


def test_steps_are_counted_from_the_last_rank() -> None:
    ranks = [Times((1.0, 5.0), (2.0, 7.0)), Times((1.5, 5.0), (2.5, 6.0))]
    assert per_step(Job("train", steps=2), ranks) == [0.5, 1.0]


def test_the_experiment_is_as_large_as_promised() -> None:
    wanted = experiment.configurations()
    assert len(set(wanted)) == len(wanted) >= 30
    assert len({c.graph.name for c in wanted}) >= 5
    assert {c.model for c in wanted} == set(MODELS)
    assert {c.scheme for c in wanted} == {DDP, SERVER, GOSSIP, ONE_PEER}
    for c in wanted:  # unseen: no measured rate or batch size is among them
        assert c.rate not in experiment.RATES_MEASURED
        assert c.batch not in MODELS[c.model].measured_batches


def _rows() -> list[report.Row]:
    base = report.Row(
        "ring", 8, 1e8, "mlp", 64, DDP, 1.0, 1.0, 0.01, 0.5, 0.5, 0.02, (1.0,), (0.5,)
    )
    slow = replace(base, topology="star", step_predicted=1.1, step_measured=1.25)
    wrong = replace(base, topology="random", step_predicted=0.9, step_measured=1.5, exchange_predicted=0.4)  # fmt: skip
    near = replace(base, topology="exponential", step_measured=1.05)
    return [base, slow, wrong, near]


def test_summary_counts_pairs_that_are_apart() -> None:
    found = report.summary(_rows())
    # ring–star, ring–random, star–random, star–exponential, random–exponential; ring–exponential is too near
    assert (found.pairs, found.pairs_right) == (5, 2)
    assert found.step_error == pytest.approx((0 + 0.12 + 0.4 + 1 - 1 / 1.05) / 4)
    assert found.exchange_error == pytest.approx(0.2 / 4)
    assert not found.is_met


def test_rows_come_back_from_json(tmp_path: Path) -> None:
    there = tmp_path / "rows.json"
    there.write_text(report.to_json(IDEAL, _rows()))
    assert report.from_json(there) == _rows()


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 9, "rows": []}', '{"format": 1, "rows": [{}]}'])  # fmt: skip
def test_foreign_files_are_refused(text: str, tmp_path: Path) -> None:
    there = tmp_path / "rows.json"
    there.write_text(text)
    with pytest.raises(InputError, match=r"rows\.json"):
        report.from_json(there)
    assert main.main(["--from", str(there)]) == 2


def test_figure_has_a_point_per_row() -> None:
    root = ElementTree.fromstring(figure(_rows()))
    assert len(root.findall(".//{*}title")) == 4


def test_page_and_figure_are_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    raw, there = tmp_path / "rows.json", tmp_path / "testbed.md"
    raw.write_text(report.to_json(IDEAL, _rows()))
    assert main.main(["--from", str(raw), "--page", str(there)]) == 1  # targets are missed
    assert "| star | 100 | mlp | 64 | ddp | 1,100 | 1,250 |" in there.read_text()
    assert there.with_suffix(".svg").read_text().startswith("<svg")
    assert "missed" in capsys.readouterr().out
    assert page.page(_rows(), "testbed.svg") == there.read_text()


def test_without_permission_it_skips_and_says_why(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(main, "why_not", lambda: "network namespaces are not permitted: no")
    assert main.main(["--subset"]) == main.SKIPPED
    assert "skipped: network namespaces are not permitted" in capsys.readouterr().err
