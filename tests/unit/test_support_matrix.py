"""The page of what goes together: some of its cells, asked again through `predict`."""

from __future__ import annotations

import random
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from foretrain import predict
from foretrain.errors import InputError
from foretrain.plan.schedules import SCHEDULES

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/support.md").read_text("utf-8")
CELLS = 24


@pytest.fixture(scope="module")
def tools() -> Any:
    sys.path.insert(0, str(ROOT / "tools"))
    try:
        import support_matrix

        yield support_matrix
    finally:
        sys.path.remove(str(ROOT / "tools"))


def shown(heading: str) -> dict[tuple[str, str], str]:
    """(row, column) → cell of the table under a heading."""
    part = PAGE.split(f"## {heading}\n")[1].split("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in part.splitlines() if line.startswith("| ")]
    return {(row[0], name): cell for row in rows[1:] for name, cell in zip(rows[0][1:], row[1:], strict=True)}  # fmt: skip


def test_every_stack_family_and_feature_has_its_cells(tools: Any) -> None:
    stacks = shown("Stacks and plan features")
    lacking = {row for row, _ in stacks} ^ set(tools.stack_rows())
    assert not lacking, f"{lacking}: `python tools/support_matrix.py` writes docs/support.md anew"
    assert {column for _, column in stacks} == set(tools.FEATURES)
    assert set(SCHEDULES) <= set(tools.FEATURES)
    assert {row for row, _ in shown("Models and plan features")} == set(tools.MODELS)
    assert {row for row, _ in shown("Devices and precisions")} == set(tools.device_rows())


def test_reasons_are_those_of_the_page(tools: Any) -> None:
    listed = set(re.findall(r"^(\d+)\. ", PAGE.split("## Reasons")[1], re.M))
    cells = (c for part in PAGE.split("## ")[1:-1] for c in shown(part.splitlines()[0]).values())
    assert {n for cell in cells for n in re.findall(r"\d+", cell)} == listed


@pytest.mark.parametrize("number", range(CELLS))
def test_a_cell_is_true(tools: Any, number: int) -> None:
    cells = shown("Stacks and plan features") if number % 2 else shown("Models and plan features")
    rows = tools.stack_rows() if number % 2 else tools.model_rows()
    # as many that are refused as work, which are most of them
    wanted = [key for key, cell in sorted(cells.items()) if (cell[0] == "✓") == (number % 4 < 2)]
    row, feature = random.Random(number).choice(wanted)
    suited = tools.SUITED.get(feature, {}) if number % 2 else {}
    asked = replace(rows[row], plan=tools.FEATURES[feature], **suited)
    words = {"on": asked.on, "plan": asked.plan, "runtime": asked.stack, "batch": 64}
    if cells[row, feature][0] == "✓":
        assert predict(asked.model, micro_batch=1, **words).step_seconds > 0
        return
    number_of = cells[row, feature]
    (reason,) = re.findall(rf"^{number_of}\. (.+)$", PAGE, re.M)
    if reason.startswith(tools.CANNOT_RUN):
        because = reason.removeprefix(tools.CANNOT_RUN)
        warnings = predict(asked.model, micro_batch=1, **words).warnings
        assert any(f"{asked.stack} cannot run" in w and because in w for w in warnings)
        return
    with pytest.raises(InputError) as refused:
        predict(asked.model, micro_batch=1, **words)
    assert reason == tools._reason(str(refused.value), asked)
