"""What an export gives: files by name, and what of the plan they leave unsaid; their texts, and the files on disk."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from foretrain.errors import FileError, refuse
from foretrain.units import counted, show_seconds


@dataclass(frozen=True)
class Exported:
    """`cannot`: what of the plan the target cannot express, one plain sentence each; empty: all of it is said."""

    target: str
    files: Mapping[str, str]
    cannot: tuple[str, ...] = ()
    plan: str = ""  # the plan that is exported
    assumptions: tuple[str, ...] = ()  # what the question left open
    warnings: tuple[str, ...] = ()
    runs: str = ""  # the plan that the files run, where that is another one …
    step_seconds: float | None = None  # … then a step of the plan that was asked for …
    runs_step_seconds: float | None = None  # … and one of what the files run

    def __post_init__(self) -> None:
        object.__setattr__(self, "files", MappingProxyType(dict(self.files)))

    def __repr__(self) -> str:
        left = f"; {counted(len(self.cannot), 'item')} not expressible" if self.cannot else ""
        return f"<Exported for {self.target}: {', '.join(self.files)}{left}>"

    def to_dict(self) -> dict[str, Any]:
        return {
            "target": self.target,
            "plan": self.plan,
            "files": dict(self.files),
            "cannot": list(self.cannot),
            "assumptions": list(self.assumptions),
            "warnings": list(self.warnings),
            "runs": self.runs or self.plan,
            "step_seconds": self.step_seconds,
            "runs_step_seconds": self.runs_step_seconds,
        }

    def with_run(self, plan: str, asked: float, run: float, beside: str = ",") -> Exported:
        """With what the files run in place of what was asked, in the launch script too; `beside` the plan, what else differs."""
        line = (
            f"these files run {plan}{beside} predicted {show_seconds(run)} per step; "
            f"the plan asked for: {show_seconds(asked)}"
        )
        files = {name: _warned(text, line) for name, text in self.files.items()}
        return replace(
            self,
            files=files,
            warnings=(*self.warnings, line),
            runs=plan,
            step_seconds=asked,
            runs_step_seconds=run,
        )

    def save(self, folder: str | Path) -> tuple[Path, ...]:
        """The files in `folder`, which is made if its parent exists.

        Everything is written beside the folder first and then renamed into it, so that no file is ever half there;
        names stay inside the folder.
        """
        target = Path(folder)
        names = tuple(self.files)
        _expect_plain(names)
        expect_folder(target)
        taken = [name for name in names if (target / name).is_dir()]
        refuse(f"{target} has directories in place of files:", taken, FileError)
        try:
            staging = Path(tempfile.mkdtemp(prefix=f".{target.name[:40]}.", dir=target.parent))
        except OSError as error:
            raise _cannot_write(target, error) from None
        try:
            for name in names:
                _write(staging / name, self.files[name])
            _move(staging, target, names)
        except OSError as error:
            raise _cannot_write(target, error) from None
        finally:
            with contextlib.suppress(OSError):
                shutil.rmtree(staging, ignore_errors=True)
        return tuple(target / name for name in names)


def _expect_plain(names: tuple[str, ...]) -> None:
    wrong = [name for name in names if not _is_plain(name)]
    if wrong:
        raise FileError(
            "exported files must stay in their directory:",
            faults=[f"{name!r} is not a plain file name." for name in wrong],
        )


def _is_plain(name: str) -> bool:
    """One part of a path, on any system: no separators, drives, streams, control characters or dots alone."""
    has_path = any(mark in name for mark in '/\\:\0*?"<>|') or any(ord(c) < 32 for c in name)
    return bool(name.strip(" .")) and not has_path


def expect_folder(target: Path) -> None:
    """Refuse a place that cannot be made the folder of an export, before anything is done for it."""
    if not target.parent.is_dir():
        raise FileError(f"cannot create {target}: directory {target.parent} does not exist.")
    if target.exists() and not target.is_dir():
        raise FileError(f"{target} is a file; launch files need a directory. Choose another name.")


def _write(path: Path, text: str) -> None:
    with path.open("w", encoding="utf-8", newline="\n") as stream:
        stream.write(text)
    path.chmod((0o777 if path.suffix == ".sh" else 0o666) & ~_mask())


def _move(staging: Path, target: Path, names: tuple[str, ...]) -> None:
    """A new folder appears at once with all its files; in one that is there, each file is replaced in one step."""
    if not target.exists():
        staging.chmod(0o777 & ~_mask())
        os.rename(staging, target)
        return
    for name in names:
        os.replace(staging / name, target / name)


def _mask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _cannot_write(target: Path, error: OSError) -> FileError:
    return FileError(f"cannot write {target} ({error.strerror or error}).")


# --- texts of files --------------------------------------------------------------------------------


def _warned(text: str, line: str) -> str:
    """A shell script with a warning under its title; other files as they are."""
    if not text.startswith("#!"):
        return text
    first, title, rest = text.split("\n", 2)
    return "\n".join([first, title, f"# Warning: {one_line(line)}", rest])


def one_line(text: str) -> str:
    """Text for a comment: names of models and clusters are a user's."""
    return "".join(letter for letter in " ".join(text.split()) if letter.isprintable())


def yaml_text(document: Mapping[str, Any], title: str) -> str:
    """YAML in the order of the document, under one line that says what it is."""
    import yaml

    body = yaml.safe_dump(dict(document), sort_keys=False, allow_unicode=True, width=100)
    return f"# {title}\n{body}"
