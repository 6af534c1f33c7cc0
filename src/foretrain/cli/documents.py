"""Reading prediction documents back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from foretrain.errors import FileError

_NEEDED = ("step_seconds", "stalls", "memory")


def prediction_document(path: str) -> dict[str, Any]:
    """The document in `path`, refused where it is something else."""
    from foretrain.loading import load_json

    what = "a prediction (write one with 'foretrain predict … -o FILE.json')"
    document = load_json(Path(path), what)
    missing = [key for key in _NEEDED if not isinstance(document, dict) or key not in document]
    if missing:
        raise FileError(f"{path} is not {what}: {', '.join(missing)} missing.")
    found: dict[str, Any] = document
    return found
