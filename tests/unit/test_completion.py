"""What a shell is told when it asks what could stand where the cursor is."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import foretrain
from foretrain.cli import completion
from foretrain.cli.process import COMPLETE

HEAVY = (
    "numpy",
    "pydantic",
    "yaml",
    "foretrain.cluster",
    "foretrain.forecast",
    "foretrain.model.zoo",
)


def asked(typed: str, cache: Path) -> tuple[list[str], set[str]]:
    """(words offered in bash, modules loaded)."""
    code = (
        "import atexit, sys\n"
        "atexit.register(lambda: print(*sys.modules, file=sys.stderr))\n"
        "from foretrain.cli import main; main([])"
    )
    env = {
        **os.environ, "PYTHONPATH": str(Path(foretrain.__file__).parents[1]), "FORETRAIN_CACHE": str(cache),
        COMPLETE: "complete_bash", "COMP_WORDS": typed, "COMP_CWORD": str(len(completion_words(typed)) - 1),
    }  # fmt: skip
    ran = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True
    )
    return ran.stdout.splitlines(), set(ran.stderr.split())


def completion_words(typed: str) -> list[str]:
    """As a shell counts them: an open quote holds its spaces together."""
    before, quote, quoted = typed.partition("'")
    return [*before.split(), quoted] if quote else typed.split(" ")


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("foretrain pred", "predict"),
        ("foretrain predict llama3-8", "llama3-8b"),
        ("foretrain predict gpt2 --on dgx-h1", "dgx-h100"),
        ("foretrain predict gpt2 --on '16 x dgx-a100-8", "16 x dgx-a100-80gb"),
        ("foretrain predict gpt2 --on '2 x aws:p4d", "2 x aws:p4d.24xlarge"),
        ("foretrain predict gpt2 --on '64 x dgx-h100 on fat", "64 x dgx-h100 on fat-tree"),
        ("foretrain fit gpt2 --plan 'tp4 recompute=f", "tp4 recompute=full"),
        ("foretrain fit gpt2 --precision bf", "bf16"),
        ("foretrain fit gpt2 --optimizer ada", "adam"),
        ("foretrain sweep gpt2 --runtime mega", "megatron"),
        ("foretrain whatif gpt2 --set net", "network.bandwidth="),
        ("foretrain export gpt2 --to deep", "deepspeed"),
        ("foretrain search gpt2 --objective par", "pareto"),
        ("foretrain recommend gpt2 --instances 'aws:p4d", "aws:p4d.24xlarge"),
        ("foretrain catalog list run", "runtimes"),
        ("foretrain catalog show dgx-h1", "dgx-h100"),
        ("foretrain schema pred", "prediction"),
    ],
)
def test_names_are_offered(typed: str, offered: str, cache: Path) -> None:
    words, _ = asked(typed, cache)
    assert offered in words
    assert all(word.startswith(completion_words(typed)[-1]) for word in words)


def test_once_gathered_names_are_read_and_nothing_is_built(cache: Path) -> None:
    asked("foretrain predict gp", cache)
    words, loaded = asked("foretrain predict gp", cache)
    assert "gpt2" in words
    assert sorted(loaded & set(HEAVY)) == []


def test_names_are_gathered_again_when_a_file_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORETRAIN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(completion, "_gathered", lambda: {"models": ["first"]})
    assert completion.names() == {"models": ["first"]}
    monkeypatch.setattr(completion, "_gathered", lambda: {"models": ["second"]})
    assert completion.names() == {"models": ["first"]}
    (tmp_path / "devices.yaml").write_text("{}")
    monkeypatch.setenv("FORETRAIN_CATALOG", str(tmp_path))
    assert completion.names() == {"models": ["second"]}


def test_every_completed_parameter_exists() -> None:
    """A misspelt name would complete nothing."""
    import typer

    from foretrain.cli.app import COMMANDS, app_with

    known: set[str] = set()
    groups = [typer.main.get_command(app_with(COMMANDS))]
    for group in groups:
        for name, command in group.commands.items():  # type: ignore[attr-defined]
            if hasattr(command, "commands"):
                groups.append(command)
            known |= {p.name for p in command.params} | {f"{name}.{p.name}" for p in command.params}
    assert set(completion.COMPLETED) <= known


def test_every_worded_option_is_one_of_a_command() -> None:
    """A misspelt or forgotten row would word nothing."""
    import typer

    from foretrain.cli.app import COMMANDS, app_with
    from foretrain.cli.options import ARGUMENTS, OPTIONS

    worded = {**ARGUMENTS, **OPTIONS}
    used: set[str] = set()
    groups = [("", typer.main.get_command(app_with(COMMANDS)))]
    for before, group in groups:
        for name, command in group.commands.items():  # type: ignore[attr-defined]
            path = f"{before} {name}".strip()
            groups += [(path, command)] if hasattr(command, "commands") else []
            keys = ((f"{path}.{one.name}", one.name) for one in command.params)
            used |= {own if own in worded else name for own, name in keys}
    assert set(worded) == used


def test_the_words_of_a_plan_can_be_read() -> None:
    from foretrain.plan.short_form import parse, vocabulary

    for word in vocabulary():
        if not word.endswith("="):
            degree = word in ("tp", "pp", "vpp", "dp", "cp", "ep", "etp")
            parse(f"{word}2" if degree else word)
