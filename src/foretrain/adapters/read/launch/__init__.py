"""Launch files read back into the words of a question; nothing in them is run.

One file per target, one row each in `READERS`. A reader's module has `is_here(files)` and `read(files)`, which gives a
`Launch` or names every wrong value.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from foretrain.adapters.read.launch.launch import Launch
from foretrain.errors import FileError
from foretrain.loading import read_text

__all__ = ["READERS", "Launch", "files_at", "read", "target_of"]

READERS: dict[str, str] = {
    "megatron": "megatron",
    "deepspeed": "deepspeed",
    "torchrun": "torchrun",
    "accelerate": "accelerate",
    "nanotron": "nanotron",
    "torchtitan": "torchtitan",
    "megatron-bridge": "megatron_bridge",
    "maxtext": "maxtext",
    "axolotl": "axolotl",
    "llama-factory": "llama_factory",
}
MOST_FILES = 100
LARGEST = 1_000_000  # bytes of a launch file
_ENDINGS = (".json", ".yaml", ".yml", ".sh", ".txt", ".toml", ".py")


def read(target: str, files: Mapping[str, str]) -> Launch:
    """What the files of a target say."""
    launch: Launch = _module(target).read(files)
    return launch


def target_of(files: Mapping[str, str]) -> str:
    """Whose files these are."""
    found = [name for name in READERS if _module(name).is_here(files)]
    if not found:
        names = ", ".join(sorted(files)) or "no file"
        raise FileError(f"{names}: not launch files of {', '.join(READERS)}.")
    return found[-1]  # files of earlier targets may be among those of later ones


def files_at(path: Path) -> dict[str, str]:
    """A launch file, or those of a folder, by name."""
    if not path.is_dir():
        return {path.name: read_text(path, LARGEST, "launch settings")}
    inside = sorted(one for one in path.iterdir() if one.suffix in _ENDINGS)[:MOST_FILES]
    return {one.name: read_text(one, LARGEST, "launch settings") for one in inside}


def _module(target: str) -> Any:
    return import_module(f"{__name__}.{READERS[target]}")
