"""Speed of `foretrain predict --cases`: 1,000 different cases in one process.

    python bench/cases.py [--json] [--cases N] [--keep FILE.jsonl]

The cases are models x clusters x plans x batches in a fixed order, so every run asks the same.
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from measure import Row, children_cpu, environment, foretrain, one_core, show

# hidden size, layers, heads, key/value heads, feed-forward size, vocabulary
SHAPES = {
    "gpt-1.3b": ("gpt", 2048, 24, 16, 16, 8192, 50257),
    "gpt-6.7b": ("gpt", 4096, 32, 32, 32, 16384, 50257),
    "gpt-22b": ("gpt", 6144, 48, 64, 64, 24576, 51200),
    "gpt-175b": ("gpt", 12288, 96, 96, 96, 49152, 50257),
    "llama-8b": ("llama", 4096, 32, 32, 8, 14336, 128256),
    "llama-70b": ("llama", 8192, 80, 64, 8, 28672, 128256),
}
CLUSTERS = (
    ("a100-sxm4-80gb", "nvlink3-nvswitch", 1600),
    ("h100-sxm5-80gb", "nvlink4-nvswitch", 3200),
)
# tp, pp, vpp, zero, recompute
PLANS = (
    (1, 1, 1, 3, "full"), (2, 1, 1, 1, "none"), (8, 1, 1, 1, "selective"), (2, 4, 1, 0, "full"),
    (4, 4, 1, 1, "selective"), (8, 4, 2, 1, "none"), (8, 8, 1, 0, "full"),
)  # fmt: skip
NODES = (4, 8, 16, 32, 64)
ACCUMULATION = (8, 16, 32)


def cases() -> Iterator[dict[str, Any]]:
    """Every combination, models changing fastest so that a short run is mixed as well."""
    grid = itertools.product(ACCUMULATION, NODES, PLANS, CLUSTERS, SHAPES)
    for number, (accumulation, nodes, plan, cluster, model) in enumerate(grid):
        tp, pp, vpp, zero, recompute = plan
        dp = nodes * 8 // (tp * pp)
        if dp < 1:
            continue
        yield {
            "id": f"bench/{number}",
            "model": _model(*SHAPES[model]),
            "seq_len": 4096 if model.startswith("llama") else 2048,
            "cluster": _cluster(*cluster, nodes),
            "devices": nodes * 8,
            "plan": {
                "dp": dp, "tp": tp, "pp": pp, "vpp": vpp, "cp": 1, "ep": 1, "zero": zero,
                "sequence_parallel": tp > 1, "recompute": recompute,
                "schedule": "interleaved" if vpp > 1 else "1f1b",
            },
            "batch": {"global": dp * accumulation, "micro": 1},
            "precision": "bf16",
            "optimizer": "adam",
            "runtime": "megatron",
            "runtime_options": {},
        }  # fmt: skip


def _model(
    family: str, hidden: int, layers: int, heads: int, kv_heads: int, ffn: int, vocabulary: int
) -> dict[str, Any]:
    return {
        "family": family,
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "intermediate_size": ffn,
        "vocab_size": vocabulary,
        "tie_word_embeddings": family == "gpt",
        "hidden_act": "gelu" if family == "gpt" else "silu-gated",
    }


def _cluster(device: str, intra_node: str, gbps: int, nodes: int) -> dict[str, Any]:
    return {
        "device": device,
        "devices_per_node": 8,
        "nodes": nodes,
        "intra_node": intra_node,
        "network": {"kind": "infiniband", "gbps_per_node": gbps},
    }


def write(path: Path, count: int) -> int:
    lines = [json.dumps(case) for case in itertools.islice(cases(), count)]
    path.write_text("\n".join(lines) + "\n")
    return len(lines)


def run(count: int, keep: str | None) -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        asked = Path(keep) if keep else Path(folder, "cases.jsonl")
        answers = Path(folder, "answers.jsonl")
        written = write(asked, count)
        before, used = time.perf_counter(), children_cpu()
        command = foretrain("predict", "--cases", str(asked), "-o", str(answers), "--quiet")
        subprocess.run(command, check=True, env=environment(), stdout=subprocess.DEVNULL)
        seconds = time.perf_counter() - before
        cpu = children_cpu() - used
        documents = [json.loads(line) for line in answers.read_text().splitlines()]
    failed = [document for document in documents if "error" in document]
    if len(documents) != written or len({d.get("step_seconds") for d in documents}) < written // 2:
        raise SystemExit(f"{len(documents)} answers to {written} cases, or too many alike.")
    note = f"wall, start-up included; {cpu:.1f} s of CPU; {len(failed)} could not be predicted"
    target = 60.0 if written >= 1000 else None
    return [Row(f"predict --cases, {written:,} cases", seconds, "s", target, note)]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="rows as JSON on stdout")
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--keep", help="write the cases here and leave them")
    options = parser.parse_args()
    one_core()
    show(run(options.cases, options.keep), options.json)


if __name__ == "__main__":
    main()
