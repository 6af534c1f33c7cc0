"""Exported files on disk: whole or not at all, and nowhere else."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from foretrain.adapters.write import Exported
from foretrain.errors import FileError

MADE = Exported(
    "somewhere", {"launch.sh": "#!/bin/sh\n", "plan.yaml": "dp: 8 # größer\n"}, ("pp2: no",)
)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_new_folder_has_all_files_and_nothing_else(tmp_path: Path) -> None:
    target = tmp_path / "out"
    paths = MADE.save(target)
    assert names(target) == ["launch.sh", "plan.yaml"]
    assert paths == (target / "launch.sh", target / "plan.yaml")
    assert (target / "plan.yaml").read_text("utf-8") == MADE.files["plan.yaml"]
    assert names(tmp_path) == ["out"]  # nothing stays beside it


@pytest.mark.skipif(os.name != "posix", reason="file modes are POSIX matters")
def test_scripts_can_be_run_and_others_see_the_files(tmp_path: Path) -> None:
    MADE.save(tmp_path / "out")
    mask = os.umask(0)
    os.umask(mask)
    assert (tmp_path / "out" / "launch.sh").stat().st_mode & 0o777 == 0o777 & ~mask
    assert (tmp_path / "out" / "plan.yaml").stat().st_mode & 0o777 == 0o666 & ~mask
    assert (tmp_path / "out").stat().st_mode & 0o777 == 0o777 & ~mask


def test_a_folder_that_is_there_keeps_its_other_files(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine", "utf-8")
    (tmp_path / "plan.yaml").write_text("old", "utf-8")
    MADE.save(tmp_path)
    assert names(tmp_path) == ["launch.sh", "notes.txt", "plan.yaml"]
    assert (tmp_path / "plan.yaml").read_text("utf-8").startswith("dp: 8")
    assert (tmp_path / "notes.txt").read_text("utf-8") == "mine"


@pytest.mark.parametrize(
    "name",
    ["../evil", "/etc/evil", "a/b", "a\\b", "..", ".", "", "C:evil", "a\0b", "a\nb", " ", "con*"],
)
def test_names_stay_in_the_folder(tmp_path: Path, name: str) -> None:
    made = Exported("somewhere", {"launch.sh": "", name: "text"})
    with pytest.raises(FileError, match="not a plain file name"):
        made.save(tmp_path / "out")
    assert names(tmp_path) == []


def test_a_link_is_replaced_not_followed(tmp_path: Path) -> None:
    outside, target = tmp_path / "outside.txt", tmp_path / "out"
    outside.write_text("safe", "utf-8")
    target.mkdir()
    try:
        (target / "plan.yaml").symlink_to(outside)
    except OSError:
        pytest.skip("no links here")
    MADE.save(target)
    assert outside.read_text("utf-8") == "safe"
    assert not (target / "plan.yaml").is_symlink()


def test_places_that_cannot_be_written_are_told_before_anything_is(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="does not exist"):
        MADE.save(tmp_path / "no" / "such")
    (tmp_path / "file").write_text("x", "utf-8")
    with pytest.raises(FileError, match="is a file"):
        MADE.save(tmp_path / "file")
    (tmp_path / "out" / "plan.yaml").mkdir(parents=True)
    with pytest.raises(FileError, match="directories in place of files"):
        MADE.save(tmp_path / "out")
    assert names(tmp_path) == ["file", "out"]
    assert names(tmp_path / "out") == ["plan.yaml"]


def test_a_failure_half_way_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from foretrain.adapters.write import exported

    written = exported._write

    def full_disk(path: Path, text: str) -> None:
        if path.name == "plan.yaml":
            raise OSError(28, "No space left on device")
        written(path, text)

    monkeypatch.setattr(exported, "_write", full_disk)
    with pytest.raises(FileError, match="No space left"):
        MADE.save(tmp_path / "out")
    assert names(tmp_path) == []


def test_files_cannot_be_changed_under_way() -> None:
    with pytest.raises(TypeError):
        MADE.files["more"] = ""  # type: ignore[index]
    assert MADE.to_dict() == {
        "target": "somewhere",
        "files": dict(MADE.files),
        "cannot": ["pp2: no"],
        "plan": "",
        "assumptions": [],
        "warnings": [],
        "runs": "",
        "step_seconds": None,
        "runs_step_seconds": None,
    }
