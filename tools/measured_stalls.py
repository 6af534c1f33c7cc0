"""Stalls of real runs with a known bottleneck, and what-if against real runs of it.

    python tools/measured_stalls.py [--repeats 3] [--steps 40] [--json FILE] [--only fetch,prep,compute,network]

Four runs of tools/measured/train.py: bound by cold random reads of 4 KiB, by preparing, by computing, and by a network of
100 Mb/s between two network namespaces (root, else left out). Each must name its cause as the largest stall, and
stalls must sum to the step that the same script takes by itself. Then twice the workers and a warm cache are
predicted from the measurements and run.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from foretrain.measurement import page_cache
from foretrain.measurement.protocol import Protocol, measure_train
from foretrain.measurement.whatif import feeding_of

SCRIPT = Path(__file__).parent / "measured" / "train.py"
MEBIBYTES = 512
PLAIN_STEPS = 60
CASES = {
    "fetch": ("--reads", "48", "--samples", "8192"),
    "prep": ("--rounds", "40"),
    "compute": ("--width", "1024", "--depth", "6", "--batch", "32"),
    "network": ("--width", "512", "--depth", "4"),
}


def command(folder: Path, options: tuple[str, ...], *more: str) -> list[str]:
    return [sys.executable, str(SCRIPT), "--data", str(folder), *options, *more]


def records(folder: Path) -> None:
    with (folder / "records.bin").open("wb") as stream:
        for _ in range(MEBIBYTES):
            stream.write(os.urandom(1 << 20))
        stream.flush()
        os.fsync(stream.fileno())


def plain_step(folder: Path, options: tuple[str, ...], is_cold: bool) -> float:
    """A step of the script by itself, timed by its own clock."""
    files = page_cache.data_files([folder])
    if is_cold:
        page_cache.drop(files)
    else:
        page_cache.fill(files)
    words = command(folder, options, "--time", str(PLAIN_STEPS))
    text = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    found = re.search(r"seconds per step: ([\d.]+)", text)
    assert found is not None, text
    return float(found[1])


def plain_seconds(folder: Path, options: tuple[str, ...], repeats: int) -> float:
    return statistics.median(plain_step(folder, options, True) for _ in range(repeats))


@contextlib.contextmanager
def two_hosts(rate: str) -> Iterator[tuple[str, str]]:
    """Two network namespaces joined by a shaped link; removed in the end."""
    names = (f"ftm{os.getpid()}a", f"ftm{os.getpid()}b")
    links = tuple(f"v{name[-8:]}" for name in names)
    run = lambda text: subprocess.run(text.split(), check=True, capture_output=True)  # noqa: E731
    try:
        for name in names:
            run(f"ip netns add {name}")
        run(
            f"ip link add {links[0]} netns {names[0]} type veth peer name {links[1]} netns {names[1]}"
        )
        for number, (name, link) in enumerate(zip(names, links, strict=True), 1):
            run(f"ip -n {name} addr add 10.77.13.{number}/24 dev {link}")
            run(f"ip -n {name} link set {link} up")
            run(f"ip -n {name} link set lo up")
            run(f"tc -n {name} qdisc add dev {link} root tbf rate {rate} burst 64kb latency 200ms")
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


def between_hosts(folder: Path, told: argparse.Namespace, rate: str) -> dict[str, Any]:
    """`measure train` on two hosts at once, each in its namespace."""
    with two_hosts(rate) as names:
        running = []
        for number, name in enumerate(names):
            launcher = (
                f"{sys.executable} -m torch.distributed.run --nnodes 2 --node-rank {number} "
                "--nproc-per-node 1 --master-addr 10.77.13.1 --master-port 29640"
            ).split()
            words = [
                "ip",
                "netns",
                "exec",
                name,
                sys.executable,
                "-m",
                "foretrain",
                "measure",
                "train",
            ]
            words += ["--json", "--steps", str(told.steps), "--repeats", str(told.repeats), "--"]
            words += [*launcher, *command(folder, CASES["network"])[1:]]
            environment = {**os.environ, "GLOO_SOCKET_IFNAME": f"v{name[-8:]}"}
            running.append(
                subprocess.Popen(words, stdout=subprocess.PIPE, env=environment, text=True)
            )
        answers = [process.communicate(timeout=400)[0] for process in running]
    document: dict[str, Any] = json.loads(answers[0])
    return document


def measured(folder: Path, name: str, told: argparse.Namespace) -> dict[str, Any]:
    if name == "network":
        return between_hosts(folder, told, told.rate)
    protocol = Protocol(steps=told.steps, repeats=told.repeats)
    document = measure_train(command(folder, CASES[name]), protocol)
    assert document is not None
    return document


def what_ifs(
    folder: Path, name: str, document: dict[str, Any], repeats: int
) -> list[dict[str, Any]]:
    """Twice the workers, and a warm cache: the predicted speed-up, and that of real runs that take turns."""
    found, options = feeding_of(document), CASES[name]
    checks = [("2 workers, cold", found.with_(workers=2), (*options, "--workers", "2"), True)]
    if name == "fetch":
        checks.append(("warm cache", found.with_(cached=1.0), options, False))
    rows = []
    for title, changed, changed_options, is_cold in checks:
        pairs = [
            (plain_step(folder, options, True), plain_step(folder, changed_options, is_cold))
            for _ in range(repeats)
        ]
        rows.append(
            {
                "what": f"{name}: {title}",
                "predicted": found.step_seconds / changed.step_seconds,
                "measured": statistics.median(before / after for before, after in pairs),
                "pairs": pairs,
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--rate", default="100mbit")
    parser.add_argument("--only", default=",".join(CASES))
    parser.add_argument("--json", type=Path)
    told = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    kept: dict[str, Any] = {"cases": {}, "what_if": []}
    failed = False
    with tempfile.TemporaryDirectory(prefix="foretrain-stalls-", dir=Path.cwd()) as place:
        folder = Path(place)
        records(folder)
        for name in told.only.split(","):
            if name == "network" and os.geteuid() != 0:
                print("network: left out, network namespaces need root")
                continue
            document = measured(folder, name, told)
            step, total = document["step_seconds"], sum(document["stalls"].values())
            row = {
                "step": step,
                "sum": total,
                "largest": document["bottleneck"],
                "document": document,
            }
            if name != "network":
                row["plain"] = plain_seconds(folder, CASES[name], told.repeats)
                kept["what_if"] += (
                    what_ifs(folder, name, document, told.repeats) if name != "compute" else []
                )
            kept["cases"][name] = row
            failed |= document["bottleneck"] != name or abs(total / step - 1) > 0.02
            shares = {
                n: round(v / step, 3) for n, v in document["stalls"].items() if v > 0.0005 * step
            }
            by_itself = f", by itself {1e3 * row['plain']:.2f} ms" if "plain" in row else ""
            print(
                f"{name:8} largest {row['largest']:12} step {1e3 * step:.2f} ms, sum {1e3 * total:.2f} ms"
                f"{by_itself}; {shares}",
                flush=True,
            )
    for row in kept["what_if"]:
        error = row["predicted"] / row["measured"] - 1
        print(
            f"what if {row['what']:24} speed-up predicted {row['predicted']:.2f}, "
            f"measured {row['measured']:.2f} ({100 * error:+.1f} %)"
        )
    if told.json:
        told.json.write_text(json.dumps(kept, indent=1), encoding="utf-8")
    sys.exit(failed)


if __name__ == "__main__":
    main()
