"""Branch coverage of the packages that answers are computed in, by the tests near to them.

    python tools/near_coverage.py [--jobs 2] [--missing]

Runs the tests of `tests/faults/nearest.yaml` under coverage.py and prints the share of branches and of lines that they
reach, by package. Fails where a package is below its floor (`[tool.foretrain.branch-coverage]` in pyproject.toml).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import tomllib
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from checkout_copy import HERE, PACKAGE
from planted_faults import nearest


def floors() -> dict[str, float]:
    project = tomllib.loads((HERE / "pyproject.toml").read_text("utf-8"))
    return dict(project["tool"]["foretrain"]["branch-coverage"])


def measured(jobs: int) -> dict[str, Any]:
    """What coverage.py says of every file."""
    tests = dict.fromkeys(name for names in nearest().values() for name in names)
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "coverage.json"
        line = (sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-n", str(jobs), "--cov",
                f"--cov-report=json:{page}", *tests)  # fmt: skip
        if subprocess.run(line, cwd=HERE).returncode:
            sys.exit("a test fails: no figures")
        files: dict[str, Any] = json.loads(page.read_text())["files"]
        return files


def by_package(files: Mapping[str, Any]) -> dict[str, Counter[str]]:
    """Covered and all branches and lines."""
    found: dict[str, Counter[str]] = {}
    for name, file in files.items():
        package = Path(name).relative_to(PACKAGE).parts[0]
        found.setdefault(package, Counter()).update(file["summary"])
    return found


def share(count: Counter[str], covered: str, every: str) -> float:
    return 100.0 * count[covered] / count[every] if count[every] else 100.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument(
        "--missing", action="store_true", help="lines from which a branch is never taken"
    )
    options = parser.parse_args()
    files, least = measured(options.jobs), floors()
    if options.missing:
        for name, file in sorted(files.items()):
            lines = sorted({start for start, _ in file["missing_branches"]})
            print(
                f"{name}: {', '.join(map(str, lines))}" if lines else "", end="\n" if lines else ""
            )
    print("coverage by near tests     branches    lines    floor of branches")
    below = []
    for package, count in sorted(by_package(files).items()):
        branches = share(count, "covered_branches", "num_branches")
        lines = share(count, "covered_lines", "num_statements")
        print(f"  {package:<24} {branches:7.1f} % {lines:7.1f} % {least[package]:12.1f} %")
        below += [package] if branches < least[package] else []
    sys.exit(f"below the floor: {', '.join(below)}" if below else 0)


if __name__ == "__main__":
    main()
