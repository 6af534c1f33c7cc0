"""One question, one answer: published runs asked as a case line, as a Python call and as a command line.

Needs the open cases (FORETRAIN_CASES, or beside the checkout) and skips without them.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import foretrain
from foretrain.cases import predict_case, request_from_case
from foretrain.cli.options import Question
from foretrain.errors import InputError
from foretrain.resolving import Request

HERE = Path(__file__).resolve().parents[2]
FOLDER = Path(os.environ.get("FORETRAIN_CASES", HERE.parent / "shared" / "cases" / "open"))
FILES = sorted(FOLDER.glob("*.jsonl")) if FOLDER.is_dir() else []
LEAST = 400
OF_A_GROUP = 40
OF_LARGE_GROUPS = {"pollux_t4": 120, "nanotron": 80, "llm_foundry_mpt": 60, "dgxc": 60}


def cases() -> Iterator[dict[str, Any]]:
    """Some of every group, the same ones every time."""
    for path in FILES:
        rows = [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
        rows.sort(key=lambda row: hashlib.sha256(row["id"].encode()).hexdigest())
        yield from rows[: OF_LARGE_GROUPS.get(path.stem, OF_A_GROUP)]


def short_form(words: Mapping[str, Any]) -> str:
    """Only what was said, in the words of a plan."""
    said = [
        f"{name}{words[name]}"
        for name in ("tp", "pp", "dp", "cp", "ep", "vpp", "etp", "zero")
        if name in words
    ]
    said += [
        f"{name}={words[name]}"
        for name in ("shard", "schedule", "recompute", "tables")
        if name in words
    ]
    if "sp" in words:
        said.append("sp" if words["sp"] else "no-sp")
    if words.get("offload"):
        said.append(f"offload={'+'.join(words['offload'])}")
    if "layers" in words:
        said.append(f"layers={','.join(map(str, words['layers']))}")
    return " ".join(said)


def python_call(request: Request) -> dict[str, Any]:
    """The keywords of `predict` that say the same."""
    plan = None if request.plan is None else short_form(request.plan)
    return {
        "model": request.model, "on": request.on, "plan": plan, "batch": request.batch,
        "micro_batch": request.micro_batch, "seq": request.seq, "precision": request.precision,
        "optimizer": request.optimizer, "runtime": request.runtime, "runtime_options": request.runtime_options,
    }  # fmt: skip


def command_line(request: Request, folder: Path) -> Question:
    """The options of `foretrain predict` that say the same."""

    def file(name: str, content: object) -> str:
        (folder / name).write_text(json.dumps(content))
        return str(folder / name)

    def text(value: object) -> str | None:
        return None if value is None else str(value)

    model = request.model
    zoo = model.get("zoo") if isinstance(model, Mapping) and set(model) == {"zoo"} else None
    return Question(
        model=zoo or file("model.json", model),
        on=file("cluster.json", request.on),
        plan=None if request.plan is None else short_form(request.plan),  # type: ignore[arg-type]
        batch=text(request.batch),
        micro_batch=text(request.micro_batch),
        seq=text(request.seq),
        precision=text(request.precision),
        optimizer=text(request.optimizer),
        runtime=text(request.runtime),
        options=[
            f"{key}={json.dumps(value) if not isinstance(value, str) else value}"
            for key, value in request.runtime_options.items()
        ],
    )


def written(document: Mapping[str, Any], model: str) -> dict[str, Any]:
    """Without what only names the question, and without advice, which a case's document leaves to `predict`."""
    asked = {**document["question"], "model": model}
    return {**document, "id": "", "question": asked, "what_would_help": []}


needs_cases = pytest.mark.skipif(
    not FILES, reason=f"no case files in {FOLDER} (set FORETRAIN_CASES)"
)


@needs_cases
def test_a_case_a_call_and_a_command_give_the_same_document(tmp_path: Path) -> None:
    asked, differ, refused = 0, [], 0
    for case in cases():
        blind = {key: value for key, value in case.items() if key != "measured"}
        document = predict_case(blind)
        if "error" in document:
            continue
        request = request_from_case(blind)
        if request.unknown or request.warnings:
            continue  # words of a run that a user would be told are wrong
        try:
            by_call = foretrain.predict(**python_call(request)).to_dict(in_full=False)
            by_words = foretrain.predict(**command_line(request, tmp_path).asked()).to_dict(
                in_full=False
            )
        except InputError:
            refused += 1  # a switch or a name that only a run of somebody else may have
            continue
        asked += 1
        name = document["question"]["model"]
        once = json.dumps(written(document, name), sort_keys=True)
        for door, other in (("Python", by_call), ("command line", by_words)):
            if json.dumps(written(other, name), sort_keys=True) != once:
                differ.append(f"{case['id']} by {door}")
    assert differ == []
    assert asked >= LEAST, f"only {asked} cases can be written as a call; {refused} were refused"


LEFT_OPEN = (("runtime",), ("plan", "runtime"))
OF_EVERY_GROUP = 1


@needs_cases
@pytest.mark.parametrize("keys", LEFT_OPEN, ids="+".join)
def test_what_a_case_leaves_open_is_chosen_as_for_everybody(keys: tuple[str, ...]) -> None:
    """Published runs without plan, software or batch: stack, plan and micro-batch by situation, with the same notes."""
    asked, differ = 0, []
    groups: dict[str, int] = {}
    for case in cases():
        if case["devices"] > 16:
            continue  # the search for a plan takes longer, and is the same
        open_case = {key: value for key, value in case.items() if key not in (*keys, "measured")}
        # switches of a run belong to its software and plan
        open_case["runtime_options"] = {}
        groups[case["group"]] = groups.get(case["group"], 0) + 1
        if groups[case["group"]] > OF_EVERY_GROUP:
            continue
        document = predict_case(open_case)
        request = request_from_case(open_case)
        if "error" in document or request.unknown or request.warnings:
            continue
        try:
            by_call = foretrain.predict(**python_call(request)).to_dict(in_full=False)
        except InputError:
            continue
        asked += 1
        name = document["question"]["model"]
        if written(by_call, name) != written(document, name):
            differ.append(case["id"])
    assert differ == []
    assert asked >= 10
