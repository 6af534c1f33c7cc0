"""Rules of presets against a table written by hand, on plans drawn by lot; and searches, with their advice, against both."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from support.stack_limits import LIMITS, complaints

from foretrain.plan.short_form import Words
from foretrain.plan.supported import refusals
from foretrain.runtime import Runtime, runtime

DRAWN = 4000
FACTS: tuple[dict[str, Any], ...] = (
    {"model": "transformer", "heads": 24, "kv-heads": 6, "seq": 4096, "tied": "no"},
    {"model": "transformer", "heads": 32, "kv-heads": 8, "experts": 8, "seq": 4096, "tied": "no"},
    {"model": "transformer", "heads": 12, "kv-heads": 12, "seq": 1002, "tied": "yes"},
    {"model": "cnn", "tied": "no"},
    {"model": "recommender", "tied": "no"},
    {"model": "other", "tied": "no"},
)
PRECISIONS = ("bf16", "bf16", "bf16", "fp16", "fp8", "mxfp8")


def drawn(lot: random.Random) -> tuple[Words, dict[str, Any]]:
    """Mostly plain plans: every choice is odd in few of them, so that one rule at a time decides."""

    def odd(usual: Any, *others: Any, share: float = 0.15) -> Any:
        return lot.choice(others) if lot.random() < share else usual

    facts = dict(
        lot.choice(FACTS[:2]) if lot.random() < 0.8 else lot.choice(FACTS),
        batch=lot.choice((24, 32, 48, 60)),
    )
    facts["precision"] = lot.choice(PRECISIONS)
    tp, pp = odd(1, 2, 4, 8, share=0.35), odd(1, 2, 4, share=0.5)
    dp = lot.choice((1, 2, 4))
    vpp = odd(1, 2, 3, share=0.4) if pp > 1 else 1
    cp = odd(1, 2, 4, share=0.25)
    ep = odd(1, 2, 4, 8, share=0.6) if "experts" in facts else 1
    schedule = odd(
        None, "gpipe", "gpipe", "zb-h1", "zb-v", "v-half", "v-min", "dualpipev", share=0.3
    )
    schedule = schedule if pp > 1 and vpp == 1 else None
    parts = pp * vpp
    layers = odd(None, (3, *[4] * (parts - 2), 5), (5, 3, *[4] * (parts - 2)), share=0.35)
    zero = lot.choice((0, 0, 1, 2, 3))
    words = Words(
        tp=tp, pp=pp, vpp=2 if schedule in ("zb-v", "v-half", "v-min", "dualpipev") else vpp, cp=cp, ep=ep, dp=dp,
        etp=odd(None, 1, tp, 2) if ep > 1 else None,
        zero=zero, shard=odd(None, 2), sp=lot.random() < 0.7, schedule=schedule,
        recompute=odd("none", "selective", "full", "full*0.5", "act", share=0.25), offload=odd((), ("optimizer",), ("activations",)),
        exchange=odd("all-gather", "ring", share=0.5) if cp > 1 else "all-gather",
        tables=odd("replicated", "rows", share=0.05),
        layers=layers if parts > 2 and schedule in (None, "gpipe") else None,
        order=odd(None, ("tp", "cp", "pp", "dp"), ("dp", "tp", "cp", "pp"), share=0.1),
        micro=lot.choice((1, 2, 3)),
    )  # fmt: skip
    return words, facts


def verdicts(stack: Runtime, plans: Sequence[tuple[Words, dict[str, Any]]]) -> Iterator[bool]:
    return (any(refusals(stack, words, facts)) for words, facts in plans)


@pytest.mark.parametrize("stack", LIMITS)
def test_rules_say_what_the_table_by_hand_says(stack: str) -> None:
    """Both ways, plan by plan. Each rule decides some plan by itself, so that a wrong one is noticed."""
    lot, kept = random.Random(15), runtime(stack)
    plans = [drawn(lot) for _ in range(DRAWN)]
    told = [bool(complaints(stack, words, facts)) for words, facts in plans]
    for (words, facts), is_told, is_ruled in zip(plans, told, verdicts(kept, plans), strict=True):
        assert is_told == is_ruled, (
            f"{words.text()} {facts}: {list(refusals(kept, words, facts))}, by hand {complaints(stack, words, facts)}"
        )
    assert 0 < sum(told) < DRAWN
    wrong = [plan for plan, is_told in zip(plans, told, strict=True) if is_told]
    rules = kept.supported_plans.rules
    for left_out in rules:
        less = tuple(rule for rule in rules if rule != left_out)
        loose = kept.with_features({"supported_plans": {"rules": less}})
        assert not all(verdicts(loose, wrong)), f"nobody would miss {left_out}"
