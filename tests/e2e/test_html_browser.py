"""The HTML report in a real browser: it draws, logs nothing, asks for nothing, and runs no names."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html import escape
from pathlib import Path

import pytest

import foretrain
from foretrain.analysis.prediction import Prediction
from foretrain.report import render, save
from foretrain.report.document import Document, Lines, Table
from foretrain.testing.exporters import bare_prediction, hostile_prediction, sample_prediction

BROWSER = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)
pytestmark = pytest.mark.skipif(
    BROWSER is None, reason="no chromium or google-chrome on this machine"
)

# Reports what was drawn once the page is up: painted pixels of each canvas, as a title.
PROBE = """<script>addEventListener("load", () => setTimeout(() => {
  const painted = (c) => { const d = c.getContext("2d").getImageData(0, 0, c.width, c.height).data;
    let n = 0; for (let i = 3; i < d.length; i += 4) if (d[i]) n++; return n; };
  const out = { canvases: [...document.querySelectorAll("canvas")].map(painted),
    overflow: document.documentElement.scrollWidth > document.documentElement.clientWidth };
  out.images = document.images.length; out.scripts = document.scripts.length;
  out.drawings = document.querySelectorAll("svg").length;
  out.strangers = document.querySelectorAll("svg:not(.drawing)").length;
  const line = document.querySelector(".network .link[data-tip]"), card = document.querySelector(".card.network");
  if (line) {
    const at = line.getBoundingClientRect();
    line.dispatchEvent(new PointerEvent("pointermove", { bubbles: true, clientX: at.x, clientY: at.y }));
    const tip = document.querySelector("main > .tip");
    out.tip = getComputedStyle(tip).display === "block" ? tip.textContent : "";
    card.style.width = "380px";  // what a window of 420 pixels leaves
    const edge = card.getBoundingClientRect().right;
    out.outside = [...card.querySelectorAll("*")].filter((e) => e.getBoundingClientRect().right > edge + 0.5 && !e.closest(".wide")).length;
    card.style.width = "";
    out.colours = [...new Set([...card.querySelectorAll(".link")].map((e) => getComputedStyle(e).stroke))].length;
  }
  const buttons = document.querySelectorAll(".gantt-bar button");
  const where = () => document.querySelector(".gantt-bar span").textContent;
  out.before = where(); buttons[0].click(); out.zoomed = where(); buttons[4].click(); out.after = where();
  document.title = JSON.stringify(out); }, 300))</script></body>"""


def _open(prediction: Prediction, folder: Path, width: int = 1200) -> tuple[str, str]:
    """(page as it stands after its scripts ran, what the browser logged)."""
    save(prediction, folder / "x.html")
    page = (folder / "x.html").read_text("utf-8")
    return _probed(page, PROBE, folder, width)


def _probed(page: str, probe: str, folder: Path, width: int) -> tuple[str, str]:
    head, _, tail = page.rpartition("</body>")
    (folder / "probed.html").write_text(head + probe + tail, "utf-8")
    command = [
        str(BROWSER), "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-background-networking",
        "--disable-component-update", "--disable-sync", "--no-first-run", f"--user-data-dir={folder / 'profile'}",
        "--enable-logging=stderr", "--v=0", f"--window-size={width},1000", "--virtual-time-budget=3000",
        "--dump-dom", (folder / "probed.html").as_uri(),
    ]  # fmt: skip
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    console = "\n".join(line for line in ran.stderr.splitlines() if "CONSOLE" in line)
    return ran.stdout, console


def _title(page: str) -> dict[str, object]:
    found = re.search(r"<title>(.*?)</title>", page, re.DOTALL)
    assert found is not None
    return json.loads(found[1])  # type: ignore[no-any-return]


@pytest.mark.parametrize("width", [1200, 500])
def test_everything_is_drawn(tmp_path: Path, width: int) -> None:
    page, console = _open(sample_prediction(), tmp_path, width)
    assert console == ""
    seen = _title(page)
    canvases = seen["canvases"]
    assert isinstance(canvases, list)
    assert len(canvases) == 2  # the ruler and the timeline
    assert all(painted > 150 for painted in canvases)
    assert seen["overflow"] is False


@pytest.mark.parametrize("width", [1200, 500])
def test_the_network_is_drawn_with_tips_inside_its_card(tmp_path: Path, width: int) -> None:
    """The sample's four nodes look alike but for the ends of the pipeline."""
    seen = _title(_open(sample_prediction(), tmp_path, width)[0])
    assert seen["drawings"] == 2
    assert seen["strangers"] == seen["outside"] == 0
    assert "busy" in str(seen["tip"])
    assert "per step over" in str(seen["tip"])
    assert int(str(seen["colours"])) >= 3


def test_the_timeline_zooms_and_returns(tmp_path: Path) -> None:
    seen = _title(_open(sample_prediction(), tmp_path)[0])
    assert seen["before"] == seen["after"]
    assert seen["before"] != seen["zoomed"]


def test_many_stages_are_drawn(tmp_path: Path) -> None:
    page, console = _open(sample_prediction(16, 400, 64), tmp_path)
    assert console == ""
    assert "tasks drawn as" in page


def test_hostile_names_run_nothing(tmp_path: Path) -> None:
    page, console = _open(hostile_prediction(), tmp_path)
    assert console == ""
    seen = _title(page)
    # the probe is the fourth script
    assert (seen["images"], seen["strangers"], seen["scripts"]) == (0, 0, 4)
    assert len(seen["canvases"]) == 2  # type: ignore[arg-type]


def test_a_bare_answer_is_still_a_page(tmp_path: Path) -> None:
    page, console = _open(bare_prediction(), tmp_path)
    assert console == ""
    assert "per step" in page


OUTSIDE = """<script>addEventListener("load", () => { const root = document.documentElement;
  const past = (e) => e.getBoundingClientRect().right > root.clientWidth + 0.5 && !e.closest(".wide");
  const lines = (e) => { const r = document.createRange(); r.selectNodeContents(e); return r.getClientRects().length; };
  const whole = [...document.querySelectorAll("td")].filter((e) => e.textContent === NAME);
  document.title = JSON.stringify({ overflow: root.scrollWidth > root.clientWidth,
    outside: [...document.querySelectorAll("body *")].filter(past).length,
    lines: whole.map(lines) }); })</script></body>"""


@pytest.mark.parametrize("width", [1200, 500])
def test_pages_of_other_answers_stay_inside_and_keep_names_in_a_line(
    tmp_path: Path, width: int
) -> None:
    name, long = "16 x aws:p6-b200.48xlarge tp8 pp16 dp8 zero1 recompute=selective", "why not " * 60
    rows = tuple((name, long, "12.3 s", "64.1 GiB") for _ in range(3))
    table = Table("Offers", ("offer", "why", "step", "peak"), rows, notes=(long,), left=2)
    lines = Lines("Words", (long, "x" * 300))
    text = str(render(Document(long + name, dict, lambda: (table, lines), asked=name), "html"))
    seen = _title(_probed(text, OUTSIDE.replace("NAME", json.dumps(name)), tmp_path, width)[0])
    assert seen == {"overflow": False, "outside": 0, "lines": [1, 1, 1]}


NARROW = """<script>addEventListener("load", () => { const root = document.documentElement;
  const all = (what) => [...document.querySelectorAll(what)];
  const cut = (e) => e.getBoundingClientRect().right > e.closest(".card").getBoundingClientRect().right + 0.5;
  const small = (e) => e.getBoundingClientRect().height < 8;
  document.title = JSON.stringify({ overflow: root.scrollWidth > root.clientWidth,
    bars: all(".stalls").length, cut: all(".stalls").filter(cut).length,
    broken: all(".flag").filter((e) => e.getClientRects().length > 1).length, flags: all(".flag").length > 5,
    unreadable: all("svg text").filter(small).length, copies: all(".copy").length >= 4 }); })</script></body>"""

# Windows of a headless browser are never as narrow as a phone; a frame is.
OUTER = """<title></title><script>addEventListener("load", () => setTimeout(() => {
  document.title = document.querySelector("iframe").contentDocument.title; }, 300))</script></body>"""


def test_a_search_is_readable_on_a_phone(tmp_path: Path) -> None:
    where = "tp<=2, pp=1, vpp=1, cp=1, no offload"
    found = foretrain.search("gpt2", on="1 x dgx-h100", batch=32, where=where, top=3)
    text = str(render(found, "html"))
    framed = f"<iframe width=400 height=3000 srcdoc='{escape(text)}'></iframe></body>"
    page = _probed(framed.replace("&lt;/body&gt;", escape(NARROW)), OUTER, tmp_path, 1200)[0]
    assert _title(page) == {
        "overflow": False, "bars": 3, "cut": 0, "broken": 0, "flags": True, "unreadable": 0, "copies": True,
    }  # fmt: skip


WORKS = """<script>addEventListener("load", () => { const all = (what) => [...document.querySelectorAll(what)];
  const column = (n) => all("tbody tr").filter((r) => !r.hidden).map((r) => r.cells[n].dataset.text ?? r.cells[n].textContent);
  const heads = all("th"), out = { before: column(1)[0] };
  heads[1].click(); out.up = column(1); heads[1].click(); out.down = column(1)[0];
  const input = document.querySelector(".filter");
  input.value = "TP8 9"; input.dispatchEvent(new Event("input")); out.filtered = column(0);
  out.labels = all(".copy").map((b) => b.getAttribute("aria-label")).slice(0, 1);
  document.title = JSON.stringify(out); })</script></body>"""


def test_tables_sort_by_what_figures_mean_filter_and_copy(tmp_path: Path) -> None:
    steps = ["2.1 s", "900 ms", "1,200 s", "3.0 min", "12 µs", *(f"{n} s" for n in range(10, 20))]
    rows = tuple((f"tp8 pp{n}", step) for n, step in enumerate(steps))
    table = Table("Plans", ("plan", "step"), rows, "pr")
    text = str(render(Document("Best", dict, lambda: (table,)), "html"))
    page, console = _probed(text, WORKS, tmp_path, 1200)
    assert console == ""
    seen = _title(page)
    assert seen["up"] == ["12 µs", "900 ms", "2.1 s", *steps[5:], "3.0 min", "1,200 s"]
    assert (seen["before"], seen["down"]) == ("2.1 s", "1,200 s")
    assert seen["filtered"] == ["tp8 pp14", "tp8 pp9", "tp8 pp1"]  # both words, anywhere
    assert str(seen["labels"]).startswith("['copy tp8 pp")
