"""A first prediction.

python examples/first_prediction.py [report.html]
"""

from __future__ import annotations

import sys

from foretrain import predict


def main(report: str | None = None) -> None:
    answer = predict(
        "llama3-8b",
        on="2 x dgx-h100",
        plan="tp4 pp2 dp2 zero1",
        batch=256,
        micro_batch=1,
        seq=8192,
    )
    low, high = answer.interval
    print(f"{answer.step_seconds:.2f} s per step ({low:.2f} to {high:.2f})")
    print(f"{answer.tokens_per_second or 0:,.0f} tokens/s, MFU {answer.mfu or 0:.0%}")
    print(f"{answer.memory.peak_bytes / 2**30:.1f} GiB peak memory, fits: {answer.fits}")
    for cause, seconds in sorted(answer.stalls.items(), key=lambda pair: -pair[1]):
        if seconds > 0:
            print(f"  {cause:13}{seconds:8.3f} s")
    for remedy in answer.what_would_help:
        print(f"  {remedy.change}: {remedy.speedup:.2f}x")
    if report is not None:
        answer.save(report)


if __name__ == "__main__":
    main(*sys.argv[1:2])
