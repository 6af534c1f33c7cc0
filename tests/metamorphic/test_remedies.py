"""What would help is what a what-if says."""

from __future__ import annotations

from collections.abc import Iterator

from foretrain.analysis.sensitivity import WORTH_SAYING
from foretrain.simulate import simulate_scenario
from foretrain.whatifs import changed

from .cases import Case, every, hold

AGREEMENT = 0.01
KNOWN = {
    "twice the interconnect bandwidth": {"interconnect.bandwidth": "2x"},
    "twice the network bandwidth": {"network.bandwidth": "2x"},
    "no host overhead (CUDA graphs)": {"host": 0},
}
"""Changes that both know."""


def agreeing(case: Case) -> Iterator[str]:
    helps = {remedy.change: remedy.speedup for remedy in case.prediction.what_would_help}
    for text, change in KNOWN.items():
        found = simulate_scenario(changed(case.model, case.words, change))
        gain, said = case.step / found.step_seconds, helps.get(text)
        if said is None and gain > WORTH_SAYING * (1 + AGREEMENT):
            yield f"{text}: {gain:.4f} by what-if, not among what would help"
        if said is not None and abs(said / gain - 1) > AGREEMENT:
            yield f"{text}: {gain:.4f} by what-if, {said:.4f} among what would help"


def test_what_would_help_is_what_a_what_if_says(cases):
    hold(every(cases, 16, 7), agreeing)
