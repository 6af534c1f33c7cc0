"""Workers on the hosts of a standing network: started, waited for, ended."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from testbed.hosts import INTERFACE, Hosts
from testbed.jobs import Job, Times

PORT = 29511  # of the store; every network has its own ports
WORKER = "testbed.worker"
CHECKOUT = Path(__file__).resolve().parents[1]  # where Python finds it


def run(hosts: Hosts, ranks: int, jobs: Sequence[Job], patience: float = 600.0) -> list[list[Times]]:  # fmt: skip
    """For each job the times of all ranks. Raises if a worker fails or all take longer than `patience` seconds."""
    with tempfile.TemporaryDirectory(prefix="foretrain-testbed-") as folder:
        there = Path(folder)
        (there / "jobs.json").write_text(json.dumps([job.to_dict() for job in jobs]))
        started: list[subprocess.Popen[bytes]] = []
        try:
            started += [_start(hosts, rank, ranks, there) for rank in range(ranks)]
            _wait(started, there, patience)
        finally:
            for process in started:
                process.kill()
                process.wait()
        results = [json.loads((there / f"{rank}.json").read_text()) for rank in range(ranks)]
    return [[Times(**results[rank][n]) for rank in range(ranks)] for n in range(len(jobs))]


def _start(hosts: Hosts, rank: int, ranks: int, there: Path) -> subprocess.Popen[bytes]:
    words = [sys.executable, "-m", WORKER, str(rank), str(ranks), hosts.address(0), str(PORT)]
    words += [str(there / "jobs.json"), str(there / f"{rank}.json")]
    surroundings = {
        **os.environ, "GLOO_SOCKET_IFNAME": INTERFACE, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1",
    }  # fmt: skip
    with (there / f"{rank}.log").open("wb") as log:
        return subprocess.Popen(
            hosts.command(rank, words),
            stdout=log,
            stderr=subprocess.STDOUT,
            env=surroundings,
            cwd=CHECKOUT,
            start_new_session=True,  # whose share of the processor is the worker's own
        )


def _wait(started: Sequence[subprocess.Popen[bytes]], there: Path, patience: float) -> None:
    """Until all are done; the first that fails ends the others' wait."""
    end = time.monotonic() + patience
    waiting = dict(enumerate(started))
    while waiting:
        for rank, process in list(waiting.items()):
            code = process.poll()
            if code:
                said = (there / f"{rank}.log").read_text(errors="replace")[-2000:]
                raise RuntimeError(f"rank {rank} ended with {code}:\n{said}")
            if code == 0:
                del waiting[rank]
        if time.monotonic() > end:
            raise RuntimeError(f"ranks {sorted(waiting)} were not done after {patience:.0f} s.")
        time.sleep(0.05)
