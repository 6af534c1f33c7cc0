"""What a Python file sets, read from its syntax; nothing in it is run."""

from __future__ import annotations

import ast
from typing import Any

from foretrain.errors import FileError

CALLED = "class"
"""Under this key: what was called with the others as its keywords."""


def assigned(text: str, where: str) -> dict[str, Any]:
    """Values by name: `a = 1` is {a: 1}, `a.b = 1` is {a: {b: 1}}, `a = F(2, x=1)` is {a: {class: F, 0: 2, x: 1}}; a name
    is its text.

    A later line replaces an earlier one; what has to be computed is left out.
    """
    try:
        tree = ast.parse(text)
        found: dict[str, Any] = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign) and len(node.targets) == 1:
                _set(found, _path(node.targets[0]), _value(node.value))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise FileError(f"{where} is not Python that can be read ({error}).") from None
    return found


_NOTHING = object()


def _set(found: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    if not path or value is _NOTHING:
        return
    for name in path[:-1]:
        inner = found.get(name)
        if not isinstance(inner, dict):
            inner = found[name] = {}
        found = inner
    found[path[-1]] = value


def _path(target: ast.expr) -> tuple[str, ...]:
    if isinstance(target, ast.Name):
        return (target.id,)
    if isinstance(target, ast.Attribute):
        before = _path(target.value)
        return (*before, target.attr) if before else ()
    return ()


def _value(node: ast.expr) -> Any:
    if isinstance(node, ast.Call):
        called = _path(node.func)
        values = {str(place): _value(word) for place, word in enumerate(node.args)}
        values |= {word.arg: _value(word.value) for word in node.keywords if word.arg}
        kept = {name: value for name, value in values.items() if value is not _NOTHING}
        return {CALLED: called[-1], **kept} if called else _NOTHING
    if isinstance(node, ast.Name | ast.Attribute):
        return ".".join(_path(node)) or _NOTHING
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return _NOTHING
