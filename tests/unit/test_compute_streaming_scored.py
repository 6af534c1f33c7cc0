"""Streaming kernels, convolutions and look-ups on the half of the measured shapes that was not fitted.

The measurements are not part of the project. They are looked for in `FORETRAIN_TRUTH` or beside the checkout in
`shared/truth`; without them these tests are skipped.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def bench() -> Iterator[ModuleType]:
    """The benchmark, loaded as a script loads it; it leaves the module path as it was."""
    before = list(sys.path)
    spec = importlib.util.spec_from_file_location("streaming_bench", ROOT / "bench" / "kernels_streaming.py")  # fmt: skip
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    if not (module.FOLDER / "neusight_kernels_elementwise.csv.gz").is_file():
        pytest.skip(f"no measurements in {module.FOLDER} (set FORETRAIN_TRUTH)")
    yield module
    sys.path[:] = before
    del sys.modules[spec.name]


def test_streaming_and_norms_are_nearer_than_the_roofline(bench: ModuleType) -> None:
    lines = list(bench.streaming())
    assert {line.device for line in lines} >= {"v100-sxm2-32gb", "a100-sxm4-40gb", "h100-sxm5-80gb"}
    for line in lines:
        budget = 0.09 if line.what == "streaming" else 0.18
        assert line.errors.mean() < budget, line.text()
        if line.baseline is not None:
            assert line.errors.mean() < 1.05 * line.baseline.mean(), line.text()


def test_convolutions_are_nearer_than_the_roofline(bench: ModuleType) -> None:
    for line in bench.convolutions():
        assert line.errors.mean() < (0.12 if "WideResNet" in line.what else 0.25), line.text()
        if line.baseline is not None:
            assert line.errors.mean() < line.baseline.mean(), line.text()


def test_look_ups_held_apart(bench: ModuleType) -> None:
    found = bench.distil_embedding.scored()
    assert np.abs(np.concatenate([found[k] for k in found if "default" not in k])).mean() < 0.25


def test_shipped_tables_are_what_the_tools_make(bench: ModuleType) -> None:
    folder = bench.distil_embedding.TARGET
    made = bench.distil_embedding.document()
    assert json.loads((folder / "v100-sxm2-32gb.json").read_text("utf-8")) == made
