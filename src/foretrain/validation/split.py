"""Two halves of measured cases: one to fit on, one to check on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

HALVES = ("fit", "check")
SEED = 1

_NOT_CONFIGURATION = ("id", "group", "measured", "caveats", "source", "quality", "assumed")


def half_of(case: Mapping[str, Any], seed: int = SEED) -> str:
    """The half a case belongs to: one bit of SHA-256 over its configuration.

    Nothing measured takes part, and cases of the same configuration are always in the same half.
    """
    asked = {key: value for key, value in case.items() if key not in _NOT_CONFIGURATION}
    text = f"{seed} {json.dumps(asked, sort_keys=True)}"
    return HALVES[hashlib.sha256(text.encode()).digest()[0] & 1]
