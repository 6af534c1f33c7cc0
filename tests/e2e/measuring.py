"""A process that measures: it adds numbered measurements to a store and says when each is kept.

python measuring.py STORE FIRST COUNT
"""

from __future__ import annotations

import sys

from foretrain.measurement.machine import Machine
from foretrain.measurement.records import Measurement, link_key
from foretrain.measurement.store import Store

MACHINE = Machine("a CPU", 2, 8, (), "", "0" * 16, "Linux", (("torch", "2.13.0"),))


def key(number: int) -> dict[str, object]:
    return link_key("all_reduce", 2, number + 1)


def main(path: str, first: int, count: int) -> None:
    print("start", flush=True)
    with Store.open(path) as store:
        for number in range(first, first + count):
            if store.known("link", key(number), MACHINE) is not None:
                continue
            print("begin", number, flush=True)
            store.add(Measurement.of("link", key(number), [1e-3 * (number + 1)] * 50, MACHINE))
            print("kept", number, flush=True)
    print("done", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
