"""The prediction document: its JSON Schema, and whether a document that comes back is one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from foretrain.analysis.prediction import MEMORY_KINDS, SCHEMA_VERSION, STALLS
from foretrain.conformity import schema_faults
from foretrain.errors import FileError

__all__ = ["expect_prediction", "prediction_schema"]

_NUMBER: dict[str, Any] = {"type": "number"}
_AMOUNT: dict[str, Any] = {"type": "number", "minimum": 0}
_TEXT: dict[str, Any] = {"type": "string"}
_COUNT: dict[str, Any] = {"type": "integer", "minimum": 0}


def expect_prediction(document: Any, where: str) -> Mapping[str, Any]:
    """The document, refused with all its faults where it is no prediction."""
    faults = schema_faults(prediction_schema(), document)
    if faults:
        count = "1 error" if len(faults) == 1 else f"{len(faults):,} errors"
        raise FileError(
            f"{where} is not a valid prediction ({count}); create one with 'foretrain predict "
            "… -o FILE.json':",
            faults=faults,
        )
    found: Mapping[str, Any] = document
    return found


def prediction_schema() -> dict[str, Any]:
    """The JSON Schema of `Prediction.to_dict()`."""
    stalls = _object(dict.fromkeys(STALLS, _AMOUNT), STALLS)
    remedy = _rows(change=_TEXT, step_seconds=_AMOUNT, speedup=_NUMBER)
    numbers = ("samples_per_second", "measured_share")
    rates = ("tokens_per_second", "mfu", "hfu")
    step = {"type": "number", "exclusiveMinimum": 0}
    properties = {
        "id": _TEXT,
        "schema_version": {"const": SCHEMA_VERSION},
        "question": {"type": "object"},
        "step_seconds": step,
        "interval": {**_list(_AMOUNT), "minItems": 2, "maxItems": 2},
        **dict.fromkeys(numbers, _AMOUNT),
        **dict.fromkeys(rates, _or_null("number")),
        "fits": {"type": "boolean"},
        "memory": _memory(),
        "stalls": stalls,
        "stalls_by_stage": _list(stalls),
        "bottleneck": {"enum": list(STALLS)},
        "what_would_help": remedy,
        "cost": _object(
            {
                "usd_per_hour": _or_null("number"),
                "usd_per_step": _or_null("number"),
                "price_date": _or_null("string"),
            }
        ),
        "job": {"anyOf": [_job(), {"type": "null"}]},
        "critical_path": _rows(start=_AMOUNT, end=_AMOUNT, stage=_COUNT, what=_TEXT),
        "links": _list({"type": "object"}),
        "operators": _rows(op=_TEXT, seconds=_AMOUNT),
        "assumptions": _list(_TEXT),
        "warnings": _list(_TEXT),
        "provenance": {"type": "object", "additionalProperties": _TEXT},
    }
    required = ["id", "schema_version", "step_seconds", "interval", "fits", "memory", "stalls"]
    return {"type": "object", "properties": properties, "required": required}


def _memory() -> dict[str, Any]:
    kinds = _object(dict.fromkeys(MEMORY_KINDS, _AMOUNT), MEMORY_KINDS)
    stage = {
        "stage": _COUNT,
        "peak_bytes": _AMOUNT,
        "allocated_bytes": _AMOUNT,
        "by_kind": kinds,
        "moment": _TEXT,
    }
    whole = {
        **dict.fromkeys(("peak_bytes", "allocated_bytes", "total_bytes"), _AMOUNT),
        **dict.fromkeys(("capacity_bytes", "context_bytes", "headroom_bytes"), _AMOUNT),
        "usable_bytes": _AMOUNT,
        "interval_bytes": {**_list(_AMOUNT), "minItems": 2, "maxItems": 2},
        "fits_probability": {"type": "number", "minimum": 0, "maximum": 1},
        "peak_stage": _COUNT,
        "moment": _TEXT,
        "by_kind": kinds,
        "by_stage": _list(_object(stage)),
    }
    required = ("peak_bytes", "capacity_bytes", "usable_bytes", "fits_probability", "by_kind")
    return _object(whole, (*required, "by_stage"))


def _job() -> dict[str, Any]:
    """Figures are null where nothing is known of them, or where failures would never let the job end."""
    figure = _or_null("number")
    goodput = {
        "share": {"type": "number", "minimum": 0, "maximum": 1},
        **dict.fromkeys(("mtbf_hours", "checkpoint_every_seconds"), figure),
        **dict.fromkeys(("checkpoint_seconds", "restart_seconds"), _NUMBER),
    }
    told = {
        "asked": _TEXT,
        "samples": _NUMBER,
        "tokens": figure,
        "steps": {"type": "integer", "minimum": 1},
        "compute_days": _NUMBER,
        "expected_days": figure,
        "interval_days": {**_list(figure), "minItems": 2, "maxItems": 2},
        "device_hours": figure,
        **dict.fromkeys(("usd", "usd_per_device_hour", "energy_kwh", "pue"), figure),
        "goodput": _object(goodput, tuple(goodput)),
    }
    return _object(told, tuple(told))


def _object(properties: dict[str, Any], required: tuple[str, ...] = ()) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


def _list(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items}


def _rows(**columns: dict[str, Any]) -> dict[str, Any]:
    return _list(_object(columns, tuple(columns)))


def _or_null(kind: str) -> dict[str, Any]:
    return {"type": [kind, "null"]}
