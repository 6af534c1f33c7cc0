"""Hosts as Linux network namespaces, joined by veth pairs whose two ends are shaped with token buckets.

Every host and switch is a namespace that forwards. Cables carry no addresses of their own: a host has one address, on a
bridge without ports, and every namespace knows for each (sender, receiver) which cable comes next. So
traffic takes exactly the ways that the predicted cluster has, also where several are equally short.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from testbed.topologies import Graph

MTU = 9000
BURST_SECONDS, LEAST_BURST_BYTES = 1.5e-3, 12 * 1024
"""A bucket holds this much of its cable's rate, and at least a frame: enough for a timer that fires late on a busy
machine, and next to nothing to go for free after a pause."""
QUEUE_BYTES = 8 * 1024 * 1024
"""Of each cable: so long that nothing is dropped."""
INTERFACE = "host0"

# What new connections do: fill the pipe without probing for its rate again after every pause.
_SETTINGS = {
    "net.ipv4.ip_forward": "1",
    "net.ipv4.conf.all.rp_filter": "0",
    "net.ipv4.conf.default.rp_filter": "0",
    "net.ipv4.tcp_congestion_control": "reno",
    "net.ipv4.tcp_slow_start_after_idle": "0",
    "net.ipv4.tcp_no_metrics_save": "1",
}


def why_not() -> str | None:
    """Why hosts cannot be made here, None if they can."""
    for tool in ("ip", "tc"):
        if shutil.which(tool) is None:
            return f"`{tool}` is not installed (Debian: apt-get install iproute2)"
    name = f"ft{os.getpid()}-try"
    tried = _run(["ip", "netns", "add", name])
    if tried.returncode:
        return f"network namespaces are not permitted: {_last(tried.stderr)}"
    try:
        for words in (
            ["link", "add", "name", "c0a", "type", "veth", "peer", "name", "c0b"],
            ["link", "add", INTERFACE, "type", "bridge"],
        ):
            tried = _run(["ip", "-n", name, *words])
            if tried.returncode:
                return f"`ip {' '.join(words)}` is not permitted: {_last(tried.stderr)}"
        tried = _run(["tc", "-n", name, *_shape("add", "c0a", 1e6)])
        if tried.returncode:
            return f"links cannot be shaped (tc tbf): {_last(tried.stderr)}"
    finally:
        _run(["ip", "netns", "del", name])
    return None


@dataclass(frozen=True, slots=True)
class Hosts:
    """A network that stands: `command(rank, words)` runs on a host, `shape(rate)` changes all cables."""

    graph: Graph
    prefix: str

    def address(self, rank: int) -> str:
        return _address(rank)

    def command(self, rank: int, words: Sequence[str]) -> list[str]:
        return ["ip", "netns", "exec", f"{self.prefix}{rank}", *words]

    def shape(self, bits_per_second: float) -> None:
        """Every cable at its width times this rate, both ways."""
        for number, cable in enumerate(self.graph.cables):
            for end, side in ((cable.one, "a"), (cable.other, "b")):
                place = f"{self.prefix}{self.graph.vertices.index(end)}"
                words = _shape("replace", f"c{number}{side}", bits_per_second * cable.width)
                _must(["tc", "-n", place, *words])


def sweep() -> None:
    """Remove what runs that were killed left behind."""
    for line in _run(["ip", "netns", "list"]).stdout.splitlines():
        name = line.split()[0]
        found = re.fullmatch(r"ft(\d+)-\w+", name)
        if found and not Path("/proc", found[1]).exists():
            _run(["ip", "netns", "del", name])


@contextmanager
def standing(graph: Graph, bits_per_second: float) -> Iterator[Hosts]:
    """The graph's hosts and cables; gone at the end, whatever happens."""
    sweep()
    prefix = f"ft{os.getpid()}-"
    count = len(graph.vertices)
    try:
        for vertex in range(count):
            _must(["ip", "netns", "add", f"{prefix}{vertex}"])
            _must(["ip", "netns", "exec", f"{prefix}{vertex}", "sysctl", "-q", "-w"]
                  + [f"{key}={value}" for key, value in _SETTINGS.items()])  # fmt: skip
            _batch(prefix, vertex, _own_address(vertex))
        for number, (one, other) in enumerate(_ends(graph)):
            _cable(prefix, number, one, other)
        for vertex in range(count):
            _batch(prefix, vertex, _routes(graph, vertex))
        hosts = Hosts(graph, prefix)
        hosts.shape(bits_per_second)
        yield hosts
    finally:
        for vertex in range(count):
            _run(["ip", "netns", "del", f"{prefix}{vertex}"])


def _own_address(vertex: int) -> list[str]:
    return [
        "link set lo up",
        f"link add {INTERFACE} type bridge",
        f"addr add {_address(vertex)}/32 dev {INTERFACE}",
        f"link set {INTERFACE} up",
    ]


def _cable(prefix: str, number: int, one: int, other: int) -> None:
    a, b = f"c{number}a", f"c{number}b"
    _must(["ip", "-n", f"{prefix}{one}", "link", "add", "name", a, "address", _mac(number, 0),
           "type", "veth", "peer", "name", b, "address", _mac(number, 1), "netns", f"{prefix}{other}"])  # fmt: skip
    for vertex, name in ((one, a), (other, b)):
        _batch(prefix, vertex, [f"link set {name} mtu {MTU} up"])


def _routes(graph: Graph, vertex: int) -> list[str]:
    """What one namespace knows: its neighbours, and the next cable for each sender and receiver that pass it."""
    door: dict[int, str] = {}
    lines: list[str] = []
    for number, (one, other) in enumerate(_ends(graph)):
        for here, there, side in ((one, other, 0), (other, one, 1)):
            if here == vertex:
                door[there] = f"c{number}{'ab'[side]}"
                far = _mac(number, 1 - side)
                lines.append(
                    f"neigh replace {_address(there)} lladdr {far} dev {door[there]} nud permanent"
                )
    senders: dict[int, None] = {}
    for (sender, receiver), way in graph.ways().items():
        if vertex not in way[:-1]:
            continue
        onward = way[way.index(vertex) + 1]
        where = f"{_address(receiver)}/32 via {_address(onward)} dev {door[onward]} onlink"
        if sender == vertex:
            lines.append(f"route add {where} src {_address(vertex)}")
        else:
            lines.append(f"route add {where} table {100 + sender}")
            senders[sender] = None
    lines += [f"rule add from {_address(s)} lookup {100 + s} pref {1000 + s}" for s in senders]
    return lines


def _ends(graph: Graph) -> list[tuple[int, int]]:
    number = {end: place for place, end in enumerate(graph.vertices)}
    return [(number[cable.one], number[cable.other]) for cable in graph.cables]


def _address(vertex: int) -> str:
    return f"10.77.0.{vertex + 1}"


def _mac(cable: int, side: int) -> str:
    return f"02:77:00:{cable // 256:02x}:{cable % 256:02x}:{side:02x}"


def _shape(verb: str, interface: str, bits_per_second: float) -> list[str]:
    rate = f"{round(bits_per_second)}bit"
    burst = max(LEAST_BURST_BYTES, round(bits_per_second / 8 * BURST_SECONDS))
    return ["qdisc", verb, "dev", interface, "root", "tbf", "rate", rate,
            "burst", str(burst), "limit", str(QUEUE_BYTES)]  # fmt: skip


def _batch(prefix: str, vertex: int, lines: Sequence[str]) -> None:
    _must(["ip", "-n", f"{prefix}{vertex}", "-batch", "-"], "\n".join(lines) + "\n")


def _run(words: Sequence[str], given: str | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, input=given, capture_output=True, text=True, check=False)


def _must(words: Sequence[str], given: str | None = None) -> None:
    done = _run(words, given)
    if done.returncode:
        raise RuntimeError(f"{' '.join(words)}: {_last(done.stderr)}")


def _last(text: str) -> str:
    return (text.strip().splitlines() or ["no reason given"])[-1]
