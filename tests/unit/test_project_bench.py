"""The benchmarks ask what they say they ask."""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import json
import multiprocessing
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> dict[str, ModuleType]:
    """Modules of the bench folder, loaded as its scripts load each other."""
    monkeypatch.syspath_prepend(str(BENCH))
    loaded: dict[str, ModuleType] = {}
    for name in ("measure", "cases", "run", "peers", "search", "calculon_search"):
        spec = importlib.util.spec_from_file_location(name, BENCH / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        loaded[name] = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, loaded[name])
        spec.loader.exec_module(loaded[name])
    return loaded


def test_a_thousand_different_cases_in_a_fixed_order(bench: dict[str, ModuleType]) -> None:
    first, again = (list(itertools.islice(bench["cases"].cases(), 1000)) for _ in range(2))
    assert first == again
    asked = {json.dumps({k: v for k, v in case.items() if k != "id"}) for case in first}
    assert len(asked) == 1000
    for case in first:
        plan = case["plan"]
        assert plan["dp"] * plan["tp"] * plan["pp"] == case["devices"]


def test_cases_are_answered(bench: dict[str, ModuleType]) -> None:
    from foretrain import predict_cases

    some = list(itertools.islice(bench["cases"].cases(), 0, 1000, 199))
    answers = list(predict_cases(some))
    assert [answer.get("error") for answer in answers] == [None] * len(some)
    assert len({answer["step_seconds"] for answer in answers}) == len(some)


def test_the_page_says_when_a_target_is_missed(bench: dict[str, ModuleType]) -> None:
    row = bench["measure"].Row
    rows = [row("quick", 1.0, "s", 2.0), row("slow", 3.0, "s", 2.0), row("free", 3.0, "s")]
    lines = [line for line in bench["run"].page(rows, "").splitlines() if line.startswith("| ")]
    verdicts = [line.split("|")[4].strip() for line in lines if line.split("|")[1].strip() in ("quick", "slow", "free")]  # fmt: skip
    assert verdicts == ["yes", "no", ""]


class Refused(Exception):
    pass


class StubLlm:
    """Calculon's model as its search uses it: net 0 is refused at once, net 1 does not fit."""

    Error = Refused
    computed: list[int]

    class Execution:
        @staticmethod
        def from_json(configuration: dict[str, int]) -> dict[str, int]:
            return configuration

    def __init__(self, model: str, log: object) -> None:
        assert model == "model"

    def compile(self, system: str, execution: dict[str, int]) -> None:
        assert system == "system"
        if execution["net"] == 0:
            raise Refused
        self.net = execution["net"]

    def run(self, system: str) -> None:
        StubLlm.computed.append(self.net)
        if self.net == 1:
            raise Refused

    def get_stats_json(self, layers: bool) -> None:
        assert self.net > 1


class StubSearch:
    """Its command: twelve searches of eight configurations each, run by a pool."""

    @staticmethod
    def create_parser(parsers: Any) -> None:
        parser = parsers.add_parser("llm-optimal-execution")
        parser.add_argument("--debug", action="store_true")
        for name in ("application", "num_procs", "batch", "datatype", "system", "output"):
            parser.add_argument(name)
        parser.set_defaults(func=StubSearch.run_command)

    @staticmethod
    def run_command(log: object, asked: argparse.Namespace) -> None:
        search = (asked.debug, 1, False, asked.num_procs, asked.batch, "float16", "model", "system")
        with multiprocessing.Pool(1) as pool:
            pool.starmap(StubSearch.search, [(*search, number) for number in range(12)])

    @staticmethod
    def search(debug: bool, *question: Any) -> None:
        assert not debug
        for net in range(8):
            try:
                StubLlm.Execution.from_json({"net": net, "search": question[-1]})
            except Refused:
                continue
            raise AssertionError("evaluated by its own loops, not by the benchmark")


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("calculon.llm")
    vars(module).update(Llm=StubLlm, OptimalExecution=StubSearch)
    monkeypatch.setitem(sys.modules, "calculon", ModuleType("calculon"))
    monkeypatch.setitem(sys.modules, "calculon.llm", module)
    monkeypatch.setattr(multiprocessing, "Pool", multiprocessing.Pool)
    StubLlm.computed = []


def test_calculons_configurations_are_counted_as_it_counts_them(
    bench: dict[str, ModuleType], stub: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench["calculon_search"], "KEPT", 1.0)
    found = bench["calculon_search"].counted(Path("checkout"), 1024, 1536, 60.0)
    assert (found["configurations"], found["valid"]) == (12 * 8, 12 * 7)
    assert sorted(StubLlm.computed) == sorted([1, 2, 3, 4, 5, 6, 7] * 12)
    assert StubLlm.computed != sorted(StubLlm.computed)


def test_calculons_search_stops_when_its_time_is_up(
    bench: dict[str, ModuleType], stub: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench["calculon_search"], "KEPT", 1.0)
    found = bench["calculon_search"].counted(Path("checkout"), 1024, 1536, 0.0)
    assert found["configurations"] == 1


def test_the_ratio_says_whose_run_calculons_rate_is_of(
    bench: dict[str, ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    (recorded,) = bench["search"].against_calculon(8000.0, 4000.0, None)
    assert recorded.value == pytest.approx(8000 / (26_372 / 329))
    assert "of another run" in recorded.note
    theirs = {"configurations": 6000, "valid": 1500, "seconds": 30.0}
    monkeypatch.setattr(bench["search"], "calculon", lambda *_, **__: theirs)
    named, valid = bench["search"].against_calculon(8000.0, 4000.0, "checkout")
    assert (named.value, valid.value) == pytest.approx((8000 / 200, 4000 / 50))
    assert all("CPU time, same question, core and run" in row.note for row in (named, valid))


def test_plans_are_counted_as_calculon_counts_its_own(bench: dict[str, ModuleType]) -> None:
    pruned = {"fewer layers than pipeline stages": 30, "does not fit in memory": 40}
    found = SimpleNamespace(plans_valid=100, plans_pruned=pruned)
    assert bench["search"].named_plans(found) == 130


def test_a_folder_without_calculon_is_refused(bench: dict[str, ModuleType], tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=f"FORETRAIN_CALCULON={tmp_path}: no calculon/llm"):
        bench["search"].against_calculon(8000.0, 4000.0, str(tmp_path))
