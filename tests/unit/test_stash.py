"""The findings of Stash that predictions reproduce (docs/stash.md has all of them, written by tools/stash.py)."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import stash  # noqa: E402


def test_gpus_of_a_p2_wait_for_their_shared_slot() -> None:
    """Up to 90 % was measured; AlexNet has the most bytes for its work."""
    p2 = {m: stash.interconnect_stall(m, "aws:p2.16xlarge") for m in ("alexnet", "resnet50")}
    assert 0.7 < p2["alexnet"] < 0.95
    assert p2["resnet50"] < 0.3
    assert stash.one_slot_stall("alexnet") > p2["alexnet"] + 0.05


def test_resnets_are_five_times_slower_over_the_network() -> None:
    slow = stash.network_slowdown("resnet50", "2 x aws:p3.8xlarge", "aws:p3.16xlarge")
    assert 4.0 < slow < 7.0
    assert 2.0 < stash.slowdown_at_line_rate("resnet50") < slow


def test_slices_across_the_mesh_are_slower() -> None:
    whole, across = (stash._on_slice(picked) for picked in ((0, 1, 2, 3), (0, 1, 4, 5)))
    assert whole is not None
    assert across is not None
    assert across > 1.2 * whole
    assert stash._on_slice((0, 2, 5, 7)) is None, "no NVLink between some of them"


def test_networks_count_bytes() -> None:
    vgg, resnet = (stash.exposed(m, "2 x aws:p3.8xlarge") for m in ("vgg16", "resnet50"))
    assert vgg > 4 * resnet


def test_the_page_is_of_this_tool() -> None:
    page = (ROOT / "docs" / "stash.md").read_text("utf-8")
    assert page.startswith(stash.PAGE[:60])
    assert page.count("| yes |") >= 3
    assert "| in part |" in page
