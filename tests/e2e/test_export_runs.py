"""`foretrain export`, and the torchrun target run for real: two processes, gloo, no GPU."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from foretrain.adapters.write import TARGETS, export
from foretrain.cli import run
from foretrain.cluster import Cluster
from foretrain.resolving import ask

ASKED = (
    "export",
    "llama3-8b",
    "--on",
    "2 x dgx-h100",
    "--plan",
    "tp2 pp2 zero1 zb-h1",
    "--batch",
    "64",
)
SHARDED = (*ASKED[:5], "pp2 zero3 zb-h1", *ASKED[6:])
"""For targets that shard replicas."""
SHARDING = ("torchrun", "accelerate", "axolotl", "llama-factory")


@pytest.mark.parametrize("target", TARGETS)
def test_json_is_one_document(target: str, capsys: pytest.CaptureFixture[str]) -> None:
    asked = SHARDED if target in SHARDING else ASKED
    assert run([*asked, "--to", target, "--json"]) == 0
    said = capsys.readouterr()
    document = json.loads(said.out)
    figures = {"runs", "step_seconds", "runs_step_seconds"}
    assert set(document) - figures == {
        "target",
        "plan",
        "files",
        "cannot",
        "assumptions",
        "warnings",
    }
    assert document["runs_step_seconds"] != document["step_seconds"]
    assert document["target"] == target
    assert "launch.sh" in document["files"]
    assert any("zb-h1" in line for line in document["cannot"])
    assert said.err == ""


def test_files_go_to_stdout_and_refusals_beside_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*ASKED, "--to", "megatron"]) == 0
    said = capsys.readouterr()
    assert "==> megatron_args.txt <==\n--num-layers 32\n" in said.out
    assert "==> launch.sh <==\n#!/bin/sh\n" in said.out
    assert "not expressible: zb-h1: Megatron-LM runs 1F1B" in said.err
    assert re.search(
        r"warning: these files run tp2 pp2 dp4 zero1 sp micro=\d+, predicted", said.err
    )


def test_files_go_into_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "run"
    assert run([*ASKED, "--to", "nanotron", "-o", str(folder)]) == 0
    said = capsys.readouterr()
    assert said.out == ""
    assert f"wrote {folder / 'nanotron.yaml'}" in said.err
    assert sorted(path.name for path in folder.iterdir()) == ["launch.sh", "nanotron.yaml"]
    assert "zb-h1: nanotron supports 1F1B" in (folder / "launch.sh").read_text("utf-8")
    assert run([*ASKED, "--to", "nanotron", "-o", str(folder), "-q"]) == 0
    assert "wrote" not in capsys.readouterr().err


@pytest.mark.parametrize(("target", "file"), [("torchtitan", "torchtitan.toml"), ("megatron-bridge", "recipe.py")])  # fmt: skip
def test_a_search_exports_its_best_plan(target: str, file: str, tmp_path: Path) -> None:
    """The target's stack is searched, so that its own files run the plan that is found."""
    folder = tmp_path / "best"
    words = ["search", "llama3.2-1b", "--on", "4 x h100-sxm", "--batch", "16", "--micro-batch", "1"]
    assert run([*words, "--export", str(folder), "--to", target]) == 0
    assert file in {path.name for path in folder.iterdir()}
    script = (folder / "launch.sh").read_text("utf-8")
    assert "these files run" not in script


def test_help_names_every_target(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["export", "--help"]) == 0
    said = capsys.readouterr().out
    assert all(target in said for target in TARGETS)


@pytest.mark.skipif(os.name != "posix", reason="a POSIX shell reads the scripts")
@pytest.mark.parametrize("target", TARGETS)
def test_scripts_are_read_by_a_shell(target: str) -> None:
    """Names are a user's: none of them may end a comment or start a command."""
    pair = Cluster.of("2 x dgx-h100").renamed("mine'; $(touch x) `y`\nexit 3 #")
    made = export(ask("llama3-8b", on=pair, plan="tp2 pp2 zero1 zb-h1", batch=64), target)
    script = made.files["launch.sh"]
    ran = subprocess.run(["sh", "-n"], input=script, text=True, capture_output=True)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert not any(line.startswith("exit 3") for line in script.splitlines())


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--to", "megtron"], "Did you mean 'megatron' or 'megatron-bridge'?"),
        ([], "--to: missing"),
        (["--to", "torchrun"], "ddp cannot run zero=1"),
        (["--to", "megatron", "-o", "no/such/folder"], "does not exist"),
    ],
)
def test_mistakes_are_explained(
    words: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*ASKED, *words]) == 2
    said = capsys.readouterr()
    assert told in said.err
    assert said.out == ""


def test_a_plan_the_model_cannot_follow_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["export", "llama3-8b", "--on", "3 x dgx-h100", "--plan", "tp12", "--to", "megatron"]
    assert run(words) == 2
    assert "12" in capsys.readouterr().err


# --- torchrun -----------------------------------------------------------------------------------------

needs_torch = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None or os.name != "posix",
    reason="torch is not installed (pip install '.[test]'), or no POSIX shell",
)


def free_port() -> str:
    with socket.socket() as listening:
        listening.bind(("localhost", 0))
        return str(listening.getsockname()[1])


def trained(folder: Path, plan: str, *more: str) -> tuple[list[float], str]:
    """Losses of a plan for two devices, exported and started as its folder says."""
    pair = Cluster.of("1 x dgx-a100-80gb").first(2)
    asked = ask("llama3.2-1b", on=pair, plan=plan, batch=8, micro_batch=2, runtime="ddp")
    export(asked, "torchrun").save(folder)
    home = str(Path(sys.executable).parent)
    environment = {
        **os.environ,
        "PATH": f"{home}{os.pathsep}{os.environ.get('PATH', '')}",
        "MASTER_PORT": free_port(),
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
    }
    words = ["--tiny", "--steps", "6", "--lr", "1e-2", "--check", *more]
    ran = subprocess.run(
        ["sh", str(folder / "launch.sh"), *words],
        capture_output=True, text=True, env=environment, timeout=300,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    losses = [float(found) for found in re.findall(r"^step \d+ loss (\S+)", ran.stdout, re.M)]
    return losses, ran.stdout


@pytest.fixture(scope="module")
def replicated(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[float], str]:
    folder = tmp_path_factory.mktemp("replicated") / "run"
    return trained(folder, "recompute=full@0", "--precision", "fp32")


@needs_torch
def test_two_processes_train_and_agree(replicated: tuple[list[float], str]) -> None:
    losses, out = replicated
    assert len(losses) == 6
    assert losses[-1] < 0.5 * losses[0]  # it learns to count
    assert "replicas agree" in out


@needs_torch
def test_sharded_state_trains_as_replicas_do(
    tmp_path: Path, replicated: tuple[list[float], str]
) -> None:
    """The same data and weights: splitting state over the two processes changes rounding alone."""
    plan = "zero3 recompute=selective offload=activations"
    losses, out = trained(tmp_path / "run", plan, "--precision", "fp32")
    assert losses == pytest.approx(replicated[0], abs=2e-3)
    assert "replicas agree" in out
