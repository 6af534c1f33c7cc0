"""Mutants: which small changes of the source no test notices.

    python tools/mutants.py [MODULE …] [--sample N] [--seed S] [--budget SECONDS] [--tests FILE …] [--against main]

MODULE is a package (`planning`, `cost/collectives`) or a file of `src/foretrain`; without one, all that differ from the
branch `main`. Tests are those near to the package (`tests/faults/nearest.yaml`): of those, the ones that call the mutated
function, the fastest first; of those, with a budget, as many as take so many seconds without a mutant. Survivors are
listed with what was changed; the share that was killed is told by package.

Tests are collected once. A mutant is a forked process in which the code of one function is another; nothing is written.
Mutants outside of functions are tried in a copy of the checkout instead. (mutmut, which forks too, rewrites modules into
a folder that an editable install of scikit-build-core does not import from; cosmic-ray starts over for every mutant.)
"""

from __future__ import annotations

import argparse
import functools
import gc
import os
import pickle
import random
import signal
import subprocess
import sys
import tempfile
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from math import inf
from pathlib import Path
from time import monotonic, sleep
from types import CodeType, FunctionType
from typing import Any

import pytest
from checkout_copy import HERE, PACKAGE, checkout_copy
from mutations import Mutation, mutations
from planted_faults import nearest, package_of

from foretrain.resolving import ask

KILLED, SURVIVED, UNREACHED = "killed", "survived", "no test reaches it"
LEAST_SECONDS = 20.0
"""until a mutant counts as stuck, however fast its tests are"""


@dataclass(frozen=True, slots=True)
class Reached:
    """What tests do without a mutant: seconds of each, and the functions it calls."""

    seconds: Mapping[str, float]
    callers: Mapping[tuple[str, str], set[str]]  # (file, function) → tests

    def tests(self, mutant: Mutation, budget: float = inf) -> list[str]:
        """Those that call the mutated function, the fastest first, within a budget of seconds (one of them at least)."""
        callers = self.callers.get((str(HERE / mutant.path), mutant.function), set())
        names = sorted(callers, key=lambda name: (self.seconds[name], name))
        spent = list(accumulate(self.seconds[name] for name in names))
        return [name for name, until in zip(names, spent, strict=True) if until <= max(budget, spent[0])]  # fmt: skip


@dataclass
class Loop:
    """A pytest plugin: runs its own tests for every mutant instead of all of them once."""

    package: str
    mutants: Sequence[Mutation]
    budget: float = inf
    verdicts: dict[int, str] = field(default_factory=dict)
    failed: str = ""

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed and not self.failed:
            self.failed = report.nodeid

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        items = {item.nodeid: item for item in session.items}
        ask(
            "gpt2", on="1 x dgx-a100-80gb", batch=8, plan="dp8"
        )  # reads the data files once for all
        _forget(self.package)
        reached = self._recorded(items)
        for number, mutant in enumerate(self.mutants):
            names = reached.tests(mutant, self.budget)
            if not names:
                self.verdicts[number] = UNREACHED
                continue
            limit = LEAST_SECONDS + 5.0 * sum(reached.seconds[name] for name in names)
            is_killed = _forked(functools.partial(self._killed, mutant, items, names), limit) != 0
            self.verdicts[number] = KILLED if is_killed else SURVIVED
            print(f"{self.verdicts[number]:<9} {mutant.path}:{mutant.line}", flush=True)
        return True

    def _killed(self, mutant: Mutation, items: Mapping[str, pytest.Item], names: list[str]) -> int:
        _patch(mutant)
        for name in names:
            _run(items[name])
            if self.failed:
                return 1
        return 0

    def _recorded(self, items: Mapping[str, pytest.Item]) -> Reached:
        """One run in a process of its own, so that nothing is remembered in this one."""
        with tempfile.NamedTemporaryFile() as file:

            def record() -> int:
                Path(file.name).write_bytes(pickle.dumps(self._record(items.values())))
                return 0

            if _forked(record, 1800.0) != 0:
                raise pytest.UsageError("tests cannot be run without a mutant")
            found = Reached(*pickle.loads(Path(file.name).read_bytes()))
        for name in (name for name, seconds in found.seconds.items() if seconds == inf):
            print(f"not tried, as it fails in here: {name}")
        return found

    def _record(
        self, items: Iterable[pytest.Item]
    ) -> tuple[dict[str, float], dict[tuple[str, str], set[str]]]:
        seconds: dict[str, float] = {}
        callers: dict[tuple[str, str], set[str]] = defaultdict(set)
        for item in items:
            _forget(self.package)
            began = monotonic()
            called = _called(item)
            seconds[item.nodeid] = monotonic() - began
            if self.failed:  # such as one that is about processes
                seconds[item.nodeid] = inf
                self.failed = ""
                continue
            for function in called:
                callers[function].add(item.nodeid)
        return seconds, dict(callers)


def _run(item: pytest.Item) -> None:
    item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)


def _called(item: pytest.Item) -> set[tuple[str, str]]:
    """Run a test: the functions of the package that it calls, by file and name."""
    codes: set[CodeType] = set()

    def seen(frame: Any, event: str, _: Any) -> None:
        if event == "call":
            codes.add(frame.f_code)

    sys.setprofile(seen)
    _run(item)
    sys.setprofile(None)
    source = str(HERE / PACKAGE)
    mine = (code for code in codes if code.co_filename.startswith(source))
    return {(code.co_filename, code.co_qualname.split(".<locals>")[0]) for code in mine}


def _forget(package: str) -> None:
    """Empty the caches that a mutant of a package may fill: what one test left in them would hide which functions the
    next one needs. Layers below the package never call it, and what they read of data files may stay."""
    below = _below(package)
    for each in gc.get_objects():
        if isinstance(each, functools._lru_cache_wrapper):
            room = f"{each.__module__}..".split(".")
            if room[0] == "foretrain" and room[1] not in below:
                each.cache_clear()


@functools.cache
def _below(package: str) -> frozenset[str]:
    """The rooms of all lower layers, by the contract that import-linter checks."""
    project = tomllib.loads((HERE / "pyproject.toml").read_text())
    layers = project["tool"]["importlinter"]["contracts"][0]["layers"]
    rooms = [{name.strip() for name in layer.split("|")} for layer in layers]
    own = next(number for number, names in enumerate(rooms) if package in names)
    return frozenset().union(*rooms[own + 1 :])


def _patch(mutant: Mutation) -> None:
    """Give every function made of the mutated code the mutant's."""
    path = str(HERE / mutant.path)
    other = next(
        code
        for code in _codes(compile(mutant.text, path, "exec"))
        if (code.co_qualname, code.co_firstlineno) == (mutant.function, mutant.begins)
    )
    alike = [
        each
        for each in gc.get_objects()
        if isinstance(each, FunctionType)
        and each.__code__.co_filename == path
        and each.__code__.co_qualname == mutant.function
        and each.__code__.co_firstlineno == mutant.begins
    ]
    for each in alike:
        each.__code__ = other


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _codes(inner)


def _forked(work: Any, limit: float) -> int:
    """What a function returns in a process of its own; -1 where it takes too long or breaks."""
    child = os.fork()
    if child == 0:
        status = 2
        try:
            os.setpgid(0, 0)
            quiet = os.open(os.devnull, os.O_WRONLY)
            os.dup2(quiet, 1)
            os.dup2(quiet, 2)
            status = work()
        finally:
            os._exit(status)
    deadline = monotonic() + limit
    while monotonic() < deadline:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        sleep(0.01)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return -1


def tried(
    package: str, mutants: Sequence[Mutation], tests: Sequence[str], budget: float = inf
) -> list[str]:
    """The verdict on every mutant of one package."""
    inside = [m for m in mutants if m.function]
    loop = Loop(package.split("/")[0], inside, budget)
    if inside:
        options = (
            "-o",
            "addopts=",
            "-p",
            "no:cacheprovider",
            "-s",
            "-p",
            "no:terminal",
            "--hypothesis-seed=0",
        )
        status = pytest.main([*options, *(str(HERE / name) for name in tests)], [loop])
        if status != 0:
            sys.exit(f"the nearest tests cannot be tried without a mutant ({status!r})")
    said = {id(m): loop.verdicts[number] for number, m in enumerate(inside)}
    outside = [m for m in mutants if not m.function]
    if outside:
        with checkout_copy() as copy:
            for mutant in outside:
                with copy.replaced(mutant.path, mutant.text):
                    noticed = copy.run(tests).verdict != "survived"
                said[id(mutant)] = KILLED if noticed else SURVIVED
                print(f"{said[id(mutant)]:<9} {mutant.path}:{mutant.line}", flush=True)
    return [said[id(m)] for m in mutants]


def modules(asked: Sequence[str], against: str) -> list[Path]:
    """Files to mutate, from the root of the checkout."""
    if asked:
        named = [HERE / PACKAGE / name for name in asked]
        lost = [str(path) for path in named if not path.exists()]
        if lost:
            sys.exit(f"no such module: {', '.join(lost)}")
        found = [p for path in named for p in ([path] if path.is_file() else path.rglob("*.py"))]
        return sorted({path.relative_to(HERE) for path in found})
    line = ("git", "diff", "--name-only", "--diff-filter=d", f"{against}...", "--", str(PACKAGE))
    done = subprocess.run(line, cwd=HERE, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"cannot compare with {against}: {done.stderr.strip()}")
    return [Path(name) for name in done.stdout.split() if name.endswith(".py")]


def drawn(paths: Iterable[Path], sample: int | None, seed: int) -> list[Mutation]:
    """All mutants of the modules, or so many of them by lot."""
    every = [m for path in paths for m in mutations(path, (HERE / path).read_text())]
    if sample is None or sample >= len(every):
        return every
    chosen = random.Random(seed).sample(range(len(every)), sample)
    return [every[number] for number in sorted(chosen)]


def told(package: str, mutants: Sequence[Mutation], verdicts: Sequence[str]) -> str:
    left = [(m, v) for m, v in zip(mutants, verdicts, strict=True) if v != KILLED]
    killed = len(mutants) - len(left)
    share = f"{package}: {killed} of {len(mutants)} mutants killed ({killed / len(mutants):.0%})"
    return "\n".join([*(f"{v}: {m}" for m, v in left), share])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("modules", nargs="*", help="packages or files of src/foretrain")
    parser.add_argument("--sample", type=int, help="so many mutants of each package, by lot")
    parser.add_argument("--tests", nargs="+", help="test files, instead of the nearest")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--budget", type=float, default=inf, help="most seconds of tests for each")
    parser.add_argument("--against", default="main", help="the branch that changes are told from")
    options = parser.parse_args()
    by_package: dict[str, list[Path]] = defaultdict(list)
    near, pages = nearest(), []
    for path in modules(options.modules, options.against):
        by_package[package_of(path, near)].append(path)
    for package, paths in by_package.items():
        if package not in near and not options.tests:
            print(f"{package}: no tests are named for it in tests/faults/nearest.yaml")
            continue
        mutants = drawn(paths, options.sample, options.seed)
        if mutants:
            tests = options.tests or near[package]
            print(f"{package}: {len(mutants)} mutants", flush=True)
            pages.append(told(package, mutants, tried(package, mutants, tests, options.budget)))
    print("\n".join(["", *pages] if pages else ["no module to mutate"]))


if __name__ == "__main__":
    main()
