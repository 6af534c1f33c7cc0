"""Documents as text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def one_line(text: str) -> str:
    """Text for a comment: names of models and clusters are a user's."""
    return "".join(letter for letter in " ".join(text.split()) if letter.isprintable())


def yaml_text(document: Mapping[str, Any], title: str) -> str:
    """YAML in the order of the document, under one line that says what it is."""
    import yaml

    body = yaml.safe_dump(dict(document), sort_keys=False, allow_unicode=True, width=100)
    return f"# {title}\n{body}"
