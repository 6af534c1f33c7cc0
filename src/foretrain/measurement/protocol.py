"""The stall protocol: the user's own script, launched again and again under orders, and what comes of it.

    T0  one device, one batch replayed              T3  all devices, real data, page cache warm
    T1  all devices of this host, one batch          T2  all devices, real data, page cache cold
    T5  all devices of all hosts, one batch          P, F  the loader alone, warm and cold: what feeds `whatif`
                                                     P2, F2  the same with twice its workers

Runs that need the same processes are done one after the other by one launch, and again in turns (rounds); launches
take turns too (repeats), so that what slows the machine for a while slows all runs alike.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from foretrain.errors import InputError, hint, refuse
from foretrain.measurement.launching import Launch
from foretrain.measurement.stalls import breakdown, document
from foretrain.measurement.train_api import COLD, LOADER_ONLY, ORDERS, RUNS, RunSpec
from foretrain.measurement.train_runs import TrainRun, train_run
from foretrain.measurement.whatif import whatif_document

SCHEMA_VERSION = 1
SHOWN_OF_LOG = 2000  # characters


@dataclass(frozen=True, slots=True)
class StallProtocol:
    """How much is measured."""

    steps: int = 20
    warmup: int = 5
    repeats: int = 3  # launches of each run
    rounds: int = 2  # of all runs of a launch, within it
    seconds: float = 60.0  # of the steps of a run, at most
    # of the steps of a run, as far as an epoch goes: steps of a millisecond need more
    least_seconds: float = 1.0
    timeout: float = 900.0  # of one launch in all
    data: tuple[str, ...] = ()
    runs: tuple[str, ...] = ()  # left out: all that make sense for the command
    one_device: tuple[str, ...] = ()  # the command of T0, where it cannot be derived
    cache: str = "cold"  # which real step is explained
    log: Path | None = None  # what the launches print goes there, else it is shown on failure alone

    def __post_init__(self) -> None:
        faults = [
            f"{name}: {getattr(self, name)} must be {least} or more."
            for name, least in (("steps", 4), ("warmup", 2), ("repeats", 1), ("rounds", 1))
            if getattr(self, name) < least
        ]
        faults += [
            f"runs: unknown run {name!r}.{hint(name, RUNS)}"
            for name in self.runs
            if name not in RUNS
        ]
        if self.cache not in ("cold", "warm"):
            faults.append(f"cache: {self.cache!r} must be cold or warm.")
        faults += [
            f"{name}: {getattr(self, name)} s must be positive."
            for name in ("seconds", "timeout")
            if not getattr(self, name) > 0
        ]
        refuse("invalid protocol:", faults)


def measure_train(
    command: Sequence[str],
    protocol: StallProtocol | None = None,
    *,
    prediction: Mapping[str, Any] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, Any] | None:
    """The `measure train` document of a command; None on a host other than the first, which has it all.

    `prediction` is the document of the same configuration, to stand beside it.
    """
    protocol = protocol or StallProtocol()
    runs, notes = _measured(Launch.of(command), protocol, progress or (lambda done, total: None))
    if runs is None:
        return None
    return document_of(runs, command, protocol, prediction, notes)


def document_of(
    runs: Mapping[str, TrainRun],
    command: Sequence[str],
    protocol: StallProtocol,
    prediction: Mapping[str, Any] | None = None,
    notes: Sequence[str] = (),
) -> dict[str, Any]:
    """What is told of measured runs."""
    trained = {name: run for name, run in runs.items() if name not in LOADER_ONLY}
    explained = document(breakdown(trained, cache=protocol.cache), trained)
    explained["runs"] = {name: run.to_dict() for name, run in runs.items()}
    explained["warnings"] += list(notes)
    return {
        "schema_version": SCHEMA_VERSION,
        "command": shlex.join(command),
        **explained,
        "what_if": whatif_document(runs),
        "prediction": dict(prediction) if prediction is not None else None,
    }


def _measured(
    launch: Launch, protocol: StallProtocol, progress: Callable[[int, int], None]
) -> tuple[dict[str, TrainRun] | None, list[str]]:
    names = protocol.runs or wanted_runs(launch, protocol)
    groups = _groups(launch, protocol, names)
    launches: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    ends: list[int] = []
    total = len(groups) * protocol.repeats
    with tempfile.TemporaryDirectory(prefix="foretrain-measure-") as folder:
        for number in range(total):
            kind, runs = groups[number % len(groups)]
            place = Path(folder) / f"{number}"
            place.mkdir()
            turn = number // len(groups)  # the same on every host, unlike the number of the launch
            code, rows = _launched(launch, kind, runs, protocol, place, turn)
            ends.append(code)
            for rows_of in rows:
                launches[rows_of["run"]].append(rows_of)
            progress(number + 1, total)
    if launch.host_rank > 0:
        return None, []
    measured = {name: train_run(name, rows_of) for name, rows_of in launches.items() if rows_of}
    return measured, _notes([name for name in names if not launches[name]]) + _ill_ends(ends)


def wanted_runs(launch: Launch, protocol: StallProtocol) -> tuple[str, ...]:
    """T1 is left out where it would be T0, T5 on one host."""
    names = ["T0"]
    if protocol.one_device or launch.per_host > 1:
        names.append("T1")
    if launch.hosts > 1:
        names.append("T5")
    return (*names, "T3", "T2", *LOADER_ONLY)


def _groups(
    launch: Launch, protocol: StallProtocol, names: Sequence[str]
) -> list[tuple[str, tuple[str, ...]]]:
    """Runs that one launch does one after the other: (`one` device, this `host` or `all`, runs)."""
    alone = bool(protocol.one_device) or launch.per_host > 1 or launch.hosts > 1
    home = {"T0": "one" if alone else "all", "T1": "host" if launch.hosts > 1 else "all"}
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(home.get(name, "all"), []).append(name)
    if launch.host_rank > 0:  # one device and one host are the first host's
        groups = {kind: runs for kind, runs in groups.items() if kind == "all"}
    return [(kind, tuple(runs)) for kind, runs in groups.items()]


def _launched(
    launch: Launch,
    kind: str,
    runs: tuple[str, ...],
    protocol: StallProtocol,
    folder: Path,
    turn: int,
) -> tuple[int, list[dict[str, Any]]]:
    """Run the script once under orders: its exit code, and what it told.

    A script that fails after all is measured has told everything; gloo is known to abort processes that late.
    """
    passed_on = ("steps", "warmup", "rounds", "seconds", "least_seconds", "data")
    orders = RunSpec(runs, str(folder), **{name: getattr(protocol, name) for name in passed_on})
    words = _words(launch, kind, protocol, turn)
    environment = {**os.environ, **_threads(launch), ORDERS: orders.to_environment()}
    code, log = _ran(words, environment, protocol, folder / "log")
    report = folder / "report.json"
    if report.is_file():
        return code, json.loads(report.read_text("utf-8"))
    if code != 0:
        raise InputError(f"{shlex.join(words)} exited with code {code}.{_tail(log)}")
    if launch.host_rank > 0:
        return code, []
    raise InputError(
        f"{shlex.join(words)} exited before anything was measured. Does the script loop over "
        f"foretrain.measure.watch(loader, model, optimizer)?{_tail(log)}"
    )


def _words(launch: Launch, kind: str, protocol: StallProtocol, turn: int) -> list[str]:
    if kind == "one" and protocol.one_device:
        return list(protocol.one_device)
    if kind == "one":
        return launch.on_one_host(1).words
    if kind == "host":
        return launch.on_one_host(launch.per_host).words
    return launch.numbered(turn).words


def _threads(launch: Launch) -> dict[str, str]:
    """torchrun gives several processes one thread each, but one process all cores: T0 must have what T1 has."""
    if not launch.is_placed or launch.per_host == 1 or "OMP_NUM_THREADS" in os.environ:
        return {}
    return {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // launch.per_host))}


def _ran(
    words: Sequence[str], environment: Mapping[str, str], protocol: StallProtocol, kept: Path
) -> tuple[int, Path]:
    """Exit code and log. The launch and all it started are ended with us or when the time is over."""
    target = protocol.log or kept
    with target.open("ab") as log, _own_session(words, environment, log) as process:
        try:
            return process.wait(protocol.timeout), target
        except subprocess.TimeoutExpired:
            raise InputError(
                f"{shlex.join(words)} did not finish within {protocol.timeout:g} s "
                f"(--timeout).{_tail(target)}"
            ) from None


@contextlib.contextmanager
def _own_session(
    words: Sequence[str], environment: Mapping[str, str], log: Any
) -> Iterator[subprocess.Popen[bytes]]:
    try:
        process = subprocess.Popen(
            list(words), env=dict(environment), stdin=subprocess.DEVNULL, stdout=log,
            stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        raise InputError(f"cannot run {words[0]} ({error.strerror}).") from None
    try:
        yield process
    finally:
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def _tail(log: Path) -> str:
    text = log.read_bytes()[-SHOWN_OF_LOG:].decode("utf-8", "replace").strip()
    return f" Last output:\n{text}" if text else " It printed nothing."


def _ill_ends(codes: Sequence[int]) -> list[str]:
    """What is said of launches that ended badly though all was measured."""
    ill = [code for code in codes if code != 0]
    if not ill:
        return []
    known = ", ".join(str(code) for code in sorted(set(ill)))
    return [
        f"{len(ill)} of {len(codes)} launches exited with code {known} after measuring "
        "completed; their results are complete."
    ]


def _notes(left_out: Sequence[str]) -> list[str]:
    """Why runs that were wanted have told nothing."""
    no_data = "T2" in left_out or "F" in left_out
    cold = [name for name in left_out if name in COLD and no_data]
    doubled = [name for name in left_out if name not in cold]
    notes = []
    if cold:
        notes.append(
            f"{' and '.join(cold)} skipped: no training data specified (--data, watch(data=…))."
        )
    if doubled:
        notes.append(
            f"{' and '.join(doubled)} skipped: the loader is not a PyTorch DataLoader with "
            "workers. The effect of more workers was not measured; linear scaling is assumed."
        )
    return notes
