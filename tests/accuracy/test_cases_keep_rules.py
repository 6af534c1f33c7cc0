"""Published runs keep to the rules of the stacks that they name: nobody measured what cannot be run.

All that can be resolved do (4,604 of 4,608); every hundredth is looked at here. The files are found as in `test_open_cases.py`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from test_open_cases import FILES

from foretrain.cases import scenario_from_case
from foretrain.errors import InputError
from foretrain.plan.facts import facts_of
from foretrain.plan.supported import warned

EACH = 100

pytestmark = pytest.mark.skipif(not FILES, reason="no case files (set FORETRAIN_CASES)")


def cases() -> Iterator[dict[str, Any]]:
    lines = [line for path in FILES for line in path.read_text("utf-8").splitlines() if line]
    yield from (json.loads(line) for line in lines[::EACH])


def test_published_runs_keep_to_the_rules() -> None:
    looked_at = 0
    for case in cases():
        try:
            found = scenario_from_case(case)
        except InputError:
            continue
        looked_at += 1
        refused = warned(found.runtime, found.plan, facts_of(found.workload))
        assert not refused, f"{case['id']}, {found.plan.text}: {refused}"
    assert looked_at > 20
