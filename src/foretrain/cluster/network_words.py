"""What people call a network (`ndr`, `100GbE`, `rdma`), and what it is; the table is `catalog/networks.yaml`."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from foretrain.errors import did_you_mean, near_words
from foretrain.limits import shown
from foretrain.loading import load_own_yaml
from foretrain.units import parse_bandwidth

_SPEED = re.compile(r"(\d{1,5}(?:\.\d{1,3})?)([a-z]+)", re.ASCII)


@dataclass(frozen=True, slots=True)
class NetworkWord:
    """A kind of link, and bytes/s of one port where the word tells it."""

    kind: str
    bandwidth: float | None = None


def network_word(text: str) -> NetworkWord | None:
    """What the text stands for; None if any part of it is not known."""
    parts = _parts(text)
    read = [_read(part) for part in parts]
    return _joined([one for one in read if one is not None]) if parts and None not in read else None


def nearest_network(text: str, gbps: float | None) -> NetworkWord:
    """The same, from the parts that are known, else from the word most alike, else from the speed in Gb/s."""
    like = near_words(text, _table()["words"])
    read = [one for one in map(_read, _parts(text)) if one is not None]
    read = read or [one for one in map(_read, like[:1]) if one is not None]
    return _joined(read) if read else NetworkWord(_usual_at((gbps or 0.0) * 1e9 / 8))


def unknown_network(text: str) -> str:
    """What to tell about a word that is not known."""
    words = _table()["words"]
    kinds = dict.fromkeys(row["kind"] for row in words.values())
    return (
        f"Unknown network kind {shown(text, 60)}.{did_you_mean(text, words)} Known: {', '.join(kinds)}, other names "
        "such as ib or ndr, and speeds such as 100GbE."
    )


def _parts(text: str) -> list[str]:
    plain = text[:200].lower().replace("/s", "")
    whole = re.sub(r"[^a-z0-9]+", "", plain)  # "RoCE v2", "Omni-Path"
    if whole in _table()["words"]:
        return [whole]
    plain = re.sub(r"(\d)\s+(?=g)", r"\1", plain)
    return [part for part in re.split(r"[^a-z0-9.]+", plain) if part]


def _read(part: str) -> tuple[str | None, float | None] | None:
    """(kind, bandwidth) as far as this part tells them."""
    words, speeds = _table()["words"], _table()["speeds"]
    if part in words:
        rate = words[part].get("bandwidth")
        return words[part]["kind"], None if rate is None else parse_bandwidth(rate)
    speed = _SPEED.fullmatch(part)
    if speed is None or speed[2] not in speeds or float(speed[1]) == 0:
        return None
    return speeds[speed[2]].get("kind"), float(speed[1]) * 1e9 / 8


def _joined(read: list[tuple[str | None, float | None]]) -> NetworkWord:
    kinds = [kind for kind, _ in read if kind is not None]
    rates = [rate for _, rate in read if rate is not None]
    return NetworkWord(kinds[0] if kinds else _usual_at(max(rates)), rates[-1] if rates else None)


def _usual_at(bandwidth: float) -> str:
    """The kind that a port of this speed usually is."""
    rule = _table()["rdma_from"]
    is_fast = bandwidth >= parse_bandwidth(rule["bandwidth"])
    return str(rule["kind"] if is_fast else rule["below"])


@functools.cache
def _table() -> Mapping[str, Any]:
    table: dict[str, Any] = load_own_yaml(Path(__file__).parent / "catalog" / "networks.yaml")
    return table
