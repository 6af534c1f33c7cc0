"""Planted faults: each has its place in today's source, and planting one leaves the checkout as it is."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def tools() -> Any:
    sys.path.insert(0, str(ROOT / "tools"))
    try:
        import planted_faults

        yield planted_faults
    finally:
        sys.path.remove(str(ROOT / "tools"))


def test_every_fault_has_its_place(tools: Any) -> None:
    lost = [(fault.name, fault.times) for fault in tools.faults() if fault.times != 1]
    assert lost == [], "plant it where its idea now lives (tests/faults/faults.yaml)"


def test_every_package_with_a_fault_has_tests_near_to_it(tools: Any) -> None:
    near = tools.nearest()
    assert {fault.package for fault in tools.faults()} <= set(near)
    assert [name for names in near.values() for name in names if not (ROOT / name).is_file()] == []


def test_a_fault_is_planted_in_a_copy_and_caught(tools: Any) -> None:
    fault = next(f for f in tools.faults() if "closes only beyond" in f.name)
    before = (ROOT / fault.path).read_bytes()
    tests = ["tests/unit/test_bucket_cycles.py"]
    with tools.checkout_copy() as copy:
        assert tools.tried(copy, fault, tests).verdict == "caught"
        assert copy.run(tests, "-k", "ddp_closes").verdict == "survived"  # it is gone again
    assert (ROOT / fault.path).read_bytes() == before
