"""The walks of ARCHITECTURE.md: a question is followed through the code, and every hop is called, in that order."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import pytest
from measured_machine import MACHINE, measurements
from test_validation import case

import foretrain
from foretrain.measurement.local import local_cluster
from foretrain.measurement.store import Store

PAGE = Path(__file__).resolve().parents[2] / "ARCHITECTURE.md"


def hops() -> dict[str, list[str]]:
    """`- **predict**: `a.b` → `c.d`` as names in their order."""
    section = PAGE.read_text("utf-8").split("\n## Walks\n")[1].split("\n## ")[0]
    return {
        found[1]: re.findall(r"`([\w.]+)`", found[2])
        for found in re.finditer(r"^- \*\*(\w+)\*\*: ((?:.|\n  )+)", section, re.MULTILINE)
    }


def predict(folder: Path) -> None:
    foretrain.predict("gpt2", on="1 x dgx-h100", plan="tp2 dp4", batch=64).save(folder / "a.json")


def search(folder: Path) -> None:
    where = ("tp=1", "pp=1", "zero=1")
    foretrain.search("gpt2", on="1 x dgx-h100", batch=64, where=where).save(folder / "a.json")


def recommend(folder: Path) -> None:
    words = {"batch": 64, "max_devices": 8, "instances": ("aws:g5.12*",), "simulated": 1}
    foretrain.recommend("gpt2", tokens=1e9, **words).save(folder / "a.json")


def measure(folder: Path) -> None:
    place = folder / "own.sqlite"
    with Store.open(place) as store:
        store.add(*measurements())
    mine = foretrain.calibrate(store=place, machine=MACHINE.id)
    foretrain.predict("gpt2", on=local_cluster(mine), batch=1, seq=64, measured=mine)


def validate(folder: Path) -> None:
    file = folder / "cases.jsonl"
    file.write_text(json.dumps(case()))
    foretrain.validate([file]).save(folder / "a.json")


WALKS: dict[str, Callable[[Path], None]] = {
    "predict": predict, "search": search, "recommend": recommend, "measure": measure, "validate": validate,
}  # fmt: skip


def called(walk: Callable[[Path], None], folder: Path) -> list[str]:
    """Functions of ours that a walk calls, by when they are first called."""
    order: dict[str, None] = {}

    def note(frame: FrameType, event: str, _: object) -> None:
        home = frame.f_globals.get("__name__", "")
        if event == "call" and home.startswith("foretrain."):
            order.setdefault(f"{home.removeprefix('foretrain.')}.{frame.f_code.co_qualname}")

    sys.setprofile(note)
    try:
        walk(folder)
    finally:
        sys.setprofile(None)
    return list(order)


def test_every_walk_is_on_the_map() -> None:
    assert hops().keys() == WALKS.keys()


@pytest.mark.parametrize("name", WALKS)
def test_a_walk_goes_where_the_map_says(name: str, tmp_path: Path) -> None:
    order, wanted = called(WALKS[name], tmp_path), hops()[name]
    assert len(wanted) > 3
    assert [hop for hop in wanted if hop not in order] == []
    assert sorted(wanted, key=order.index) == wanted
