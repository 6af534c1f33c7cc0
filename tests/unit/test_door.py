"""The one public door: what `import foretrain` offers is a promise."""

from __future__ import annotations

import doctest
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import foretrain
from foretrain.analysis.job import JobWords
from foretrain.asked import Asked, AskedStep, Options

ROOT = Path(__file__).resolve().parents[2]
OFFERED = [name for name in foretrain.__all__ if name not in ("__version__", "measure")]
FUNCTIONS = [name for name in OFFERED if inspect.isfunction(getattr(foretrain, name))]
MEASURES = ("ops", "links", "data", "traces", "calibrate")


def test_the_door_offers_exactly_these_names() -> None:
    assert set(foretrain.__all__) == {
        "Cluster", "DataSource", "Model", "Plan", "Prediction", "Runtime", "Workload", "__version__",
        "calibrate", "compare", "compile_graph", "explain", "export", "fit", "measure", "predict", "predict_cases",
        "recommend", "schema", "search", "sweep", "validate", "whatif",
    }  # fmt: skip


def test_every_name_opens() -> None:
    for name in foretrain.__all__:
        assert getattr(foretrain, name) is not None
    for name in foretrain.measure.__all__:
        assert callable(getattr(foretrain.measure, name))


def test_functions_stay_functions_after_everything_is_imported() -> None:
    """A submodule of the same name would replace the function on the package."""
    import foretrain.cases
    import foretrain.exports
    import foretrain.forecast
    import foretrain.sweeps
    import foretrain.validation

    for name in FUNCTIONS:
        assert inspect.isfunction(getattr(foretrain, name)), name


def test_the_door_opens_without_numpy() -> None:
    code = "import sys, foretrain, foretrain.measure; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# --- what it says of itself -------------------------------------------------------------------------


@pytest.mark.parametrize("name", OFFERED)
def test_examples_run(name: str) -> None:
    found = doctest.DocTestFinder(recurse=False).find(getattr(foretrain, name), name)
    examples = [one for one in found if one.examples]
    assert examples or name == "calibrate"  # which needs a machine that was measured
    said: list[str] = []
    for one in examples:
        outcome = doctest.DocTestRunner().run(one, out=said.append)
        assert outcome.failed == 0, "".join(said)


@pytest.mark.parametrize("function", [*FUNCTIONS, *(f"measure.{name}" for name in MEASURES)])
def test_arguments_are_typed_and_told(function: str) -> None:
    home = foretrain.measure if function.startswith("measure.") else foretrain
    call = getattr(home, function.removeprefix("measure."))
    told = set(re.findall(r"^        \*{0,2}(\w+): ", call.__doc__ or "", re.MULTILINE))
    same_as_predict = set(Asked.__annotations__) if function == "search" else set()
    for parameter in inspect.signature(call).parameters.values():
        assert parameter.annotation not in ("Any", inspect.Parameter.empty), parameter.name
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            assert parameter.annotation in (
                "Unpack[Asked]",
                "Unpack[AskedStep]",
                "Unpack[StackOptions]",
                "Unpack[StepOptions]",
                "Unpack[Options]",
                "Unpack[JobWords]",
            )
        assert parameter.name in told | same_as_predict, parameter.name


def test_the_keywords_of_a_question_are_those_of_predict() -> None:
    keywords = set(inspect.signature(foretrain.predict).parameters) - {"model", "job"}
    keywords |= set(JobWords.__annotations__)
    assert set(Asked.__annotations__) == keywords
    assert set(Options.__annotations__) == keywords - {"on"}
    assert Asked.__required_keys__ == AskedStep.__required_keys__ == {"on"}
    assert set(AskedStep.__annotations__) == keywords - set(JobWords.__annotations__)


def test_pages_and_examples_come_through_the_door() -> None:
    """But for kits for tests, errors, and the pages for those who write collectives or other variants."""
    allowed = re.compile(r"foretrain\.(errors|testing|measure)\b")
    lost = []
    for path in sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("examples/*.py")]):
        if path.name in ("collectives.md", "extending.md"):
            continue
        for home in re.findall(r"(?:from|import) (foretrain\.[\w.]+)", path.read_text("utf-8")):
            if not allowed.match(home):
                lost.append(f"{path.name}: {home}")
    assert lost == []
