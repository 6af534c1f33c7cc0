"""The JSON Schema of a case: what every reader of cases can rely on. Unknown keys are let through."""

from __future__ import annotations

from functools import cache
from typing import Any

from foretrain.conformity import schema_faults
from foretrain.limits import BATCH, DEVICES, LAYERS, SEQUENCE

_OBJECT: dict[str, Any] = {"type": ["object", "null"]}
_WORD: dict[str, Any] = {"type": ["string", "null"]}
_FLAG: dict[str, Any] = {"type": ["boolean", "null"]}
_AMOUNT: dict[str, Any] = {"type": ["number", "null"], "minimum": 0, "maximum": 1e15}
_REMARKS = ("source", "caveats", "assumed")  # said of a case, and no part of it
_DEGREES = ("dp", "tp", "pp", "vpp", "cp", "ep")
_AMOUNTS = (
    "step_time_s", "step_time_min_s", "step_time_max_s", "sync_time_s", "samples_per_s", "tokens_per_s_per_device",
    "memory_gib", "runs",
)  # fmt: skip


def case_faults(case: object) -> list[str]:
    """Everything in which this is no case; empty if nothing."""
    return schema_faults(_schema(), case)


@cache
def _schema() -> dict[str, Any]:
    return case_schema()


def case_keys(part: str = "") -> tuple[str, ...]:
    """The keys that a case, or one of its parts, may have."""
    properties = _schema()["properties"]
    return tuple(properties[part]["properties"] if part else (*properties, *_REMARKS))


def _count(most: int) -> dict[str, Any]:
    return {"type": ["integer", "null"], "minimum": 1, "maximum": most}


def _counts(least: int, most: int) -> dict[str, Any]:
    return {
        "type": ["array", "null"],
        "items": {"type": "integer", "minimum": least, "maximum": most},
    }


def _properties(**properties: dict[str, Any]) -> dict[str, Any]:
    return {**_OBJECT, "properties": properties}


@cache
def cluster_schema() -> dict[str, Any]:
    """Of a cluster told by its device and links."""
    degree = _count(DEVICES.most)
    cluster = _properties(
        device={"type": "string"},
        devices_per_node=degree,
        nodes=degree,
        intra_node=_WORD,
        network=_properties(kind=_WORD, gbps_per_node={"type": ["number", "null"]}),
        nvlink_domain=degree,
    )
    return {**cluster, "type": "object", "required": ["device"]}


def case_schema() -> dict[str, Any]:
    """For `foretrain schema case`, and for what reads cases."""
    degree = _count(DEVICES.most)
    plan = _properties(
        **dict.fromkeys(_DEGREES, degree),
        zero={"enum": [0, 1, 2, 3, None]},
        sequence_parallel=_FLAG,
        recompute=_WORD,
        schedule=_WORD,
        optimizer_offload=_FLAG,
    )
    batch = {"type": ["number", "null"], "minimum": 0, "maximum": BATCH.most}
    by_rank = {**_OBJECT, "additionalProperties": _AMOUNT}
    measured = _properties(
        **dict.fromkeys(_AMOUNTS, _AMOUNT),
        ok=_FLAG,
        memory_by_rank_gib=by_rank,
        reserved_by_rank_gib=by_rank,
    )
    return {
        "type": "object",
        "properties": {
            "id": {"type": ["string", "integer", "null"]},
            "group": _WORD,
            "quality": _WORD,
            "model": {"type": "object"},
            "seq_len": _count(SEQUENCE.most),
            "cluster": cluster_schema(),
            "devices": degree,
            "plan": plan,
            "batch": _properties(**dict.fromkeys(("global", "micro", "per_device"), batch)),
            "precision": _WORD,
            "optimizer": _WORD,
            "runtime": _WORD,
            "runtime_options": _options(),
            "measured": measured,
        },
        "required": ["model", "cluster"],
    }


def _options() -> dict[str, Any]:
    """Switches whose values are taken as they are; what others say is looked up in tables."""
    return _properties(
        max_predictions=_count(SEQUENCE.most),
        moe_capacity_factor={"type": ["number", "null"], "minimum": 0, "maximum": 1000},
        placement=_counts(1, DEVICES.most),
        layers_per_stage=_counts(1, LAYERS.most),
        recompute_layers_per_stage=_counts(0, LAYERS.most),
        expert_tensor_parallel=_count(DEVICES.most),
        recompute_modules={"type": ["string", "array", "null"], "items": {"type": "string"}},
    )
