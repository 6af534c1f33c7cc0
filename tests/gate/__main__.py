"""Old against new: answers of today beside those kept, for over two thousand questions.

python -m tests.gate                      what differs, by group and number
python -m tests.gate --against REVISION   the same, beside the answers kept at another revision
python -m tests.gate --allow "the cause"  keep today's answers, and write the cause into DRIFT.md
python -m tests.gate --draw               ask what questions.py has and is not kept yet; kept answers stay
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from tests.gate.answers import Numbers, answered
from tests.gate.questions import Question, questions
from tests.gate.store import FILE, Drift, Kept, drifts, read, write

LOG = Path(__file__).parent / "DRIFT.md"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--against", metavar="REVISION")
    parser.add_argument("--allow", metavar="CAUSE")
    parser.add_argument("--draw", action="store_true")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--group", help="only questions of this group, such as stack or drawn")
    options = parser.parse_args()
    if options.draw:
        return _draw(options.jobs)
    kept = read(_at(options.against) if options.against else None)
    chosen = [row for row in kept if not options.group or row.name.startswith(options.group)]
    asked = [(row.name, row.question) for row in chosen]
    now = {name: answer for (name, _), answer in _answers(asked, options.jobs)}
    changed = [d for row in chosen for d in drifts(row.name, row.answer, now[row.name])]
    told = table(changed, len(chosen))
    print(told)
    if options.allow and changed:
        write(Kept(r.name, r.question, now.get(r.name, r.answer)) for r in kept)
        with LOG.open("a", encoding="utf-8") as log:
            log.write(f"\n## {options.allow}\n\n{told}\n")
        return 0
    return 1 if changed else 0


def _draw(jobs: int) -> int:
    was = {(row.name, json.dumps(row.question)): row for row in read()}
    rows = {(name, json.dumps(question)): (name, question) for name, question in questions()}
    new = [asked for key, asked in rows.items() if key not in was]
    found = {name: answer for (name, _), answer in _answers(new, jobs)}
    all_ = [was.get(key) or Kept(*asked, found[asked[0]]) for key, asked in rows.items()]
    write(all_)
    refused = sum("refused" in row.answer for row in all_)
    size = FILE.stat().st_size / 1e3
    print(f"{len(all_)} questions, {len(new)} of them new, {refused} refused; {size:.0f} kB")
    return 0


def _answers(
    asked: list[tuple[str, Question]], jobs: int
) -> Iterator[tuple[tuple[str, Question], Numbers]]:
    with ProcessPoolExecutor(jobs) as pool:
        found = pool.map(answered, [question for _, question in asked], chunksize=16)
        yield from zip(asked, found, strict=True)


def _at(revision: str) -> bytes:
    path = f"{revision}:{FILE.relative_to(Path.cwd())}"
    return subprocess.run(["git", "show", path], check=True, capture_output=True).stdout


def table(changed: list[Drift], asked: int) -> str:
    """How many answers differ, by group and number, with the largest difference."""
    if not changed:
        return f"All {asked:,} answers are as they were."
    cells: dict[tuple[str, str], list[Drift]] = defaultdict(list)
    for one in changed:
        # of searches all ranks together
        key = re.sub(r"\.\d+\.", ".", one.key)
        cells[one.name.split("/")[0], key].append(one)
    lines = [
        f"{len({one.name for one in changed}):,} of {asked:,} answers differ.\n",
        "| group | number | answers | largest | at | was | is |",
        "|---|---|---|---|---|---|---|",
    ]
    for (group, key), rows in cells.items():
        worst = max(rows, key=lambda row: row.size)
        size = f"{worst.size:.2g}" if worst.size < 1e300 else "other"
        lines.append(
            f"| {group} | {key} | {len(rows)} | {size} | {worst.name} | {worst.was} | {worst.now} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
