"""`foretrain export`."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

from foretrain.cli.options import Question
from foretrain.errors import InputError

if TYPE_CHECKING:
    from foretrain.adapters.write import Exported


@dataclasses.dataclass(frozen=True)
class LaunchOptions:
    """Which files are written, and where to."""

    to: str | None = None
    folder: Path | None = None
    json: bool = False
    quiet: bool = False
    verbose: bool = False


def export(question: Question, launch: LaunchOptions) -> int:
    """Write launch files of a plan for a training framework, and list what it cannot express."""
    from foretrain.adapters.write import TARGETS, expect_target

    if launch.to is None:
        raise InputError(f"--to: missing. Specify one of {', '.join(TARGETS)}.")
    expect_target(launch.to)
    asked = question.asked()
    import foretrain

    exported = foretrain.export(**asked, to=launch.to)
    if launch.folder is not None:
        exported.save(launch.folder)
    _give(exported, launch)
    return 0


def _give(exported: Exported, launch: LaunchOptions) -> None:
    from foretrain.cli.output import note, print_text

    if launch.json:
        from foretrain.report.json import dumps

        print_text(dumps(exported.to_dict()))
        return
    if launch.folder is None:
        print_text("\n".join(f"==> {name} <==\n{text}" for name, text in exported.files.items()))
    elif not launch.quiet:
        for name in exported.files:
            note(f"wrote {launch.folder / name}")
    if not launch.quiet:
        note(f"plan: {exported.plan}")
        for line in exported.assumptions:
            note(f"assumed: {line}")
    for line in exported.warnings:
        note(f"warning: {line}")
    for line in exported.cannot:
        note(f"not expressible: {line}")
