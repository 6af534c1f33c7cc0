"""Python that sets values, as far as launch files need it: keywords of calls, and what they nest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def keywords_text(values: Mapping[str, Any], indent: str = "    ") -> str:
    """Keyword arguments, one per line; a mapping under "" names the class that it is the arguments of."""
    return "".join(
        f"{indent}{name}={_value(value, indent)},\n" for name, value in values.items() if name
    )


def _value(value: Any, indent: str) -> str:
    if isinstance(value, Mapping):
        return f"{value['']}(\n{keywords_text(value, indent + '    ')}{indent})"
    return repr(value)
