"""Hostile input never gives our own fault: some hundred inputs of `tools/fuzz.py`, and that it would find one."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

TOOLS = Path(__file__).parents[2] / "tools"


@pytest.fixture(scope="module")
def tools() -> Any:
    sys.path.insert(0, str(TOOLS))
    try:
        import fuzz

        yield fuzz
    finally:
        sys.path.remove(str(TOOLS))


@pytest.fixture(scope="module")
def fuzzer(tools: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("fuzz")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FORETRAIN_DEBUG", "1")
        patch.setenv("FORETRAIN_STORE", str(folder / "store.sqlite"))
        yield tools.Fuzzer(2026, tools.targets(folder))


def test_what_it_begins_from_is_valid(
    tools: Any, fuzzer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # some commands write beside their input
    kinds = []
    for number, (target, seed) in enumerate((t, s) for t in fuzzer.targets for s in t.seeds):
        folder = tmp_path / str(number)
        folder.mkdir()
        kind, told = tools.judged(*tools.called(target, seed, folder), target.answers)
        kinds.append(kind)
        assert kind in ("ok", "no"), (target.name, seed[:200], told)
    assert kinds.count("no") <= 2  # one example of a case is wrong on purpose


def test_three_hundred_hostile_inputs(tools: Any, fuzzer: Any) -> None:
    outcomes = list(tools.fuzz(fuzzer, list(range(300))))
    assert [one.number for one in outcomes] == list(range(300))
    assert [one for one in outcomes if one.is_finding] == []
    assert {one.kind for one in outcomes} >= {"ok", "refused"}


def test_the_same_seed_gives_the_same_inputs(tools: Any, fuzzer: Any) -> None:
    other = tools.Fuzzer(fuzzer.seed, fuzzer.targets)
    assert [fuzzer.input(n) for n in range(100)] == [other.input(n) for n in range(100)]
    assert fuzzer.input(0) != tools.Fuzzer(fuzzer.seed + 1, fuzzer.targets).input(0)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("raise KeyError('x')", "fault"),
        ("while True: pass", "hang"),
        ("bytearray(2_000_000_000)", "memory"),
        ("import os; os._exit(3)", "died"),
        ("print('NaN')", "output"),
        ("print('{} {}')", "output"),
        ('print(\'{"error": {"kind": "Bug"}}\')', "output"),
        ("raise InputError('no')", "refused"),
        ("print('{}')", "ok"),
    ],
)
def test_it_would_find_one(
    tools: Any, monkeypatch: pytest.MonkeyPatch, code: str, kind: str
) -> None:
    from foretrain import cli
    from foretrain.cli.process import tell
    from foretrain.errors import InputError

    def run(args: list[str]) -> int:
        try:
            exec(code, {"InputError": InputError})
        except InputError as error:
            tell(str(error))
            return 2
        except Exception as error:
            return cli._our_fault(error, args)
        return 0

    monkeypatch.setattr(cli, "run", run)
    monkeypatch.setattr(tools, "SECONDS", 0.5)
    target = tools.Target("t", ("{word}",), (json.dumps("x").encode(),))
    (outcome,) = tools.fuzz(tools.Fuzzer(1, (target,)), [0])
    assert outcome.kind == kind, outcome.told
