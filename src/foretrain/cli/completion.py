"""Shell completion: which words can stand here.

Asked at every press of a key, so nothing is built for it: names are gathered once from the catalog and the code, and
then remembered until one of the files they come from changes.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import foretrain
from foretrain.cli.options import KINDS, SCHEMAS
from foretrain.parse_cache import made_once

_SOURCES = ("model/zoo/*.py", "model/*.yaml", "cluster/catalog/*.yaml", "cluster/topologies/__init__.py",
    "runtime/presets.yaml", "runtime/features/*.py", "plan/*.py", "plan/*/*.py", "adapters/write/__init__.py", "whatifs.py", "schemas.py",
    "cli/completion.py")  # fmt: skip
_ON_NETWORK = re.compile(r"(.*\son\s+)(\S*)$")
_COUNTED = re.compile(r"(\s*\d[\d,_]*\s*[x×*]\s*)(\S*)$")

Names = Mapping[str, list[str]]


def words_typed() -> list[str]:
    """The words after the program's name, so that only their command is loaded."""
    typed = os.environ.get("COMP_WORDS") or os.environ.get("_TYPER_COMPLETE_ARGS") or ""
    return typed.split()[1:]


def complete(command: str, name: str) -> Callable[[str], list[str]] | None:
    """What completes a parameter of a command; None where a file or a number stands there."""
    candidates = COMPLETED.get(f"{command}.{name}") or COMPLETED.get(name)
    if candidates is None:
        return None

    def completed(incomplete: str) -> list[str]:
        return [word for word in candidates(incomplete, names()) if word.startswith(incomplete)]

    return completed


def names() -> Names:
    """Names by kind, gathered again only when a file that has them is another."""
    home = Path(foretrain.__file__).parent
    files = [path for pattern in _SOURCES for path in sorted(home.glob(pattern))]
    own = os.environ.get("FORETRAIN_CATALOG")
    files += sorted(Path(own).glob("*.yaml")) if own else []
    stamps = [f"{path} {_stamp(path)}" for path in files]
    known: Names = made_once("completion", "\n".join(stamps).encode(), _gathered)
    return known


def _stamp(path: Path) -> str:
    about = path.stat()
    return f"{about.st_mtime_ns} {about.st_size}"


def _gathered() -> dict[str, list[str]]:
    from foretrain.adapters.write import TARGETS
    from foretrain.cluster import catalog
    from foretrain.cluster.topologies import NETWORKS
    from foretrain.model import zoo
    from foretrain.model.optimizer import optimizers
    from foretrain.model.precision import precisions
    from foretrain.plan.short_form import vocabulary
    from foretrain.runtime import option_table, preset_file, presets
    from foretrain.searching import GOALS
    from foretrain.whatifs import CHANGES

    options = dict.fromkeys((*preset_file()["options"], *option_table()))
    kinds: dict[str, Iterable[str]] = {
        "models": zoo.names(),
        "devices": catalog.devices(),
        "nodes": catalog.nodes(),
        "links": catalog.links(),
        "topologies": NETWORKS,
        "runtimes": presets(),
        "options": options,
        "precisions": precisions(),
        "optimizers": optimizers(),
        "plan": vocabulary(),
        "targets": TARGETS,
        "changes": (*CHANGES, *options),
        "goals": GOALS,
    }
    return {kind: list(words) for kind, words in kinds.items()}


def _of(*kinds: str, after: str = "") -> Callable[[str, Names], Iterable[str]]:
    return lambda _, known: [word + after for kind in kinds for word in known[kind]]


def _cluster(incomplete: str, known: Names) -> Iterable[str]:
    """`2 x dgx-h100`, `64 x dgx-h100 on torus`: the last name of it."""
    if match := _ON_NETWORK.match(incomplete):
        return [match[1] + word for word in known["topologies"]]
    machines = [*known["nodes"], *known["devices"], "local"]
    if match := _COUNTED.match(incomplete):
        return [match[1] + word for word in machines]
    if incomplete.strip().isdigit():
        return [f"{incomplete.strip()} x {word}" for word in machines]
    return machines


def _plan(incomplete: str, known: Names) -> Iterable[str]:
    before, space, _ = incomplete.rpartition(" ")
    return [before + space + word for word in known["plan"]]


def _after_comma(incomplete: str, known: Names) -> Iterable[str]:
    before, comma, _ = incomplete.rpartition(",")
    clouds = [word for word in known["nodes"] if ":" in word]
    return [before + comma + word for word in clouds]


COMPLETED: dict[str, Callable[[str, Names], Iterable[str]]] = {
    "model": _of("models"),
    "on": _cluster,
    "plan": _plan,
    "precision": _of("precisions"),
    "optimizer": _of("optimizers"),
    "runtime": _of("runtimes"),
    "options": _of("options", after="="),
    "changes": _of("changes", after="="),
    "vary": _of("changes", after="="),
    "to": _of("targets"),
    "objective": _of("goals"),
    "instances": _after_comma,
    "list.kind": lambda _, __: KINDS,
    "show.name": _of("devices", "nodes", "links", "models", "runtimes"),
    "schema.name": lambda _, __: SCHEMAS,
}
"""Parameter, of any command or of one -> what may stand there."""


def attach(command: str, parameter: Any) -> None:
    """Give an option or argument of Typer's its completion."""
    call = complete(command, parameter.name)
    for about in getattr(parameter.annotation, "__metadata__", ()):
        if call is not None and hasattr(about, "autocompletion"):
            about.autocompletion = call
