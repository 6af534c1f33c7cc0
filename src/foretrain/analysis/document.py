"""The prediction document: its JSON Schema, and whether a document that comes back is one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from foretrain.analysis.prediction import MEMORY_KINDS, SCHEMA_VERSION, STALLS
from foretrain.conformity import array_schema, nullable, object_schema, schema_faults
from foretrain.errors import FileError

MOST = 1e30  # of anything in a prediction: what is beyond was not predicted, and overflows when compared
SHORTEST_STEP = 1e-12  # seconds; a clock cycle of a device takes a thousand times as long
_AMOUNT: dict[str, Any] = {"type": "number", "minimum": 0, "maximum": MOST}
_AMOUNT_OR_NULL: dict[str, Any] = {**_AMOUNT, "type": ["number", "null"]}
_SHARE: dict[str, Any] = {"type": "number", "minimum": 0, "maximum": 1}
_TEXT: dict[str, Any] = {"type": "string"}
_COUNT: dict[str, Any] = {"type": "integer", "minimum": 0}
_SOME: dict[str, Any] = {"type": "integer", "minimum": 1}


def expect_prediction(document: Any, where: str) -> Mapping[str, Any]:
    """The document, refused with all its faults where it is no prediction."""
    faults = schema_faults(prediction_schema(), document) or _contradictions(document)
    if faults:
        count = "1 error" if len(faults) == 1 else f"{len(faults):,} errors"
        raise FileError(
            f"{where} is not a valid prediction ({count}); create one with 'foretrain predict "
            "… -o FILE.json':",
            faults=faults,
        )
    prediction: Mapping[str, Any] = document
    return prediction


def _contradictions(document: Mapping[str, Any]) -> list[str]:
    """What no schema can say: intervals run upwards."""
    intervals = {
        "interval": document["interval"],
        "memory.interval_bytes": document["memory"].get("interval_bytes"),
        "job.interval_days": (document.get("job") or {}).get("interval_days"),
    }
    return [
        f"{name}: the lower bound {low:g} is above the upper bound {high:g}."
        for name, (low, high) in ((name, pair) for name, pair in intervals.items() if pair)
        if low is not None and high is not None and low > high
    ]


def prediction_schema() -> dict[str, Any]:
    """The JSON Schema of `Prediction.to_dict()`."""
    stalls = object_schema(dict.fromkeys(STALLS, _AMOUNT), STALLS)
    numbers = ("samples_per_second", "measured_share")
    rates = ("tokens_per_second", "mfu", "hfu")
    step = {"type": "number", "minimum": SHORTEST_STEP, "maximum": MOST}
    properties = {
        "id": _TEXT,
        "schema_version": {"const": SCHEMA_VERSION},
        "question": _question(),
        "step_seconds": step,
        "interval": {**array_schema(_AMOUNT), "minItems": 2, "maxItems": 2},
        **dict.fromkeys(numbers, _AMOUNT),
        **dict.fromkeys(rates, _AMOUNT_OR_NULL),
        "fits": {"type": "boolean"},
        "memory": _memory(),
        "stalls": stalls,
        "stalls_by_stage": array_schema(stalls),
        "bottleneck": {"enum": list(STALLS)},
        "what_would_help": array_schema(remedy_schema()),
        "cost": object_schema(
            {
                "usd_per_hour": _AMOUNT_OR_NULL,
                "usd_per_step": _AMOUNT_OR_NULL,
                "price_date": nullable("string"),
            }
        ),
        "job": {"anyOf": [_job(), {"type": "null"}]},
        "critical_path": _rows(start=_AMOUNT, end=_AMOUNT, stage=_COUNT, what=_TEXT),
        "links": array_schema({"type": "object"}),
        "operators": _rows(op=_TEXT, seconds=_AMOUNT),
        "assumptions": array_schema(_TEXT),
        "warnings": array_schema(_TEXT),
        "provenance": {"type": "object", "additionalProperties": _TEXT},
    }
    required = ["id", "schema_version", "step_seconds", "interval", "fits", "memory", "stalls"]
    return {"type": "object", "properties": properties, "required": required}


def remedy_schema() -> dict[str, Any]:
    """A change and what it brings; earlier documents have its first three fields alone."""
    brings = {"change": _TEXT, "step_seconds": _AMOUNT, "speedup": _AMOUNT}
    besides = {
        "kind": {"enum": ["plan", "option", "machine", "hardware"]},
        "paste": _TEXT,
        "peak_bytes": _AMOUNT_OR_NULL,
        "fits": {"type": "boolean"},
        "usd_per_hour": _AMOUNT_OR_NULL,
        "remark": _TEXT,
    }
    return object_schema({**brings, **besides}, tuple(brings))


def _question() -> dict[str, Any]:
    """What was asked; only figures that others are divided by have bounds."""
    counts = ("global_batch", "micro_batch", "micro_batches", "devices", "nodes", "parameters")
    length = {"type": ["integer", "null"], "minimum": 1}
    source = object_schema(
        dict.fromkeys(("bytes_per_sample", "prep_seconds_per_sample", "workers"), _AMOUNT)
    )
    besides = {
        "runtime_options": {"type": "object"},
        "data": source,
        "stragglers": _TEXT,
        **dict.fromkeys(("calibration", "calibration_sha256"), _TEXT),
        **dict.fromkeys(("headroom", "usd_per_device_hour", "pue"), _AMOUNT),
        **dict.fromkeys(("mtbf_hours", "restart_seconds", "checkpoint_rate"), _AMOUNT),
    }
    return {
        "type": "object",
        "properties": {**dict.fromkeys(counts, _SOME), "seq_len": length, **besides},
    }


def _memory() -> dict[str, Any]:
    kinds = object_schema(dict.fromkeys(MEMORY_KINDS, _AMOUNT), MEMORY_KINDS)
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
        "interval_bytes": {**array_schema(_AMOUNT), "minItems": 2, "maxItems": 2},
        "fits_probability": _SHARE,
        "peak_stage": _COUNT,
        "moment": _TEXT,
        "by_kind": kinds,
        "by_stage": array_schema(object_schema(stage)),
    }
    required = ("peak_bytes", "capacity_bytes", "usable_bytes", "fits_probability", "by_kind")
    return object_schema(whole, (*required, "by_stage"))


def _job() -> dict[str, Any]:
    """Figures are null where nothing is known of them, or where failures would never let the job end."""
    figure = _AMOUNT_OR_NULL
    goodput = {
        "share": _SHARE,
        **dict.fromkeys(("mtbf_hours", "checkpoint_every_seconds"), figure),
        **dict.fromkeys(("checkpoint_seconds", "restart_seconds"), _AMOUNT),
    }
    properties = {
        "asked": _TEXT,
        "samples": _AMOUNT,
        "tokens": figure,
        "steps": _SOME,
        "compute_days": _AMOUNT,
        "expected_days": figure,
        "interval_days": {**array_schema(figure), "minItems": 2, "maxItems": 2},
        "device_hours": figure,
        **dict.fromkeys(("usd", "usd_per_device_hour", "energy_kwh", "pue"), figure),
        "goodput": object_schema(goodput, tuple(goodput)),
    }
    return object_schema(properties, tuple(properties))


def _rows(**columns: dict[str, Any]) -> dict[str, Any]:
    return array_schema(object_schema(columns, tuple(columns)))
