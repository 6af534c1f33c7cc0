"""The one public door: what `import foretrain` offers is a promise."""

from __future__ import annotations

import subprocess
import sys

import foretrain


def test_the_door_offers_exactly_these_names() -> None:
    assert set(foretrain.__all__) == {
        "Cluster", "DataSource", "Model", "Plan", "Prediction", "Runtime", "Workload", "__version__",
        "compare", "compile_graph", "explain", "fit", "predict", "predict_cases", "recommend", "schema",
        "search", "validate", "whatif",
    }  # fmt: skip


def test_every_name_opens() -> None:
    for name in foretrain.__all__:
        assert getattr(foretrain, name) is not None


def test_functions_stay_functions_after_everything_is_imported() -> None:
    """A submodule of the same name would replace the function on the package."""
    import foretrain.cases
    import foretrain.forecast
    import foretrain.validation

    for name in ("predict", "validate", "compare", "explain", "fit", "whatif", "schema"):
        assert callable(getattr(foretrain, name)), name


def test_the_door_opens_without_numpy() -> None:
    code = "import sys, foretrain; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
