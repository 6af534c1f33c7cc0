"""What the package's own data files hold, remembered from one call to the next.

Parsing them takes a tenth of a cold call of the command line. What was parsed is kept in the user's cache
folder beside a hash of the file it came from, and is used only while that hash is the file's: it cannot be
stale. A folder that cannot be read or written, or a damaged file in it, is as good as none.
`FORETRAIN_CACHE` names another folder; left empty, nothing is kept.
"""

from __future__ import annotations

import contextlib
import hashlib
import marshal
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

# Of how it is kept and parsed; another number forgets everything that was kept.
_FORM = f"1 {sys.implementation.cache_tag} {marshal.version} ".encode()
_HASH = 32


def parse_cached(path: Path, parse: Callable[[str], Any]) -> Any:
    """`parse` of the text at `path`: plain values, from the last call if the text is still the same."""
    text = path.read_bytes()
    return made_once(f"{path.parent.name}-{path.stem}", text, lambda: parse(text.decode("utf-8")))


def made_once(name: str, made_of: bytes, make: Callable[[], Any]) -> Any:
    """What `make` gives, plain values: from the last call if it was made of the same."""
    folder = cache_folder()
    if folder is None:
        return make()
    key = hashlib.sha256(_FORM + made_of).digest()
    place = folder / f"{name}.bin"
    kept = _kept(place, key)
    if kept is not None:
        return kept
    value = make()
    _keep(place, key, value)
    return value


def cache_folder() -> Path | None:
    """Where to keep what can be made again; None where there is no such place."""
    folder = os.environ.get("FORETRAIN_CACHE")
    if folder is not None:
        return Path(folder) if folder else None
    try:
        home = Path.home()
        is_there = home.is_dir()
    except (RuntimeError, OSError):
        return None
    if not is_there:
        return None
    if os.name == "nt":
        base = Path(os.environ.get("LOCALAPPDATA") or home / "AppData" / "Local")
    elif sys.platform == "darwin":
        base = home / "Library" / "Caches"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or home / ".cache")
    return base / "foretrain" if base.is_absolute() else None


def _kept(place: Path, key: bytes) -> Any:
    """The value kept under this key, None if there is none or it is damaged."""
    try:
        raw = place.read_bytes()
    except OSError:
        return None
    content = raw[2 * _HASH :]
    if raw[:_HASH] != key or raw[_HASH : 2 * _HASH] != hashlib.sha256(content).digest():
        return None
    return marshal.loads(content)


def _keep(place: Path, key: bytes, value: Any) -> None:
    """Written beside and moved into place, so that no other process sees half of it."""
    content = marshal.dumps(value)
    beside = place.with_name(f"{place.name}.{os.getpid()}")
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        beside.write_bytes(key + hashlib.sha256(content).digest() + content)
        beside.replace(place)
    except OSError:
        with contextlib.suppress(OSError):
            beside.unlink()
