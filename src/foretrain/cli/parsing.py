"""Texts and paths taken as they are given.

Typer hands every value, even a text that stays a text, to a validator that takes longer to load than
`foretrain --help` takes in all. What needs no checking goes past it here; everything else (numbers, choices,
files that must exist, values of the wrong kind) still goes Typer's own way. A version of Typer without that
validator has nothing to go past, and nothing is changed.
"""

from __future__ import annotations

import typing
from pathlib import Path
from typing import Any

_KINDS = (str, Path)
_CHECKS = ("parser", "click_type", "exists", "writable", "resolve_path", "allow_dash", "path_type")
_LEAVE = ("file_okay", "dir_okay")
"""What a parameter may ask of its value, and what it may forbid by being false."""


def let_texts_through(command: Any) -> None:
    """Prepare every parameter of a command, its help option too, and those of the commands in it."""
    own = command.get_params

    def prepared(ctx: Any) -> list[Any]:
        parameters: list[Any] = own(ctx)
        for parameter in parameters:
            if getattr(parameter, "_runtime_param", parameter) is None:
                parameter._runtime_param = _AsGiven(_plain_kind(parameter.type_descriptor))
        return parameters

    command.get_params = prepared
    for inner in getattr(command, "commands", {}).values():
        let_texts_through(inner)


def _plain_kind(parameter: Any) -> type | None:
    """`str` or `Path` where the parameter is one or a list of them and asks for no check."""
    kind, asks = parameter.annotation, parameter.parameter_info
    if typing.get_origin(kind) is list:
        (kind,) = typing.get_args(kind)
    is_checked = any(getattr(asks, word, None) for word in _CHECKS)
    is_free = all(getattr(asks, word, False) for word in _LEAVE)
    return kind if kind in _KINDS and is_free and not is_checked else None


class _AsGiven:
    """Stands where Typer keeps a parameter's validator until a value needs that one."""

    def __init__(self, kind: type | None) -> None:
        self._kind = kind

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        is_many = param.multiple or param.nargs == -1
        if value is None:
            return () if is_many else None
        if self._kind is not None and not is_many and _is_text(value):
            return self._kind(value)
        if self._kind is not None and is_many and not isinstance(value, str):
            values = list(value)
            if all(map(_is_text, values)):
                return [self._kind(one) for one in values]
        param._runtime_param = None
        return param.get_runtime_param().coerce(value, param=param, ctx=ctx)


def _is_text(value: object) -> bool:
    """Whether it is a text that can be written again: an argument may hold any bytes."""
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
