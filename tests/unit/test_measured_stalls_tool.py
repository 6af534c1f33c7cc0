"""tools/measured_stalls.py: the disk it holds, the records its script reads, what it makes of the runs."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
from measured_launches import launch

from foretrain.measurement.protocol import StallProtocol, document_of
from foretrain.measurement.train_runs import train_run

TOOLS = Path(__file__).resolve().parents[2] / "tools"
sys.path.insert(0, str(TOOLS))

from measured import held_disk, stalls_page  # noqa: E402


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine whose one disk, 8:0, holds everything on its first partition."""
    here = os.stat(tmp_path).st_dev
    part = tmp_path / "devices" / "sda" / "sda1"
    part.mkdir(parents=True)
    (part / "partition").write_text("1\n")
    (part / "dev").write_text("8:1\n")
    (part.parent / "dev").write_text("8:0\n")
    numbers = tmp_path / "numbers"
    numbers.mkdir()
    (numbers / f"{os.major(here)}:{os.minor(here)}").symlink_to(part)
    monkeypatch.setattr(held_disk, "DEVICES", numbers)
    monkeypatch.setattr(held_disk, "GROUPS", tmp_path / "groups")
    (tmp_path / "groups").mkdir()
    return tmp_path / "groups"


def test_limits_are_for_whole_disks(disk: Path, tmp_path: Path) -> None:
    assert held_disk.disk_of(tmp_path) == "8:0"


def test_a_disk_is_held_by_the_first_version_of_control_groups(disk: Path, tmp_path: Path) -> None:
    (disk / "blkio").mkdir()
    group = disk / "blkio" / f"foretrain-{os.getpid()}"
    with held_disk.held(tmp_path, 6000) as found:
        assert found.is_held
        assert "6,000" in found.told
        assert (group / "blkio.throttle.read_iops_device").read_text() == "8:0 6000"
        assert (group / "cgroup.procs").read_text() == str(os.getpid())
    assert (disk / "blkio" / "cgroup.procs").read_text() == str(os.getpid())  # back home


def test_a_disk_is_held_by_the_second_version(
    disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (disk / "cgroup.subtree_control").write_text("")
    group = disk / f"foretrain-{os.getpid()}"
    make = Path.mkdir

    def with_files(path: Path, *more: Any, **named: Any) -> None:
        make(path, *more, **named)
        (path / "io.max").write_text("")

    monkeypatch.setattr(Path, "mkdir", with_files)
    with held_disk.held(tmp_path, 6000) as found:
        assert found.is_held
        assert (group / "io.max").read_text() == "8:0 riops=6000"
    assert (disk / "cgroup.subtree_control").read_text() == "+io"


def test_a_disk_that_cannot_be_held_is_told_with_the_reason(disk: Path, tmp_path: Path) -> None:
    with held_disk.held(tmp_path, 6000) as found:
        assert not found.is_held
        assert "no control groups that limit reading" in found.told


def test_a_cold_epoch_reads_no_record_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    from measured.train import RECORD, Records

    (tmp_path / "records.bin").write_bytes(os.urandom(50 * RECORD))
    read: list[int] = []
    real = os.pread

    def counted(handle: int, size: int, at: int) -> bytes:
        read.append(at)
        return real(handle, size, at)

    monkeypatch.setattr(os, "pread", counted)
    data = Records(str(tmp_path), 7, 1, 4)
    for number in range(len(data)):
        data[number]
    os.close(data.handle)
    assert len(read) == len(set(read)) == 49


def found(**by_itself: list[list[float]]) -> dict[str, Any]:
    """A run that waits 0.3 s for preparation of which nothing is fixed."""
    steps = {"T0": 0.02, "T3": 0.32, "T2": 0.32, "P": 0.32, "F": 0.32, "P2": 0.16, "F2": 0.16}
    told = {
        name: launch(name, (step - 0.02, 0.0, 0.02, 0.0, 0.0), cores=64)
        for name, step in steps.items()
    }
    twice = {name: train_run(name, [one, one]) for name, one in told.items()}
    document = document_of(twice, ["x"], StallProtocol())
    case = {"disk": "as it is", "document": document, "by_itself": by_itself, "others": 0.0}
    return {
        "machine": "2 x some cores", "began": "today", "turns": 2, "steps": 10,
        "cases": {"prep": case}, "left_out": {"network": "no root"},
    }  # fmt: skip


def test_effects_are_compared_turn_by_turn() -> None:
    """The machine is half as fast in the second turn: both the script and the change suffer, the ratio does not."""
    told = found(**{"by itself": [[0.32] * 10, [0.64] * 10], "workers=2": [[0.2] * 10, [0.4] * 10]})
    (effect,) = stalls_page.effects("prep", told["cases"]["prep"])
    assert effect.predicted == pytest.approx(2.0)
    assert effect.measured == pytest.approx(1.6)
    assert effect.error == pytest.approx(0.25)


def test_the_page_says_what_holds_and_what_does_not() -> None:
    told = found(**{"by itself": [[0.30] * 10] * 2, "workers=2": [[0.2] * 10] * 2})
    text = stalls_page.page(told)
    assert "in 1 of 1 runs" in text
    assert "0 of 1 predicted effects" in text
    assert "+6.7 %" in text.replace("\\", "")  # measured 0.32, by itself 0.30
    assert "`network` left out: no root" in text
    assert not stalls_page.has_failed(told)
    told["cases"]["fetch"] = told["cases"].pop("prep")
    assert stalls_page.has_failed(told)
    assert "in 0 of 1 runs" in stalls_page.page(told)
