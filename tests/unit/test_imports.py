"""No module needs itself, whether at its top or within a function; what is known by name alone is listed here."""

from __future__ import annotations

import re
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

grimp = pytest.importorskip(
    "grimp", reason="import-linter is not installed (pip install '.[test]')"
)

SOURCE = Path(__file__).resolve().parents[2] / "src"
BY_NAME = {
    # rules of a stack are written in the words of plans, and read as it is registered
    "runtime/checking.py",
    # nouns whose constructors and views are doors for users; what is behind them needs the noun
    "analysis/answer.py", "cluster/cluster.py", "model/graph.py", "runtime/runtime.py",
    # tables of variants, which load the one that is used
    "adapters/read/launch/__init__.py", "adapters/write/__init__.py", "cli/app.py", "cluster/topologies/__init__.py",
    "cluster/topologies/shape.py", "cost/compute/calibrated.py", "measure.py", "model/zoo/__init__.py",
    "report/__init__.py",
    # the package itself, the loader, and a user's own dataset
    "__init__.py", "named.py", "measurement/data.py",
}  # fmt: skip


def test_no_module_imports_itself_over_others() -> None:
    """Imports within functions count: they would fail as soon as one moves to the top."""
    graph = grimp.build_graph("foretrain", exclude_type_checking_imports=True, cache_dir=None)
    needs = {name: graph.find_modules_directly_imported_by(name) - {name} for name in graph.modules}
    assert ("foretrain.cli", "foretrain.cli.app") in {(a, b) for a in needs for b in needs[a]}
    try:
        TopologicalSorter(needs).prepare()
    except CycleError as error:
        pytest.fail(" <- ".join(error.args[1]))


def test_who_knows_others_by_name_is_listed() -> None:
    """A name hides an import from the test above, so each place that uses one has a reason."""
    loads = re.compile(r"from foretrain\.named import|import_module\(|__import__\(")
    package = SOURCE / "foretrain"
    found = {
        path.relative_to(package).as_posix()
        for path in package.rglob("*.py")
        if loads.search(path.read_text("utf-8"))
    }
    assert found == BY_NAME


LATE = {
    # commands and renderers: help and a plain answer load none of what the others need
    "cli", "report",
    # nouns that a cold call loads, with readers of files it does not
    "cluster", "model", "plan", "runtime", "resolving",
    # a user's training script imports `measure`, and a search without a journal needs no database
    "measure.py", "searching.py",
    # advice is worked out when it is looked at
    "forecast.py",
    # the compiled engine may be missing
    "engine",
}  # fmt: skip


def test_imports_are_late_only_where_a_cold_call_gains_by_it() -> None:
    package = SOURCE / "foretrain"
    late = {
        path.relative_to(package).parts[0]
        for path in package.rglob("*.py")
        if re.search(
            r"^ +from foretrain\.\S+ import", _run_time(path.read_text("utf-8")), re.MULTILINE
        )
    }
    assert late == LATE


def _run_time(text: str) -> str:
    """Without what only type checkers see, and without examples in docstrings."""
    text = re.sub(r"^if TYPE_CHECKING:\n(?:    .*\n|\n)+", "", text, flags=re.MULTILINE)
    return re.sub(r'"""(?:.|\n)*?"""', "", text)
