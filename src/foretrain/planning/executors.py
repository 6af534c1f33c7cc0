"""Who does the work of a search: this process, several, or a Ray cluster. All give the same results.

Items are independent and work is a pure function, so a worker that is lost in the middle (out of memory, killed,
its machine gone) costs its item's time and nothing else: the item is done again, and a note says so.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from queue import SimpleQueue
from typing import Any, Protocol

from foretrain import __version__
from foretrain.errors import InputError
from foretrain.planning.worker import BOOT, OUT_OF_MEMORY

MOST_LOSSES = 3
"""Workers that one item may cost before the search gives up."""
OBJECT_STORE_BYTES = 100 * 1024**2
"""Of a local Ray cluster: what is sent about is small, and Ray would take a third of the memory."""
KNOCK_SECONDS = 10.0

Work = Callable[[Any], Any]


class Executor(Protocol):
    """Runs items of work."""

    @property
    def notes(self) -> Sequence[str]:
        """What was lost and done again."""

    def run(self, work: Work, items: Sequence[Any]) -> Iterator[tuple[int, Any]]:
        """(number of the item, result) as they are done, in any order; each item's result once.

        The first error that work raises is raised here. Closing the iterator stops the work.
        """


class InOrder:
    """One after the other, in this process."""

    notes: Sequence[str] = ()

    def run(self, work: Work, items: Sequence[Any]) -> Iterator[tuple[int, Any]]:
        yield from ((number, work(item)) for number, item in enumerate(items))


class _Losses:
    """Counts what is lost and writes it down."""

    def __init__(self, notes: list[str], items: int, remedy: str) -> None:
        self.notes, self.items, self.remedy = notes, items, remedy
        self.of: Counter[int] = Counter()

    def add(self, number: int, how: str) -> int:
        """How often this item has been lost by now; an error where that is too often."""
        self.of[number] += 1
        part = f"part {number + 1} of {self.items}"
        if self.of[number] >= MOST_LOSSES:
            raise InputError(
                f"{part} was assigned to {MOST_LOSSES} workers and all of them died (the last: "
                f"{how}). {self.remedy}"
            )
        self.notes.append(f"The worker running {part} died ({how}); the part was rerun.")
        return self.of[number]


class Processes:
    """Worker processes on this machine.

    An item that was lost twice is done last, with no other worker beside it: memory is what most workers die of.
    """

    def __init__(self, workers: int) -> None:
        self.workers = _checked(workers)
        self.notes: list[str] = []

    def run(self, work: Work, items: Sequence[Any]) -> Iterator[tuple[int, Any]]:
        losses = _Losses(
            self.notes, len(items), "Use fewer workers, or a machine with more memory."
        )
        crew = _Crew(pickle.dumps(work), items, self.workers)
        try:
            crew.share_out()
            while crew.busy:
                worker, reply = crew.inbox.get()
                number = crew.busy.pop(worker, None)
                if number is None:
                    continue  # the end of one that was dismissed
                if reply is None:
                    crew.is_lost(number, losses.add(number, worker.how_it_ended()))
                    crew.share_out()
                    continue
                crew.is_free(worker)
                is_done, result = reply
                if not is_done:
                    raise result
                crew.share_out()  # before the result is looked at: nobody waits for that
                yield number, result
        finally:
            crew.stop()


class _Crew:
    """Workers and what each is doing."""

    def __init__(self, work: bytes, items: Sequence[Any], size: int) -> None:
        self.work, self.items, self.size = work, items, size
        self.inbox: SimpleQueue[tuple[_Worker, tuple[bool, Any] | None]] = SimpleQueue()
        self.todo = deque(range(len(items)))
        self.alone: deque[int] = deque()
        self.busy: dict[_Worker, int] = {}
        self.free: list[_Worker] = []

    def share_out(self) -> None:
        while self.todo and len(self.busy) < self.size:
            self._give(self.free.pop() if self.free else self._hired(), self.todo.popleft())
        if not self.todo:
            self._dismiss()
            if not self.busy and self.alone:
                self._give(self._hired(), self.alone.popleft())

    def is_free(self, worker: _Worker) -> None:
        self.free.append(worker)

    def is_lost(self, number: int, times: int) -> None:
        (self.todo if times == 1 else self.alone).append(number)

    def stop(self) -> None:
        for worker in self.busy:
            worker.stop()
        self.busy.clear()
        self._dismiss()

    def _dismiss(self) -> None:
        while self.free:
            self.free.pop().stop()

    def _hired(self) -> _Worker:
        return _Worker(self.work, self.inbox)

    def _give(self, worker: _Worker, number: int) -> None:
        self.busy[worker] = number  # first, so that whatever happens now, it is stopped in the end
        worker.give(self.items[number])


class _Worker:
    """One process, and a thread that waits for what it says."""

    def __init__(
        self, work: bytes, inbox: SimpleQueue[tuple[_Worker, tuple[bool, Any] | None]]
    ) -> None:
        command = [sys.executable, "-c", BOOT, json.dumps(sys.path)]
        try:
            # a session of its own: Ctrl-C in a terminal is for the search, which stops its workers
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
            )
        except OSError as error:
            raise InputError(
                f"cannot start worker processes: {error}. Search without --workers."
            ) from None
        self.inbox = inbox
        self.listener = threading.Thread(target=self._listen, daemon=True)
        self.listener.start()
        self._send(work)

    def give(self, item: Any) -> None:
        self._send(pickle.dumps(item))

    def _send(self, order: bytes) -> None:
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):  # that it is gone, the listener finds out
            pickle.dump(order, self.process.stdin)
            self.process.stdin.flush()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        try:
            while True:
                self.inbox.put((self, pickle.loads(pickle.load(self.process.stdout))))
        except Exception:  # the end of the pipe, or half of a reply
            self.inbox.put((self, None))

    def how_it_ended(self) -> str:
        """After its pipe has ended."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=5.0)
        self.stop()
        return _ended(self.process.returncode)

    def stop(self) -> None:
        process = self.process
        process.kill()
        process.wait()
        self.listener.join()
        for pipe in (process.stdin, process.stdout):
            with contextlib.suppress(OSError):
                assert pipe is not None
                pipe.close()


def _ended(code: int) -> str:
    """How a process ended, by its exit code."""
    if code >= 0:
        return "out of memory" if code == OUT_OF_MEMORY else f"exit code {code}"
    with contextlib.suppress(ValueError):
        return f"killed by {signal.Signals(-code).name}"
    return f"killed by signal {-code}"


class RayExecutor:
    """A Ray cluster: the one at `address`, or one of `workers` processes that lives as long as the work does."""

    def __init__(self, address: str | None = None, workers: int | None = None) -> None:
        self.address = address
        self.workers = None if workers is None else _checked(workers)
        self.notes: list[str] = []

    def run(self, work: Work, items: Sequence[Any]) -> Iterator[tuple[int, Any]]:
        if not items:
            return
        ray = _ray()
        with _connected(ray, self.address, self.workers):
            try:
                yield from self._run(ray, work, items)
            except ray.exceptions.RayError as error:
                raise InputError(
                    f"the Ray cluster was lost: {_first_line(error)}. Run the search "
                    "again; with --state it resumes."
                ) from error

    def _run(self, ray: Any, work: Work, items: Sequence[Any]) -> Iterator[tuple[int, Any]]:
        @ray.remote(max_retries=0)  # type: ignore[untyped-decorator]  # losses are counted here
        def done(work: Work, item: Any) -> Any:
            return work(item)

        losses = _Losses(
            self.notes,
            len(items),
            "See the logs of the cluster; increase the memory of its workers.",
        )
        sent = ray.put(work)
        todo = deque(range(len(items)))
        running: dict[Any, int] = {}
        try:
            while todo or running:
                while todo and len(running) < (self.workers or len(items)):
                    number = todo.popleft()
                    running[done.remote(sent, items[number])] = number
                for reference in ray.wait(list(running), num_returns=1)[0]:
                    number = running.pop(reference)
                    try:
                        result = ray.get(reference)
                    except ray.exceptions.RayError as error:
                        cause = getattr(error, "cause", None)  # of what work itself raised
                        if cause is not None and not isinstance(cause, MemoryError):
                            raise cause from None
                        losses.add(number, _first_line(cause or error))
                        todo.append(number)
                        continue
                    yield number, result
        finally:
            for reference in running:
                with contextlib.suppress(Exception):  # the cluster may be what is gone
                    ray.cancel(reference, force=True)


def _checked(workers: int) -> int:
    if isinstance(workers, bool) or not isinstance(workers, int) or workers < 1:
        raise InputError(f"workers {workers!r} is not a positive whole number.")
    return workers


def _ray() -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # a search tells nobody that it runs
    try:
        import ray
        import ray.exceptions
    except ImportError as error:
        raise InputError(
            f"Ray cannot be imported ({error}). Install it with: pip install 'foretrain[ray]', "
            "or search with worker processes instead."
        ) from None
    return ray


@contextlib.contextmanager
def _connected(ray: Any, address: str | None, workers: int | None) -> Iterator[None]:
    """Ray ready for work; left as it was found."""
    if ray.is_initialized():
        yield
        return
    quiet = {"log_to_driver": False, "logging_level": "ERROR"}
    try:
        if address is None or address == "local":
            ray.init(
                address="local",
                num_cpus=workers,
                include_dashboard=False,
                object_store_memory=OBJECT_STORE_BYTES,
                **quiet,
            )
        else:
            _knock(address)
            ray.init(address=address, **quiet)
    except Exception as error:
        where = "on this machine" if address is None else f"at {address}"
        raise InputError(
            f"cannot connect to a Ray cluster {where}: {_first_line(error)}. Specify the "
            "address of a running cluster (host:6379, ray://host:10001 or auto), or none to "
            "start one here."
        ) from error
    try:
        if address is not None and address != "local":
            _check_installed(ray, address)
        yield
    finally:
        ray.shutdown()


def _knock(address: str) -> None:
    """OSError where nobody listens: Ray itself would try for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), timeout=KNOCK_SECONDS).close()


def _check_installed(ray: Any, address: str) -> None:
    """Other versions would give other results."""

    @ray.remote  # type: ignore[untyped-decorator]
    def version() -> str | None:  # sent by value: it runs where Foretrain is not installed
        try:
            import foretrain
        except ImportError:
            return None
        return foretrain.__version__

    found = ray.get(version.remote())
    if found != __version__:
        there = "not installed" if found is None else f"version {found}"
        raise InputError(
            f"the Ray cluster at {address}: Foretrain is {there} there and {__version__} here. "
            f"Install foretrain=={__version__} on its nodes."
        )


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return (lines[0] if lines else type(error).__name__).rstrip(".")
