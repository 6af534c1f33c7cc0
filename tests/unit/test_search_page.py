"""The report of a search, in every format."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from foretrain.report import chart, document_of, render
from foretrain.report.document import Axis, Chart, ChartPoint
from foretrain.report.search import front, headline, search_document
from foretrain.report.text import laid_out, sheet
from foretrain.searching import SearchResult, search

FEW = "vpp=1, cp=1, no offload, schedule=1f1b|zb-h1, zero<=1"
FILES = {
    "target": "megatron", "folder": "out", "files": ["launch.sh"], "cannot": ["zb-h1 is not known there"], "warnings": []
}  # fmt: skip


@pytest.fixture(scope="module")
def found() -> SearchResult:
    asked = {"on": "1 x dgx-a100-80gb", "batch": 32, "where": FEW, "top": 4}
    return search("gpt2", **asked, hypothetical=True)


@pytest.fixture(scope="module")
def nothing() -> SearchResult:
    where = "tp=8, vpp=1, cp=1, no offload, micro=1, schedule=1f1b"
    return search("llama3-70b", on="1 x dgx-a100-80gb", batch=16, where=where)


def shown(found: SearchResult, detail: int = 0, width: int = 100) -> str:
    return laid_out(sheet(document_of(found), detail), width)


# --- the document -----------------------------------------------------------------------------------


def test_the_data_is_made_when_it_is_asked_for(
    found: SearchResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []
    monkeypatch.setattr(SearchResult, "to_dict", lambda self: made.append(1) or {"a": 1})
    document = document_of(found)
    shown(found)
    assert not made
    assert (document.data, document.data) == ({"a": 1}, {"a": 1})
    assert made == [1]


# --- text -------------------------------------------------------------------------------------------


def test_the_headline_decides(found: SearchResult, nothing: SearchResult) -> None:
    plan = found.best[0].plan.text
    assert headline(found).startswith(f"Best of {found.plans_valid:,} plans: {plan}, ")
    assert document_of(found).is_no is False
    text = headline(nothing)
    assert document_of(nothing).is_no
    assert re.match(
        r"None of \d+ plans fits: the closest, .* exceeds device memory by [\d.]+ GiB; with 2x the nodes",
        text,
    )


def test_other_ends_have_their_words(nothing: SearchResult) -> None:
    assert headline(replace(nothing, plans_valid=0)) == "No valid plan"
    assert ("the simulation of the best shows that it does not") in headline(
        replace(nothing, plans_fitting=3)
    )
    assert "lacks" not in headline(replace(nothing, nearest=None))


def test_the_terminal_shows_the_plans_the_front_and_the_reasons(found: SearchResult) -> None:
    text = shown(found)
    for row in found.best:
        assert " ".join(row.plan.text.split()[:2]) in text
    for title in (
        "Best plans, simulated",
        "Step time vs. memory",
        "Excluded plans",
        "Why other choices are slower",
    ):
        assert title in text
    assert "other values" not in text
    assert "other values" in shown(found, detail=1)
    long = [line.strip() for line in shown(found, width=80).splitlines() if len(line) > 80]
    assert long == [found.command]  # to be copied


def test_nothing_is_certain_and_equal_is_not_faster(found: SearchResult) -> None:
    text = shown(found)
    assert "probability to fit" in text
    assert "> 99 %" in text
    slower = replace(found, fastest=replace(found.fastest, plan="dp8 zero0"))
    assert "dp8 zero0 (equally fast)" in shown(slower, width=200)
    assert "(0 % faster)" not in shown(slower, width=200)


def test_where_nothing_fits_the_remedies_come_first(nothing: SearchResult) -> None:
    text = shown(nothing)
    assert "What would fit" in text
    assert "Best plans" not in text
    assert "Step time vs. memory" not in text


def test_launch_files_are_listed(found: SearchResult) -> None:
    text = str(render(search_document(found, launch=FILES), "md"))
    assert "out/launch.sh" in text
    assert "zb-h1 is not known there" in text


# --- HTML -------------------------------------------------------------------------------------------


class Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.text: list[str] = []
        self.outside: list[str] = []
        self.scripts = 0

    def handle_data(self, data: str) -> None:
        self.text.append(data)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.outside += [
            value
            for name, value in attrs
            if name in ("src", "href") and value and value != "data:,"
        ]
        self.scripts += tag == "script"


def test_the_html_is_whole_and_alone(found: SearchResult) -> None:
    reader = Reader()
    reader.feed(str(render(found, "html")))
    assert reader.scripts == 1
    text = " ".join(" ".join(reader.text).split())
    assert not reader.outside
    for row in found.best:
        assert row.plan.text in text
    for one in found.explanations:
        assert one.sentence in text
    for reason in found.to_dict()["plans_pruned"]:
        assert reason in text
    assert f"{found.plans_valid:,}" in text


def test_names_from_users_are_text(found: SearchResult) -> None:
    cluster = replace(found.task.cluster, name="<script>alert(1)</script>")
    named = replace(found, task=replace(found.task, cluster=cluster))
    page = str(render(named, "html"))
    assert "<script>alert" not in page
    assert "&lt;script&gt;" in page


def test_the_page_of_no_plans_is_drawn(nothing: SearchResult) -> None:
    page = str(render(nothing, "html"))
    assert "What would fit" in page
    assert "<svg" not in page


def places(drawn_chart: Chart) -> list[list[tuple[float, float]]]:
    """Pixels of the points of each series."""
    points = [point for series in drawn_chart.series for point in series.points]
    x, y = chart.scales(drawn_chart, points)
    return [[(x.at(p.x), y.at(p.y)) for p in series.points] for series in drawn_chart.series]


def test_the_drawing_is_xml_with_a_dot_for_every_plan(found: SearchResult) -> None:
    made = front(found)
    tree = ElementTree.fromstring(chart.draw(made))
    circles = [node for node in tree.iter() if node.tag == "circle"]
    assert len(circles) == sum(len(series.points) for series in made.series)
    hidden = len(found.pareto) - len(made.series[0].points)
    assert (f"lie outside ({hidden})" in made.hint) is (hidden > 0)


def test_dots_lie_where_their_figures_say(found: SearchResult) -> None:
    estimated, best = places(front(found))
    for x, y in (*estimated, *best):
        assert chart.LEFT <= x <= chart.WIDTH - chart.RIGHT
        assert chart.TOP <= y <= chart.HEIGHT - chart.BOTTOM
    assert estimated == sorted(estimated)
    assert [y for _, y in estimated] == sorted(y for _, y in estimated)  # down: less memory
    x, y = estimated[0]
    assert f'd="M{x} {y}H' in chart.draw(front(found))
    near = min(found.pareto, key=lambda row: row.seconds)
    assert near.plan in front(found).series[0].points[0].tip


def test_numbers_of_plans_do_not_lie_on_each_other(found: SearchResult) -> None:
    made = front(found)
    points: list[ChartPoint] = [p for series in made.series for p in series.points]
    texts = "".join(chart.labels(points, *chart.scales(made, points)))
    shown_at = [(float(x), float(y)) for x, y in re.findall(r'x="([\d.]+)" y="([\d.]+)"', texts)]
    assert ">1</text>" in texts
    for one in shown_at:
        others = (p for p in shown_at if p is not one)
        assert all(abs(one[0] - x) >= 14 or abs(one[1] - y) >= 13 for x, y in others)


def test_axes_have_round_ticks_inside_the_frame(found: SearchResult) -> None:
    made = front(found)
    points = [p for series in made.series for p in series.points]
    x, y = (scale.ticks() for scale in chart.scales(made, points))
    assert 3 <= len(x) <= 12
    assert 3 <= len(y) <= 12
    assert all(chart.LEFT <= at <= chart.WIDTH - chart.RIGHT for at, _ in x)
    assert all(chart.TOP - 1 <= at <= chart.HEIGHT - chart.BOTTOM for at, _ in y)
    assert y[0][1].startswith("0")
    assert len({text for _, text in x}) == len(x)


def test_the_limit_is_drawn_where_plans_come_near_it(found: SearchResult) -> None:
    assert front(found).guides == ()
    usable = 1.2 * found.pareto[0].memory
    made = front(replace(found, pareto=tuple(replace(row, usable=usable) for row in found.pareto)))
    assert made.guides[0].value == usable
    assert 'class="limit"' in chart.draw(made)


def test_one_plan_is_a_drawing_too(found: SearchResult) -> None:
    one = replace(found, pareto=found.pareto[:1], best=())
    assert chart.draw(front(one)).count("<circle") == 1
    assert chart.draw(front(replace(found, pareto=(), best=()))) == ""


@pytest.mark.parametrize(
    ("low", "high", "texts"),
    [
        (0.1, 0.34, ["100 ms", "150 ms", "200 ms", "250 ms", "300 ms"]),
        (20.0, 31.0, ["20 s", "22 s", "24 s", "26 s", "28 s", "30 s"]),
        (2.0, 3.2, ["2.0 s", "2.2 s", "2.4 s", "2.6 s", "2.8 s", "3.0 s", "3.2 s"]),
    ],
)
def test_ticks_have_as_many_digits_as_they_need(low: float, high: float, texts: list[str]) -> None:
    scale = chart.Scale(front_axis(), low, high, 0.0, 1000.0)
    assert [text for _, text in scale.ticks()] == texts


def front_axis() -> Axis:
    return Axis("step time", "s", is_log=False)
