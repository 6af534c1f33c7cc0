"""A plan as a strategy tree in YAML: recompute only as many layers as memory requires.

python examples/plan_from_yaml.py
"""

from __future__ import annotations

from pathlib import Path

from foretrain import Prediction, predict

HERE = Path(__file__).parent


def ask(plan: str) -> Prediction:
    return predict(
        "llama2-13b", on="1 x dgx-a100-80gb", plan=plan, batch=64, micro_batch=1, seq=4096
    )


def main() -> None:
    plans = {
        "keep everything": "tp8 sp",
        "recompute 16 of 40 layers": str(HERE / "recompute_some_layers.yaml"),
        "recompute everything": "tp8 sp recompute=full",
    }
    for name, plan in plans.items():
        answer = ask(plan)
        size = answer.memory.by_kind["activations"] / 2**30
        print(f"{name:26} {answer.step_seconds:6.2f} s per step, {size:5.1f} GiB of activations")


if __name__ == "__main__":
    main()
