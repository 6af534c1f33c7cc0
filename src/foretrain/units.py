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
_BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40, "Pi": 2.0**50}
_SECONDS = {
    "ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0,
    "min": 60.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0,
    "sec": 1.0, "second": 1.0, "minute": 60.0, "hr": 3600.0, "hour": 3600.0, "day": 86400.0, "week": 604800.0,
    "month": 2592000.0,  # 30 days
}  # fmt: skip
LONGEST = 60  # characters of a quantity
_PLURAL = ("sec", "second", "min", "minute", "hr", "hour", "day", "week", "month")
_NUMBER = r"\s*([-+]?(?:\d[\d_,]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*"


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


def parse_bytes(value: float | str) -> float:
    """Bytes from `"80GB"`, `"64GiB"`, `"25 MB"` or a plain number."""
    if isinstance(value, int | float):
        return _finite(value, value, "size")
    match = _match(_NUMBER + r"([kKMGTPE]i?|)B?", value, "a size in bytes", '"80GB"')
    prefix = match[2]
    scale = _BINARY[prefix.replace("k", "K")] if prefix.endswith("i") else _PREFIX[prefix]
    return _finite(_number(match[1]) * scale, value, "size")


def parse_bandwidth(value: float | str) -> float:
    """Bytes per second from `"200Gb/s"`, `"200Gbps"`, `"25GB/s"` or a plain number of bytes/s."""
    if isinstance(value, int | float):
        return _finite(value, value, "bandwidth")
    pattern = _NUMBER + r"([kKMGTP]i?|)(b|B|bit)(?:/s|ps)"
    match = _match(pattern, value, "a bandwidth", '"200Gb/s" or "25GB/s"')
    prefix = match[2]
    scale = _BINARY[prefix.replace("k", "K")] if prefix.endswith("i") else _PREFIX[prefix]
    rate = _number(match[1]) * scale / (1.0 if match[3] == "B" else 8.0)
    return _finite(rate, value, "bandwidth")


def parse_seconds(value: float | str) -> float:
    """Seconds from `"3us"`, `"14d"`, `"36h"`, `"2 weeks"`, `"1 month"` (30 days) or a plain number."""
    if isinstance(value, int | float):
        return _finite(value, value, "time")
    units = "|".join(sorted((*_SECONDS, *(f"{u}s" for u in _PLURAL)), key=len, reverse=True))
    match = _match(_NUMBER + f"({units}|)", value, "a time", '"3us", "14d" or "2 weeks"')
    unit = match[2] or "s"
    scale = _SECONDS[unit if unit in _SECONDS else unit.removesuffix("s")]
    return _finite(_number(match[1]) * scale, value, "time")


def parse_flops(value: float | str) -> float:
    """FLOP/s from `"312TFLOPS"`, `"19.5 TFLOP/s"` or a plain number."""
    if isinstance(value, int | float):
        return _finite(value, value, "rate")
    pattern = _NUMBER + r"([kKMGTPE]|)FLOP(?:S|/s|s)"
    match = _match(pattern, value, "a rate", '"312TFLOPS"')
    return _finite(_number(match[1]) * _PREFIX[match[2]], value, "rate")


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
    match = _match(_NUMBER + r"([kKMGBT]|)", value.strip(), "an amount", '"15T" or "1e12"')
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
