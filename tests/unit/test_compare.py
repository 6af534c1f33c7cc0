"""Compare: causes have the sign of the difference, and unlike work is not compared by the step."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

import foretrain
from foretrain.analysis.compare import Comparison, compare
from foretrain.analysis.prediction import STALLS
from foretrain.errors import InputError
from foretrain.report import document_of, render
from foretrain.testing.exporters import sample_prediction

ASKED: dict[str, Any] = {
    "model": "gpt2", "parameters": 124, "global_batch": 64, "seq_len": 1024, "precision": "bf16",
    "optimizer": "adam", "cluster": "1 x dgx-h100", "plan": "dp8", "runtime": "megatron",
}  # fmt: skip
COST = {"usd_per_hour": 36.0, "usd_per_step": 0.1, "price_date": "2026-01-01"}


def document(stalls: dict[str, float], tokens: bool = True, **asked: Any) -> dict[str, Any]:
    step = sum(stalls.values())
    question = {**ASKED, **asked}
    samples = question["global_batch"] / step
    whole = sample_prediction().to_dict()
    return {
        **whole, "step_seconds": step, "stalls": {**dict.fromkeys(STALLS, 0.0), **stalls}, "question": question, "fits": True, "mfu": 0.5, "cost": COST,
        "samples_per_second": samples, "tokens_per_second": samples * question["seq_len"] if tokens else None,
        "memory": {**whole["memory"], "peak_bytes": 2.0**30, "usable_bytes": 2.0**32},
    }  # fmt: skip


def figure(found: Comparison, name: str) -> tuple[float | None, float | None]:
    return next((row.a, row.b) for row in found.figures if row.name == name)


def test_the_cause_named_has_the_sign_of_the_change() -> None:
    """Faster although compute grew: compute is what went the other way."""
    a = document({"compute": 10.0, "bubble": 10.0, "host": 2.0})
    b = document({"compute": 13.2, "bubble": 1.0, "host": 1.5}, plan="tp8")
    found = compare(a, b)
    assert found.summary == (
        "B takes 15.7 s per step instead of 22.0 s (1.40× as fast): bubble shrank by 9.00 s,"
        " but compute grew by 3.20 s."
    )
    back = compare(b, a).summary
    assert "1.40× as long): bubble grew by 9.00 s, but compute shrank by 3.20 s." in back


def test_the_largest_cause_may_be_the_one_that_went_the_other_way() -> None:
    a = document({"compute": 10.0, "network": 4.0, "bubble": 4.0})
    b = document({"compute": 15.0, "network": 0.5, "bubble": 1.0})
    found = compare(a, b)
    assert found.causes[0].name == "compute"
    assert "1.09× as fast): network shrank by 3.50 s and bubble by 3.00 s, but compute grew by 5.00 s." in (
        found.summary
    )  # fmt: skip


def test_causes_add_up_and_nothing_small_is_named() -> None:
    a = document({"compute": 10.0, "host": 1.0, "fetch": 0.001})
    b = document({"compute": 12.0, "host": 1.0, "fetch": 0.002})
    found = compare(a, b)
    assert sum(row.delta or 0 for row in found.causes) == pytest.approx(2.001)
    assert "fetch" not in found.summary
    assert "but" not in found.summary


def test_the_same_twice_is_said_plainly() -> None:
    a = document({"compute": 10.0})
    found = compare(a, a)
    assert found.summary == "Both take 10.0 s per step."
    assert found.changed == {}


@pytest.mark.parametrize(
    ("change", "per"),
    [
        ({"plan": "tp8"}, "step"),
        ({"cluster": "2 x dgx-h100"}, "step"),
        ({"runtime": "fsdp"}, "step"),
        ({"global_batch": 128}, "million tokens"),
        ({"seq_len": 2048}, "million tokens"),
        ({"precision": "fp8"}, "million tokens"),
        ({"optimizer": "sgd"}, "million tokens"),
        ({"model": "llama3-8b", "parameters": 8}, "million tokens"),
    ],
)
def test_unlike_work_is_compared_by_what_it_has_in_common(change: dict[str, Any], per: str) -> None:
    found = compare(document({"compute": 10.0}), document({"compute": 30.0}, **change))
    assert found.per == per
    assert bool(found.remarks) == (per != "step")
    assert found.to_dict()["remarks"] == list(found.remarks)
    assert all(remark in found.summary for remark in found.remarks)


def test_twice_the_batch_in_twice_the_time_is_no_difference() -> None:
    found = compare(document({"compute": 10.0}), document({"compute": 20.0}, global_batch=128))
    assert "The work differs (batch 64 and 128), so times are per million tokens." in found.summary
    assert "Both take" in found.summary
    a, b = figure(found, "time per million tokens")
    assert a == pytest.approx(10.0 / (64 * 1024) * 1e6)
    assert a == pytest.approx(b)
    a, b = figure(found, "cost per million tokens")
    assert a == pytest.approx(0.1 / (64 * 1024) * 1e6)
    assert (b or 0) * 2 == pytest.approx(a)


def test_images_are_compared_by_the_sample() -> None:
    pair = [
        document({"compute": t}, tokens=False, model=m) for t, m in ((1.0, "vit-b"), (2.0, "resnet50"))
    ]  # fmt: skip
    found = compare(*pair)
    assert found.per == "thousand samples"
    assert "A sample is not the same amount of work for both models." in found.remarks


def test_what_has_no_unit_in_common_is_not_compared() -> None:
    words, images = document({"compute": 1.0}), document({"compute": 1.0}, False, model="resnet50")
    found = compare(words, images)
    assert found.per is None
    assert found.causes == ()
    assert found.summary.startswith("Not comparable: gpt2 and resnet50 ")
    page = document_of(found)
    assert page.is_no
    assert page.data["remarks"]
    assert figure(found, "peak memory") == (2.0**30, 2.0**30)


def test_what_does_not_fit_is_said() -> None:
    a = document({"compute": 1.0})
    b = {**document({"compute": 2.0}), "fits": False}
    assert compare(a, b).summary.endswith("B does not fit in memory.")
    assert compare(b, b).summary.endswith("Neither fits in memory.")


def test_rows_are_flat_and_have_memory_cost_and_throughput() -> None:
    rows = compare(document({"compute": 1.0}), document({"compute": 2.0})).rows()
    names = {row["name"] for row in rows}
    assert names >= {"time per step", "tokens per second", "peak memory", "cost per step", "cost per hour"}  # fmt: skip
    assert all(set(row) == {"kind", "name", "unit", "a", "b", "delta"} for row in rows)
    assert {row["kind"] for row in rows} == {"figure", "cause"}


def test_a_page_shows_differences_with_their_units() -> None:
    a, b = document({"compute": 1.0}), {**document({"compute": 2.0}), "mfu": 0.25}
    text = str(render(compare(a, b, names=("one.json", "two.json")), "txt"))
    assert "A: one.json · B: two.json" in text
    assert re.search(r"MFU +50 % +25 % +−25.0 points", text)
    assert re.search(r"compute +1.00 s +2.00 s +\+1.00 s", text)


def test_anything_else_is_refused() -> None:
    with pytest.raises(InputError, match="B is not a valid prediction"):
        compare(document({"compute": 1.0}), {"a": 1})


def test_predictions_are_compared_as_they_are() -> None:
    a = foretrain.predict("gpt2", on="1 x dgx-h100", plan="dp8", batch=64)
    slower = replace(a, step_seconds=a.step_seconds + 1, stalls={**a.stalls, "host": a.stalls["host"] + 1})  # fmt: skip
    assert "host grew by 1.00 s" in foretrain.compare(a, slower).summary


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ({"runtime_options": {"attention": "unfused"}}, {"runtime attention": ("default", "unfused")}),
        ({"runtime_options": {"host_seconds_per_kernel": 1e-4}}, {"runtime host_seconds_per_kernel": ("default", 1e-4)}),
        ({"stragglers": {3: 1.5}}, {"stragglers": (None, "3:1.5")}),
        ({"stragglers": "sigma=0.05,seed=2"}, {"stragglers": (None, "sigma=0.05,seed=2")}),
        ({"headroom": 0.1}, {"headroom": (0.0, 0.1)}),
        ({"usd_per_hour": 2.0}, {"USD per device-hour": (None, 2.0)}),
        ({"data": foretrain.DataSource(1e5, 1e-3)}, {
            "data bytes_per_sample": (None, 1e5), "data prep_seconds_per_sample": (None, 1e-3), "data workers": (None, 1),
        }),
    ],
)  # fmt: skip
def test_what_stands_beside_the_question_is_named(
    words: dict[str, Any], named: dict[str, tuple[Any, Any]]
) -> None:
    asked: dict[str, Any] = {"on": "1 x dgx-a100-80gb", "plan": "dp8", "batch": 64, "micro_batch": 8, "runtime": "ddp"}  # fmt: skip
    a, b = foretrain.predict("gpt2", **asked), foretrain.predict("gpt2", **asked, **words)
    found = compare(a.to_dict(), b.to_dict())
    assert dict(found.changed) == named
    assert not found.remarks
    shown = str(render(found, "md")).replace("\\_", "_")
    assert all(name in shown for name in named)


def test_stragglers_that_slow_nothing_are_not_named() -> None:
    asked: dict[str, Any] = {"on": "1 x dgx-a100-80gb", "plan": "dp8", "batch": 8}
    found = foretrain.predict("gpt2", **asked, stragglers="3:1.0,5:1.0")
    assert "stragglers" not in found.question


def test_inputs_that_differ_unseen_are_remarked_on() -> None:
    """Two cluster files of one name."""
    a = document({"compute": 10.0})
    b = {
        **document({"compute": 12.0}),
        "provenance": {**a["provenance"], "inputs_sha256": "cd" * 32},
    }
    assert "The inputs differ in something that the documents do not list" in compare(a, b).remarks[0]  # fmt: skip
    assert not compare(a, {**b, "question": {**ASKED, "plan": "tp8"}}).remarks
