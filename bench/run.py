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
Times are wall time, the best of several runs if there are several, since other load on a machine only adds to them.
Medians and CPU time are listed as well; a target counts as missed if it is missed in wall time, whatever the CPU time.

| what | measured | target | met | remarks |
|---|---:|---:|---|---|
{rows}

Notes:

- *warm* is a second and later call in one Python process: the catalog is read and the cluster's routes are
  known. *cold* is a whole process, from the shell and back.
- 16,384 GPUs take about as long as 1,024 because ranks with identical behavior are simulated once (see
  [how it works](how-it-works.md)); the timeline has as many tasks.
- The explicit graph has 64 nodes and about 350 cables in a YAML file, with different bandwidth and latency in each
  direction; every rank is simulated separately. The fat tree has 2:1 oversubscription.
- The engine's figures are tasks per second on 98,304 tasks: `static` has no flows, in `sharing` one task in
  ten is a flow, nearly 64 of them concurrent at all times, and in `spread` about half as many; in
  `slowing` tasks on one device slow each other down, in `calm` they could but do not.
- A search is the first in its process, without imports. Every plan of the space is estimated, the best are
  simulated in full. Alpa's figures are published ones (OSDI 2022, table 5; artifact of Aceso, EuroSys 2024) for the
  same model and as many GPUs of the same kind: its search compiles and measures candidates on the cluster.
  Calculon's search (SC 2023) uses closed forms; ours also simulates the best plans. Two rates are compared, by
  CPU time: of all configurations that the loops name, including those rejected before anything is computed,
  which is its own count, and of the others only.
- Other predictors are listed for orientation. llm-analysis evaluates a closed form in well under a
  millisecond; it does not schedule micro-batches, so its step has no pipeline bubble, and its default
  efficiencies are ideal. Ours compiles a graph, simulates it, and keeps timeline, stalls and memory over time.
  The results are not equivalent, so no speed ratio is given; this page does not show which step time is closer to a
  real run.
- Rows marked CPU are seconds of CPU on one core, which other load on the machine changes less; their targets are for these.
- Of other published planners, PyPI has two. `alpa` 0.2.3 asks for Ray 2.1, which Python 3.11 cannot install, and measures
  on GPUs; its published time stands above. `hetu-galvatron` 2.4.0 searches from profiles of a model and a machine that are
  made on GPUs; it is not measured here. The packages `metis`, `piper`, `aceso`, `paleo` and `merak` there are other software.
- Calculon (calculon-ai/calculon) is not published on PyPI (the package called `calculon` there is an unrelated
  producer-consumer library), so `make bench` cannot install it: its search is measured if
  FORETRAIN_CALCULON is set to a checkout; otherwise its rate is from another run.
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
