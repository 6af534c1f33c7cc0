"""Safe reading of files from strangers, and turning their content into frozen values.

Nothing here trusts its input: size, nesting depth and alias expansion are bounded *before* a recursive
parser or a validator sees the text, and every failure is an error that names the file and what was expected.
"""

from __future__ import annotations

import dataclasses
import json
import re
import sys
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from foretrain.errors import FileError, InputError, did_you_mean, hint
from foretrain.limits import QUANTITY, is_finite, shown
from foretrain.parse_cache import parse_cached

if TYPE_CHECKING:
    import yaml
    from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler, TypeAdapter
    from pydantic_core import CoreSchema, ErrorDetails

MAX_BYTES = 64_000_000
MAX_YAML_BYTES = 16_000_000
MAX_DEPTH = 64
MAX_ALIAS_NODES = 100_000
"""How many nodes aliases may add; a handful of shared blocks needs a few hundred."""

T = TypeVar("T")


# --- text ---------------------------------------------------------------------------------------


def read_text(path: str | Path, limit: int = MAX_BYTES, what: str = "text") -> str:
    """The file as UTF-8 text, or a `FileError` that says why not."""
    file = Path(path)
    try:
        if file.is_dir():
            raise FileError(f"{file} is a directory; expected a file with {what}.")
        if not file.is_file() and file.exists():
            raise FileError(f"{file} is not a regular file; expected a file with {what}.")
        with file.open("rb") as stream:
            raw = stream.read(limit + 1)
    except FileNotFoundError:
        raise FileError(f"{file} does not exist; expected {what}.{near_files(file)}") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise FileError(
            f"{_short(str(file))} cannot be read ({reason}); expected {what}."
        ) from None
    if len(raw) > limit:
        raise FileError(f"{file} is larger than {limit:,} bytes, too large for {what}.")
    return _decoded(raw, str(file), what)


def read_standard_input(limit: int = MAX_BYTES) -> str:
    """All of standard input as UTF-8 text."""
    raw = sys.stdin.buffer.read(limit + 1)
    if len(raw) > limit:
        raise FileError(f"Standard input has more than {limit:,} bytes; use a file instead.")
    return _decoded(raw, "standard input", "text")


def is_file(path: str | Path) -> bool:
    """Whether there is such a file; texts that can be no path at all are none."""
    try:
        return Path(path).is_file()
    except (OSError, ValueError):
        return False


def _decoded(raw: bytes, where: str, what: str) -> str:
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise FileError(
            f"{where} is not UTF-8 text (invalid byte {error.start}); expected {what}."
        ) from None
    if "\x00" in text:
        raise FileError(f"{where} is binary; expected {what}.")
    return text


def near_files(file: Path) -> str:
    """What follows a file that does not exist: names like it in its directory."""
    try:
        names = sorted(entry.name for entry in file.parent.iterdir())
    except OSError:
        return f" Directory {file.parent} does not exist or cannot be read."
    return did_you_mean(file.name, names)


def _short(text: str, width: int = 120) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"


def _source(path_or_text: str | Path, limit: int, what: str) -> tuple[str, str]:
    """(text, where). A string with a line break, or that opens a JSON value, is text; else a path."""
    if isinstance(path_or_text, Path):
        return read_text(path_or_text, limit, what), str(path_or_text)
    if "\n" in path_or_text or path_or_text.lstrip()[:1] in ("{", "["):
        if len(path_or_text) > limit:
            raise FileError(f"The given text is larger than {limit:,} characters; expected {what}.")
        return path_or_text, "the given text"
    return read_text(path_or_text, limit, what), path_or_text


# --- JSON ---------------------------------------------------------------------------------------

_STRING = re.compile(r'"(?:[^"\\]++|\\.)*+"', re.DOTALL)


def load_json(path_or_text: str | Path, what: str = "a JSON document") -> Any:
    """Parse JSON from a path or text. NaN and Infinity are rejected, as are repeated keys."""
    text, where = _source(path_or_text, MAX_BYTES, what)
    if _json_depth(text) > MAX_DEPTH:
        raise FileError(f"{where} is nested deeper than {MAX_DEPTH} levels; expected {what}.")
    try:
        return json.loads(
            text, object_pairs_hook=_unique, parse_constant=no_constant, parse_int=whole_number
        )
    except json.JSONDecodeError as error:
        raise FileError(
            f"{where} is not valid JSON (line {error.lineno}, column {error.colno}: {error.msg}); "
            f"expected {what}."
        ) from None
    except (ValueError, RecursionError) as error:
        raise FileError(f"{where} cannot be used: {_short(str(error))}; expected {what}.") from None


def _json_depth(text: str) -> int:
    """Deepest bracket nesting outside strings, by counting at array speed."""
    if text.count("[") + text.count("{") <= MAX_DEPTH:
        return 0
    import numpy as np

    bare = np.frombuffer(_STRING.sub("", text).encode("utf-8", "replace"), dtype=np.uint8)
    step = ((bare == 0x5B) | (bare == 0x7B)).astype(np.int8)
    step -= (bare == 0x5D) | (bare == 0x7D)
    return int(np.cumsum(step, dtype=np.int32).max(initial=0))


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping = dict(pairs)
    if len(mapping) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"duplicate key {_short(twice, 60)!r}")
    return mapping


def whole_number(text: str) -> int:
    """A whole number in a document, bounded whatever it counts: readers divide and compare before they know better."""
    number = int(text)
    if not is_finite(number):
        raise ValueError(_too_large(number))
    return number


def _too_large(number: int) -> str:
    return f"{shown(number)} is too large: numbers are at most {sys.float_info.max:.1e}"


def no_constant(name: str) -> float:
    """For `parse_constant` of `json.loads`: NaN and Infinity are no numbers."""
    raise ValueError(f"{name} is not a JSON number")


# --- YAML ---------------------------------------------------------------------------------------


def _base_loader() -> Any:
    import yaml

    return getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@cache
def _strict_loader() -> Any:
    """Safe YAML without repeated keys and without dates (a date stays the text it is)."""
    import yaml

    base = _base_loader()

    class StrictLoader(base):  # type: ignore[misc, valid-type]
        yaml_implicit_resolvers = {  # noqa: RUF012 - PyYAML's own class-level table
            first: [(tag, regexp) for tag, regexp in rules if not tag.endswith(":timestamp")]
            for first, rules in base.yaml_implicit_resolvers.items()
        }

        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            keys: set[str] = set()
            for key, _ in getattr(node, "value", ()):
                text = key.value if isinstance(key, yaml.ScalarNode) else None
                if text is None or text == "<<":
                    continue
                if text in keys:
                    raise yaml.constructor.ConstructorError(
                        None, None, f"duplicate key {_short(text, 60)!r}", key.start_mark
                    )
                keys.add(text)
            return super().construct_mapping(node, deep=deep)

        def construct_yaml_int(self, node: Any) -> int:
            number = int(super().construct_yaml_int(node))
            if not is_finite(number):
                mark = node.start_mark
                raise ValueError(
                    f"line {mark.line + 1}, column {mark.column + 1}: {_too_large(number)}"
                )
            return number

    StrictLoader.add_constructor("tag:yaml.org,2002:int", StrictLoader.construct_yaml_int)
    return StrictLoader


def load_yaml(path_or_text: str | Path, what: str = "a YAML document") -> Any:
    """Parse one YAML document from a path or text (JSON is YAML, so that works too)."""
    import yaml

    text, where = _source(path_or_text, MAX_YAML_BYTES, what)
    try:
        _check_yaml_shape(text, where, what)
        return yaml.load(text, Loader=_strict_loader())
    except yaml.YAMLError as error:
        raise FileError(
            f"{where} is not valid YAML ({_yaml_fault(error)}); expected {what}."
        ) from None
    except (ValueError, TypeError, RecursionError, OverflowError) as error:
        raise FileError(f"{where} cannot be used: {_short(str(error))}; expected {what}.") from None


def load_own_yaml(path: Path) -> Any:
    """A YAML file that ships with the package: tests have checked its shape, so only parse it."""
    return parse_cached(path, _parsed)


class Figures:
    """Numbers of a file of our own, by group and name; each group has its source."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @cached_property
    def groups(self) -> dict[str, Any]:
        return dict(load_own_yaml(self._path))

    def __call__(self, group: str, name: str) -> float:
        return float(self.groups[group][name])


def _parsed(text: str) -> Any:
    import yaml

    return yaml.load(text, Loader=_strict_loader())


def _yaml_fault(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or str(error).splitlines()[0]
    place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark is not None else ""
    return place + _short(str(problem))


def _check_yaml_shape(text: str, where: str, what: str) -> None:
    """Bound depth and alias expansion on the event stream, which needs no recursion.

    `sizes` holds how many nodes each finished anchor stands for, so a chain of aliases to aliases is
    counted at its expanded size without expanding it.
    """
    import yaml

    sizes: dict[str, int] = {}
    open_nodes: list[tuple[str | None, int]] = []
    total = added = 0
    for event in yaml.parse(text, Loader=_base_loader()):
        if isinstance(event, yaml.AliasEvent):
            if event.anchor not in sizes:
                raise FileError(f"{where}: alias *{event.anchor} refers to itself or to nothing.")
            added += sizes[event.anchor]
            total += sizes[event.anchor]
            if added > MAX_ALIAS_NODES:
                raise FileError(
                    f"{where} expands to more than {MAX_ALIAS_NODES:,} nodes through YAML aliases; "
                    f"expected {what}. Write the repeated parts out or drop them."
                )
        elif isinstance(event, yaml.CollectionStartEvent):
            total += 1
            open_nodes.append((event.anchor, total))
            if len(open_nodes) > MAX_DEPTH:
                raise FileError(
                    f"{where} is nested deeper than {MAX_DEPTH} levels; expected {what}."
                )
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, start = open_nodes.pop()
            if anchor is not None:
                sizes[anchor] = total - start + 1
        elif isinstance(event, yaml.ScalarEvent):
            total += 1
            if event.anchor is not None:
                sizes[event.anchor] = 1


# --- values -------------------------------------------------------------------------------------


class Strict:
    """A record that is read with no key but its own: a misspelt one is a fault."""

    __slots__ = ()
    __pydantic_config__: typing.ClassVar[dict[str, Any]] = {"extra": "forbid"}


@dataclasses.dataclass(frozen=True, slots=True)
class Quantity:
    """Annotation of a number that files may write with a unit: `Annotated[float, Quantity(parse_bytes)]`."""

    parse: Callable[[float | str], float]
    zero_allowed: bool = False

    def __call__(self, value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            raise ValueError(
                f"expected a number or a string with a unit, got {_short(repr(value), 60)}"
            )
        try:
            number = self.parse(value)
        except (InputError, OverflowError) as error:
            raise ValueError(_short(str(error))) from None
        if not is_finite(number):
            raise ValueError(f"{shown(value)} is not finite")
        if number < 0 or (number == 0 and not self.zero_allowed):
            raise ValueError(
                f"{shown(value)} must be {'zero or more' if self.zero_allowed else 'positive'}"
            )
        if number and not QUANTITY.allows(number):
            raise ValueError(f"{_short(repr(value), 40)} is out of range")
        return number

    def __get_pydantic_core_schema__(
        self, source: object, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        from pydantic_core import core_schema

        return core_schema.no_info_plain_validator_function(self)

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return {"type": ["number", "string"]}


def validated(cls: type[T], data: object, where: str, error: type[InputError] = InputError) -> T:
    """`data` as a `cls`, or one `error` that lists every fault with its dotted path.

    `cls` is a frozen dataclass, `Strict` if misspelt keys are faults too.
    """
    from pydantic import ValidationError

    try:
        return _adapter(cls).validate_python(data)
    except ValidationError as invalid:
        details = invalid.errors(include_url=False)
        faults = tuple(dict.fromkeys(_fault(cls, detail) for detail in details))
    except RecursionError:
        faults = ("nested too deeply or self-referential",)
    count = "1 error" if len(faults) == 1 else f"{len(faults)} errors"
    raise error(f"{where} is invalid ({count}):", faults=faults)


_ADAPTERS: dict[type, TypeAdapter[Any]] = {}
"""Making an adapter takes milliseconds, using it microseconds."""


def _adapter(cls: type[T]) -> TypeAdapter[T]:
    from pydantic import TypeAdapter

    if cls not in _ADAPTERS:
        _ADAPTERS[cls] = TypeAdapter(cls)
    return _ADAPTERS[cls]


def _fault(cls: type, detail: ErrorDetails) -> str:
    path = tuple(part for part in detail["loc"] if not _is_branch(part))
    at = _dotted(path) or "the document"
    kind = detail["type"]
    if kind in ("unexpected_keyword_argument", "extra_forbidden"):
        known = _known_fields(cls, path[:-1])
        return f"{at}: unknown key.{hint(str(path[-1]), known)}"
    if kind in ("missing", "missing_argument"):
        return f"{at}: missing."
    message = detail["msg"].removeprefix("Value error, ").removesuffix(".")
    given = shown(detail["input"])
    return f"{at}: {message}" + ("" if given in message else f" (got {given})") + "."


def _is_branch(part: object) -> bool:
    """Union members and validators add their own words to the location; they are no path of the file."""
    return isinstance(part, str) and (part.endswith("()") or "[" in part or part in _BRANCHES)


_BRANCHES = frozenset({"str", "int", "float", "bool", "none"})


def _dotted(path: tuple[int | str, ...]) -> str:
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}"
    return text.removeprefix(".")


def _known_fields(cls: type, path: tuple[int | str, ...]) -> list[str]:
    """Field names of the dataclass that `path` leads to."""
    place: list[type] = [cls]
    for part in path:
        inner: list[type] = []
        for kind in place:
            hints = typing.get_type_hints(kind)
            if part in hints:
                inner.extend(_dataclasses_in(hints[str(part)]))
        # an index or a mapping key leads into the element type, already unfolded above
        place = inner or place
    return [field.name for kind in place for field in dataclasses.fields(kind)]


def _dataclasses_in(hint: Any) -> Iterator[type]:
    if dataclasses.is_dataclass(hint):
        yield typing.cast(type, hint)
    origin = typing.get_origin(hint)
    if origin in (tuple, list, dict, types.UnionType, typing.Union, typing.Annotated, Mapping):
        for inner in typing.get_args(hint):
            yield from _dataclasses_in(inner)
