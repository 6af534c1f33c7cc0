"""Whether a document is as its JSON Schema says: the part of the standard that our own schemas use.

All faults are found, each with its dotted path. A schema with a word that is not known here is our fault, not the
document's: `Bug`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from foretrain.errors import Bug, did_you_mean
from foretrain.limits import shown

Schema = Mapping[str, Any]
_ABOUT = ("$schema", "$defs", "title", "description", "default")
_KINDS: dict[str, Callable[[Any], bool]] = {
    "object": lambda value: isinstance(value, Mapping),
    "array": lambda value: isinstance(value, list | tuple),
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
}


def object_schema(properties: dict[str, Any], required: tuple[str, ...] = ()) -> dict[str, Any]:
    """Of an object that has no other keys."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


def array_schema(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items}


def nullable(kind: str) -> dict[str, Any]:
    return {"type": [kind, "null"]}


def schema_faults(schema: Schema, document: Any) -> list[str]:
    """Everything in which the document is not as the schema says; empty if nothing."""
    return list(_faults(schema, document, "", schema))


def _faults(schema: Schema, value: Any, path: str, root: Schema) -> Iterator[str]:
    where = path.removeprefix(".") or "the document"
    if "type" in schema:
        kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        if not any(_KINDS[kind](value) for kind in kinds):
            yield f"{where}: expected {' or '.join(kinds)}, got {shown(value)}."
            return
    for word, wanted in schema.items():
        if word not in _ABOUT and word != "type":
            yield from _checked(word, wanted, value, where, path, schema, root)


def _checked(
    word: str, wanted: Any, value: Any, where: str, path: str, schema: Schema, root: Schema
) -> Iterator[str]:
    match word:
        case "const" if value != wanted:
            yield f"{where}: {shown(value)} is not {wanted!r}."
        case "enum" if not any(type(one) is type(value) and one == value for one in wanted):
            yield f"{where}: {shown(value)} is not one of {', '.join(map(str, wanted))}."
        case "minimum" if isinstance(value, int | float) and not value >= wanted:  # nor NaN
            yield f"{where}: {shown(value)} must be at least {wanted}."
        case "maximum" if isinstance(value, int | float) and value > wanted:
            yield f"{where}: {shown(value)} is more than {wanted:,}."
        case "exclusiveMinimum" if isinstance(value, int | float) and not value > wanted:
            yield f"{where}: {shown(value)} must be greater than {wanted}."
        case "minItems" if isinstance(value, list | tuple) and len(value) < wanted:
            yield f"{where}: {len(value)} entries; at least {wanted}."
        case "maxItems" if isinstance(value, list | tuple) and len(value) > wanted:
            yield f"{where}: {len(value)} entries; at most {wanted}."
        case "required" if isinstance(value, Mapping):
            yield from (
                f"{f'{path}.{key}'.removeprefix('.')}: missing."
                for key in wanted
                if key not in value
            )
        case "properties" if isinstance(value, Mapping):
            for key in wanted:
                if key in value:
                    yield from _faults(wanted[key], value[key], f"{path}.{key}", root)
        case "additionalProperties" if isinstance(value, Mapping):
            known = schema.get("properties", {})
            for key in (key for key in value if key not in known):
                if wanted is False:
                    yield f"{f'{path}.{key}'.removeprefix('.')}: unknown key.{did_you_mean(str(key), known)}"
                elif wanted is not True:
                    yield from _faults(wanted, value[key], f"{path}.{key}", root)
        case "items" if isinstance(value, list | tuple):
            for index, item in enumerate(value):
                yield from _faults(wanted, item, f"{path}[{index}]", root)
        case "anyOf":
            if all(next(_faults(one, value, path, root), None) is not None for one in wanted):
                yield f"{where}: {shown(value)} matches none of the {len(wanted)} allowed forms."
        case "$ref":
            yield from _faults(root["$defs"][wanted.rpartition("/")[2]], value, path, root)
        case (
            "const"
            | "enum"
            | "minimum"
            | "minItems"
            | "maxItems"
            | "required"
            | "properties"
            | "additionalProperties"
            | "items"
            | "exclusiveMinimum"
            | "maximum"
        ):
            pass
        case _:
            raise Bug(f"schemas here have no word {word!r}.")
