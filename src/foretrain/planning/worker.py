"""The other side of `executors.Processes`: a process that does one item of work after the other.

It is started by name, not by copying or importing the program that searches, so scripts need no guard around
their main part and notebooks can search too. It ends at once when its standard input does, so that no worker
outlives a search that was killed.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
import threading
import traceback
from collections.abc import Iterable
from queue import SimpleQueue
from typing import Any, BinaryIO

from foretrain.errors import Bug

BOOT = (
    f"import json, sys; sys.path[:] = json.loads(sys.argv[1]); from {__name__} import main; main()"
)
"""What `python -c` runs in a worker, given the searching program's import path."""
OUT_OF_MEMORY = 12
"""Exit code."""


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the searching process decides what Ctrl-C means
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what work prints must not mix with replies
    orders: SimpleQueue[bytes] = SimpleQueue()
    threading.Thread(target=_listen, args=(sys.stdin.buffer, orders), daemon=True).start()
    _serve(iter(orders.get, None), replies)


def _serve(orders: Iterable[bytes], replies: BinaryIO) -> None:
    """The first order is the work, each of the others an item of it."""
    work: Any = None
    for order in orders:
        try:
            if work is None:
                work = pickle.loads(order)
                continue
            reply = pickle.dumps((True, work(pickle.loads(order))))
        except MemoryError:
            # as good as killed: another worker, or one alone, may have enough
            os._exit(OUT_OF_MEMORY)
        except Exception as error:
            reply = pickle.dumps((False, _sendable(error)))
        pickle.dump(reply, replies)
        replies.flush()


def _listen(inbox: BinaryIO, orders: SimpleQueue[bytes]) -> None:
    """Orders as they come; no more of them is the end of this process, in the middle of an item too."""
    try:
        while True:
            orders.put(pickle.load(inbox))
    except (EOFError, OSError, pickle.UnpicklingError):
        os._exit(0)


def _sendable(error: Exception) -> Exception:
    """The error itself where it survives the way, else its text."""
    told = "".join(traceback.format_exception(error))
    try:
        error.add_note(f"In a worker process:\n{told}")
        pickle.loads(pickle.dumps(error))
        return error
    except Exception:
        return Bug(told)
