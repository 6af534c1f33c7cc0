"""`foretrain schema`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from foretrain.cli.options import SCHEMAS, Output

if TYPE_CHECKING:
    from foretrain.report.document import Document


def schema(output: Output, name: str | None = None) -> Document | int:
    """Print the JSON Schema of a file format, for editors and tools.

    Without NAME, list all schemas.
    """
    from foretrain.cli.output import print_text
    from foretrain.report import save
    from foretrain.report.document import Document, Table
    from foretrain.report.json import dumps

    if name is None:
        rows = tuple((known,) for known in SCHEMAS)
        table = Table("Known", ("name",), rows)
        return Document("Schemas", lambda: {"schemas": SCHEMAS}, lambda: (table,))
    import foretrain

    document = foretrain.schema(name)
    for path in output.files or ():
        save(_shown(name, document), path)
    if not output.files or output.json:
        print_text(dumps(document))
    return 0


def _shown(name: str, document: dict[str, Any]) -> Document:
    """The keys of the format and of its parts; the JSON has everything."""
    from foretrain.report.document import Document, Table

    parts = {name: document, **document.get("$defs", {})}
    sections = tuple(
        Table(title, ("key", "holds", "what it is"), tuple(_keys(part)), left=3)
        for title, part in parts.items()
    )
    return Document(f"JSON Schema of {name}", lambda: document, lambda: sections)


def _keys(part: dict[str, Any]) -> list[tuple[str, str, str]]:
    needed = part.get("required", ())
    return [
        (key, _holds(rule) + (", required" if key in needed else ""), rule.get("description", ""))
        for key, rule in part.get("properties", {}).items()
    ]


def _holds(rule: dict[str, Any]) -> str:
    """`number or null`, `cluster`, `list of stage`."""
    if "$ref" in rule:
        return str(rule["$ref"]).rpartition("/")[2]
    if "anyOf" in rule:
        return " or ".join(dict.fromkeys(_holds(one) for one in rule["anyOf"]))
    if "enum" in rule:
        return " or ".join(map(str, rule["enum"]))
    if "items" in rule:
        return f"list of {_holds(rule['items'])}" if isinstance(rule["items"], dict) else "list"
    kind = rule.get("type", "anything")
    return " or ".join(kind) if isinstance(kind, list) else str(kind)
