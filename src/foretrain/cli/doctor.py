"""`foretrain doctor`."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from foretrain.cli.options import Output

if TYPE_CHECKING:
    from foretrain.report.document import Document

OPTIONAL = {
    "torch": "measurements",
    "ray": "search on several machines",
}
Check = tuple[str, str, str]  # name, ok | note | fault, what was found


def doctor(output: Output) -> Document:
    """Check the installation.

    Exit code 1 if a required component is missing.
    """
    from foretrain.report.document import Document, Table

    checks = [_tried(name, check) for name, check in CHECKS.items()]
    checks += [_extra(module, use) for module, use in OPTIONAL.items()]
    faults = [name for name, state, _ in checks if state == "fault"]
    headline = "All required components are available"
    if faults:
        headline = f"Problems found: {', '.join(faults)}"
    data = {
        "ok": not faults,
        "checks": [{"name": name, "state": state, "found": value} for name, state, value in checks],
    }
    table = Table("Checks", ("check", "status", "detail"), tuple(checks), left=3)
    return Document(headline, lambda: data, lambda: (table,), bool(faults))


def _tried(name: str, check: Callable[[], tuple[str, str]]) -> Check:
    try:
        return (name, *check())
    except Exception as error:  # a doctor must survive every patient
        return (name, "fault", f"{type(error).__name__}: {error}")


def _python() -> tuple[str, str]:
    version = f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    return ("ok" if sys.version_info >= (3, 11) else "fault"), version


def _packages() -> tuple[str, str]:
    from importlib.metadata import version

    names = ("numpy", "scipy", "pydantic", "msgspec", "pyyaml", "typer", "rich")
    return "ok", ", ".join(f"{name} {version(name)}" for name in names)


def _numpy() -> tuple[str, str]:
    import numpy as np

    total = int(np.arange(10).sum())
    return ("ok" if total == 45 else "fault"), np.__version__


def _engine() -> tuple[str, str]:
    from foretrain.engine import native_available

    if native_available():
        return "ok", "native (compiled)"
    return (
        "note",
        "reference (slower engine); reinstall with a C++17 compiler for the fast one",
    )


def _catalogue() -> tuple[str, str]:
    from foretrain.cluster import catalog
    from foretrain.model import zoo
    from foretrain.runtime import presets

    counts = (len(catalog.devices()), len(catalog.nodes()), len(catalog.links()))
    return "ok", (
        f"{counts[0]} devices, {counts[1]} nodes, {counts[2]} links, {len(zoo.names())} models, "
        f"{len(presets())} runtimes"
    )


def _folder() -> tuple[str, str]:
    import tempfile

    here = os.getcwd()
    try:
        with tempfile.TemporaryFile(dir=here):
            return "ok", f"{here} is writable"
    except OSError as error:
        return "note", f"{here} is not writable ({error.strerror}); use -o with a path elsewhere"


def _extra(module: str, use: str) -> Check:
    from importlib.util import find_spec

    present = find_spec(module) is not None
    return (
        f"optional: {module}",
        "ok" if present else "note",
        f"{'present' if present else 'absent'} ({use})",
    )


CHECKS: dict[str, Callable[[], tuple[str, str]]] = {
    "python": _python,
    "packages": _packages,
    "numpy": _numpy,
    "engine": _engine,
    "catalog": _catalogue,
    "directory": _folder,
}
