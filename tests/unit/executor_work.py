"""Work that tests give to executors: apart, so that a worker imports little."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any


def note_own_id(folder: str, item: int) -> int:
    Path(folder, str(os.getpid())).touch()
    time.sleep(0.02 if item else 60)
    return item


def print_much(item: int) -> int:
    print("x" * 100_000)
    os.write(1, b"y" * 100_000)
    return item


class Awkward(Exception):
    """Cannot be unpickled: it needs two arguments and remembers one."""

    def __init__(self, one: str, two: str) -> None:
        super().__init__(one)


def be_awkward(item: int) -> Any:
    raise Awkward("the one", "the other")


def lambda_out(item: int) -> Any:
    return lambda: item


def run_out_of_memory(folder: str, item: int) -> int:
    mark = Path(folder, "was here")
    if item == 1 and not mark.exists():
        mark.touch()
        raise MemoryError("too little")
    return item


def slow_own_id(folder: str, item: int) -> int:
    Path(folder, str(os.getpid())).touch()
    time.sleep(0.2)
    return item
