"""JSON Schema of every document Foretrain reads or writes, for editors and tools."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from foretrain.analysis.document import prediction_schema
from foretrain.case_schema import case_schema
from foretrain.cluster.schema import ClusterForm
from foretrain.conformity import array_schema, nullable, object_schema
from foretrain.errors import InputError, did_you_mean
from foretrain.measurement.calibration import Calibration
from foretrain.model.details import Details
from foretrain.model.document import ModelDocument
from foretrain.model.shape import TransformerShape
from foretrain.plan.schedules import SCHEDULES
from foretrain.plan.strategy import STATE_ROLES
from foretrain.runtime import Runtime

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def schema(name: str) -> dict[str, Any]:
    """Return the JSON Schema of a file format, for editors and tools.

    Args:
        name: `cluster`, `plan`, `model`, `case`, `prediction`, `search`, `runtime` or `calibration`.

    >>> from foretrain import schema
    >>> schema("plan")["title"]
    'Foretrain plan'
    """
    if name not in _SCHEMAS:
        known = ", ".join(_SCHEMAS)
        raise InputError(f"no schema {name!r}.{did_you_mean(name, _SCHEMAS)} Known: {known}.")
    return {**_SCHEMAS[name](), "$schema": DIALECT, "title": f"Foretrain {name}"}


def _of_dataclass(cls: type) -> dict[str, Any]:
    from pydantic import TypeAdapter

    return TypeAdapter(cls).json_schema()


def _model() -> dict[str, Any]:
    shape, details = _of_dataclass(TransformerShape), _of_dataclass(Details)
    shape["properties"] |= details["properties"]
    graph = _of_dataclass(ModelDocument)
    kept = (shape, details, graph)
    definitions = {name: one for part in kept for name, one in part.pop("$defs", {}).items()}
    zoo = {"type": "object", "properties": {"zoo": {"type": "string"}}, "required": ["zoo"]}
    return {"anyOf": [zoo, shape, graph], "$defs": definitions}


def _plan() -> dict[str, Any]:
    words = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}
    count = {"type": "integer", "minimum": 1}
    cut = object_schema({"dims": words, "axes": words}, ("dims", "axes"))
    schedule = object_schema(
        {
            "kind": {"enum": list(SCHEDULES)},
            "micro_batch": count,
            "stages": count,
            "chunks": count,
            "layers": {"type": "array", "items": {"type": "integer", "minimum": 0}},
        }
    )
    node = object_schema(
        {
            "select": {"type": "string"},
            "split": {
                "anyOf": [
                    {"type": "object", "additionalProperties": words},
                    {"type": "array", "items": cut},
                ]
            },
            "state": object_schema(dict.fromkeys(STATE_ROLES, words)),
            "recompute": {"type": "string"},
            "offload": words,
            "exchange": {"enum": ["ring", "all-gather"]},
            "bucket_bytes": {"type": "number", "exclusiveMinimum": 0},
            "schedule": schedule,
            "children": {
                "anyOf": [
                    {"type": "object", "additionalProperties": {"$ref": "#/$defs/node"}},
                    {"type": "array", "items": {"$ref": "#/$defs/node"}},
                ]
            },
        }
    )
    top = object_schema(
        {
            "text": {"type": "string"},
            "mesh": {"type": "object", "additionalProperties": count},
            "names": {"type": "object", "additionalProperties": words},
            "tree": {"$ref": "#/$defs/node"},
        },
        ("mesh",),
    )
    return {**top, "$defs": {"node": node}}


_TEXT: dict[str, Any] = {"type": "string"}
_NUMBER: dict[str, Any] = {"type": "number"}
_WHOLE: dict[str, Any] = {"type": "integer", "minimum": 0}


def _estimated_plan(**more: Any) -> dict[str, Any]:
    """Seconds are null where a plan does not fit: such plans are not timed."""
    parts = ("step", "work", "pipeline", "data", "update")
    figures = {
        **more,
        "plan": _TEXT,
        **dict.fromkeys(("peak_bytes", "usable_bytes", "lacks_bytes"), _NUMBER),
        **{f"{part}_seconds": nullable("number") for part in parts},
    }
    return object_schema(figures, tuple(figures))


def _explanation() -> dict[str, Any]:
    properties = {
        **dict.fromkeys(("choice", "value", "sentence"), _TEXT),
        "plan": nullable("string"),
        "fits": {"type": "boolean"},
        **dict.fromkeys(("step_seconds", "slower_seconds", "more_bytes"), nullable("number")),
        "lacks_bytes": _NUMBER,
        "grew": {"type": "object", "additionalProperties": _NUMBER},
    }
    return object_schema(properties, tuple(properties))


def _robustness() -> dict[str, Any]:
    numbers = ("slower_network_seconds", "straggler_seconds", "fits_probability")
    properties = {**dict.fromkeys(numbers, _NUMBER), "fits_with_more_memory": {"type": "boolean"}}
    return object_schema(properties, tuple(properties))


def _per_layer() -> dict[str, Any]:
    counts = dict.fromkeys(("problems", "solved", "simulated", "fitting"), _WHOLE)
    figures = {**counts, **dict.fromkeys(("gain", "gap"), nullable("number"))}
    return object_schema(figures, tuple(figures))


def _search() -> dict[str, Any]:
    ranked = {
        "plan": _TEXT,
        "tree": {"$ref": "#/$defs/plan"},
        "prediction": {"$ref": "#/$defs/prediction"},
        "estimated_seconds": _NUMBER,
        "as_good": {"type": "boolean"},
        "robustness": {"anyOf": [_robustness(), {"type": "null"}]},
    }
    fastest = {"plan": _TEXT, "step_seconds": _NUMBER}
    always = {
        "objective": {"enum": ["time", "cost", "memory", "pareto"]},
        "question": {"type": "object"},
        "plans_valid": _WHOLE,
        "plans_fitting": _WHOLE,
        "plans_pruned": {"type": "object", "additionalProperties": _WHOLE},
        "plans_varied": {"type": "object", "additionalProperties": _WHOLE},
        "seconds": _NUMBER,
        "best": array_schema(object_schema(ranked, tuple(ranked))),
        "fastest": {"anyOf": [object_schema(fastest, tuple(fastest)), {"type": "null"}]},
        "as_good": _WHOLE,
        "command": nullable("string"),
        "pareto": array_schema(_estimated_plan()),
        "explanations": array_schema(_explanation()),
        "nearest": {"anyOf": [_estimated_plan(), {"type": "null"}]},
        "with_more_nodes": {
            "anyOf": [_estimated_plan(factor=_WHOLE, nodes=_WHOLE), {"type": "null"}]
        },
        "per_layer": {"anyOf": [_per_layer(), {"type": "null"}]},
        "assumptions": array_schema(_TEXT),
        "warnings": array_schema(_TEXT),
        "notes": array_schema(_TEXT),
    }
    lists = dict.fromkeys(("files", "cannot", "warnings"), array_schema(_TEXT))
    files = {"target": _TEXT, "folder": _TEXT, **lists}
    asked = {"why": _explanation(), "exported": object_schema(files, tuple(files))}
    plan = _plan()
    definitions = {**plan.pop("$defs"), "plan": plan, "prediction": prediction_schema()}
    return {**object_schema({**always, **asked}, tuple(always)), "$defs": definitions}


_SCHEMAS: dict[str, Callable[[], dict[str, Any]]] = {
    "cluster": partial(_of_dataclass, ClusterForm),
    "plan": _plan,
    "model": _model,
    "case": case_schema,
    "prediction": prediction_schema,
    "search": _search,
    "runtime": partial(_of_dataclass, Runtime),
    "calibration": partial(_of_dataclass, Calibration),
}
