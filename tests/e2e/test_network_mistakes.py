"""Networks that cannot be: one clear message with path, value, reason and remedy, in bounded time and memory."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from foretrain.cli import run

GRAPH = "nodes: 3 x p3.2xlarge\nnetwork:\n  topology: graph\n  edges:\n"
MILLION = 1_000_000
FILES = {
    "parts.yaml": GRAPH.replace("3", "4", 1) + "    - [0, 1, 10Gb/s]\n    - [2, 3, 10Gb/s]\n",
    "zero.yaml": GRAPH + "    - [0, 1, 0]\n    - [1, 2, 0Gb/s]\n"
    "    - {ends: [0, 2], bandwidth: 1Gb/s, back_bandwidth: 0}\n    - [2, 2, 1Gb/s]\n",
    "loops.yaml": GRAPH + "    - [0, 0, 1Gb/s]\n    - [1, 1, 1Gb/s]\n    - [1, 7, 1Gb/s]\n",
    "one_way.yaml": GRAPH + "    - {ends: [0, 1], bandwidth: 1Gb/s, one_way: true}\n"
    "    - {ends: [1, 2], bandwidth: 1Gb/s, one_way: true}\n",
    "bare.yaml": "nodes:\n  - 1 x p3.2xlarge\n  - {name: box, devices: [v100-sxm2-16gb]}\n",
    "none.yaml": "nodes: 2 x p3.2xlarge\nnetwork: none\n",
}  # fmt: skip

MISTAKES = {
    "parts.yaml": ["parts.yaml", "network:", "2 components: node0, node1 | node2, node3", "Add cables"],
    "zero.yaml": [
        "network.edges[0].bandwidth: 0 must be positive", "network.edges[1].bandwidth: '0Gb/s'",
        "network.edges[2].back_bandwidth: 0", "Remove cables without bandwidth",
        "network.edges[3]: a cable from 2 to itself",
    ],
    "loops.yaml": [
        "network.edges[0]: a cable from 0 to itself", "network.edges[1]", "Remove it",
        "network.edges[2]: there is no node 7", "the last node is 2",
    ],
    "one_way.yaml": ["network: Cables are one-way", "node2 to node0", "Add cables"],
    "bare.yaml": ["no route from rank 0 (node0) to rank 1 (node1)", "node1 without NICs", "nics"],
    "none.yaml": ["no route from rank 0 (node0) to rank 1 (node1)", "network is none", "specify the network"],
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_networks_that_cannot_be(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).write_text(FILES[name])
    assert run(["predict", "resnet50", "--on", name, "--batch", "24"]) == 2
    said = " ".join(capsys.readouterr().err.split())
    for words in MISTAKES[name]:
        assert words in said
    assert "Traceback" not in said


HUGE = {
    "inline.yaml": lambda: "nodes: [" + ",".join(["t4"] * MILLION) + "]\n",
    "lines.yaml": lambda: "nodes:\n" + "  - p3.2xlarge\n" * MILLION,
    "cables.yaml": lambda: "nodes: 1000000 x t4\nnetwork: {topology: graph, edges: ["
    + ",".join(f"[{i},{i + 1},1]" for i in range(MILLION - 1)) + "]}\n",
    "drawn.yaml": lambda: "nodes: 1000000 x p3.2xlarge\n"
    "network: {topology: graph, edges: [[0, 1, 1Gb/s]]}\n",
}  # fmt: skip


@pytest.mark.parametrize("name", HUGE)
def test_a_million_nodes_are_refused_in_seconds(name, tmp_path: Path):
    """In a process of its own, with 2 GB to live on."""
    path = tmp_path / name
    path.write_text(HUGE[name]())
    code = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))\n"
        "from foretrain.cli import run\n"
        f"code = run(['predict', 'resnet50', '--on', {str(path)!r}])\n"
        # of this program alone: ru_maxrss begins with what the process that started it held
        "print(next(line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM')))\n"
        "sys.exit(code)"
    )
    start = time.perf_counter()
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert ran.returncode == 2, ran.stderr
    assert time.perf_counter() - start < 30  # some seconds, on a busy machine too
    assert int(ran.stdout.split()[-1]) < 1_000_000  # kilobytes
    said = " ".join(ran.stderr.split())
    assert name in said
    assert "at most" in said
    assert "topology" in said


def test_just_below_the_limits_is_read(tmp_path: Path):
    from foretrain import Cluster
    from foretrain.cluster.schema import MOST_CABLES

    path = tmp_path / "many.yaml"
    cables = [f"[{i % 500},{(i % 500 + 1 + i // 500) % 500},1Gb/s]" for i in range(MOST_CABLES)]
    path.write_text(
        "nodes: 500 x p3.2xlarge\nnetwork: {topology: graph, edges: [" + ",".join(cables) + "]}"
    )
    assert Cluster.of(path).network_fabric is not None


def test_lists_of_nodes_in_python_are_bounded_too():
    from foretrain import Cluster
    from foretrain.errors import ClusterError

    with pytest.raises(ClusterError, match="nodes: 1,000,000 entries; at most 4,096"):
        Cluster.of({"nodes": ["t4"] * MILLION})


def test_a_pinned_algorithm_that_cannot_run_exits_with_2(capsys):
    asked = ["predict", "resnet50", "--on", "4 x p3.2xlarge", "--set", "algorithms=all_reduce:nvls"]
    assert run(asked) == 2
    said = " ".join(capsys.readouterr().err.split())
    for words in ("algorithms.all_reduce", "'nvls'", "NVSwitch", "Use ring or tree"):
        assert words in said
