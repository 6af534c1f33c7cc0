"""What a field of a feature may be set to, said beside the field: a switch, a number in a range, a word of a list."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

from foretrain.errors import InputError
from foretrain.limits import Range, shown

Read = Callable[[Any], Any]
"""The value of an option in its field's type, or an InputError that says what the field takes."""

_OPTION, _PRESET, _NEEDS = "option", "preset", "needs"


class Feature:
    """Something a software stack does, and how: the base of the records a Runtime is made of."""

    __slots__ = ()
    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}


class OptionalFeature(Feature):
    """What few stacks do; others have None in its place, which is as good as all fields at their defaults."""

    __slots__ = ()

    @property
    def is_idle(self) -> bool:
        """Whether a stack is as it would be without it."""
        return self == type(self)()


def options_of(feature: type) -> Mapping[str, Read]:
    """The fields of a feature that options may set, and how each is read."""
    return {one.name: one.metadata[_OPTION] for one in fields(feature) if _OPTION in one.metadata}


def needs_of(feature: type) -> Mapping[str, tuple[str, ...]]:
    """What a question must have for options to matter: of its model, its plan or its stack (`resolving.idle_options`)."""
    return {one.name: one.metadata[_NEEDS] for one in fields(feature) if one.metadata.get(_NEEDS)}


def readers_of(feature: type) -> Mapping[str, Read]:
    """How each of a feature's fields is read where a preset sets it."""
    return {one.name: one.metadata.get(_OPTION) or one.metadata[_PRESET] for one in fields(feature)}


def switch(default: bool, *, needs: tuple[str, ...] = ()) -> Any:
    """On or off."""
    return read_by(default, _switch, needs=needs)


def number(default: float | None, least: float, most: float, *, needs: tuple[str, ...] = ()) -> Any:
    """A number, or a size with a unit; whole where the default is, None where that is."""
    is_whole = isinstance(default, int)
    read = _Number(Range(least, most), is_whole, may_be_none=default is None)
    return read_by(default, read, needs=needs)


def seconds(default: float, most: float, *, needs: tuple[str, ...] = ()) -> Any:
    """A time, with a unit or in seconds."""
    return read_by(default, _Number(Range(0.0, most), is_time=True), needs=needs)


def word(default: str, *words: str, needs: tuple[str, ...] = ()) -> Any:
    """One of some words; an empty one says nothing."""
    return read_by(default, _Word(words), needs=needs)


def read_by(default: Any, read: Read, *, needs: tuple[str, ...] = ()) -> Any:
    """A field whose options a function of its own reads."""
    return field(default=default, metadata={_OPTION: read, _NEEDS: needs})


def of_presets(default: Any, read: Read) -> Any:
    """A field that presets set and no option does."""
    return field(default=default, metadata={_PRESET: read})


def share(value: Any) -> float:
    """From 0 to 1."""
    return float(_Number(Range(0.0, 1.0))(value) or 0.0)


def text(value: Any) -> str:
    if not isinstance(value, str):
        raise InputError(f"{shown(value)} is not a text.")
    return value


def listed(value: Any, separator: str) -> tuple[str, ...]:
    """Names in a list, or in a text with something between them."""
    words = value.split(separator) if isinstance(value, str) else value
    if not isinstance(words, list | tuple) or not all(isinstance(one, str) for one in words):
        raise InputError(f"{shown(value)} is not a list of names.")
    return tuple(one.strip() for one in words if one.strip())


def pairs(value: Any) -> tuple[tuple[str, str], ...]:
    """`{"all_reduce": "tree"}`, or as text `all_reduce:tree,all_to_all:bruck`."""
    if isinstance(value, Mapping):
        return tuple(sorted((str(k), str(v)) for k, v in value.items()))
    if isinstance(value, list | tuple) and all(
        isinstance(v, list | tuple) and len(v) == 2 for v in value
    ):
        return tuple(sorted((str(k), str(v)) for k, v in value))
    words = [one.strip() for one in str(value).split(",") if one.strip()]
    if not all(":" in one for one in words):
        raise InputError(f"{shown(value)}: write name:value, such as all_reduce:tree.")
    return tuple(sorted((w.partition(":")[0], w.partition(":")[2]) for w in words))


def _switch(value: Any) -> bool:
    if not isinstance(value, bool):
        raise InputError(f"{shown(value)} is not true or false.")
    return value


@dataclass(frozen=True, slots=True)
class _Word:
    words: tuple[str, ...]

    def __call__(self, value: Any) -> str:
        if not isinstance(value, str) or value not in self.words:
            known = ", ".join(filter(None, self.words))
            raise InputError(f"{shown(value)} is not one of {known}.")
        return value


@dataclass(frozen=True, slots=True)
class _Number:
    allowed: Range
    is_whole: bool = False
    may_be_none: bool = False
    is_time: bool = False

    def __call__(self, value: Any) -> float | None:
        if value is None and self.may_be_none:
            return None
        if isinstance(value, bool):
            raise InputError(f"{value!r} is not a number.")
        # here, because a preset as it is has nothing to read
        from foretrain.units import parse_bytes, parse_seconds

        # plain numbers pass; sizes may carry a unit
        given = parse_seconds(value) if self.is_time else parse_bytes(value)
        if not self.allowed.allows(given) or (self.is_whole and not given.is_integer()):
            what = "a whole number" if self.is_whole else "a number"
            least, most = _bound(self.allowed.least), _bound(self.allowed.most)
            raise InputError(f"{shown(value)} must be {what} from {least} to {most}.")
        return int(given) if self.is_whole else given


def _bound(value: float) -> str:
    return f"{value:,.0f}" if 1 <= value < 1e9 and float(value).is_integer() else f"{value:g}"
