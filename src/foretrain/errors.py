"""Everything Foretrain raises on purpose.

    ForetrainError
    ├── InputError            the user can mend it: exit code 2
    │   ├── ModelError        unknown model, impossible shape
    │   ├── ClusterError      unknown hardware, impossible topology
    │   ├── PlanError         a plan that this model or cluster cannot follow
    │   ├── RuntimePresetError     unknown runtime preset or option
    │   ├── FileError         missing, unreadable, hostile or malformed file
    │   └── CaseError         a case line that cannot be understood
    ├── DoesNotFit            a well-formed question whose answer is no: exit code 1
    └── Bug                   our own fault: exit code 101

Messages name the path, the value, the reason and a remedy. Several faults of one file travel together
in `faults`, one line each.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = [
    "Bug",
    "CaseError",
    "ClusterError",
    "DoesNotFit",
    "FileError",
    "ForetrainError",
    "InputError",
    "ModelError",
    "PlanError",
    "RuntimePresetError",
    "did_you_mean",
]


class ForetrainError(Exception):
    """Base of every deliberate error."""

    exit_code = 101


class InputError(ForetrainError):
    """Something the user gave us is wrong, and this says what and how to mend it."""

    exit_code = 2

    def __init__(self, message: str, *, faults: Iterable[str] = ()) -> None:
        self.faults = tuple(faults)
        lines = [message, *(f"  - {fault}" for fault in self.faults)]
        super().__init__("\n".join(lines))


class ModelError(InputError):
    """Unknown model or impossible shape."""


class ClusterError(InputError):
    """Unknown hardware or impossible topology."""


class PlanError(InputError):
    """A plan that this model or cluster cannot follow."""


class RuntimePresetError(InputError):
    """Unknown runtime preset or option."""


class FileError(InputError):
    """Missing, unreadable, hostile or malformed file."""


class CaseError(InputError):
    """A case line that cannot be understood."""


class DoesNotFit(ForetrainError):
    """The plan is well formed but its memory does not fit."""

    exit_code = 1


class Bug(ForetrainError):
    """A broken invariant of our own; never the user's fault."""

    exit_code = 101


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`" Did you mean 'x'?"` for a near miss, else an empty string."""
    folded = {name.lower(): name for name in known}
    near = difflib.get_close_matches(word.lower(), list(folded), n=3, cutoff=0.6)
    if not near:
        return ""
    return f" Did you mean {' or '.join(repr(folded[name]) for name in near)}?"
