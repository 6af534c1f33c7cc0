"""Keywords of the public functions: a wrong one is told as every other wrong word is, with the nearest that is known."""

from __future__ import annotations

import functools
import inspect
import operator
from collections.abc import Callable, Iterable
from os import PathLike
from pathlib import Path
from typing import Any, ParamSpec, TypedDict, TypeVar

from foretrain.errors import InputError, did_you_mean, refuse

P = ParamSpec("P")
R = TypeVar("R")

_MISSING = {
    "on": "Specify a cluster such as '2 x dgx-h100'.",
    "batch": "Specify the global batch size in samples.",
}


def keywords(
    question: type | None = None, *, of_jobs: Iterable[str] = ()
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Check the keywords of a function. `question`: the `TypedDict` of its `**` argument; `of_jobs`: words that have
    no effect on it because it looks at one step."""
    no_effect = tuple(of_jobs)

    def checking(function: Callable[P, R]) -> Callable[P, R]:
        required = _required(function, question)

        @functools.wraps(function)
        def checked(*args: P.args, **given: P.kwargs) -> R:
            expect_keywords(function, given, question, of_jobs=no_effect)
            missing = [name for name in required if name not in given]
            if missing:
                faults = [f"{name}: missing. {_MISSING.get(name, '')}".strip() for name in missing]
                raise InputError(f"{function.__name__}: incomplete arguments:", faults=faults)
            return function(*args, **given)

        return checked

    return checking


def _required(function: Callable[..., Any], question: type | None) -> tuple[str, ...]:
    named = tuple(
        one.name
        for one in inspect.signature(function).parameters.values()
        if one.kind is one.KEYWORD_ONLY and one.default is one.empty
    )
    return (*named, *sorted(getattr(question, "__required_keys__", ())))


def expect_keywords(
    function: Callable[..., Any],
    given: Iterable[str],
    question: type | None = None,
    *,
    of_jobs: Iterable[str] = (),
) -> None:
    """Refuse keywords that a function does not have, all of them at once."""
    known = _known(function, question)
    faults = [
        f"{name}: no effect here; {function.__name__} looks at one step, not at a job. Remove it."
        if name in of_jobs
        else f"{name}: unknown.{did_you_mean(name, known)}"
        for name in given
        if name not in known
    ]
    refuse(f"{function.__name__}: invalid keywords:", faults)


@functools.cache
def _known(function: Callable[..., Any], question: type | None) -> tuple[str, ...]:
    parameters = inspect.signature(function).parameters.values()
    named = (one.name for one in parameters if one.kind is not one.VAR_KEYWORD)
    return (*named, *getattr(question, "__annotations__", {}))


def paths_of(given: str | PathLike[str] | Iterable[str | PathLike[str]]) -> tuple[Path, ...]:
    """Of one path or several."""
    if isinstance(given, str | PathLike):
        return (Path(given),)
    return tuple(Path(one) for one in given)


def texts_of(name: str, given: object) -> tuple[str, ...]:
    """Of one text or several; a count is a text too, as on a command line."""
    every = given if isinstance(given, list | tuple | set | frozenset) else (given,)
    wrong = [one for one in every if isinstance(one, bool) or not isinstance(one, str | int)]
    if wrong:
        raise InputError(f"{name}: {wrong[0]!r} is not a text or a list of texts.")
    return tuple(str(one) for one in every)


def counted_by(value: Any) -> Any:
    """A whole number of another library, such as NumPy's, as ours; anything else as it is."""
    if isinstance(value, int | str) or not hasattr(type(value), "__index__"):
        return value
    try:
        return operator.index(value)
    except TypeError:  # an array of several
        return value


class JobWords(TypedDict, total=False):
    """What a question may say of a job."""

    tokens: float | str | None
    samples: float | str | None
    steps: float | str | None
    epochs: float | str | None
    dataset_samples: float | str | None
    dataset_tokens: float | str | None
    usd_per_hour: float | str | None  # of one device
    pue: float | str | None
    mtbf: float | str | None  # of one node: seconds, or "90d"
    restart: float | str | None  # seconds, or "15m"
    checkpoint_rate: float | str | None  # of one node: bytes/s, or "2GB/s"
