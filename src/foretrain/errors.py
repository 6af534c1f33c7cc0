"""Everything Foretrain raises on purpose.

    ForetrainError
    ├── InputError            the user can mend it: exit code 2
    │   ├── ModelError        unknown model, impossible shape
    │   ├── ClusterError      unknown hardware, impossible topology
    │   ├── PlanError         a plan that this model or cluster cannot follow
    │   │   └── UnsupportedPlanError  constraints that ask for plans which the stack cannot run
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
from collections.abc import Iterable, Sequence

MOST_SHOWN = 50  # faults of one file that are told at once
LONGEST_LINE = 800  # characters: what a stranger wrote may be of any length


class ForetrainError(Exception):
    """Base of every deliberate error."""

    exit_code = 101


class InputError(ForetrainError):
    """Something the user gave us is wrong, and this says what and how to mend it."""

    exit_code = 2

    def __init__(self, message: str, *, faults: Iterable[str] = ()) -> None:
        self.faults = tuple(faults)
        lines = [message, *(f"  - {fault}" for fault in self.faults[:MOST_SHOWN])]
        if len(self.faults) > MOST_SHOWN:
            lines.append(f"  … and {len(self.faults) - MOST_SHOWN:,} more")
        super().__init__("\n".join(map(_trimmed, lines)))


def refuse(message: str, faults: Sequence[str], kind: type[InputError] = InputError) -> None:
    """Raise one error with all faults, if there are any."""
    if faults:
        raise kind(message, faults=faults)


def joined(message: str, errors: Sequence[InputError]) -> InputError:
    """One error of several, with the faults of all; one alone stays as it is."""
    if len(errors) == 1:
        return errors[0]
    kind = type(errors[0]) if len({*map(type, errors)}) == 1 else InputError
    return kind(message, faults=[fault for one in errors for fault in one.faults or (str(one),)])


class ModelError(InputError):
    """Unknown model or impossible shape."""


class ClusterError(InputError):
    """Unknown hardware or impossible topology."""


class PlanError(InputError):
    """A plan that this model or cluster cannot follow."""


class UnsupportedPlanError(PlanError):
    """Constraints that ask for plans which the software stack cannot run."""


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


NEAR_WORDS = 3
SHOWN_CHARACTERS = 160


def _trimmed(line: str) -> str:
    return line if len(line) <= LONGEST_LINE else f"{line[: LONGEST_LINE - 1]}…"


def did_you_mean(word: object, known: Iterable[object]) -> str:
    """`" Did you mean 'x'?"` for a near miss or the beginning of a word, else an empty string."""
    words, start = [str(name) for name in known], str(word).lower()
    begun = [name for name in words if start and name.lower().startswith(start)]
    near = near_words(word, words) or begun[:NEAR_WORDS]
    return f" Did you mean {' or '.join(map(repr, near))}?" if near else ""


def hint(word: object, known: Iterable[object], listing: str = "") -> str:
    """What follows "unknown word": near ones, and all of them, or where they are many the command that lists them."""
    words = [str(one) for one in known]
    near, every = did_you_mean(word, words), ", ".join(words)
    if len(every) <= SHOWN_CHARACTERS:
        return f"{near} Known: {every}."
    if listing:
        return f"{near} '{listing}' lists all."
    return (
        near or f" Known: {every[:SHOWN_CHARACTERS].rpartition(', ')[0]} … ({len(words)} in all)."
    )


# of a word that is compared with others: longer ones are like none, and take long
LONGEST_WORD = 100


def near_words(word: object, known: Iterable[object]) -> list[str]:
    """The known words most like this one, the likest first."""
    folded = {str(name).lower(): str(name) for name in known}
    near = difflib.get_close_matches(
        str(word)[:LONGEST_WORD].lower(), list(folded), n=NEAR_WORDS, cutoff=0.6
    )
    return [folded[name] for name in near]
