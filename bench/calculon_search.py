"""How many configurations Calculon's search of GPT-3 175B goes through in a time, in seconds of CPU.

    python bench/calculon_search.py CHECKOUT GPUS BATCH SECONDS

CHECKOUT is a copy of calculon-ai/calculon; psutil and numpy, which it needs, must be installed. Its search of 1,024
GPUs has 11.7 million configurations, the cheap and the dear ones far apart, so its first seconds say little: its own
loops name the configurations of some of its searches (one for each split of the GPUs, recomputation and so on), drawn
at random, and a draw of those is evaluated as it evaluates them until the time is up. All are counted, as in its own
count, and beside them those that are `valid`: not refused before anything is computed, whether they fit or not.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import multiprocessing
import random
import sys
import time
from pathlib import Path
from typing import Any, ClassVar

SEARCHES = 100
"""How many are drawn: with 150, the rate of six different draws was within 5 percent of their mean."""
KEPT = 1 / 16
"""Share of the configurations of those that are kept: some twenty thousand, minutes of its work."""


class Listing:
    """Stands in for its pool of processes: keeps the searches it is given, runs none."""

    searches: ClassVar[list[tuple[Any, ...]]] = []

    def __init__(self, processes: int) -> None:
        pass

    def __enter__(self) -> Listing:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def starmap(self, _: object, searches: list[tuple[Any, ...]]) -> list[Any]:
        Listing.searches = searches
        return []


def searches_of(checkout: Path, gpus: int, batch: int) -> list[tuple[Any, ...]]:
    """Arguments of its searches, made by its own command."""
    from calculon.llm import OptimalExecution

    parser = argparse.ArgumentParser()
    OptimalExecution.create_parser(parser.add_subparsers())
    model, system = checkout / "models" / "gpt3-175B.json", checkout / "systems" / "a100_80g.json"
    question = [str(model), str(gpus), str(batch), "float16", str(system), "none.json"]
    asked = parser.parse_args(["llm-optimal-execution", "--debug", *question])
    multiprocessing.Pool = Listing  # type: ignore[assignment, misc]
    asked.func(logging.getLogger(), asked)
    return [(False, *search[1:]) for search in Listing.searches]


def configurations_of(searches: list[tuple[Any, ...]], draw: random.Random) -> list[dict[str, Any]]:
    """A draw of what its loops name, in random order, none evaluated."""
    from calculon.llm import Llm, OptimalExecution

    kept: list[dict[str, Any]] = []
    from_json = Llm.Execution.from_json

    def name(configuration: dict[str, Any]) -> None:
        if draw.random() < KEPT:
            kept.append(configuration)
        raise Llm.Error

    Llm.Execution.from_json = staticmethod(name)
    for search in searches:
        OptimalExecution.search(*search)
    Llm.Execution.from_json = staticmethod(from_json)
    draw.shuffle(kept)
    return kept


def is_valid(configuration: dict[str, Any], model: Any, system: Any) -> bool:
    """Evaluate as its search does; False if refused before anything was computed."""
    from calculon.llm import Llm

    evaluated = Llm(model, logging.Logger("sub"))
    try:
        evaluated.compile(system, Llm.Execution.from_json(configuration))
    except Llm.Error:
        return False
    with contextlib.suppress(Llm.Error):  # does not fit
        evaluated.run(system)
        evaluated.get_stats_json(False)
    return True


def counted(checkout: Path, gpus: int, batch: int, seconds: float) -> dict[str, Any]:
    draw = random.Random(0)
    searches = searches_of(checkout, gpus, batch)
    some = configurations_of(draw.sample(searches, min(SEARCHES, len(searches))), draw)
    model, system = searches[0][6:8]
    valid: list[bool] = []
    before = time.process_time()
    for configuration in some:
        valid.append(is_valid(configuration, model, system))
        if time.process_time() - before > seconds:
            break
    spent = time.process_time() - before
    return {"configurations": len(valid), "valid": sum(valid), "seconds": spent}


def main() -> None:
    checkout, gpus, batch, seconds = sys.argv[1:]
    sys.path.insert(0, checkout)
    print("ANSWER " + json.dumps(counted(Path(checkout), int(gpus), int(batch), float(seconds))))


if __name__ == "__main__":
    main()
