"""Rules of presets against a table written by hand, on plans drawn by lot; and searches, with their advice, against both."""

from __future__ import annotations

import random
from typing import Any

import pytest
from support.stack_limits import LIMITS, complaints

from foretrain.plan.short_form import Words
from foretrain.plan.supported import refusals
from foretrain.runtime import runtime

DRAWN = 3000
FACTS: tuple[dict[str, Any], ...] = (
    {"model": "transformer", "heads": 16, "kv-heads": 4, "seq": 4096, "tied": "no"},
    {"model": "transformer", "heads": 32, "kv-heads": 8, "experts": 8, "seq": 4100, "tied": "no"},
    {"model": "transformer", "heads": 12, "kv-heads": 12, "seq": 1000, "tied": "yes"},
    {"model": "cnn", "tied": "no"},
    {"model": "recommender", "tied": "no"},
)
PRECISIONS = ("bf16", "bf16", "bf16", "fp16", "fp8", "mxfp8")


def drawn(lot: random.Random) -> tuple[Words, dict[str, Any]]:
    """Mostly plain plans: every choice is odd in few of them, so that one rule at a time decides."""

    def odd(usual: Any, *others: Any, share: float = 0.15) -> Any:
        return lot.choice(others) if lot.random() < share else usual

    facts = dict(odd(FACTS[0], *FACTS[1:], share=0.3), batch=lot.choice((24, 32, 48, 60)))
    facts["precision"] = lot.choice(PRECISIONS)
    tp, pp = odd(1, 2, 4, 8, share=0.35), odd(1, 2, 4, share=0.4)
    dp = lot.choice((1, 2, 4))
    vpp = odd(1, 2, 3, share=0.3) if pp > 1 else 1
    cp = odd(1, 2, 4)
    ep = odd(1, 2, 4, share=0.5) if "experts" in facts else 1
    schedule = odd(None, "gpipe", "zb-h1", "zb-v", "v-half", "v-min", "dualpipev", share=0.3)
    schedule = schedule if pp > 1 and vpp == 1 else None
    parts = pp * vpp
    layers = odd(None, (3, *[4] * (parts - 2), 5), (5, 3, *[4] * (parts - 2)))
    zero = lot.choice((0, 1, 2, 3))
    words = Words(
        tp=tp, pp=pp, vpp=2 if schedule in ("zb-v", "v-half", "v-min", "dualpipev") else vpp, cp=cp, ep=ep, dp=dp,
        etp=odd(None, 1, tp, 2) if ep > 1 else None,
        zero=zero, shard=odd(None, 2) if zero else None, sp=lot.random() < 0.7, schedule=schedule,
        recompute=odd("none", "selective", "full", "full*0.5", "act"), offload=odd((), ("optimizer",), ("activations",)),
        exchange=odd("all-gather", "ring", share=0.5) if cp > 1 else "all-gather",
        tables=odd("replicated", "rows", share=0.05),
        layers=layers if parts > 2 and schedule is None else None,
        order=odd(None, ("tp", "cp", "pp", "dp"), ("dp", "tp", "cp", "pp"), share=0.1),
        micro=lot.choice((1, 2, 3)),
    )  # fmt: skip
    return words, facts


@pytest.mark.parametrize("stack", LIMITS)
def test_rules_say_what_the_table_by_hand_says(stack: str) -> None:
    """Both ways, plan by plan; each finds plans that it allows, and plans that it does not."""
    lot, able = random.Random(15), 0
    for _ in range(DRAWN):
        words, facts = drawn(lot)
        ruled = list(refusals(runtime(stack), words, facts))
        told = complaints(stack, words, facts)
        assert bool(ruled) == bool(told), f"{words.text()} {facts}\nrules: {ruled}\nby hand: {told}"
        able += not told
    assert 0 < able < DRAWN
