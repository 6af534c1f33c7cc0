"""What the fields of forms may hold: numbers with or without a unit. Used by forms and by topologies."""

from __future__ import annotations

from typing import Annotated, Any

from foretrain.loading import Quantity
from foretrain.units import parse_bandwidth, parse_bytes, parse_count, parse_flops, parse_seconds

__all__ = [
    "STRICT",
    "Bandwidth",
    "Bytes",
    "Count",
    "LinkBandwidth",
    "Money",
    "Number",
    "Rate",
    "Seconds",
]

Bytes = Annotated[float, Quantity(parse_bytes)]
Bandwidth = Annotated[float, Quantity(parse_bandwidth)]
Rate = Annotated[float, Quantity(parse_flops)]
LinkBandwidth = Annotated[float, Quantity(parse_bandwidth, zero_allowed=True)]
Seconds = Annotated[float, Quantity(parse_seconds, zero_allowed=True)]
Count = Annotated[int, Quantity(parse_count)]
Number = Annotated[float, Quantity(float)]
Money = Annotated[float, Quantity(float, zero_allowed=True)]

STRICT: Any = {"extra": "forbid"}
"""The `__pydantic_config__` of every form: a misspelt key is a fault."""
