"""Doors: Python keywords, words of the command line, the base of a what-if and a point of a sweep ask the same."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import foretrain
from foretrain.cli import run
from foretrain.cli.options import Question
from foretrain.report.json import dumps

from .cases import Case, differences, every, hold

NEUTRAL = {"device.memory": "1x"}
"""A what-if that changes nothing."""


@pytest.fixture(scope="session")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("doors")


def written(case: Case, folder: Path) -> tuple[str, dict[str, Any]]:
    """The question with files in place of mappings, which no command line takes."""
    model, words = case.model, dict(case.words)
    if not isinstance(model, str):
        sizes = {key: value for key, value in model.items() if key != "zoo"}
        model = _file(folder / "model.yaml", {"zoo": case.model["zoo"], "overrides": sizes})
    if not isinstance(words["on"], str):
        words["on"] = _file(folder / "cluster.yaml", words["on"])
    return model, words


def _file(path: Path, content: Any) -> str:
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    return str(path)


def as_text(words: dict[str, Any]) -> dict[str, Any]:
    """Words as they are typed."""
    typed = {key: str(value) for key, value in words.items() if key != "runtime_options"}
    options = words.get("runtime_options")
    if options:
        typed["options"] = [
            f"{key}={value if isinstance(value, str) else json.dumps(value)}"
            for key, value in options.items()
        ]
    return typed


def flags(model: str, words: dict[str, Any]) -> list[str]:
    typed = as_text(words)
    options = typed.pop("options", [])
    told = [f"--{name.replace('_', '-')}={value}" for name, value in typed.items()]
    return [model, *told, *(f"--set={option}" for option in options)]


def test_words_of_the_command_line_ask_the_same(cases, folder):
    def same(case: Case) -> Iterator[str]:
        model, words = written(case, folder)
        asked = Question(model=model, **as_text(words)).asked()
        python, typed = foretrain.predict(model, **words), foretrain.predict(**asked)
        yield from differences(python.to_dict(), typed.to_dict())

    hold(every(cases, 32, 3), same)


def test_bases_of_what_ifs_and_points_of_sweeps_are_predictions(cases):
    def same(case: Case) -> Iterator[str]:
        document = case.prediction.to_dict()
        found = foretrain.whatif(case.model, changes=NEUTRAL, **case.words)
        yield from differences(document, found.base.to_dict())
        yield from differences(document, found.changed.to_dict())
        (point,) = foretrain.sweep(case.model, **case.words, vary={"network.latency": [1]}).points
        yield from differences(document, point.prediction.to_dict() if point.prediction else {})

    hold(every(cases, 32, 11), same)


def test_the_command_prints_what_python_answers(cases, folder, capfd):
    def same(case: Case) -> Iterator[str]:
        model, words = written(case, folder)
        code = run(["predict", *flags(model, words), "--json"])
        told = capfd.readouterr()
        assert told.out, f"{told.err}    {case.drawn}"
        printed = json.loads(told.out)
        answer = foretrain.predict(model, **words)
        if code != (0 if answer.fits else 1):
            yield f"exit code {code}"
        yield from differences(json.loads(dumps(answer.to_dict())), printed)

    hold(every(cases, 200, 7), same)
