"""Prices: the catalog's with their date, and the user's own over them."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any

from foretrain.cluster.catalog import nodes
from foretrain.cluster.node import Node
from foretrain.errors import FileError, InputError, did_you_mean, refuse
from foretrain.limits import shown
from foretrain.loading import Quantity, Strict, load_yaml, read_text, validated

BUYING = ("on-demand", "spot", "reserved")


def discount_share(given: float | str | None) -> float:
    """`0.3` or `"30%"` off a price; 0 where nothing is said."""
    return 0.0 if given is None else share_below_one("discount", given, "of the price, such as 30%")


def share_below_one(name: str, given: float | str, example: str = "below 1, such as 5%") -> float:
    """`0.3` or `"30%"`."""
    try:
        text = str(given).strip()
        value = float(text[:-1]) / 100.0 if text.endswith("%") else float(text)
    except ValueError:
        value = -1.0
    if isinstance(given, bool) or not 0 <= value < 1:
        raise InputError(f"{name}: {shown(given)} is not a share {example}.")
    return value


Usd = Annotated[float, Quantity(float, zero_allowed=True)]


@dataclass(frozen=True, slots=True)
class Tariff:
    """USD per hour of one machine by the way it is bought; None where it cannot be bought so."""

    on_demand: float | None
    spot: float | None
    reserved: float | None
    date: str
    source: str
    quota: int | None = None  # machines at most

    is_own: bool = False  # specified by the user: no discount is taken off again

    def usd(self, buying: str, discount: float = 0.0) -> float | None:
        """What a machine is had for; `discount` is what a contract takes off the catalog's price."""
        price = {"on-demand": self.on_demand, "spot": self.spot, "reserved": self.reserved}[buying]
        if buying == "reserved" and price is None and discount:
            price = self.on_demand
        if price is None or buying == "spot" or self.is_own:
            return price
        return price * (1.0 - discount)


@dataclass(frozen=True, slots=True)
class OwnPrice(Strict):
    """One row of the user's file."""

    instance: str
    date: str
    usd_per_hour: Usd | None = None
    spot_usd_per_hour: Usd | None = None
    reserved_usd_per_hour: Usd | None = None
    quota: int | None = None
    source: str = ""


@dataclass(frozen=True, slots=True)
class _File(Strict):
    prices: tuple[OwnPrice, ...]


def read_prices(path: str | Path) -> tuple[OwnPrice, ...]:
    """Rows of a CSV (with a header) or YAML file (`prices:` a list); all faults at once."""
    file = Path(path)
    if file.suffix.lower() == ".csv":
        rows: Any = _csv(read_text(file, what="a table of prices"), str(file))
    elif file.suffix.lower() in (".yaml", ".yml"):
        document = load_yaml(file, "a table of prices")
        rows = document.get("prices") if isinstance(document, Mapping) else document
    else:
        raise FileError(f"{file}: unsupported format; prices must be a .csv or .yaml file.")
    if not isinstance(rows, list) or not rows:
        raise FileError(
            f"{file} has no prices; expected rows with instance, usd_per_hour and date."
        )
    faults = _faults(rows)
    try:
        prices = validated(_File, {"prices": rows}, str(file), FileError).prices
    except FileError as error:
        faults = [*error.faults, *faults]
    if faults:
        count = "1 error" if len(faults) == 1 else f"{len(faults)} errors"
        raise FileError(f"{file} is invalid ({count}):", faults=faults)
    return prices


def _csv(text: str, where: str) -> list[dict[str, Any]]:
    try:
        read = list(csv.DictReader(io.StringIO(text), skipinitialspace=True, strict=True))
    except csv.Error as error:
        raise FileError(f"{where} is not CSV ({error}).") from None
    rows = []
    for number, row in enumerate(read):
        if None in row or None in row.values():
            raise FileError(f"{where}: row {number + 2} has more or fewer cells than the header.")
        filled = {key.strip(): value.strip() for key, value in row.items() if value.strip()}
        if str(filled.get("quota", "")).isdigit():
            filled["quota"] = int(filled["quota"])
        rows.append(filled)
    return rows


_PRICES = ("usd_per_hour", "spot_usd_per_hour", "reserved_usd_per_hour", "quota")


def _faults(rows: Sequence[Any]) -> list[str]:
    """What a validator of single values cannot see."""
    known, faults = list(_offers()), []
    names: list[str] = []
    for number, row in enumerate(rows):
        if not isinstance(row, Mapping):
            continue
        at, name = f"prices[{number}]", str(row.get("instance", ""))
        if name and name not in known:
            faults.append(
                f"{at}.instance: {name!r} is unknown.{did_you_mean(name, known)} Add your own "
                "instances to the directory in FORETRAIN_CATALOG."
            )
        if name and name in names:
            faults.append(f"{at}.instance: {name!r} is specified twice.")
        names.append(name)
        quota = row.get("quota")
        if isinstance(quota, int) and quota < 0:
            faults.append(f"{at}.quota: {quota} must be zero or more.")
        if all(row.get(key) is None for key in _PRICES):
            faults.append(f"{at}: specifies neither a price nor a quota.")
        date = row.get("date")
        if isinstance(date, str) and not date[:4].isdigit():
            faults.append(f"{at}.date: {date!r} is not a date; write for example 2026-08-22.")
    return faults


def _offers() -> dict[str, Node]:
    """Machines of the catalog that somebody rents out."""
    return {name: node for name, node in nodes().items() if node.cloud is not None}


def tariffs(own: Iterable[OwnPrice] = ()) -> dict[str, Tariff]:
    """By instance; what the user gives replaces what the catalog has, with the user's date."""
    by_instance = {name: _catalogued(node) for name, node in _offers().items()}
    for row in own:
        base = by_instance[row.instance]
        new = replace(
            base,
            on_demand=base.on_demand if row.usd_per_hour is None else row.usd_per_hour,
            spot=base.spot if row.spot_usd_per_hour is None else row.spot_usd_per_hour,
            reserved=row.reserved_usd_per_hour,
            quota=row.quota,
        )
        prices = (row.usd_per_hour, row.spot_usd_per_hour, row.reserved_usd_per_hour)
        if any(price is not None for price in prices):
            source = row.source or "specified by the user"
            new = replace(new, date=row.date, source=source, is_own=True)
        by_instance[row.instance] = new
    return by_instance


def _catalogued(node: Node) -> Tariff:
    price = node.price
    if price is None:
        return Tariff(None, None, None, "", "")
    return Tariff(price.usd_per_hour, price.spot_usd_per_hour, None, price.date, price.source)


@dataclass(frozen=True, slots=True)
class Quota:
    """At most so many machines whose name matches."""

    pattern: str
    most: int


def _is_count(text: str) -> bool:
    return text.isdecimal() and text.isascii() and len(text) < 10


def quotas(texts: Iterable[str]) -> tuple[Quota, ...]:
    """`16` (of any), `aws:p4*=8`; all faults at once."""
    read, faults = [], []
    for text in texts:
        pattern, equals, number = text.rpartition("=")
        if not _is_count(number.strip()) or (equals and not pattern.strip()):
            faults.append(
                f"{text!r}: expected a number of instances, or NAME=NUMBER with * as wildcard."
            )
            continue
        quota = Quota(pattern.strip() or "*", int(number.strip()))
        if not any(matches(name, quota.pattern) for name in _offers()):
            near = did_you_mean(quota.pattern, _offers())
            faults.append(
                f"{text!r}: no instance has this name.{near} Use * as wildcard, as in aws:p5*=4."
            )
        read.append(quota)
    refuse("invalid quotas:", faults)
    return tuple(read)


def matches(name: str, pattern: str) -> bool:
    """By the whole name or without its cloud, whatever the case."""
    folded = pattern.strip().lower()
    return any(fnmatchcase(word, folded) for word in (name.lower(), name.lower().partition(":")[2]))


def chosen(patterns: Iterable[str] = ()) -> dict[str, Node]:
    """Machines that match any pattern; without one, those that can still be rented."""
    patterns = tuple(patterns)
    if any(not text.strip(" ,") for text in patterns):
        raise InputError("instances: a pattern is empty. Write for example 'aws:p4*,gcp:a3*'.")
    wanted = [word for text in patterns for word in text.split(",") if word.strip()]
    every = _offers()
    if not wanted:
        return {name: node for name, node in every.items() if node.status == "current"}
    lost = [word for word in wanted if not any(matches(name, word) for name in every)]
    if lost:
        raise InputError(
            "no instance matches:",
            faults=[f"{word!r}.{did_you_mean(word, every)} Use * as wildcard." for word in lost],
        )
    return {
        name: node for name, node in every.items() if any(matches(name, word) for word in wanted)
    }
