"""Tables whose rows people compare show the times of a column in one unit."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

import foretrain
from foretrain.analysis.prediction import Remedy
from foretrain.report import document_of, words
from foretrain.report.document import Document, Row

TIME = re.compile(r"[+−]?[\d,.]+(?:–[\d,.]+)? (ns|µs|ms|s|min|h|d)")
ON = "1 x dgx-h100"


def units(rows: Iterable[Row]) -> list[set[str]]:
    """Units of time in each column."""
    columns = zip(*rows, strict=True)
    found = [{m[1] for cell in column if (m := TIME.fullmatch(str(cell)))} for column in columns]
    return [column for column in found if column]


def table(document: Document, title: str) -> list[Row]:
    tables = (section.table for section in document.sections)
    return next(list(one.rows) for one in tables if one and one.title.startswith(title))


def test_sweeps() -> None:
    found = foretrain.sweep("gpt2", on=ON, plan="dp8", tokens=1e8, vary={"batch": [8, 8192]})
    assert {words.seconds(row["step_seconds"])[-2:] for row in found.rows()} == {"ms", " s"}
    assert [len(column) for column in units(table(document_of(found), "Sweep"))] == [1, 1]


def test_searches() -> None:
    where = "tp<=4, vpp=1, cp=1, order=default, zero=0|1"
    found = foretrain.search("gpt2", on=ON, batch=512, where=where, top=3)
    slow = replace(found.pareto[-1], seconds=3.0)
    page = document_of(replace(found, pareto=(*found.pareto, slow)))
    assert units(table(page, "Best plans")) == [{"ms"}]
    assert units(table(page, "Step time")) == [{"s"}]


def test_comparisons_and_what_ifs() -> None:
    one = foretrain.predict("gpt2", on=ON, plan="dp8", batch=8)
    other = foretrain.predict("gpt2", on=ON, plan="dp8", batch=8, runtime_options={"compile": True})
    rows = table(document_of(foretrain.compare(one, other)), "Where the time")
    assert len(rows) > 1
    assert units(rows) == [{"ms"}] * 3
    after = foretrain.whatif("gpt2", on=ON, plan="dp8", batch=8192, changes={"device.compute": 2})
    assert units(table(document_of(after), "Where the time")) == [{"s"}] * 3


def test_offers() -> None:
    found = foretrain.recommend("gpt2", tokens=1e10, instances=["aws:p4d*", "aws:p3.2xlarge"])
    assert [len(column) for column in units(table(document_of(found), "Offers"))] == [1, 1]


def test_what_would_help() -> None:
    one = foretrain.predict("gpt2", on=ON, plan="dp8", batch=64)
    help_ = (Remedy("faster", 0.8, 1.5), Remedy("much faster", 1.1, 1.1))
    shown = [text for _, text in words.remedy_rows(replace(one, what_would_help=help_))]
    assert shown == ["0.80 s", "1.10 s"]


def test_rates_below_a_hundred_have_three_digits() -> None:
    assert [words.amount(rate) for rate in (7.1, 7.49, 15.08, 99.97)] == [
        "7.10",
        "7.49",
        "15.1",
        "100",
    ]
