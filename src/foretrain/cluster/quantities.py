"""What the fields of nouns, forms and topologies may hold: numbers with or without a unit, so many of something.

A noun says it once, in its annotations: what rows of it are read by, and which of its numbers may be zero.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

from foretrain.errors import ClusterError, InputError, refuse
from foretrain.limits import is_finite, shown
from foretrain.loading import Quantity
from foretrain.units import parse_bandwidth, parse_bytes, parse_count, parse_flops, parse_seconds

T = TypeVar("T")

Bytes = Annotated[float, Quantity(parse_bytes)]
Bandwidth = Annotated[float, Quantity(parse_bandwidth)]
Rate = Annotated[float, Quantity(parse_flops)]
BandwidthOrZero = Annotated[float, Quantity(parse_bandwidth, zero_allowed=True)]
Seconds = Annotated[float, Quantity(parse_seconds, zero_allowed=True)]
Count = Annotated[int, Quantity(parse_count)]
Number = Annotated[float, Quantity(float)]
NumberOrZero = Annotated[float, Quantity(float, zero_allowed=True)]


@cache
def quantities(noun: type) -> Mapping[str, Quantity]:
    """The fields of a dataclass that are quantities, None or not, and how each is read."""
    hints = get_type_hints(noun, include_extras=True).items()
    read = {name: _quantity(hint) for name, hint in hints}
    return {name: quantity for name, quantity in read.items() if quantity is not None}


def _quantity(hint: Any) -> Quantity | None:
    if get_origin(hint) is Annotated:
        return next((one for one in hint.__metadata__ if isinstance(one, Quantity)), None)
    optional = [one for one in get_args(hint) if one is not type(None)]
    return _quantity(optional[0]) if len(optional) == 1 else None


def expect_quantities(noun: Any, message: str, more: Iterable[str] = ()) -> None:
    """Refuse a noun with a quantity that is negative, zero where it may not be, or not finite, or with faults of its own."""
    faults = []
    kind: Any = type(noun)
    for name, quantity in quantities(kind).items():
        value, zero_allowed = getattr(noun, name), quantity.zero_allowed
        if value is None:
            continue
        if not is_finite(value) or value < 0 or (value == 0 and not zero_allowed):
            need = "zero or more" if zero_allowed else "positive"
            faults.append(f"{name}: {shown(value)} must be a finite number, {need}.")
    faults += more
    refuse(message, faults, ClusterError)


def tried(make: Callable[[], T], path: str, faults: list[str]) -> T | None:
    """The value, or None with its faults noted under their path."""
    try:
        return make()
    except InputError as error:
        head = str(error).splitlines()[0]
        faults.extend(f"{path}.{fault}" for fault in error.faults)
        if not error.faults:
            faults.append(f"{path}: {head}")
        return None


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
