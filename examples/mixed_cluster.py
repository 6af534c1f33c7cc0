"""A heterogeneous cluster: all ranks wait for the slowest node.

python examples/mixed_cluster.py
"""

from __future__ import annotations

from pathlib import Path

from foretrain import Cluster, predict

HERE = Path(__file__).parent


def main() -> None:
    mixed = Cluster.of(HERE / "mixed_cluster.yaml")
    print(mixed.describe())
    for cluster in (Cluster.of("2 x dgx-a100-80gb"), mixed):
        answer = predict("llama3-8b", on=cluster, plan="tp4 dp4 zero1", batch=64, seq=4096)
        waits = answer.stalls["imbalance"]
        print(
            f"{cluster.name:20} {answer.step_seconds:6.2f} s per step, {waits:.2f} s of it waiting"
        )


if __name__ == "__main__":
    main()
