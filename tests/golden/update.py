"""Writes the kept answers anew: `python -m tests.golden.update [name …]`. Review the difference before committing."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from foretrain.simulate import answer
from tests.golden.questions import QUESTIONS, summary

FOLDER = Path(__file__).parent / "predictions"


def rounded(value: Any) -> Any:
    """Eight digits: far more than a prediction is worth, and enough to compare six."""
    if isinstance(value, dict):
        return {key: rounded(inner) for key, inner in value.items()}
    return float(f"{value:.8g}") if isinstance(value, float) else value


def main(names: list[str]) -> None:
    for name in names or QUESTIONS:
        found = rounded(summary(answer(QUESTIONS[name]())))
        text = json.dumps(found, indent=2, ensure_ascii=False) + "\n"
        (FOLDER / f"{name}.json").write_text(text, encoding="utf-8")
        print(f"{name}: {found['step_seconds']} s")


if __name__ == "__main__":
    main(sys.argv[1:])
