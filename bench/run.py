"""All benchmarks in one run: a table on stdout, and on request JSON and the page in docs.

python bench/run.py [--json FILE] [--report docs/benchmarks.md] [--without-peers]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from pathlib import Path

from measure import HERE, Row, environment, number, one_core, rows_of, show

PAGE = """# Benchmarks

Written by `make bench`; do not edit. One core, one process at a time, {machine}. {load}
Times are wall time, the best of several runs where there are several: other work on a machine only ever adds to
them. Medians and CPU time stand beside them; where a target is missed in wall time it is missed, whatever the CPU
time says.

| what | measured | target | met | remarks |
|---|---:|---:|---|---|
{rows}

How to read it:

- *warm* is a second and later call in one Python process: the catalog is read and the cluster's routes are
  known. *cold* is a whole process, from the shell and back.
- 16,384 GPUs take about as long as 1,024 because ranks that behave alike are simulated once (see
  [how it works](how-it-works.md)); the timeline has as many tasks.
- The drawn graph is 64 nodes and some 350 cables in a YAML file, bandwidth and latency of their own in each
  direction; every rank is simulated by itself. The fat tree has half the uplinks that its nodes could fill.
- The engine's figures are tasks per second on 98,304 tasks: `static` has no flows, in `sharing` one task in
  ten is a flow, nearly 64 of them at once all the time, and in `spread` about half as many; in
  `slowing` tasks on one place slow each other, in `calm` they could but do not.
- A search is the first of its process, imports not counted. Every plan of the space is estimated, the best are
  simulated in full. Alpa's figures are published ones (OSDI 2022, table 5; artifact of Aceso, EuroSys 2024) for the
  same model and as many GPUs of the same kind: its search compiles and measures candidates on the cluster.
  Calculon's search (SC 2023) answers by closed forms, ours simulates the best plans besides. Two rates are compared, by
  CPU time: of all configurations that the loops name, those included that are refused before anything is computed,
  which is its own count, and of the others alone.
- Other predictors stand beside ours for orientation. llm-analysis evaluates a closed form in well under a
  millisecond; it does not schedule micro-batches, so its step has no pipeline bubble, and its default
  efficiencies are ideal. Ours compiles a graph, simulates it, and keeps timeline, stalls and memory over time.
  These are different answers, so no ratio of speeds is given, and which step is nearer to a real run this page
  does not say.
- Calculon (calculon-ai/calculon) is not published on PyPI (the package called `calculon` there is an unrelated
  producer-consumer library), so `make bench` cannot install it: its search is measured beside ours if
  FORETRAIN_CALCULON names a checkout, and else its rate is that of another run.
"""


def engine() -> list[Row]:
    command = [sys.executable, str(HERE / "engine.py"), "--json"]
    answer = subprocess.run(command, check=True, capture_output=True, text=True, env=environment())
    return [
        Row(
            f"engine, {found['program']}, {found['engine']}",
            found["tasks_per_second"] / 1e6,
            "M tasks/s",
            None,
            f"{found['tasks']:,} tasks in {found['seconds'] * 1e3:.1f} ms",
        )
        for found in json.loads(answer.stdout)["results"]
    ]


def peers() -> list[Row]:
    try:
        return rows_of("peers.py")
    except subprocess.CalledProcessError as error:
        reason = (error.stderr or "").strip().splitlines()
        print(f"peers were not measured: {reason[-1] if reason else error}", file=sys.stderr)
        return []


def processor() -> str:
    """The processor by name where the system tells, else its architecture."""
    about = Path("/proc/cpuinfo")
    lines = about.read_text().splitlines() if about.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def page(rows: list[Row], load: str) -> str:
    lines = [
        f"| {row.name.strip()} | {number(row.value)} {row.unit} "
        f"| {'' if row.target is None else f'{number(row.target)} {row.unit}'} "
        f"| {'' if row.is_met is None else 'yes' if row.is_met else 'no'} | {row.note} |"
        for row in rows
    ]
    machine = f"{processor()}, Python {platform.python_version()}"
    return PAGE.format(rows="\n".join(lines), machine=machine, load=load)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", metavar="FILE", help="also write the rows as JSON")
    parser.add_argument("--report", metavar="FILE", help="also write the page for docs")
    parser.add_argument("--without-peers", action="store_true")
    options = parser.parse_args()
    load = f"Load average at the start {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores."
    one_core()
    rows = rows_of("predict.py") + rows_of("networks.py") + rows_of("cases.py") + engine()
    rows += rows_of("search.py")
    if not options.without_peers:
        rows += peers()
    show(rows, as_json=False)
    if options.json:
        Path(options.json).write_text(json.dumps([r.to_dict() for r in rows], indent=2) + "\n")
    if options.report:
        Path(options.report).write_text(page(rows, load))
    missed = [row.name for row in rows if row.is_met is False]
    if missed:
        print(f"over target: {', '.join(missed)}", file=sys.stderr)


if __name__ == "__main__":
    main()
