"""Mutations: from a valid input to a hostile one."""

from __future__ import annotations

import copy
import json
import random
import re
from typing import Any

ODD: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2, 3, 7, 0.5, -0.0, 1e-308, 1e308, -1e308, 1e18, 2**31, 2**63, 10**18, 10**30, 10**400,
    float("nan"), float("inf"), float("-inf"), "", " ", "x", "0", "-1", "1e999", "nan", "∞", "none", "true", "½", "１２",
    "a b", "../..", "/", "{}", "ß\u202e🙂", "\x1b[31m", "\n", "9" * 400, "x" * 3000, [], {}, [[]], [None], {"": ""}, {"a": {}},
)  # fmt: skip
NUMBERS = (
    "0",
    "-1",
    "1e9",
    "1e308",
    "1e-308",
    "1e400",
    "99999999999999999999",
    "nan",
    "inf",
    "0.5",
    "٣",
    "1_000",
    "7",
)
PIECES = (
    " ", "\n", "\t", ",", ":", "=", "{", "}", "[", "]", "*", "&a", "!!python/object:os.system", "|", "-", "'", '"', "\\",
    "%", "<<: *a", "🙂", "\u0000", "\ufeff", "tp8", "x", " x ", " on ", "+", "()", "#", "1e9", "=null",
)  # fmt: skip


def mutated(seed: bytes, form: str, draw: random.Random) -> bytes:
    """`form` says what the seed is: `tree` (JSON), `text` or `bytes`."""
    if form == "tree" and draw.random() < 0.8:
        tree = json.loads(seed)
        for _ in range(draw.choice((1, 1, 1, 2, 3, 6))):
            tree = _tree(tree, draw)
        text = _written(tree, draw)
        return text.encode("utf-8", "replace")
    if form == "bytes":
        return _bytes(seed, draw, draw.choice((1, 2, 8, 64)))
    text = seed.decode("utf-8")
    for _ in range(draw.choice((1, 1, 2, 4))):
        text = _text(text, draw)
    raw = text.encode("utf-8", "replace")
    return _bytes(raw, draw, 1) if draw.random() < 0.15 else raw


def _written(tree: Any, draw: random.Random) -> str:
    try:
        text = json.dumps(tree, ensure_ascii=draw.random() < 0.5)
    except ValueError:  # a whole number with more digits than Python writes
        return "1" * 5000
    if draw.random() < 0.1:  # a key given twice
        text = re.sub(r'("\w+"): ', r"\1: 1, \1: ", text, count=1)
    return text[: draw.randrange(len(text) + 1)] if draw.random() < 0.05 else text


def _places(tree: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The way to every value."""
    found = [path] if path else []
    items = (
        tree.items()
        if isinstance(tree, dict)
        else enumerate(tree)
        if isinstance(tree, list)
        else ()
    )
    for key, value in items:
        found += _places(value, (*path, key))
    return found


def _tree(tree: Any, draw: random.Random) -> Any:
    tree = copy.deepcopy(tree)
    places = _places(tree)
    if not places or draw.random() < 0.01:
        return draw.choice(ODD)
    path = draw.choice(places)
    holder = tree
    for key in path[:-1]:
        holder = holder[key]
    last = path[-1]
    value = holder[last]
    match draw.randrange(9):
        case 0 | 1 | 2:
            holder[last] = copy.deepcopy(draw.choice(ODD))
        case 3:
            del holder[last]
        case 4:
            holder[last] = _near(value, draw)
        case 5:
            for _ in range(draw.choice((1, 2, 80, 200))):
                value = [value] if draw.random() < 0.5 else {"a": value}
            holder[last] = value
        case 6 if isinstance(holder, dict):
            holder[draw.choice((f"{last}x", "", "🙂", "x" * 500, str(last).upper()))] = holder.pop(
                last
            )
        case 6 | 7 if isinstance(value, list) and value:
            holder[last] = value * draw.choice((2, 3, 50, 1000))
        case _:
            other = draw.choice(places)
            taken = tree
            for key in other:
                taken = taken[key]
            holder[last] = copy.deepcopy(taken)
    return tree


def _near(value: Any, draw: random.Random) -> Any:
    """Of the same kind, but not as it was."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        whole = value if abs(value) < 1e300 else 1  # what is not finite has no neighbours
        return draw.choice(
            (-value, whole - 1, whole + 1, whole * 1000, whole * 10**9, whole / 1e9, whole * 1e8, whole // 2, float(whole),
             int(whole), f"{whole:g}")
        )  # fmt: skip
    if isinstance(value, str):
        return _text(value, draw)
    return draw.choice(ODD)


def _text(text: str, draw: random.Random) -> str:
    at = draw.randrange(len(text) + 1)
    end = min(len(text), at + draw.choice((1, 1, 3, 10, 100)))
    match draw.randrange(8):
        case 0:
            return text[:at] + text[end:]
        case 1:
            return text[:at] + draw.choice(PIECES) + text[at:]
        case 2:
            return text[:end] + text[at:end] * draw.choice((1, 2, 20)) + text[end:]
        case 3:
            numbers = list(re.finditer(r"\d+(?:\.\d+)?", text))
            if not numbers:
                return text + draw.choice(NUMBERS)
            found = draw.choice(numbers)
            return text[: found.start()] + draw.choice(NUMBERS) + text[found.end() :]
        case 4:
            return text[:at]
        case 5:
            lines = text.split("\n")
            draw.shuffle(lines)
            return "\n".join(lines)
        case 6:
            words = re.split(r"(\W+)", text)
            words[draw.randrange(len(words))] = (
                str(draw.choice(ODD[:-6]))[:200] if draw.random() < 0.5 else ""
            )
            return "".join(words)
        case _:
            return (
                text[:at]
                + chr(draw.choice((0, 0x1F, 0x85, 0x2028, 0xD7, 0x202E, 0x1F600)))
                + text[at:]
            )


def _bytes(raw: bytes, draw: random.Random, flips: int) -> bytes:
    data = bytearray(raw)
    if draw.random() < 0.1:
        return bytes(data[: draw.randrange(len(data) + 1)])
    for _ in range(flips):
        if data:
            data[draw.randrange(len(data))] = draw.choice((0, 0xFF, 0x7F, draw.randrange(256)))
    return bytes(data)
