"""The words of plans, apart from names of schedules: `short_form` reads them, and no schedule can be called like one."""

from __future__ import annotations

import re

DEGREES = ("tp", "pp", "vpp", "dp", "cp", "ep", "etp")
NUMBERED = (*DEGREES, "zero")
FLAGS = {"sp": True, "no-sp": False, "nosp": False}
OPTIONS = (
    "recompute",
    "schedule",
    "offload",
    "cp",
    "buckets",
    "layers",
    "order",
    "shard",
    "tables",
    "micro",
)


def numbered(word: str) -> tuple[str, int] | None:
    """`tp8`, `tp-8` and `tp:8` are tp and 8."""
    match = re.fullmatch(r"([a-z]+)[-:]?(\d{1,19})", word, re.ASCII)
    return (match[1], int(match[2])) if match and match[1] in NUMBERED else None


def is_word(word: str) -> bool:
    """Whether a word, or one with a value, means something else than a schedule."""
    return word in (*NUMBERED, *FLAGS, *OPTIONS) or numbered(word) is not None
