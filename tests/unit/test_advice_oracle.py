"""Fixes against brute force over the words of plans, a few drawn by lot; `tools/advice_oracle.py` does many."""

from __future__ import annotations

from itertools import islice
from typing import Any

import pytest
from advice_oracle import SAME, judged, one_move_away, questions

from foretrain import fit
from foretrain.resolving import ask

FEW = [*islice(questions(3), 5)]


@pytest.mark.parametrize("asked", FEW, ids=lambda asked: f"{asked['model']} {asked['plan']}")
def test_the_change_named_first_is_the_fastest_one_move_fix(asked: dict[str, Any]) -> None:
    row = judged(asked)
    assert row.behind <= SAME, row


def test_most_of_them_have_one() -> None:
    assert sum(any(one.fits for one in fit(**asked).changes) for asked in FEW) >= 3


def test_the_oracle_writes_down_every_choice() -> None:
    asked = {
        "model": "gpt3-6.7b", "on": "2 x dgx-a100-80gb", "plan": "tp4 pp2 dp2 zero1", "micro_batch": 2, "batch": 64,
        "runtime": "generic", "seq": 2048,
    }  # fmt: skip
    texts = [f"{one['plan']} micro={one['micro_batch']}" for one in one_move_away(asked)]
    own = ask(**asked).plan.text.split()
    assert len(texts) == len(set(texts)) > 60
    for word in (
        "micro=1", "micro=32", "no-sp", "zero0", "zero3", "shard=2", "recompute=selective", "recompute=full*0.375",
        "vpp2", "gpipe", "layers=17,15", "tp8", "tp1", "pp4", "cp2", "buckets=100MB", "offload=optimizer",
        "order=tp-cp-pp-dp",
    ):  # fmt: skip
        assert word not in own
        assert any(word in text.split() for text in texts), word
