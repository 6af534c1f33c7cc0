"""What every table of variants asks of one that is registered from outside, and how that is taken out again."""

from __future__ import annotations

import re
from collections.abc import Callable

from foretrain.errors import InputError
from foretrain.limits import shown

LONGEST_NAME = 40  # characters
_NAME = re.compile(rf"[a-zA-Z][a-zA-Z0-9._-]{{0,{LONGEST_NAME - 1}}}")


def is_name(name: object) -> bool:
    """Whether a variant can be called so: in plans, options, files and pages it stays one plain word."""
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


def expect_name(name: object, what: str, error: type[InputError] = InputError) -> None:
    if not is_name(name):
        raise error(
            f"{shown(name)} cannot be the name of {what}: use letters, digits, '-', '_' and '.', "
            f"a letter first, at most {LONGEST_NAME} characters."
        )


def expect_variant(
    variant: object, kind: type, what: str, error: type[InputError] = InputError
) -> None:
    """Refuses what is no object of the kind that a table holds, and one that cannot be called by its name."""
    if isinstance(variant, type) and issubclass(variant, kind):
        raise error(
            f"{variant.__name__} is a class, and {what} is an object: register {variant.__name__}()."
        )
    if not isinstance(variant, kind):
        raise error(
            f"{shown(variant)} is not {what}: register an object of a subclass of {kind.__name__}."
        )
    try:
        name = getattr(variant, "name", None)
    except NotImplementedError:
        name = None
    expect_name(name, what, error)


def once(take_out: Callable[[], None]) -> Callable[[], None]:
    """The way out of a table, which works the first time: later on another variant may have the name."""
    left = [take_out]

    def undo() -> None:
        if left:
            left.pop()()

    return undo
