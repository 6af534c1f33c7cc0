"""Plants the faults of `tests/faults/faults.yaml` one by one in a copy of the checkout: do the nearest tests notice?

    python tools/planted_faults.py [--only WORDS] [--seconds 120]

The nearest tests of a package (`tests/faults/nearest.yaml`) run first without a fault: they have to pass, and within
so many seconds. Ends with a table, and with an error where a fault survives or its place is not found.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from checkout_copy import HERE, PACKAGE, CheckoutCopy, Outcome, checkout_copy

FAULTS = HERE / "tests/faults/faults.yaml"
NEAREST = HERE / "tests/faults/nearest.yaml"


@dataclass(frozen=True, slots=True)
class Fault:
    """`old` stands once in a file, and `new` instead of it is wrong."""

    name: str
    path: Path  # from the root of the checkout
    old: str
    new: str
    package: str

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Fault:
        path = PACKAGE / row["file"]
        package = row.get("package") or package_of(path, nearest())
        return cls(row["fault"], path, row["old"], row["new"], package)

    @property
    def times(self) -> int:
        """How often its place is found."""
        path = HERE / self.path
        return path.read_text().count(self.old) if path.is_file() else 0


def faults() -> list[Fault]:
    return [Fault.of(row) for row in yaml.safe_load(FAULTS.read_text())]


def nearest() -> dict[str, list[str]]:
    """The tests of every package that are near and fast."""
    return dict(yaml.safe_load(NEAREST.read_text()))


def package_of(path: Path, known: Iterable[str]) -> str:
    """The innermost of the known packages around a module; else the outermost there is."""
    name = path.relative_to(PACKAGE).as_posix()
    around = [package for package in known if f"{name}/".startswith(f"{package}/")]
    return max(around, key=len, default=name.split("/")[0])


def expect_places(asked: Sequence[Fault]) -> None:
    lost = [f"{f.path}: “{f.name}” is found {f.times} times" for f in asked if f.times != 1]
    if lost:
        say = "Plant the fault where its idea now lives (tests/faults/faults.yaml)."
        sys.exit("\n".join([*lost, say]))


def expect_green(copy: CheckoutCopy, package: str, tests: Sequence[str], seconds: float) -> None:
    found = copy.run(tests, timeout=10 * seconds)
    print(f"{package}: nearest tests without a fault take {found.seconds:.0f} s", flush=True)
    if found.verdict != "survived":
        sys.exit(f"the nearest tests of {package} fail without a fault: {found.first}")
    if found.seconds > seconds:
        sys.exit(f"the nearest tests of {package} take more than {seconds:.0f} s")


def tried(copy: CheckoutCopy, fault: Fault, tests: Sequence[str]) -> Outcome:
    text = (copy.root / fault.path).read_text()
    with copy.replaced(fault.path, text.replace(fault.old, fault.new)):
        return copy.run(tests)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="faults whose name or file has these words")
    parser.add_argument("--seconds", type=float, default=120.0, help="most that tests may take")
    options = parser.parse_args()
    asked = [f for f in faults() if options.only in f"{f.path} {f.name}"]
    expect_places(asked)
    tests, found = nearest(), []
    with checkout_copy() as copy:
        for package in dict.fromkeys(f.package for f in asked):
            expect_green(copy, package, tests[package], options.seconds)
        for fault in asked:
            outcome = tried(copy, fault, tests[fault.package])
            found.append(outcome)
            where = f"{fault.path.relative_to(PACKAGE)}: {fault.name}"
            print(f"{outcome.verdict:<8} {outcome.seconds:4.0f} s  {where:<88} {outcome.first}", flush=True)  # fmt: skip
    caught = sum(outcome.verdict == "caught" for outcome in found)
    print(f"{caught} of {len(found)} faults caught")
    sys.exit(0 if caught == len(found) else 1)


if __name__ == "__main__":
    main()
