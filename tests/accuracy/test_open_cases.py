"""Published training runs: every configuration compiles and gives a finite step time.

The files are not part of the project. They are looked for in `FORETRAIN_CASES` or beside the checkout in
`shared/cases/open`; without them these tests are skipped.
"""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

import pytest

from foretrain import predict_cases
from foretrain.validation.figures import Scored, figures

HERE = Path(__file__).resolve().parents[2]
FOLDER = Path(os.environ.get("FORETRAIN_CASES", HERE.parent / "shared" / "cases" / "open"))
FILES = sorted(FOLDER.glob("*.jsonl")) if FOLDER.is_dir() else []
MOST = 150  # of the largest groups, evenly spread
OTHERS = (
    "neumf",
    "deepspeech2",
    "yolov3",
    "dlrm-mlperf",
    "dlrm-dcnv2",
)  # neither transformer nor CNN

pytestmark = pytest.mark.skipif(
    not FILES, reason=f"no case files in {FOLDER} (set FORETRAIN_CASES)"
)


def chosen(path: Path) -> list[dict[str, object]]:
    cases = [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
    cases = [
        c
        for c in cases
        if c["quality"] in ("high", "medium")
        and c["model"].get("zoo") not in OTHERS
        and not (c.get("runtime_options") or {}).get("peft")  # other work, and refused
    ]
    return cases[:: max(1, math.ceil(len(cases) / MOST))]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_configuration_gives_a_finite_step_time(path: Path) -> None:
    cases = chosen(path)
    blind = [{k: v for k, v in c.items() if k != "measured"} for c in cases]
    scored = [Scored(c, p) for c, p in zip(cases, predict_cases(blind), strict=True)]
    for row in scored:
        assert not row.failed, f"{row.case['id']}: {row.prediction['error']}"
        assert math.isfinite(row.prediction["step_seconds"])
        assert row.prediction["step_seconds"] > 0
    if scored:
        found = figures(scored)
        print(f"{path.stem}: n {found['n']}, MAPE {found['mape']}, median {found['median']}")
