"""Arguments of a kind that a keyword does not take are told as every other wrong word is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from foretrain import predict, search
from foretrain.errors import InputError
from foretrain.resolving.resolve import ask

QUESTION: dict[str, Any] = {"on": "1 x dgx-h100", "plan": "dp8", "batch": 64, "micro_batch": 8}


@pytest.mark.parametrize(
    ("keyword", "value"),
    [
        *(("precision", value) for value in (5, [], True)),
        ("optimizer", {}),
        *(("runtime", value) for value in (5, [], {})),
        *(("runtime_options", value) for value in (5, [], "x", {5: 1})),
        ("on", None),
        *(("stragglers", value) for value in (5, [])),
        *(("measured", value) for value in (5, "x")),
        *(("data", value) for value in (5, "x")),
        *(("model", value) for value in (5, None, [], b"gpt2")),
        ("plan", []),
    ],
)
def test_a_wrong_kind_names_the_keyword(keyword: str, value: Any) -> None:
    with pytest.raises(InputError, match=keyword):
        predict(**{"model": "gpt2", **QUESTION, keyword: value})


def test_all_wrong_kinds_are_told_at_once() -> None:
    with pytest.raises(InputError) as caught:
        ask("gpt2", **{**QUESTION, "precision": 5, "runtime": [], "data": "x"})
    assert [fault.split(":")[0] for fault in caught.value.faults] == [
        "precision",
        "runtime",
        "data",
    ]
    assert "precision: 5 is not a name such as 'bf16' or a Precision." in str(caught.value)


@pytest.mark.parametrize(
    ("keyword", "value"),
    [
        *(("top", value) for value in ("x", 1.5, True)),
        *(("where", value) for value in (5, None, [5])),
        ("state", 5),
        ("progress", 5),
        ("precision", 5),
        ("on", None),
    ],
)
def test_the_same_of_a_search(keyword: str, value: Any) -> None:
    given: dict[str, Any] = {"on": "1 x dgx-h100", "batch": 64, keyword: value}
    with pytest.raises(InputError):
        search("gpt2", **given)


def test_whole_numbers_of_numpy_are_whole_numbers() -> None:
    ours = ask("gpt2", **QUESTION, seq=512)
    theirs = {"batch": np.int64(64), "micro_batch": np.int32(8), "seq": np.int64(512)}
    assert ask("gpt2", **{**QUESTION, **theirs}).sha256 == ours.sha256
