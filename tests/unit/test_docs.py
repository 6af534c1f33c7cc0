"""What the documentation says is run, and where it points exists."""

from __future__ import annotations

import doctest
import re
import shlex
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
PYTHON = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?:|mailto:)([^)#\s]+)(?:#[^)]*)?\)")
COMMAND = re.compile(r"^(?:    |\$ )(?:\.venv/bin/)?foretrain (.+)$", re.MULTILINE)


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def session(page: Path) -> doctest.DocTest:
    """All Python blocks of a page as one session, line numbers as in the page."""
    text = page.read_text(encoding="utf-8")
    lines = [""] * (text.count("\n") + 1)
    for block in PYTHON.finditer(text):
        first = text.count("\n", 0, block.start(1))
        for offset, line in enumerate(block[1].splitlines()):
            lines[first + offset] = line
    return doctest.DocTestParser().get_doctest("\n".join(lines), {}, name(page), str(page), 0)


SESSIONS = [page for page in PAGES if session(page).examples]


def test_the_quickstart_is_among_the_sessions() -> None:
    assert ROOT / "docs" / "quickstart.md" in SESSIONS


@pytest.mark.parametrize("page", SESSIONS, ids=name)
def test_sessions_run(page: Path) -> None:
    said: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
    outcome = runner.run(session(page), out=said.append)
    assert outcome.failed == 0, "".join(said)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    lost = [link for link in LINK.findall(text) if not (page.parent / link).exists()]
    assert not lost, f"{name(page)} links to {lost}"


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_commands_are_known_to_the_parser(page: Path) -> None:
    """Command, option and argument names of every shown command exist; the commands are not run."""
    import typer

    from foretrain.cli.app import COMMANDS, app_with

    top = typer.main.get_command(app_with(COMMANDS))
    for words in COMMAND.findall(page.read_text(encoding="utf-8").replace("\\\n", " ")):
        given = shlex.split(words, comments=True)
        found = top
        while given and given[0] in getattr(found, "commands", {}):
            found = found.commands[given.pop(0)]  # type: ignore[attr-defined]
        known = {option for parameter in found.params for option in parameter.opts}
        known |= set(found.context_settings.get("help_option_names", ["--help"]))
        assert found is not top or words.startswith("--"), f"unknown command: foretrain {words}"
        options = {word.split("=")[0] for word in given if word.startswith("-") and word != "-"}
        assert options <= known, f"foretrain {words}: unknown {sorted(options - known)}"


def test_the_cluster_page_builds_its_yaml() -> None:
    from foretrain import Cluster

    text = (ROOT / "docs" / "cluster.md").read_text(encoding="utf-8")
    block = re.search(r"^```yaml\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert block is not None
    cluster = Cluster.from_dict(yaml.safe_load(block[1]))
    assert (cluster.device_count, cluster.node_count) == (16, 3)
    assert not cluster.is_uniform


def test_every_runtime_field_is_explained() -> None:
    from foretrain.runtime import option_table
    from foretrain.runtime.runtime import CORE, OPTIONAL

    text = (ROOT / "docs" / "runtime.md").read_text(encoding="utf-8")
    told = set(re.findall(r"`(\w+)`", text))
    assert {*option_table(), "headroom", "headroom_reason", *CORE, *OPTIONAL} <= told


def test_every_field_of_the_document_is_explained() -> None:
    from foretrain.testing.exporters import sample_prediction

    text = (ROOT / "docs" / "prediction-document.md").read_text(encoding="utf-8")
    told = set(re.findall(r"[\w]+", " ".join(re.findall(r"`([^`]+)`", text))))
    assert set(sample_prediction().to_dict()) <= told


def test_no_page_speaks_of_the_machine_it_was_written_on() -> None:
    for page in PAGES:
        found = re.findall(r"(?<![\w.])/(?:work|tmp|home|root|opt)/\w+", page.read_text("utf-8"))
        assert not found, f"{name(page)}: {found}"
