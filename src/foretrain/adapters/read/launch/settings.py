"""Typed reading of what a stranger's launch files set; every wrong value is named, all at once."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from foretrain.errors import FileError, did_you_mean, refuse
from foretrain.limits import shown
from foretrain.loading import load_json, load_yaml

LARGEST = 10**15


class Settings:
    """Values by a path of keys, `tokens.micro_batch_size`; `where` names the file in messages."""

    def __init__(self, values: Any, where: str) -> None:
        self.where = where
        self.faults: list[str] = []
        self.values: Mapping[str, Any] = values if isinstance(values, Mapping) else {}
        if not isinstance(values, Mapping):
            self.faults.append(f"{shown(values)} is not a mapping of settings.")

    def value(self, path: str) -> Any:
        """What a path is set to; None where nothing is."""
        value: Any = self.values
        for key in path.split("."):
            if not isinstance(value, Mapping):
                return None
            value = value.get(key)
        return value

    def count(self, path: str, default: int = 1, least: int = 1) -> int:
        """A whole number."""
        return self.optional(path, least) if self.value(path) is not None else default  # type: ignore[return-value]

    def optional(self, path: str, least: int = 1) -> int | None:
        value = self.value(path)
        if isinstance(value, str) and re.fullmatch(r"-?\d{1,18}", value, re.ASCII):
            value = int(value)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= LARGEST:
            self._fault(path, value, f"a whole number from {least}", least)
            return least
        return value

    def number(self, path: str, default: float = 0.0) -> float:
        value = self.value(path)
        if isinstance(value, str):
            try:
                value = float(value)
            except ValueError:
                return float(self._fault(path, value, "a number", default))
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e18:
            return float(self._fault(path, value, "a number", default))
        return float(value)

    def switch(self, path: str, default: bool = False) -> bool:
        value = self.value(path)
        if value is None:
            return default
        if isinstance(value, str) and value.lower() in ("true", "false"):
            return value.lower() == "true"
        return (
            value if isinstance(value, bool) else self._fault(path, value, "true or false", default)
        )

    def text(self, path: str, default: str = "") -> str:
        value = self.value(path)
        if value is None:
            return default
        return value if isinstance(value, str) else self._fault(path, value, "a text", default)

    def one_of(self, path: str, known: Collection[str], default: str) -> str:
        value = self.text(path, default)
        if value in known:
            return value
        near = did_you_mean(value, known)
        self._fault(path, value, f"one of {', '.join(known)}", default, near)
        return default

    def shares(self, whole: int, parts: int, what: str) -> int:
        """`whole` in as many parts; what does not divide is a fault."""
        if parts < 1 or whole % parts:
            self.faults.append(f"{what}: {whole} is not divisible by {parts}.")
            return 1
        return whole // parts

    def _fault(self, path: str, value: Any, expected: str, instead: Any, near: str = "") -> Any:
        self.faults.append(f"{path}: {shown(value)} is not {expected}.{near}")
        return instead

    def close(self) -> None:
        refuse(f"{self.where} cannot be read:", tuple(dict.fromkeys(self.faults)), FileError)


def file_of(files: Mapping[str, str], name: str) -> str:
    """The text of a file; one that is not there is named."""
    if name not in files:
        raise FileError(f"{name} is missing beside {', '.join(files) or 'nothing'}.")
    return files[name]


def json_settings(files: Mapping[str, str], name: str) -> Settings:
    return Settings(load_json(file_of(files, name) + "\n", f"settings ({name})"), name)


def yaml_settings(files: Mapping[str, str], name: str) -> Settings:
    return Settings(load_yaml(file_of(files, name) + "\n", f"settings ({name})"), name)


def toml_settings(files: Mapping[str, str], name: str) -> Settings:
    import tomllib

    try:
        return Settings(tomllib.loads(file_of(files, name)), name)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise FileError(f"{name} is not TOML ({error}).") from None


_DEFAULT = re.compile(r"\$\{\w+:-([^}]*)\}")


def shell_words(script: str, where: str) -> list[str]:
    """The words of a script whose variables have their defaults; nothing is run."""
    plain = _DEFAULT.sub(r"\1", script.replace("\\\n", " "))
    try:
        return shlex.split(plain, comments=True)
    except ValueError as error:
        raise FileError(f"{where} is not a shell script ({error}).") from None


def flags(words: Sequence[str]) -> dict[str, list[str]]:
    """Values of `--name value …` and `--name=value`; a switch has none."""
    found: dict[str, list[str]] = {}
    open_: list[str] | None = None
    for word in words:
        if word.startswith("--") and len(word) > 2:
            name, is_set, value = word[2:].partition("=")
            open_ = found[name] = [value] if is_set else []
        elif open_ is not None:
            open_.append(word)
    return found


def flag_settings(given: Mapping[str, Sequence[str]], where: str) -> Settings:
    """Flags as settings: a switch is true, one value is itself, several are a list."""
    values = {
        name: True if not texts else texts[0] if len(texts) == 1 else list(texts)
        for name, texts in given.items()
    }
    return Settings(values, where)


def devices_of(script: str) -> int | None:
    """Devices that a launcher starts processes on, as far as its script says."""
    nodes = re.search(r'NNODES="?\$\{NNODES:-(\d{1,9})\}', script)
    each = re.search(r'NPROC_PER_NODE="?\$\{NPROC_PER_NODE:-(\d{1,9})\}', script)
    return int(nodes[1]) * int(each[1]) if nodes and each else None
