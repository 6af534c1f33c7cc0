"""Hostile input for every reader: seeded mutations of valid files and words, given to the command line.

    python tools/fuzz.py [--inputs 10000] [--seed 1] [--only TARGET] [--keep FOLDER] [--replay NUMBER]

Each input is one call of the command line in a forked process, with 20 seconds and one gigabyte of memory. A finding
is what must never be: our own fault (exit 101), no end, too much memory, or an answer that is not one JSON document
of finite numbers. The same seed gives the same inputs; `--replay` runs one of them and shows what it says.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import math
import os
import random
import resource
import select
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))  # for traces written by hand
sys.path.insert(0, str(Path(__file__).parent))

from fuzz_mutations import mutated
from fuzz_targets import Target, targets

SECONDS = 20.0
"""Of processor time, so that a busy machine does not make findings; and of waiting, PATIENCE."""
PATIENCE = 120.0
BYTES = 1_000_000_000
BATCH = 50
"""Inputs of one process: what one leaves behind in it must not gather."""


@dataclass(frozen=True)
class Outcome:
    """What one input came to: `kind` is ok, no (exit code 1), refused (2), or a finding."""

    number: int
    target: str
    kind: str
    seconds: float
    told: str = ""

    @property
    def is_finding(self) -> bool:
        return self.kind not in ("ok", "no", "refused")


@dataclass(frozen=True)
class Fuzzer:
    """Inputs by number."""

    seed: int
    targets: tuple[Target, ...]

    def target(self, number: int) -> Target:
        return self.targets[number % len(self.targets)]

    def input(self, number: int) -> tuple[Target, bytes]:
        target = self.target(number)
        draw = random.Random(f"{self.seed}/{number}")
        return target, mutated(draw.choice(target.seeds), target.form, draw)

    def run(self, number: int, folder: Path) -> Outcome:
        """In this process."""
        target, content = self.input(number)
        own = folder / str(number)
        own.mkdir()
        os.chdir(own)
        began = time.process_time()
        code, out, err = called(target, content, own)
        kind, told = judged(code, out, err, target.answers)
        return Outcome(number, target.name, kind, time.process_time() - began, told)


def _filled(arg: str, words: Mapping[str, str]) -> str:
    for name, word in words.items():
        arg = arg.replace(name, word)
    return arg


def called(target: Target, content: bytes, folder: Path) -> tuple[int, bytes, str]:
    """(exit code, stdout, stderr) of the command with this input."""
    from foretrain.cli import run

    file = folder / target.file
    if target.is_file:
        file.write_bytes(content)
    if target.variable:
        os.environ[target.variable] = str(folder)
    word = content.decode("utf-8", "replace").replace("\x00", "")
    filled = {"{file}": str(file), "{folder}": str(folder), "{word}": word}
    args = [_filled(arg, filled) for arg in target.args]
    out, err = io.BytesIO(), io.BytesIO()
    streams = [io.TextIOWrapper(stream, "utf-8", write_through=True) for stream in (out, err)]
    with contextlib.redirect_stdout(streams[0]), contextlib.redirect_stderr(streams[1]):
        try:
            code = run(args)
        except BaseException:  # run answers with a code whatever happens
            traceback.print_exc()
            code = -1
    os.environ.pop(target.variable, None)
    streams[0].flush()
    streams[1].flush()
    return code, out.getvalue(), err.getvalue().decode("utf-8", "replace")


def judged(code: int, out: bytes, err: str, answers: str) -> tuple[str, str]:
    if code == 101 and "MemoryError" in err:
        return "memory", _last_lines(err)
    if code not in (0, 1, 2):
        return "fault", _last_lines(err)
    if code == 2 and not err.strip():
        return "silent", "exit code 2 without a word"
    if code < 2:
        for line in out.splitlines() if answers == "lines" else [out]:
            fault = _json_fault(line)
            if fault:
                return "output", fault
    if len(err) > 20_000:
        return "talkative", f"{len(err):,} characters on stderr"
    return ("ok", "no", "refused")[code], err.strip()[:300]


def _json_fault(text: bytes) -> str:
    def refuse(word: str) -> float:
        raise ValueError(f"{word} in the document")

    try:
        document = json.loads(text, parse_constant=refuse)
    except ValueError as error:
        return f"{error}: {text[:200]!r}"
    for value in _numbers(document):
        if not math.isfinite(value):
            return "a number that is not finite"
    error = document.get("error") if isinstance(document, dict) else None
    if isinstance(error, dict) and error.get("kind") == "Bug":
        return str(error.get("message"))
    return ""


def _numbers(value: Any) -> Iterator[float]:
    if isinstance(value, float):
        yield value
    elif isinstance(value, dict):
        for inner in value.values():
            yield from _numbers(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _numbers(inner)


def _last_lines(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip() and "Please report" not in line]
    return "\n".join(line[:300] for line in lines[-8:])


# --- processes --------------------------------------------------------------------------------------


def fuzz(fuzzer: Fuzzer, numbers: list[int]) -> Iterator[Outcome]:
    """Outcomes in order, in processes of their own: one that is lost costs its input only."""
    todo = list(numbers)
    while todo:
        done = 0
        for outcome in _batch(fuzzer, todo[:BATCH]):
            done += 1
            yield outcome
        todo = todo[done:]


def _batch(fuzzer: Fuzzer, numbers: list[int]) -> Iterator[Outcome]:
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.close(reader)
        _work(fuzzer, numbers, writer)
    os.close(writer)
    at = 0
    began, spent = time.monotonic(), 0.0
    told = b""
    try:
        while at < len(numbers):
            if not select.select([reader], [], [], 0.5)[0]:
                if _processor_time(child) - spent > SECONDS or time.monotonic() - began > PATIENCE:
                    target = fuzzer.target(numbers[at])
                    yield Outcome(numbers[at], target.name, "hang", SECONDS, f"over {SECONDS:g} s")
                    return
                continue
            chunk = os.read(reader, 1 << 16)
            if not chunk:
                target = fuzzer.target(numbers[at])
                yield Outcome(numbers[at], target.name, "died", 0.0, "the process ended")
                return
            told += chunk
            *lines, told = told.split(b"\n")
            for line in lines:
                yield Outcome(**json.loads(line))
                at += 1
                began, spent = time.monotonic(), _processor_time(child)
    finally:
        os.close(reader)
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def _work(fuzzer: Fuzzer, numbers: list[int], writer: int) -> None:
    """The life of a process; it does not return."""
    limit = _address_space() + BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with tempfile.TemporaryDirectory() as folder:
        for number in numbers:
            outcome = fuzzer.run(number, Path(folder))
            os.write(writer, json.dumps(asdict(outcome)).encode() + b"\n")
    os._exit(0)


def _processor_time(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _address_space() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return pages * resource.getpagesize()


# --- the command ------------------------------------------------------------------------------------


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--inputs", type=int, default=10_000, metavar="N")
    parser.add_argument("--seed", type=int, default=1, metavar="N")
    parser.add_argument("--only", metavar="TARGET")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="write inputs of findings here")
    parser.add_argument(
        "--replay", type=int, metavar="NUMBER", help="this input alone, and what it says"
    )
    options = parser.parse_args()
    os.environ["FORETRAIN_DEBUG"] = "1"
    with tempfile.TemporaryDirectory() as own:
        os.environ["FORETRAIN_STORE"] = str(Path(own) / "store.sqlite")
        fuzzer = Fuzzer(options.seed, targets(Path(own)))
        if options.replay is not None:
            return _replayed(fuzzer, options.replay)
        every = range(options.inputs)
        chosen = [n for n in every if options.only in (None, fuzzer.target(n).name)]
        return _reported(fuzzer, fuzz(fuzzer, chosen), options.keep)


def _replayed(fuzzer: Fuzzer, number: int) -> int:
    target, content = fuzzer.input(number)
    print(f"{target.name}: {' '.join(target.args)}\n{content[:4000]!r}\n")
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        code, out, err = called(target, content, Path(folder))
    print(out.decode("utf-8", "replace")[:2000], err[-6000:], f"exit code {code}", sep="\n")
    return 0


def _reported(fuzzer: Fuzzer, outcomes: Iterator[Outcome], keep: Path | None) -> int:
    began = time.monotonic()
    counts: Counter[tuple[str, str]] = Counter()
    slowest = Outcome(-1, "", "", 0.0)
    findings = 0
    for outcome in outcomes:
        counts[outcome.target, outcome.kind] += 1
        slowest = max(slowest, outcome, key=lambda one: one.seconds)
        if outcome.is_finding:
            findings += 1
            print(
                f"#{outcome.number} {outcome.target}: {outcome.kind}\n{outcome.told}\n", flush=True
            )
            if keep is not None:
                keep.mkdir(parents=True, exist_ok=True)
                (keep / f"{outcome.target}-{outcome.number}").write_bytes(
                    fuzzer.input(outcome.number)[1]
                )
    for target in sorted({name for name, _ in counts}):
        kinds = {kind: n for (name, kind), n in sorted(counts.items()) if name == target}
        print(f"{target:22}" + "  ".join(f"{kind} {n:,}" for kind, n in kinds.items()))
    print(
        f"{sum(counts.values()):,} inputs, {findings:,} findings, {time.monotonic() - began:.0f} s; "
        f"the slowest {slowest.seconds:.1f} s (#{slowest.number} {slowest.target})"
    )
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
