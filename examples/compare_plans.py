"""Several plans for one model on one cluster, the fastest that fits first.

python examples/compare_plans.py
"""

from __future__ import annotations

from foretrain import predict
from foretrain.errors import InputError

PLANS = (
    "tp8 dp4 zero1",
    "tp8 sp dp4 zero1",
    "tp8 sp pp4 dp1 recompute=full",
    "tp8 sp pp4 dp1",
    "tp4 sp pp4 dp2 zero1",
    "tp4 sp pp4 vpp4 dp2 zero1",
    "dp32 zero3 recompute=full",
    "tp3 dp8",  # does not divide the cluster: explained, not fatal
)


def main() -> None:
    answers = []
    for plan in PLANS:
        try:
            answers.append(predict("llama2-70b", on="4 x dgx-h100", plan=plan, batch=128, seq=4096))
        except InputError as error:
            print(f"{plan:32} {str(error).splitlines()[0]}")
    for answer in sorted(answers, key=lambda a: (not a.fits, a.step_seconds)):
        size = f"{answer.memory.peak_bytes / 2**30:6.1f} GiB"
        verdict = "" if answer.fits else "does not fit"
        print(
            f"{answer.question['plan']:32} {answer.step_seconds:7.2f} s {size}"
            f"  {answer.bottleneck:13} {verdict}"
        )


if __name__ == "__main__":
    main()
