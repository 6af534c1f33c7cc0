"""Parse and print quantities at the edges; inside, everything is a float in SI units.

Seconds, bytes, bytes per second, FLOP per second. `parse_*` accept numbers (already SI) or text such as
`"80GB"`, `"64GiB"`, `"200Gb/s"`, `"25 GB/s"`, `"3us"`, `"312TFLOPS"`, `"14d"`, `"2 weeks"`, `"4k"`, `"15T"`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Literal

from foretrain.errors import InputError
from foretrain.limits import MOST_COUNT, shown

_PREFIX = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
_SIZES = _PREFIX | {
    "ki": 2.0**10, "Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40, "Pi": 2.0**50,
    "Ei": 2.0**60,
}  # fmt: skip
_SECONDS = {
    "ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0,
    "min": 60.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0,
    "sec": 1.0, "second": 1.0, "minute": 60.0, "hr": 3600.0, "hour": 3600.0, "day": 86400.0, "week": 604800.0,
    "month": 2592000.0,  # 30 days
    "": 1.0,
}  # fmt: skip
_PLURAL = ("sec", "second", "min", "minute", "hr", "hour", "day", "week", "month")
_SECONDS |= {f"{unit}s": _SECONDS[unit] for unit in _PLURAL}
LONGEST = 60  # characters of a quantity
_WHOLE = r"\d{1,3}(?:,\d{3})+|\d+(?:_\d+)*"  # a comma elsewhere would be a decimal one
_NUMBER = rf"\s*([-+]?(?:(?:{_WHOLE})\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*"


def _number(text: str) -> float:
    return float(text.replace(",", "").replace("_", ""))


def _match(pattern: str, value: object, what: str, example: str) -> re.Match[str]:
    match = (
        re.fullmatch(pattern, value, re.ASCII)
        if isinstance(value, str) and len(value) <= LONGEST
        else None
    )
    if match is None:
        raise InputError(f"{shown(value)} is not {what}. Write for example {example}.")
    return match


def _finite(value: float, given: object, what: str) -> float:
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if isinstance(given, bool) or not math.isfinite(number):
        raise InputError(f"{shown(given)} is not a finite {what}.")
    return number


def _quantity(
    value: float | str, pattern: str, scales: Mapping[str, float], what: str, example: str
) -> float:
    """A plain number, or one with a unit: behind it `pattern` has a prefix or a unit of `scales`, and for bits a `b`."""
    name = what.partition(" ")[0]
    if isinstance(value, int | float):
        return _finite(value, value, name)
    number, unit, *bits = _match(_NUMBER + pattern, value, f"a {what}", example).groups()
    scale = scales[unit] / (8.0 if bits and bits[0] != "B" else 1.0)
    return _finite(_number(number) * scale, value, name)


def parse_bytes(value: float | str) -> float:
    """Bytes from `"80GB"`, `"64GiB"`, `"25 MB"` or a plain number."""
    return _quantity(value, r"([kKMGTPE]i?|)B?", _SIZES, "size in bytes", '"80GB"')


def parse_bandwidth(value: float | str) -> float:
    """Bytes per second from `"200Gb/s"`, `"200Gbps"`, `"25GB/s"` or a plain number of bytes/s."""
    example = '"200Gb/s" or "25GB/s"'
    return _quantity(value, r"([kKMGTP]i?|)(b|B|bit)(?:/s|ps)", _SIZES, "bandwidth", example)


def parse_seconds(value: float | str, name: str = "") -> float:
    """Seconds from `"3us"`, `"14d"`, `"36h"`, `"2 weeks"`, `"1 month"` (30 days) or a plain number; faults begin with the
    `name` of what it is."""
    units = "|".join(sorted(_SECONDS, key=len, reverse=True))
    try:
        return _quantity(value, f"({units})", _SECONDS, "time", '"3us", "14d" or "2 weeks"')
    except InputError as error:
        raise InputError(f"{name}: {error}" if name else str(error)) from None


def parse_flops(value: float | str) -> float:
    """FLOP/s from `"312TFLOPS"`, `"19.5 TFLOP/s"` or a plain number."""
    return _quantity(value, r"([kKMGTPE]|)FLOP(?:S|/s|s)", _PREFIX, "rate", '"312TFLOPS"')


def parse_count(value: float | str, name: str = "") -> int:
    """A whole number from `"4k"` (4,096), `"1.5M"`, `"1e12"` or a number; faults begin with the `name` of what it is.

    A bare `k` on a whole number below 1,024 means 1,024 because sequence lengths are spoken that way.
    """
    try:
        return _count(value)
    except InputError as error:
        raise InputError(f"{name}: {error}" if name else str(error)) from None


def _count(value: float | str) -> int:
    count: float
    if isinstance(value, int | float) and not isinstance(value, bool):
        count = value
    else:
        match = _match(_NUMBER + r"([kKMGT]|)", value, "a count", '"4096" or "4k"')
        scale = 1024.0 if match[2] in ("k", "K") else _PREFIX[match[2]]
        count = _number(match[1]) * scale
    if isinstance(count, float) and not count.is_integer():
        raise InputError(f"{value!r} is not a whole number.")
    if abs(count) > MOST_COUNT:
        raise InputError(f"{shown(value)} is too large: counts are at most {MOST_COUNT:,}.")
    return int(count)


def parse_batch(value: float | str) -> tuple[int, Literal["samples", "tokens"]]:
    """A global batch: `"512"` samples, `"4Mtok"` or `"4M tokens"` tokens."""
    if not isinstance(value, str):
        return parse_count(value, "batch"), "samples"
    match = _match(
        r"(?P<count>.*?)\s*(?P<unit>tokens?|tok|samples?|sequences?|)",
        value,
        "a batch",
        '"512" samples or "4M tokens"',
    )
    unit = match["unit"]
    return parse_count(match["count"], "batch"), "tokens" if unit.startswith("tok") else "samples"


def parse_amount(value: float | str) -> float:
    """How many tokens, samples or steps: `"15T"`, `"300B"`, `"1.5M"`, `"1e12"`; here `k` is a thousand."""
    if isinstance(value, int | float):
        return _finite(value, value, "number")
    match = _match(
        _NUMBER + r"([kKMGBT]|)",
        value.strip() if isinstance(value, str) else value,
        "an amount",
        '"15T" or "1e12"',
    )
    return _number(match[1]) * _PREFIX["G" if match[2] == "B" else match[2]]


def _scaled(value: float, steps: tuple[tuple[float, str], ...], digits: int) -> str:
    for scale, unit in steps:
        if abs(value) >= scale:
            return f"{value / scale:,.{digits}f} {unit}"
    scale, unit = steps[-1]
    return f"{value / scale:,.{digits}f} {unit}"


def show_seconds(seconds: float) -> str:
    """`1.23 s`, `45.6 ms`, `7.8 µs`; hours and days for long times."""
    if seconds >= 172800:
        return f"{seconds / 86400:,.1f} d"
    if seconds >= 7200:
        return f"{seconds / 3600:,.1f} h"
    return _scaled(seconds, ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns")), 2)


def rounded_seconds(seconds: float) -> str:
    """Three significant digits are what a prediction can carry: `20.9 s`, `412 ms`."""
    if not math.isfinite(seconds):
        return "unknown"
    if seconds == 0:
        return "0 s"
    unit = show_seconds(seconds).partition(" ")[2]
    number = seconds / TIMES[unit]  # not the one shown: hours and days have one decimal there
    digits = 0 if abs(number) >= 99.95 else 1 if abs(number) >= 9.995 else 2
    return f"{number:,.{digits}f} {unit}"


TIMES: Mapping[str, float] = MappingProxyType(
    {"d": 86400.0, "h": 3600.0, "s": 1.0, "ms": 1e-3, "µs": 1e-6, "ns": 1e-9}
)
_MOST_DECIMALS = 6


def alike(
    values: Iterable[float],
    shown: Callable[[float], str] = rounded_seconds,
    scales: Mapping[str, float] = TIMES,
    unit: str | None = None,
) -> tuple[str, ...]:
    """Figures that are compared with each other, all in one unit, that of the largest: `20.90 s`, `0.41 s`.

    Three digits of the largest and two of the smallest. `shown` is how one alone looks, with a unit of `scales`.
    """
    figures = tuple(values)
    sizes = [abs(value) for value in figures if value and math.isfinite(value)]
    if not sizes:
        return tuple(map(shown, figures))
    unit = unit or shown(max(sizes)).rpartition(" ")[2]
    scale = scales[unit]
    own = _decimals(max(sizes) / scale, 3)
    # one that is far smaller than the others has more of them alone
    needed = (_decimals(size / scale, 2) for size in sizes)
    usual = max((count for count in needed if own < count <= own + 2), default=own)

    def text(value: float) -> str:
        if not math.isfinite(value):
            return shown(value)
        number = round(value / scale, _MOST_DECIMALS)
        decimals = max(usual, _decimals(abs(number), 2)) if number else 0
        return f"{number:,.{min(decimals, _MOST_DECIMALS)}f} {unit}"

    return tuple(map(text, figures))


def _decimals(value: float, digits: int) -> int:
    """So many that a value shows so many significant digits."""
    return max(0, digits - 1 - math.floor(math.log10(value)))


def show_bytes(size: float, unit: str | None = None) -> str:
    """`12.3 GiB`: memory is spoken of in binary units. `unit` names the one to use."""
    steps = ((2.0**40, "TiB"), (2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB"), (1.0, "B"))
    return _scaled(size, tuple(s for s in steps if unit in (None, s[1])), 1)


def show_bandwidth(rate: float) -> str:
    """`25.0 GB/s`: links are spoken of in decimal bytes per second."""
    return _scaled(rate, ((1e12, "TB/s"), (1e9, "GB/s"), (1e6, "MB/s"), (1.0, "B/s")), 1)


def counted(count: int, what: str, plural: str = "") -> str:
    """`1 device`, `8 devices`, `1,024 classes`."""
    return f"{count:,} {what if count == 1 else plural or what + 's'}"


def multiples_near(count: int, factor: int) -> str:
    """The multiples on either side of a count: "16 or 20"."""
    lower = count // factor * factor
    return " or ".join(f"{n:,}" for n in (lower, lower + factor) if n)


def show_count(count: float) -> str:
    """`175.2 B` for parameters, `1,024` for small numbers."""
    if abs(count) < 1e5:
        return f"{count:,.0f}"
    return _scaled(count, ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")), 2)
