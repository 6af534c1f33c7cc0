"""`python -m testbed.main`: run the experiment, print predicted beside measured, save raw results, figure and page."""

from __future__ import annotations

import argparse
import importlib.util
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from foretrain.errors import InputError
from testbed.hosts import why_not

if TYPE_CHECKING:
    from testbed import report

SKIPPED = 77  # the exit status that test runners read as "skipped"


def main(words: Sequence[str] | None = None) -> int:
    given = _parser().parse_args(words)
    # So that namespaces are removed when the run is ended from outside.
    signal.signal(signal.SIGTERM, _leave)
    try:
        return _render(given) if given.rows else _run(given)
    except InputError as error:
        print(f"testbed: {error}", file=sys.stderr)
        return 2
    except RuntimeError as error:
        print(f"testbed: {error}", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="testbed", description=__doc__)
    parser.add_argument(
        "--subset", action="store_true", help="four configurations, about two minutes"
    )
    parser.add_argument("--topology", action="append", default=[], help="only these (repeatable)")
    parser.add_argument("--json", type=Path, default=Path("build/testbed.json"), help="raw results")
    parser.add_argument("--from", dest="rows", type=Path, help="do not run; read such a file")
    parser.add_argument("--page", type=Path, help="write a Markdown page, and its figure beside it")
    return parser


def _run(given: argparse.Namespace) -> int:
    reason = why_not()
    if reason is None and importlib.util.find_spec("torch") is None:
        reason = "PyTorch is not installed (pip install 'foretrain[torch]')"
    if reason is not None:
        print(f"testbed: skipped: {reason}.", file=sys.stderr)
        return SKIPPED
    from testbed import experiment, report

    wanted = experiment.subset() if given.subset else experiment.configurations()
    known = dict.fromkeys(c.graph.name for c in wanted)
    if unknown := [name for name in given.topology if name not in known]:
        raise InputError(f"no topology {', '.join(unknown)} here. Known: {', '.join(known)}.")
    wanted = [c for c in wanted if not given.topology or c.graph.name in given.topology]
    start = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - start:6.0f} s  {text}", file=sys.stderr, flush=True)

    machine = experiment.machine_measured(dict.fromkeys(c.model for c in wanted), say)
    rows = [report.Row.of(o) for o in experiment.run_all(wanted, machine, say)]
    given.json.parent.mkdir(parents=True, exist_ok=True)
    given.json.write_text(report.to_json(machine, rows))
    say(f"raw results in {given.json}")
    return _show(given, rows)


def _render(given: argparse.Namespace) -> int:
    from testbed import report

    return _show(given, report.from_json(given.rows))


def _show(given: argparse.Namespace, rows: Sequence[report.Row]) -> int:
    from testbed import page, report

    found = report.summary(rows)
    print("\n".join([*report.lines(rows), "", *report.verdict(found)]))
    if given.page:
        page.write(given.page, rows)
    return 0 if found.is_met else 1


def _leave(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
