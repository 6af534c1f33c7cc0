"""Mutants: what is changed, and that a change is noticed where a test asks for it and listed where none does."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = '''
def area(width: float = 2, height: int | None = None, unread: int = 7, *, least: float = 0.5) -> float:
    """1 + 1"""
    if height is None or width < 0:
        raise ValueError(f"{width + 1}")
    return max(width * height, least)

SIDES = 4
'''


@pytest.fixture(scope="module")
def tools() -> Any:
    sys.path.insert(0, str(ROOT / "tools"))
    try:
        import mutations

        yield mutations
    finally:
        sys.path.remove(str(ROOT / "tools"))


def test_operators_numbers_and_extremes_change_and_what_is_told_does_not(tools: Any) -> None:
    found = tools.mutations(Path("area.py"), SOURCE)
    assert sorted(m.new for m in found) == sorted([
        "def area(width: float = (3), height: int | None = None, unread: int = 7, *, least: float = 0.5) -> float:",
        "def area(width: float = 2, height: int | None = None, unread: int = 7, *, least: float = (1.5)) -> float:",
        "if (height is not None) or width < 0:",
        "if (height is None and width < 0):",
        "if height is None or (width <= 0):",
        "if height is None or width < (1):",
        "return (min(width * height, least))",
        "return max((width / height), least)",
        "SIDES = (5)",
    ])  # fmt: skip
    assert {m.function for m in found if m.new.startswith(("if", "return"))} == {"area"}
    assert {m.function for m in found if m.new.startswith(("def", "SIDES"))} == {""}
    for mutant in found:
        compile(mutant.text, "area.py", "exec")


def test_the_same_mutants_are_drawn_again_and_most_are_killed() -> None:
    line = (
        sys.executable, "tools/mutants.py", "plan/schedules/closed_form.py", "--sample", "6",
        "--tests", "tests/unit/test_search_pipelines.py",
    )  # fmt: skip
    runs = [subprocess.run(line, cwd=ROOT, capture_output=True, text=True) for _ in range(2)]
    assert runs[0].returncode == 0, runs[0].stderr
    assert runs[0].stdout == runs[1].stdout
    killed = re.search(r"(\d) of 6 mutants killed", runs[0].stdout)
    assert killed is not None
    assert int(killed[1]) >= 4
    assert runs[0].stdout.count("    - ") == 6 - int(killed[1])  # survivors and what was changed
