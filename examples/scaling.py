"""Efficiency against the number of machines, and where the rest goes.

python examples/scaling.py
"""

from __future__ import annotations

from foretrain import predict


def main() -> None:
    base: float | None = None
    print(f"{'GPUs':>6} {'step':>8} {'efficiency':>11}  largest stalls")
    for nodes in (1, 2, 4, 8, 16, 32):
        # the batch stays: strong scaling
        answer = predict("gpt3-6.7b", on=f"{nodes} x dgx-a100-80gb", plan="tp2 zero1", batch=512)
        spent = answer.step_seconds * nodes
        base = spent if base is None else base
        rest = {cause: s for cause, s in answer.stalls.items() if cause != "compute"}
        worst = sorted(rest, key=lambda cause: -rest[cause])[:2]
        shares = ", ".join(f"{cause} {rest[cause] / answer.step_seconds:.0%}" for cause in worst)
        print(f"{nodes * 8:6} {answer.step_seconds:7.2f}s {base / spent:10.0%}   {shares}")


if __name__ == "__main__":
    main()
