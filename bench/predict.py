"""Speed of a prediction: warm in one process, cold from the command line, and the memory it takes.

    python bench/predict.py [--json] [--runs N]

GPT-3 175B, 1,536 x 2,048 tokens per step and 1,024 A100s, tp8 pp16 dp8, micro-batch 1, full recomputation,
with the full timeline; then the same model on 16,384 of them with dp128 and 16 times the batch.
"""

from __future__ import annotations

import argparse
import resource
import sys
from typing import Any

from measure import Row, foretrain, one_core, process_seconds, rows_of, seconds, show, spread

SMALL = {"on": "128 x dgx-a100-80gb", "plan": "tp8 pp16 dp8 recompute=full", "batch": 1536}
LARGE = {"on": "2048 x dgx-a100-80gb", "plan": "tp8 pp16 dp128 recompute=full", "batch": 1536 * 16}
SHAPE = {"seq": 2048, "micro_batch": 1}


def predict(question: dict[str, Any]) -> Any:
    import foretrain

    return foretrain.predict("gpt3-175b", **question, **SHAPE)


def warm(question: dict[str, Any], runs: int) -> tuple[list[float], Any]:
    answers: list[Any] = []
    found = seconds(lambda: answers.append(predict(question)), runs, warm_up=2)
    return found, answers[-1]


def in_process(runs: int) -> list[Row]:
    small, answer = warm(SMALL, runs)
    large, other = warm(LARGE, runs)
    return [
        Row(
            "predict, 1,024 GPUs, warm", min(small) * 1e3, "ms", 100.0,
            f"{spread(small)}; {len(answer.timeline):,} tasks on the timeline",
        ),
        Row("  its answer", answer.step_seconds, "s/step", None, f"MFU {answer.mfu:.1%}"),
        Row(
            "predict, 16,384 GPUs, warm", min(large) * 1e3, "ms", None,
            f"{spread(large)}; {len(other.timeline):,} tasks on the timeline",
        ),
        Row("16,384 against 1,024 GPUs", min(large) / min(small), "times", 1.3, "ratio of bests"),
    ]  # fmt: skip


def peak_memory() -> list[Row]:
    """Largest resident size of this process after one prediction on 16,384 GPUs."""
    predict(LARGE)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    unit = 1 if sys.platform == "darwin" else 1024  # kilobytes on Linux
    return [Row("peak memory, 16,384 GPUs", peak * unit / 1e6, "MB", 500.0, "a process of its own")]


def command_line(runs: int) -> list[Row]:
    words = ["predict", "gpt3-175b", "--seq", "2048", "--micro-batch", "1", "--json"]
    words += ["--on", SMALL["on"], "--plan", SMALL["plan"], "--batch", str(SMALL["batch"])]
    cold, cold_cpu = process_seconds(foretrain(*words), runs)
    help_, help_cpu = process_seconds(foretrain("--help"), 2 * runs)
    return [
        Row(
            "foretrain predict, cold process",
            min(cold),
            "s",
            1.0,
            f"{spread(cold)}; {cold_cpu:.2f} s of CPU",
        ),
        Row("foretrain --help", min(help_), "s", 0.2, f"{spread(help_)}; {help_cpu:.2f} s of CPU"),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="rows as JSON on stdout")
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--part", choices=("all", "memory"), default="all", help=argparse.SUPPRESS)
    options = parser.parse_args()
    one_core()
    if options.part == "memory":
        rows = peak_memory()
    else:
        rows = in_process(options.runs)
        rows += rows_of("predict.py", "--part", "memory")
        rows += command_line(max(3, options.runs // 4))
    show(rows, options.json)


if __name__ == "__main__":
    main()
