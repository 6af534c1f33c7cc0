"""`measure data`: reading, preparing, copying."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from foretrain.errors import FileError, InputError
from foretrain.measurement.data import (
    CROP,
    DataSession,
    Images,
    copy_rows,
    data_to_read,
    dataset_of,
    fetch_rows,
    prep_rows,
)
from foretrain.measurement.fitting import calibration_of
from foretrain.measurement.machine import Machine
from foretrain.measurement.store import Store
from foretrain.measurement.timing import Effort

HERE = Machine("cpu", 2, 8, (), "", "host", "Linux", (("torch", "2"),))
QUICK = Effort(seconds=0.02, warm_up_seconds=0.002)


def session(store: Store) -> DataSession:
    return DataSession(store, HERE, QUICK, repeats=2)


def test_files_are_read_cold_and_warm(tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    for number in range(3):
        (tmp_path / "set" / f"{number}.bin").write_bytes(bytes(100_000))
    with Store.open(tmp_path / "store") as store:
        with data_to_read([tmp_path / "set"], 0, None) as files:
            rows = fetch_rows(session(store), files)
            again = fetch_rows(session(store), files)
        kept = store.rows("data")
    assert [(row.what, row.detail, row.amount) for row in rows] == [
        ("fetch", "cold", 300_000),
        ("fetch", "warm", 300_000),
    ]
    assert all(row.was_known for row in again)
    rates = calibration_of(kept).data
    assert rates.fetch_cold == pytest.approx(rows[0].rate)
    assert rates.fetch_warm == pytest.approx(rows[1].rate)


def test_a_file_of_our_own_is_gone_afterwards(tmp_path: Path) -> None:
    with data_to_read((), 3 * 2**20, tmp_path) as files:
        assert files[0].stat().st_size == 3 * 2**20
    assert not list(tmp_path.iterdir())


def test_no_data_is_an_answer(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileError, match="no data"), data_to_read([tmp_path / "empty"], 0, None):
        pass
    with pytest.raises(FileError, match="no such"), data_to_read([tmp_path / "nowhere"], 0, None):
        pass


def test_data_sets_by_name() -> None:
    with pytest.raises(InputError, match=r"package\.module:attribute"):
        dataset_of("json", 4)
    with pytest.raises(InputError, match="cannot be loaded"):
        dataset_of("json:nothing_there", 4)
    with pytest.raises(InputError, match="not a map-style dataset"):
        dataset_of("json:dumps.__name__", 4) if False else dataset_of("sys:maxsize", 4)
    found, name = dataset_of("sys:argv", 4)
    assert found is sys.argv
    assert name == "sys:argv"


def test_images_are_prepared_by_workers(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    picture = Images(2)[1]
    assert picture.shape == (3, CROP, CROP)
    assert picture.dtype == torch.float32
    with Store.open(tmp_path / "store") as store:
        rows = prep_rows(session(store), Images(8), "images", (1,), 8)
        kept = store.rows("data")
    assert rows[0].amount == 8
    seconds = calibration_of(kept).data.prep_seconds_per_sample
    assert seconds == pytest.approx(rows[0].seconds / 8)


def test_copies_within_memory(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    from foretrain.measurement.backend import CpuBackend

    with Store.open(tmp_path / "store") as store:
        rows = copy_rows(session(store), CpuBackend(1), (2**16,))
    assert rows[0].rate > 1e6


def test_the_command(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    done = subprocess.run(
        [sys.executable, "-m", "foretrain", "measure", "data", "--size", "2MB", "--folder", str(tmp_path),
         "--samples", "4", "--workers", "1", "--json", "--store", str(tmp_path / "store")],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert {row["what"] for row in json.loads(done.stdout)["data"]} == {
        "fetch", "prep", "host_to_device",
    }  # fmt: skip
