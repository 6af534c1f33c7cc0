"""`python -m studies.stall_scaling`: measure how communication stalls scale with a model on this machine.

Trains a family of networks in one process and in several, fits a law and asks the simulator for the same.
`-o study.html` draws it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from foretrain.errors import InputError
from foretrain.report import format_of, render, save
from studies.stall_scaling.networks import FAMILY, QUICK
from studies.stall_scaling.page import study_document
from studies.stall_scaling.study import measure_study


def main(words: Sequence[str] | None = None) -> int:
    parser = _parser()
    given = parser.parse_args(words)
    try:
        for path in given.output:
            format_of(path)
        study = measure_study(
            QUICK if given.quick else FAMILY,
            devices=given.devices,
            batch=given.batch,
            steps=given.steps,
            repeats=given.repeats,
            progress=lambda done, total: print(f"launches {done} of {total}", file=sys.stderr),
        )
    except InputError as error:
        parser.error(str(error))
    document = study_document(study)
    for path in given.output:
        save(document, path)
    print(render(document, "json" if given.json else "txt"))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="studies.stall_scaling", description=__doc__)
    parser.add_argument(
        "--devices", nargs="+", type=int, default=[2], metavar="N", help="training processes"
    )
    parser.add_argument("--batch", type=int, default=4, help="samples per process")
    parser.add_argument("--steps", type=int, default=20, help="timed steps per network")
    parser.add_argument("--repeats", type=int, default=3, help="training runs per network")
    parser.add_argument("--quick", action="store_true", help="five networks instead of all")
    parser.add_argument("--json", action="store_true", help="print the document as JSON")
    parser.add_argument("-o", "--output", action="append", type=Path, default=[], metavar="FILE")
    return parser


if __name__ == "__main__":
    sys.exit(main())
