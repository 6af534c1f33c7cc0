"""Predicted against measured as text and as one HTML file."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from foretrain.report import chart, document_of, render, save
from foretrain.report.text import laid_out, sheet
from foretrain.report.validation import chart as cases_of
from foretrain.validation import ValidationReport

BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
HOSTILE = "</script><img src=x onerror=alert(1)>"
PROBE = """<script>addEventListener("load", () => setTimeout(() => {
  const first = document.querySelector(".series"), name = document.querySelector(".legend span");
  if (name) name.click();
  document.title = JSON.stringify({ circles: document.querySelectorAll("circle").length,
    hidden: first && name ? getComputedStyle(first).display : "", images: document.images.length,
    overflow: document.documentElement.scrollWidth > document.documentElement.clientWidth }); }, 300))</script></body>"""


def figures(**changes: Any) -> dict[str, Any]:
    return {
        "n": 2116, "failed": 12, "mape": 12.5, "median": 0.123, "p90": 0.456, "bias": -0.345, "order": 0.987,
        "pairs": 12345, "top1_regret": 0.0123, "memory_n": 1728, "memory_mape": 0.111, "coverage": 1.0,
        "fits_accuracy": 1.0, "worst": [], **changes,
    }  # fmt: skip


def found(name: str = "bigscience_bloom", rows: int = 3) -> ValidationReport:
    worst = {"id": f"{name}/1", "predicted": 2.0, "measured": 1.0, "error": 1.0, "reason": "host"}
    return ValidationReport(
        {name: figures(worst=[worst]), "llm_foundry_mpt_x2": figures()},
        figures(mape_of_groups=0.2),
        [
            {
                "id": f"{name}/{n}", "group": name, "what": name, "reason": name, "measured": 10.0**n,
                "predicted": 1.1 * 10.0**n, "interval": [10.0**n, 2.0 * 10.0**n], "error": 0.1,
            }
            for n in range(rows)
        ],
        {"split": "check", "seed": 1},
    )  # fmt: skip


def shown(detail: int = 0) -> str:
    return laid_out(sheet(document_of(found()), detail), 80)


def test_tables_fit_eighty_columns_without_broken_names() -> None:
    lines = shown().splitlines()
    for name in ("bigscience_bloom", "llm_foundry_mpt_x2", "total"):
        mine = [line for line in lines if line.split()[:1] == [name]]
        assert len(mine) == 2
        assert len(mine[0].split()) == 9  # every column on the line of its name
    assert max(map(len, lines)) <= 80


def test_the_headline_names_the_half_and_the_mean_of_groups() -> None:
    text = shown()
    assert "20% as the mean of groups" in text
    assert "half 'check', seed 1" in text


def test_the_farthest_come_with_a_reason() -> None:
    assert "bigscience_bloom/1: +100% (2.00 s for 1.00 s): host" in shown(detail=1)
    assert "bigscience_bloom/1" not in shown()


def test_the_page_draws_every_case_and_the_lines_of_agreement() -> None:
    text = chart.draw(cases_of(found()))
    assert text.count("<circle") == 3
    assert text.count('class="guide') == 3
    assert "measured 100 s, predicted 110 s (+10%)" in text


def test_names_cannot_leave_their_place() -> None:
    text = str(render(found(HOSTILE), "html"))
    assert HOSTILE not in text
    assert "&lt;/script&gt;&lt;img src=x" in text


def test_rows_without_both_times_are_not_drawn() -> None:
    given = found()
    more = [
        {"id": "a", "group": "g", "measured": None, "predicted": 1.0},
        {"id": "b", "group": "g", "measured": 1.0, "predicted": None},
        {"id": "c", "group": "g", "measured": 1.0, "predicted": float("inf")},
    ]
    drawn_cases = cases_of(replace(given, cases=[*given.cases, *more]))
    assert [len(series.points) for series in drawn_cases.series] == [3]


@pytest.mark.skipif(BROWSER is None, reason="no chromium or google-chrome on this machine")
@pytest.mark.parametrize(("name", "rows"), [("plain", 4), (HOSTILE, 4), ("empty", 0)])
def test_the_drawing_in_a_browser(tmp_path: Path, name: str, rows: int) -> None:
    save(found(name, rows), tmp_path / "x.html")
    head, _, tail = (tmp_path / "x.html").read_text("utf-8").rpartition("</body>")
    (tmp_path / "probed.html").write_text(head + PROBE + tail, "utf-8")
    command = [
        str(BROWSER), "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run",
        "--disable-background-networking", f"--user-data-dir={tmp_path / 'profile'}", "--enable-logging=stderr",
        "--window-size=1000,900", "--virtual-time-budget=3000", "--dump-dom", (tmp_path / "probed.html").as_uri(),
    ]  # fmt: skip
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert "CONSOLE" not in ran.stderr
    title = re.search(r"<title>(.*?)</title>", ran.stdout, re.DOTALL)
    assert title is not None
    seen = json.loads(title[1])
    assert (seen["circles"], seen["images"], seen["overflow"]) == (rows, 0, False)
