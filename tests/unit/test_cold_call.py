"""What a call of the command line loads and remembers. Counted, not timed: clocks wander, imports do not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import pytest
import typer

import foretrain
from foretrain.cli.app import COMMANDS, app_for, app_with
from foretrain.cli.parsing import let_texts_through
from foretrain.loading import load_own_yaml
from foretrain.parse_cache import cache_folder, parse_cached

PREDICT = (
    "predict", "gpt3-175b", "--on", "128 x dgx-a100-80gb", "--plan", "tp8 pp16 dp8", "--batch", "1536",
    "--seq", "2048",
)  # fmt: skip
# Validators and other formats: nothing of it has a part in the answer to a plain question.
UNWANTED = (
    "pydantic", "scipy", "torch", "rich", "yaml", "msgspec", "networkx", "unittest",
    "foretrain.cluster.schema", "foretrain.cluster.documents", "foretrain.cluster.topologies.grid",
    "foretrain.model.huggingface", "foretrain.model.document", "foretrain.model.case",
    "foretrain.model.zoo.t5", "foretrain.model.zoo.cnn", "foretrain.report.html",
    "foretrain.report.terminal", "foretrain.cli.questions", "foretrain.testing", "foretrain.schemas",
    "foretrain.planning.planner", "foretrain.planning.space",
    "foretrain.plan.schedules.legal",
)  # fmt: skip
MOST_OF_OURS = 254
"""Modules; each is a file to find, read and run. 23 are features of stacks; "What would help" takes 27: advice and the
estimator that ranks it."""


def modules_after(*args: str, cache: str) -> set[str]:
    """Names of all modules that a command line leaves loaded in a process of its own."""
    code = (
        f"import sys; from foretrain.cli import run; code = run({list(args)!r})\n"
        "print(*sys.modules, file=sys.stderr); sys.exit(code)"
    )
    source = str(Path(foretrain.__file__).parents[1])
    plain = {k: v for k, v in os.environ.items() if k != "FORCE_COLOR"}
    env = {**plain, "PYTHONPATH": source, "FORETRAIN_CACHE": cache}
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=env, check=True
    )
    assert "per step" in ran.stdout
    return set(ran.stderr.split())


def test_a_plain_prediction_loads_what_it_needs_and_no_more(tmp_path: Path) -> None:
    first = modules_after(*PREDICT, cache=str(tmp_path))
    assert "yaml" in first  # nothing was remembered yet
    loaded = modules_after(*PREDICT, cache=str(tmp_path))
    assert sorted(loaded & set(UNWANTED)) == []
    assert sum(name.startswith("foretrain.") for name in loaded) <= MOST_OF_OURS


def test_what_is_not_needed_is_known_by_its_name() -> None:
    """A misspelt name would guard nothing."""
    import importlib.util

    ours = [name for name in UNWANTED if name.startswith("foretrain.")]
    assert all(importlib.util.find_spec(name) is not None for name in ours)


# --- commands ---------------------------------------------------------------------------------------


def test_a_command_is_loaded_alone_and_help_shows_all() -> None:
    assert list(typer.main.get_command(app_for(["fit", "x"])).commands) == ["fit"]  # type: ignore[attr-defined]
    for args in ([], ["--help"], ["no-such-command"]):
        every = typer.main.get_command(app_for(args)).commands  # type: ignore[attr-defined]
        assert sorted(every) == sorted(COMMANDS)


def test_every_command_has_help() -> None:
    for name, command in typer.main.get_command(app_with(COMMANDS)).commands.items():  # type: ignore[attr-defined]
        assert command.help, name


# --- values past the validator ----------------------------------------------------------------------

TRIED: list[object] = []


def one(
    text: Annotated[str, typer.Argument()],
    number: Annotated[int, typer.Option(max=9)] = 1,
    files: Annotated[list[Path] | None, typer.Option("-o")] = None,
    there: Annotated[Path | None, typer.Option(exists=True)] = None,
) -> None:
    TRIED.append((text, number, files, there))


def given(*args: str, is_prepared: bool = True) -> object:
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(one)
    command = typer.main.get_command(app)
    if is_prepared:
        let_texts_through(command)
    try:
        command.main(list(args), standalone_mode=False)
    except Exception as error:
        return type(error).__name__, str(error)
    return TRIED.pop()


@pytest.mark.parametrize(
    "args",
    [
        ("a",), ("a", "-o", "x", "-o", "y/z"), ("a", "--number", "7"), ("a", "--number", "70"),
        ("a", "--number", "x"), ("a", "--there", "/"), ("a", "--there", "/no/such/file"), (), ("a", "b"),
        ("", "-o", ""), ("\udcff",), ("a", "-o", "\udcff"), ("a", "-o"), ("ä [b]×",),
    ],
)  # fmt: skip
def test_values_are_as_the_parser_alone_makes_them(args: tuple[str, ...]) -> None:
    assert given(*args) == given(*args, is_prepared=False)


# --- what is remembered -----------------------------------------------------------------------------


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FORETRAIN_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def counted(path: Path) -> tuple[object, int]:
    """(what the file holds, how often it was parsed for that)."""
    calls: list[str] = []

    def parse(text: str) -> object:
        calls.append(text)
        return {"lines": text.split("\n"), True: 1.5}

    return parse_cached(path, parse), len(calls)


def test_a_file_is_parsed_once_until_it_changes(tmp_path: Path, cache: Path) -> None:
    path = tmp_path / "data.yaml"
    path.write_text("a\nb")
    assert counted(path) == ({"lines": ["a", "b"], True: 1.5}, 1)
    assert counted(path) == ({"lines": ["a", "b"], True: 1.5}, 0)
    before = path.stat()
    path.write_text("a\nc")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))  # a date proves nothing
    assert counted(path) == ({"lines": ["a", "c"], True: 1.5}, 1)
    assert [file.suffix for file in cache.iterdir()] == [
        ".bin"
    ]  # one for each file, nothing left over


def test_what_is_remembered_is_the_callers_own(tmp_path: Path, cache: Path) -> None:
    path = tmp_path / "data.yaml"
    path.write_text("a")
    counted(path)
    found, _ = counted(path)
    found["lines"].clear()  # type: ignore[index]
    assert counted(path) == ({"lines": ["a"], True: 1.5}, 0)


def test_damage_is_noticed_and_mended(tmp_path: Path, cache: Path) -> None:
    path = tmp_path / "data.yaml"
    path.write_text("a")
    counted(path)
    (kept,) = cache.iterdir()
    whole = kept.read_bytes()
    for damaged in (b"", whole[:40], whole[:-1], whole[:-1] + b"?", whole[:32] + whole, b"x" * 80):
        kept.write_bytes(damaged)
        assert counted(path) == ({"lines": ["a"], True: 1.5}, 1)
        assert kept.read_bytes() == whole


def test_a_cache_that_cannot_be_written_is_as_good_as_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "data.yaml"
    path.write_text("a")
    for place in (str(path), str(path / "below"), ""):
        monkeypatch.setenv("FORETRAIN_CACHE", place)
        assert counted(path)[1] == 1
        assert counted(path)[1] == 1


def test_without_a_home_there_is_no_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FORETRAIN_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("LOCALAPPDATA", raising=False)
    for name in ("HOME", "USERPROFILE"):
        monkeypatch.setenv(name, str(tmp_path / "gone"))
    assert cache_folder() is None
    for name in ("HOME", "USERPROFILE"):
        monkeypatch.setenv(name, str(tmp_path))
    folder = cache_folder()
    assert folder is not None
    assert folder.is_relative_to(tmp_path)


def shipped() -> list[Path]:
    return sorted(Path(foretrain.__file__).parent.rglob("*.yaml"))


@pytest.mark.parametrize("path", shipped(), ids=lambda path: path.name)
def test_our_own_files_come_back_as_they_are(path: Path, cache: Path) -> None:
    parsed = load_own_yaml(path)
    assert repr(load_own_yaml(path)) == repr(parsed)


def test_our_own_files_have_places_of_their_own() -> None:
    places = [f"{path.parent.name}-{path.stem}" for path in shipped()]
    assert len(set(places)) == len(places)
