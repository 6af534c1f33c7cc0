"""Real training scripts under `foretrain measure train`: small ones, so that it takes seconds. Figures are not checked
against a clock but against each other; tools/measured_stalls.py does the longer experiment."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from foretrain.analysis.prediction import STALLS

QUICK = ("train", "--json", "--repeats", "1", "--rounds", "1", "--steps", "6")
SCRIPT = Path(__file__).resolve().parents[2] / "tools" / "measured" / "train.py"

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None,
    reason="torch is not installed (pip install '.[test]')",
)


def measure(*words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-m", "foretrain", "measure", *words],
        capture_output=True,
        text=True,
        encoding="utf-8",
        env=environment,
        timeout=600,
    )


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    (folder / "records.bin").write_bytes(os.urandom(4 << 20))
    return folder


def answered(ran: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert ran.returncode == 0, ran.stderr
    document: dict[str, Any] = json.loads(ran.stdout)
    assert set(document["stalls"]) == set(STALLS)
    assert math.fsum(document["stalls"].values()) == pytest.approx(
        document["step_seconds"], rel=1e-12
    )
    return document


def test_a_script_that_waits_for_preparation(data: Path, tmp_path: Path) -> None:
    target, store = tmp_path / "found.json", tmp_path / "store.sqlite"
    words = [*QUICK, "-o", str(target)]
    words += ["-o", str(tmp_path / "found.html"), "--store", str(store), "--"]
    words += [sys.executable, str(SCRIPT), "--data", str(data), "--rounds", "60", "--workers", "0"]
    document = answered(measure(*words))
    assert set(document["runs"]) == {"T0", "T3", "T2", "P", "F"}
    assert document["bottleneck"] == "prep"
    assert document["stalls"]["prep"] > 0.5 * document["step_seconds"]
    assert document["runs"]["T2"]["is_cold"]
    assert document["what_if"]["fewest_workers_warm"] > 1
    assert "Where the time goes</h2>" in (tmp_path / "found.html").read_text("utf-8")
    changed = measure("whatif", str(target), "--set", "network=2x", "--json")
    assert changed.returncode == 0, changed.stderr
    assert json.loads(changed.stdout)["speedup"] == pytest.approx(1.0)  # one process has no network
    from foretrain.measurement.store import Store

    with Store.open(store) as kept:
        assert len(kept.rows(kind="train")) == 5


def test_two_processes_wait_for_each_other(data: Path) -> None:
    words = [*QUICK, "--runs", "T0,T1,T3", "--"]
    words += [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", str(SCRIPT)]
    words += ["--data", str(data), "--width", "256", "--depth", "2"]
    document = answered(measure(*words))
    alone, both = document["runs"]["T0"], document["runs"]["T1"]
    assert (alone["world"], both["world"], both["hosts"]) == (1, 2, 1)
    assert both["communication"]["seconds"] > 0
    assert alone["communication"]["bytes"] == both["communication"]["bytes"] > 0
    assert both["parts"]["wait"] > 0
    assert document["explained_run"] == "T3"
    assert any("fetch is unknown" in line for line in document["warnings"])


def test_a_script_that_aborts_after_all_is_measured_is_not_lost(data: Path, tmp_path: Path) -> None:
    aborting = tmp_path / "aborting.py"
    aborting.write_text(
        "import atexit, os, runpy\natexit.register(os.abort)\n"
        f"runpy.run_path({str(SCRIPT)!r}, run_name='__main__')\n"
    )
    words = [*QUICK, "--runs", "T0,T3"]
    ran = measure(*words, "--", sys.executable, str(aborting), "--data", str(data))
    document = answered(ran)
    assert any("1 of 1 launches exited with code -6" in line for line in document["warnings"])


def test_mistakes_are_the_users_to_mend(tmp_path: Path) -> None:
    idle = tmp_path / "idle.py"
    idle.write_text("print('hello')\n")
    ran = measure("train", "--repeats", "1", "--", sys.executable, str(idle))
    assert ran.returncode == 2
    assert "exited before anything was measured" in ran.stderr
    assert "hello" in ran.stderr
    broken = tmp_path / "broken.py"
    broken.write_text("raise RuntimeError('no such weights')\n")
    ran = measure("train", "--repeats", "1", "--", sys.executable, str(broken))
    assert ran.returncode == 2
    assert "no such weights" in ran.stderr
    assert measure("train", "--", "no-such-launcher-here").returncode == 2
    assert measure("train", "--steps", "0", "--", "python", "x.py").returncode == 2
    asleep = tmp_path / "asleep.py"
    asleep.write_text("import time\ntime.sleep(600)\n")
    ran = measure("train", "--timeout", "1s", "--", sys.executable, str(asleep))
    assert ran.returncode == 2
    assert "did not finish within 1 s" in ran.stderr
    (tmp_path / "not.json").write_text("{")
    assert measure("whatif", str(tmp_path / "not.json"), "--set", "workers=2").returncode == 2


def test_a_small_study() -> None:
    from foretrain.report import render
    from studies.stall_scaling.networks import Net
    from studies.stall_scaling.page import study_document
    from studies.stall_scaling.study import LAW, measure_study

    family = (Net(1, 8), Net(6, 8), Net(1, 64), Net(6, 8, is_normed=False))
    study = measure_study(family, steps=5, repeats=1, batch=1)
    assert len(study["rows"]) == len(family)
    assert all(row["together_seconds"] > 0 for row in study["rows"])
    assert all(row["predicted_stall_seconds"] > 0 for row in study["rows"])
    assert all(study["law"][name] >= 0 for name in LAW)
    assert "<svg" in str(render(study_document(study), "html"))
