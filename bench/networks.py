"""Speed on networks that are not one switch: a drawn graph rank by rank, and an oversubscribed fat tree.

    python bench/networks.py [--json] [--runs N]

ResNet-50 data parallel over 64 nodes joined by a random graph: cables in YAML, bandwidth and latency of their own
in each direction, nothing folded. Then GPT-3 175B on 1,024 A100s (as in predict.py) below a 2:1 fat tree.
"""

from __future__ import annotations

import argparse
import random
import tempfile
from pathlib import Path
from typing import Any

from measure import (
    Row,
    foretrain,
    one_core,
    process_seconds,
    rows_of,
    seconds,
    show,
    spread,
)

NODES = 64
TREE = "128 x dgx-a100-80gb on fat-tree(oversubscription=2, leaf_nodes=16)"
GPT3 = {"plan": "tp8 pp16 dp8 recompute=full", "batch": 1536, "seq": 2048, "micro_batch": 1}
RESNET = {"plan": f"dp{NODES}", "batch": 32 * NODES, "micro_batch": 32, "runtime": "ddp"}


def drawn(seed: int = 0, chance: float = 0.15) -> str:
    """A cluster in YAML: a path through all nodes, so that they are joined, and cables drawn by lot."""
    rng = random.Random(seed)
    lines = ["name: random-graph", f"nodes: {NODES} x p3.2xlarge", "network:", "  topology: graph"]
    lines.append("  edges:")
    for one in range(NODES):
        for other in range(one + 1, NODES):
            if other == one + 1 or rng.random() < chance:
                there, back = rng.randint(5, 100), rng.randint(5, 100)
                late, later = rng.randint(2, 50), rng.randint(2, 50)
                lines.append(
                    f"    - {{ends: [{one}, {other}], bandwidth: {there / 10}Gb/s, "
                    f"back_bandwidth: {back / 10}Gb/s, latency: {late}us, back_latency: {later}us}}"
                )
    return "\n".join(lines) + "\n"


def rank_by_rank(path: str) -> Any:
    from foretrain.resolving import ask
    from foretrain.simulate import answer

    return answer(ask("resnet50", on=path, **RESNET), is_folded=False)  # type: ignore[arg-type]


def graph(path: str) -> list[Row]:
    """The first prediction of a process: reading, routing and laying of rings included, imports not."""
    import foretrain.forecast  # noqa: F401 - its import is counted with the command line

    answers: list[Any] = []
    first = seconds(lambda: answers.append(rank_by_rank(path)), 1, warm_up=0)
    cables = Path(path).read_text("utf-8").count("ends:")
    found = answers[0]
    return [
        Row(
            f"predict, drawn {NODES}-node graph, rank by rank", first[0], "s", 5.0,
            f"first in its process; {cables} cables, {len(found.timeline):,} tasks on the timeline",
        ),
        Row(
            "  its answer", found.step_seconds, "s/step", None,
            f"network {found.stalls['network'] / found.step_seconds:.0%} of the step",
        ),
    ]  # fmt: skip


def command_line(path: str, runs: int) -> list[Row]:
    words = ["predict", "resnet50", "--on", path, "--plan", RESNET["plan"], "--runtime", "ddp"]
    words += ["--batch", str(RESNET["batch"]), "--micro-batch", "32", "--json"]
    cold, cpu = process_seconds(foretrain(*map(str, words)), runs)
    return [
        Row("foretrain predict, drawn graph, cold process", min(cold), "s", 5.0, f"{spread(cold)}; {cpu:.2f} s of CPU")
    ]  # fmt: skip


def fat_tree(runs: int) -> list[Row]:
    import foretrain

    answers: list[Any] = []
    found = seconds(
        lambda: answers.append(foretrain.predict("gpt3-175b", on=TREE, **GPT3)),  # type: ignore[arg-type]
        runs,
        warm_up=2,
    )
    answer = answers[-1]
    return [
        Row("predict, 1,024 GPUs, 2:1 fat tree, warm", min(found) * 1e3, "ms", 500.0, spread(found)),
        Row("  its answer", answer.step_seconds, "s/step", None, f"MFU {answer.mfu:.1%}"),
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="rows as JSON on stdout")
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--graph", metavar="FILE", help=argparse.SUPPRESS)
    options = parser.parse_args()
    one_core()
    if options.graph:
        show(graph(options.graph), options.json)
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "random-graph.yaml"
        path.write_text(drawn(), encoding="utf-8")
        rows = rows_of("networks.py", "--graph", str(path))
        rows += command_line(str(path), max(3, options.runs // 3))
    show(rows + fat_tree(options.runs), options.json)


if __name__ == "__main__":
    main()
