"""What the fields of forms may hold: numbers with or without a unit, so many of something. Used by forms and topologies."""

from __future__ import annotations

import re
from typing import Annotated, Any

from foretrain.errors import ClusterError
from foretrain.limits import shown
from foretrain.loading import Quantity
from foretrain.units import parse_bandwidth, parse_bytes, parse_count, parse_flops, parse_seconds

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

COUNT = r"(\d[\d,_]*)"
TERM = re.compile(rf"(?:{COUNT}(?:\s*[x×*]\s*|\s+))?(\S.*)", re.ASCII)
_COUNT_BEHIND = re.compile(rf"(\S.*?)\s*:\s*{COUNT}", re.ASCII)


def split_count(term: str) -> tuple[int, str]:
    """`"16 x dgx-a100"`, `"16 dgx-a100"` and `"dgx-a100:16"` as (16, "dgx-a100"); no count means one."""
    plain = term.strip()
    behind = _COUNT_BEHIND.fullmatch(plain)
    if behind is not None:
        return counted_nodes(behind[2], plain), behind[1]
    match = TERM.fullmatch(plain)
    if match is None:
        raise ClusterError(
            f'{shown(term)} is not a cluster; write for example "2 x dgx-a100-80gb".'
        )
    return counted_nodes(match[1] or "1", plain), match[2].strip()


def counted_nodes(digits: str, term: str) -> int:
    digits = digits.replace(",", "").replace("_", "")
    if len(digits) > 9:
        raise ClusterError(f"{shown(term, 80)} has too many nodes.")
    return int(digits)
