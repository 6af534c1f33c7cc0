"""Stalls of real runs with a known bottleneck, and what-if against real runs of it.

    python tools/measured_stalls.py [--turns 8] [--steps 40] [--only fetch,prep,compute,network] \
        [--json docs/measured-stalls.json] [--page docs/measured-stalls.md]
    python tools/measured_stalls.py --from docs/measured-stalls.json --page docs/measured-stalls.md

Four runs of tools/measured/train.py: bound by cold random reads of 4 KiB, by preparing, by computing, and by a network of
100 Mb/s between two network namespaces. Each must name its cause as the largest stall. Turn by turn, a launch of
`measure train` is followed by the same script by itself, timed by its own clock, and by real runs of every change that is
predicted from the measurements, so that what slows the machine for a while slows all of them.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for the testbed's hosts
from measured.held_disk import held
from measured.stalls_page import case_lines, has_failed, page, whatif_rows
from measured.two_hosts import Pair, pair

from foretrain.measurement import page_cache
from foretrain.measurement.machine import Machine
from foretrain.measurement.protocol import StallProtocol, measure_train
from testbed.hosts import why_not

SCRIPT = Path(__file__).parent / "measured" / "train.py"
MEBIBYTES = 256
READS_PER_SECOND = (
    6_000  # of a disk that is held: about a gp3 volume of AWS with twice its least rate
)
BITS_PER_SECOND = 100e6
BASE = "by itself"


@dataclass(frozen=True)
class Variant:
    """The script as it is, or with one thing changed as `measure whatif --set` would change it."""

    options: tuple[str, ...] = ()
    cached: float = 0.0
    network: float = 1.0


@dataclass(frozen=True)
class Case:
    """A run with a known bottleneck, and the changes that are predicted and run."""

    options: tuple[str, ...]
    changes: Mapping[str, Variant]
    share: float = 1.0  # of the steps that are asked for: long steps that hardly differ need fewer


def _workers(count: int) -> Variant:
    return Variant(options=("--workers", str(count)))


CASES = {
    "fetch": Case(
        ("--reads", "24", "--rounds", "8"),
        {
            "workers=2": _workers(2),
            "workers=4": _workers(4),
            "cached=1": Variant(cached=1.0),
            "cached=0.5": Variant(cached=0.5),
        },
    ),
    "prep": Case(("--rounds", "40"), {"workers=2": _workers(2), "workers=4": _workers(4)}),
    "compute": Case(("--width", "512", "--depth", "8", "--batch", "96"), {}),
    "network": Case(("--width", "512", "--depth", "4"), {"network=2": Variant(network=2.0)}, 0.4),
}


class Bench:
    """Where cases are measured: the records, and how much of everything."""

    def __init__(self, folder: Path, told: argparse.Namespace) -> None:
        self.folder, self.turns, self.steps = folder, told.turns, told.steps
        self.records = folder / "data" / "records.bin"
        _write_records(self.records)

    def script(self, *options: str) -> list[str]:
        return [str(SCRIPT), "--data", str(self.records.parent), *options]

    def by_itself(
        self, case: Case, variant: Variant, printed: Callable[[list[str], Variant], str]
    ) -> list[float]:
        """Seconds of the script's own steps."""
        _cache(self.records, variant.cached)
        steps = round(case.share * self.steps)
        words = self.script(*case.options, *variant.options, "--time", str(steps))
        lines = printed(words, variant).splitlines()
        found: list[float] = json.loads(lines[-1])["step_seconds"]
        return [round(seconds, 7) for seconds in found]

    def measured(self, name: str) -> dict[str, Any]:
        """The document of a case, and the steps of every variant by itself, turn by turn."""
        case = CASES[name]
        variants = {BASE: Variant(), **case.changes}
        taken: dict[str, list[list[float]]] = {title: [] for title in variants}

        def between(turn: int, printed: Callable[[list[str], Variant], str]) -> None:
            for title, variant in variants.items():
                taken[title].append(self.by_itself(case, variant, printed))
            shown = ", ".join(
                f"{title} {1e3 * sum(t[-1]) / len(t[-1]):.2f}" for title, t in taken.items()
            )
            say(f"{name}: turn {turn} of {self.turns}: ms per step {shown}")

        protocol = StallProtocol(steps=round(case.share * self.steps), repeats=self.turns, rounds=1)
        if name == "network":
            document = self._between_hosts(case, protocol, between)
        else:
            document = measure_train(
                [sys.executable, *self.script(*case.options)],
                protocol,
                progress=lambda done, of: between(done, _printed_here),
            )
        assert document is not None  # this is the first host
        command = ["python", "tools/measured/train.py", *case.options]  # not where it lies here
        return {"document": {**document, "command": shlex.join(command)}, "by_itself": taken}

    def _between_hosts(
        self, case: Case, protocol: StallProtocol, between: Callable[..., None]
    ) -> dict[str, Any]:
        with pair(self.folder, BITS_PER_SECOND) as hosts:
            return hosts.measured(
                self.script(*case.options),
                protocol,
                lambda turn: between(turn, lambda words, v: _printed_there(hosts, words, v)),
            )


def _printed_here(words: list[str], variant: Variant) -> str:
    done = subprocess.run(
        [sys.executable, *words],
        capture_output=True,
        text=True,
        check=False,
        start_new_session=True,  # as `measure train` does: a session is what the scheduler shares cores by
    )
    if done.returncode:
        raise RuntimeError(done.stderr)
    return done.stdout


def _printed_there(hosts: Pair, words: list[str], variant: Variant) -> str:
    return hosts.printed(words, variant.network)


def _write_records(path: Path) -> None:
    path.parent.mkdir()
    with path.open("wb") as stream:
        for _ in range(MEBIBYTES):
            stream.write(os.urandom(1 << 20))
        stream.flush()
        os.fsync(stream.fileno())


def _cache(path: Path, share: float) -> None:
    """That share of a file is in memory, the rest is not. Records are in random order, so any part will do."""
    page_cache.drop([path])
    left = round(share * path.stat().st_size)
    with path.open("rb", buffering=0) as stream:
        while left > 0:
            left -= len(stream.read(min(left, page_cache.CHUNK)))


def say(line: str) -> None:
    print(f"[{time.strftime('%H:%M:%S')}] {line}", flush=True)


def _others() -> Callable[[], float]:
    """Asked later: which share of all cores processes that are not ours took since."""

    def seconds() -> tuple[float, float]:
        words = Path("/proc/stat").read_text("ascii").split("\n", 1)[0].split()[1:9]
        user, nice, system, _idle, _waiting, *rest = map(float, words)
        every = (user + nice + system + sum(rest)) / os.sysconf("SC_CLK_TCK")
        return time.monotonic(), every - sum(os.times()[:4])

    began, before = seconds()

    def share() -> float:
        now, after = seconds()
        return max(0.0, after - before) / ((now - began) * (os.cpu_count() or 1))

    return share


@contextlib.contextmanager
def _disk(name: str, bench: Bench) -> Iterator[str]:
    if name != "fetch":
        yield "as it is"
        return
    with held(bench.records.parent, READS_PER_SECOND) as found:
        yield found.told


def measured(told: argparse.Namespace) -> dict[str, Any]:
    """All that was asked for, written to `--json` after every case."""
    found: dict[str, Any] = {
        "machine": Machine.here().title,
        "began": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "turns": told.turns,
        "steps": told.steps,
        "bits_per_second": BITS_PER_SECOND,
        "cases": {},
        "left_out": {},
    }
    with tempfile.TemporaryDirectory(prefix="foretrain-stalls-", dir=told.folder) as place:
        bench = Bench(Path(place), told)
        for name in told.only.split(","):
            reason = why_not() if name == "network" else None
            if reason:
                found["left_out"][name] = reason
                say(f"{name}: left out, {reason}")
                continue
            with _disk(name, bench) as disk:
                say(f"{name}: the disk is {disk}")
                others = _others()
                found["cases"][name] = {"disk": disk, **bench.measured(name), "others": others()}
            for line in case_lines(name, found["cases"][name]):
                say(line)
            if told.json:
                told.json.write_text(json.dumps(found), encoding="utf-8")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--only", default=",".join(CASES))
    parser.add_argument("--folder", type=Path, default=Path.cwd(), help="on the disk to be read")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--page", type=Path)
    parser.add_argument("--from", dest="source", type=Path, metavar="JSON")
    told = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if told.source:
        found = json.loads(told.source.read_text("utf-8"))
    else:
        found = measured(told)
    if told.page:
        told.page.write_text(page(found), encoding="utf-8")
    for row in whatif_rows(found):
        print(" | ".join(row))
    sys.exit(has_failed(found))


if __name__ == "__main__":
    main()
