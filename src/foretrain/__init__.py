"""Foretrain predicts distributed training before the cluster is rented.

    from foretrain import predict
    p = predict("llama3-8b", on="2 x dgx-h100", plan="tp4 pp2 dp2 zero1", batch=256, micro_batch=1, seq=8192)
    p.step_seconds, p.memory.peak_bytes, p.stalls, p.save("report.html")

This is the one door: everything a user needs is listed in `__all__`. Names load when first used, so that
`foretrain --help` does not wait for numpy.
"""

from __future__ import annotations

__version__ = "0.1.0"

TYPE_CHECKING = False
"""Not from `typing`, which takes long to load: until the command line runs, Ctrl-C shows a traceback."""

if TYPE_CHECKING:
    from foretrain import measure as measure
    from foretrain.analysis.compare import compare as compare
    from foretrain.analysis.explain import explain as explain
    from foretrain.analysis.prediction import Prediction as Prediction
    from foretrain.cases import predict_cases as predict_cases
    from foretrain.cluster import Cluster as Cluster
    from foretrain.exports import export as export
    from foretrain.fits import fit as fit
    from foretrain.forecast import compile_graph as compile_graph
    from foretrain.forecast import predict as predict
    from foretrain.measure import calibrate as calibrate
    from foretrain.model.graph import Model as Model
    from foretrain.model.workload import DataSource as DataSource
    from foretrain.model.workload import Workload as Workload
    from foretrain.plan import Plan as Plan
    from foretrain.recommendation.facade import recommend as recommend
    from foretrain.runtime import Runtime as Runtime
    from foretrain.schemas import schema as schema
    from foretrain.searching import search as search
    from foretrain.sweeps import sweep as sweep
    from foretrain.validation import validate as validate
    from foretrain.whatifs import whatif as whatif

_HOME = {
    "Cluster": "foretrain.cluster",
    "DataSource": "foretrain.model.workload",
    "Model": "foretrain.model.graph",
    "Plan": "foretrain.plan",
    "Prediction": "foretrain.analysis.prediction",
    "Runtime": "foretrain.runtime",
    "Workload": "foretrain.model.workload",
    "calibrate": "foretrain.measure",
    "compare": "foretrain.analysis.compare",
    "compile_graph": "foretrain.forecast",
    "explain": "foretrain.analysis.explain",
    "export": "foretrain.exports",
    "fit": "foretrain.fits",
    "measure": "foretrain.measure",
    "predict": "foretrain.forecast",
    "predict_cases": "foretrain.cases",
    "recommend": "foretrain.recommendation.facade",
    "schema": "foretrain.schemas",
    "search": "foretrain.searching",
    "sweep": "foretrain.sweeps",
    "validate": "foretrain.validation",
    "whatif": "foretrain.whatifs",
}

__all__ = [
    "Cluster",
    "DataSource",
    "Model",
    "Plan",
    "Prediction",
    "Runtime",
    "Workload",
    "__version__",
    "calibrate",
    "compare",
    "compile_graph",
    "explain",
    "export",
    "fit",
    "measure",
    "predict",
    "predict_cases",
    "recommend",
    "schema",
    "search",
    "sweep",
    "validate",
    "whatif",
]


def __getattr__(name: str) -> object:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'foretrain' has no attribute {name!r}")
    from importlib import import_module

    module = import_module(home)
    return module if home == f"{__name__}.{name}" else getattr(module, name)


def __dir__() -> list[str]:
    return sorted(__all__)
