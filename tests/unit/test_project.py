"""The frame of the project: what a wheel holds, what the build file promises, what the README shows."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
NOT_SHIPPED = ("engine/native/", "__pycache__/")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """A wheel built without the compiled engine: what it packs of Python and data does not depend on it."""
    if importlib.util.find_spec("scikit_build_core") is None:
        pytest.skip("scikit-build-core is not installed (pip install '.[test]')")
    folder = tmp_path_factory.mktemp("wheel")
    command = [
        sys.executable, "-m", "pip", "wheel", str(ROOT), "--no-deps", "--no-build-isolation", "--quiet",
        "--wheel-dir", str(folder), "--config-settings=wheel.cmake=false",
        f"--config-settings=build-dir={folder}/build",
    ]  # fmt: skip
    made = subprocess.run(command, capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    return zipfile.ZipFile(next(folder.glob("foretrain-*.whl")))


def test_the_wheel_holds_every_module_and_data_file(wheel: zipfile.ZipFile) -> None:
    source = ROOT / "src"
    expected = {
        path.relative_to(source).as_posix()
        for path in (source / "foretrain").rglob("*")
        if path.is_file()
    }
    expected = {
        name
        for name in expected
        if not any(part in name for part in NOT_SHIPPED) and not name.endswith((".so", ".pyc"))
    }
    packed = {name for name in wheel.namelist() if name.startswith("foretrain/")}
    assert {name for name in packed if not name.endswith(".pyc")} == expected


def test_the_wheel_holds_neither_the_testbed_nor_what_only_tests_use(
    wheel: zipfile.ZipFile,
) -> None:
    modules = {Path(name) for name in wheel.namelist() if name.endswith(".py")}
    assert {path.parts[0] for path in modules} == {"foretrain"}
    assert not any({"testbed", "studies", "support"} & {*path.parts} for path in modules)
    assert (ROOT / "testbed" / "main.py").is_file()
    scripts = next(name for name in wheel.namelist() if name.endswith("entry_points.txt"))
    assert wheel.read(scripts).decode().split() == [
        "[console_scripts]",
        "foretrain",
        "=",
        "foretrain.cli:main",
    ]


def test_the_wheel_carries_its_licences(wheel: zipfile.ZipFile) -> None:
    names = {Path(name).name for name in wheel.namelist() if ".dist-info/" in name}
    assert {"LICENSE", "NOTICE"} <= names


def test_one_version() -> None:
    import foretrain

    changelog = (ROOT / "CHANGELOG.md").read_text("utf-8")
    latest = re.search(r"^## (\S+)", changelog, re.MULTILINE)
    assert latest is not None
    assert latest[1] == foretrain.__version__


def test_every_room_has_a_place_in_the_layers() -> None:
    """A new module or folder must be put into the contract, or it would escape it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    layers = project["tool"]["importlinter"]["contracts"][0]["layers"]
    placed = {name.strip(" ()") for layer in layers for name in layer.split("|")}
    rooms = {
        path.stem
        for path in (ROOT / "src" / "foretrain").iterdir()
        if path.suffix == ".py" or (path / "__init__.py").is_file()
    }
    aside = {"__init__", "__main__", "testing"}
    assert rooms - aside == placed


@pytest.mark.skipif(os.name != "posix", reason="make and file modes are POSIX matters")
def test_array_names_are_defined_once() -> None:
    """`Ints` was int32 in one file and int64 in the next."""
    aliases = re.compile(r"^(?:Floats|Ints|Ints32|Bools)\b.*= ", re.MULTILINE)
    files = [path for folder in ("src", "tools", "bench") for path in (ROOT / folder).rglob("*.py")]
    defining = [path for path in files if aliases.search(path.read_text("utf-8"))]
    assert defining == [ROOT / "src" / "foretrain" / "arrays.py"]


def test_ci_runs_what_the_readme_says() -> None:
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    assert "make test" in script.read_text("utf-8")
    assert "make test" in (ROOT / "README.md").read_text("utf-8")


def shown_output() -> tuple[str, str]:
    """The command the README shows, and what it says the command prints."""
    text = (ROOT / "README.md").read_text("utf-8")
    block = re.search(
        r"^```console\n\$ (foretrain predict(?:.|\\\n)*?[^\\])\n(.*?)^```", text, re.M | re.S
    )
    assert block is not None
    return block[1].replace("\\\n", " "), block[2]


def without_figures(text: str) -> list[str]:
    """Lines as they are but for digits, bars and the space they are padded with."""
    return [
        re.sub(r"\s+", " ", re.sub(r"[\d.,]+|[█▏▎▍▌▋▊▉]+", "#", line)).strip()
        for line in text.strip().splitlines()
    ]


def test_the_readme_shows_what_the_command_prints(tmp_path: Path) -> None:
    """The same lines, and the headline to the digit, interval and memory included."""
    command, shown = shown_output()
    words = shlex.split(command)[1:]
    environment = {**os.environ, "NO_COLOR": "1", "COLUMNS": "80"}
    ran = subprocess.run(
        [sys.executable, "-m", "foretrain", *words],
        capture_output=True,
        text=True,
        encoding="utf-8",
        env=environment,
        cwd=tmp_path,
    )
    assert ran.returncode == 0, ran.stderr
    assert without_figures(ran.stdout)[:6] == without_figures(shown)[:6]
    titles = [line for line in ran.stdout.splitlines() if line and not line.startswith(" ")]
    assert [t.split(":")[0] for t in titles[4:]] == [
        line.split(":")[0] for line in shown.splitlines() if line and not line.startswith(" ")
    ][4:]
    headline, printed = (" ".join(text.splitlines()[:2]) for text in (shown, ran.stdout))
    assert headline == printed, "costs were refined: paste what the command prints into README.md"


def test_pre_commit_checks_what_make_lint_does() -> None:
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text("utf-8"))["repos"][0][
        "hooks"
    ]
    told = {hook["entry"].removeprefix(".venv/bin/").removesuffix(" --force-exclude") for hook in hooks}  # fmt: skip
    lint = re.search(r"^lint:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text("utf-8"), re.M)
    assert lint is not None
    made = {line.removeprefix("\t$(BIN)/").removesuffix(" .") for line in lint[1].splitlines()}
    assert told == made
