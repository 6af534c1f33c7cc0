"""Offers: the findings of Stash from prediction alone, what is never offered, and the reasons."""

from __future__ import annotations

import json
import re
from functools import cache
from typing import Any

import pytest

from foretrain.analysis.prediction import STALLS
from foretrain.errors import InputError
from foretrain.recommendation.facade import Recommendation, recommend
from foretrain.recommendation.offers import Offer, least_hours
from foretrain.recommendation.reasons import days
from foretrain.report import document_of, render
from foretrain.resolving import ask
from foretrain.simulate import answer

STASH = ("aws:p2.*", "aws:p3.*", "aws:p3dn.24xlarge")


@cache
def imagenet(deadline: str | None = None, **more: Any) -> Recommendation:
    """ResNet-50 on ImageNet on the machines of Sharma et al. (ICDCS 2023), at their prices."""
    asked: dict[str, Any] = {"batch": 256, **more}
    return recommend(
        "resnet50", epochs=90, data="imagenet-1k", precision="fp16", optimizer="sgd", instances=STASH,
        quota=("4",), deadline=deadline, **asked,
    )  # fmt: skip


def of(found: Recommendation, count: int, instance: str) -> Offer:
    (one,) = [
        o for o in found.offers if o.candidate.instance == instance and o.candidate.count == count
    ]
    return one


# --- Stash ------------------------------------------------------------------------------------------


def test_a_dearer_instance_is_not_faster() -> None:
    found = imagenet()
    dear, cheap = of(found, 1, "aws:p3dn.24xlarge"), of(found, 1, "aws:p3.16xlarge")
    assert dear.candidate.usd_per_hour > 1.2 * cheap.candidate.usd_per_hour
    assert dear.hours == pytest.approx(cheap.hours, rel=0.03)
    assert not dear.is_best
    assert "aws:p3.16xlarge is as fast for 7" in dear.why


def test_two_machines_on_the_network_against_one() -> None:
    """The same eight GPUs at the same rent: up to five times slower over 10 Gb/s (their abstract)."""
    found = imagenet()
    pair, whole = of(found, 2, "aws:p3.8xlarge"), of(found, 1, "aws:p3.16xlarge")
    assert pair.candidate.usd_per_hour == whole.candidate.usd_per_hour
    assert 3.0 < pair.hours / whole.hours < 6.5
    assert max(pair.stalls, key=lambda name: pair.stalls[name]) == "network"
    assert whole.stalls["network"] == 0.0
    assert "is exposed communication between nodes" in pair.why
    assert "1 x aws:p3.16xlarge is" in pair.why


def test_the_network_stall_is_up_to_ninety_percent() -> None:
    shares = [o.stalls["network"] / o.step_seconds for o in imagenet().offers]
    assert 0.85 < max(shares) < 1.0


def test_the_cheapest_changes_with_the_deadline() -> None:
    first = {deadline: imagenet(deadline).offers[0].name for deadline in ("7d", "24h", "8h", "6h")}
    assert first == {
        "7d": "1 x aws:p3.2xlarge",
        "24h": "1 x aws:p3.8xlarge",
        "8h": "1 x aws:p3.16xlarge",
        "6h": "2 x aws:p3dn.24xlarge",
    }
    usd = [imagenet(d).offers[0].usd for d in first]
    assert usd == sorted(usd), "less time costs more"


def test_with_their_batch_per_device_the_pair_loses_too() -> None:
    found = imagenet(batch=None, batch_per_device=32)
    assert of(found, 2, "aws:p3.8xlarge").hours > 3 * of(found, 1, "aws:p3.16xlarge").hours


def test_data_beyond_memory_is_cold_in_every_epoch() -> None:
    """ImageNet is 136 GiB: p3.2xlarge holds 61 GiB, p3.8xlarge 244 GiB."""
    found = imagenet()
    small, large = of(found, 1, "aws:p3.2xlarge"), of(found, 1, "aws:p3.8xlarge")
    assert small.passed.warm_steps == 0
    assert large.passed.cold_steps == pytest.approx(large.steps / 90, rel=1e-3)
    slow = imagenet(storage=20e6)
    small, large = of(slow, 1, "aws:p3.2xlarge"), of(slow, 1, "aws:p3.8xlarge")
    assert small.hours > 1.5 * of(found, 1, "aws:p3.2xlarge").hours
    assert small.stalls["fetch"] > 0.5 * small.step_seconds
    assert "every epoch reads storage" in small.why
    assert large.passed.cold_seconds > 2 * large.passed.warm_seconds
    assert large.stalls["fetch"] < 0.2 * large.step_seconds


# --- limits -----------------------------------------------------------------------------------------


def test_offers_keep_deadline_and_budget() -> None:
    found = imagenet("24h", budget_usd=400.0)
    assert found.offers
    assert all(o.hours <= 24 and o.usd <= 400 for o in found.offers)
    by_name = {row.instance: row.why for row in found.infeasible}
    assert "too slow" in by_name["aws:p2.xlarge"]
    assert "the deadline is 24.0 h" in by_name["aws:p2.xlarge"]
    assert set(by_name) == {
        f"aws:{n}" for n in ("p2.xlarge", "p2.8xlarge", "p2.16xlarge", "p3.2xlarge")
    }


def test_with_a_budget_alone_the_knee_is_first() -> None:
    """By brute force: from the pick on, 1 % less time costs over half a percent more."""
    found = imagenet(budget_usd=400.0)
    pick = found.offers[0]
    assert pick.why.startswith("the knee within the budget")
    assert pick.is_best
    for one in found.pareto:
        longer, dearer = one.hours / pick.hours, one.usd / pick.usd
        assert dearer * longer**0.5 >= 1.0
    assert found.to_dict()["rule"] == "knee"
    assert imagenet("24h").to_dict()["rule"] == "cheapest"


@pytest.mark.parametrize("deadline", [None, "24h"])
def test_no_later_offer_beats_the_pick_in_both(deadline: str | None) -> None:
    found = imagenet(deadline)
    pick = found.offers[0]
    assert pick.is_simulated
    assert not [o for o in found.offers[1:] if o.usd <= pick.usd and o.hours < pick.hours]
    assert not [o for o in found.offers[1:] if o.usd < pick.usd and o.hours <= pick.hours]


def test_start_up_and_billing_are_paid_for() -> None:
    short: dict[str, Any] = {"steps": 10, "batch": 256, "precision": "fp16", "instances": ("aws:p3.16xlarge",), "quota": ("1",)}  # fmt: skip
    (one,) = recommend("resnet50", **short).offers
    assert one.startup_hours == pytest.approx(587 / 3600)
    assert one.hours > one.startup_hours
    assert one.usd == pytest.approx(one.billed_hours * 24.48)
    assert "start-up is" in one.why
    (ready,) = recommend("resnet50", startup=0.0, **short).offers
    assert ready.hours < 0.01
    assert ready.billed_hours == pytest.approx(60 / 3600), "Amazon bills a minute at least"
    assert ready.usd == pytest.approx(24.48 / 60)


def test_more_of_the_same_is_folded() -> None:
    found = recommend("gpt2", tokens=1e9, batch=64, instances=("aws:g5.*",), quota=("1",))
    names = {o.name: o.alike for o in found.offers}
    one_device = {name for name in names if found.by_name(name).candidate.devices == 1}
    (kept,) = {name for name in one_device if not names[name]}
    cheapest = min((found.by_name(name) for name in one_device), key=lambda o: o.usd)
    assert kept == cheapest.name
    assert len(one_device) > 3
    assert all(names[name] == kept for name in one_device - {kept})
    assert len(found.distinct) == len([alike for alike in names.values() if not alike])


def test_the_limit_on_devices_is_named_with_what_would_do() -> None:
    asked: dict[str, Any] = {"tokens": 1e12, "deadline": "10d", "instances": ("aws:p5.48xlarge",)}
    found = recommend("llama3-8b", max_devices=16, **asked)
    assert not found.offers
    named = re.search(r"--max-devices (\d+)", found.remedy)
    assert named
    assert found.remedy in document_of(found).headline
    assert recommend("llama3-8b", max_devices=int(named[1]), **asked).offers
    assert not recommend("llama3-8b", max_devices=int(named[1]) // 2, **asked).offers


def test_a_critical_batch_lengthens_the_job() -> None:
    asked: dict[str, Any] = {"instances": ("aws:p3.16xlarge",), "quota": ("1",), "simulated": 1}
    usual = recommend("resnet50", samples=1e8, batch=2048, **asked)
    longer = recommend("resnet50", samples=1e8, batch=2048, critical_batch=1024, **asked)
    assert longer.offers[0].steps == pytest.approx(3 * usual.offers[0].steps, rel=1e-4)
    assert longer.offers[0].batch_factor == 3.0
    assert any("1 + B/B_crit" in note for note in longer.notes)
    assert not any("critical batch" in note for note in usual.notes)
    large = recommend("resnet50", samples=1e8, batch=16384, **asked)
    assert any("beyond the published critical batch" in note for note in large.notes)
    assert large.offers[0].batch_factor == 1.0, "a remark changes nothing"


def test_discounts_are_off_the_catalog_alone() -> None:
    asked: dict[str, Any] = {"samples": 1e8, "batch": 256, "instances": ("aws:p3.16xlarge",), "quota": ("1",)}  # fmt: skip
    full, less = (recommend("resnet50", discount=d, **asked).offers[0] for d in (None, "30%"))
    assert less.usd == pytest.approx(0.7 * full.usd)
    reserved = recommend("resnet50", discount=0.3, buying="reserved", **asked).offers[0]
    assert reserved.usd == pytest.approx(less.usd)
    for wrong in ("much", 1.0, -0.1):
        with pytest.raises(InputError, match="discount"):
            recommend("resnet50", discount=wrong, **asked)
    with pytest.raises(InputError, match="spot"):
        recommend("resnet50", discount=0.3, buying="spot", **asked)


def test_what_is_offered_fits_by_simulation() -> None:
    found = recommend(
        "llama3-8b", tokens=1e10, instances=("aws:g5.*", "aws:p3dn*", "aws:g6e.12*"), quota=("8",),
        simulated=0,
    )  # fmt: skip
    assert len(found.offers) > 10
    for one in found.offers[::4]:
        cluster = one.candidate.cluster
        asked = ask(
            "llama3-8b", on=cluster, plan=one.plan, batch=found.job.batch_on(cluster.device_count),
            runtime="megatron" if cluster.node_count > 1 else "fsdp2" if cluster.device_count > 1 else "ddp",
        )  # fmt: skip
        full = answer(asked)
        assert full.fits, one.name
        assert one.peak_bytes == pytest.approx(full.memory.peak_bytes, rel=0.01)
        assert one.usable_bytes == pytest.approx(full.memory.usable_bytes)
        assert one.step_seconds == pytest.approx(full.step_seconds, rel=0.1)


def test_nothing_fits_and_what_would() -> None:
    found = recommend(
        "llama3-70b", tokens=1e9, instances=("aws:g5.12xlarge", "aws:p4d.24xlarge"), quota=("1",)
    )
    assert not found.offers
    assert all("does not fit" in row.why and "GiB" in row.why for row in found.infeasible)
    assert "On " in found.nearest
    assert "would fit" in found.nearest
    page = document_of(found)
    assert page.is_no
    assert found.nearest in page.headline


def test_too_late_names_the_nearest() -> None:
    found = recommend("llama3-8b", tokens=1e12, deadline="1h", instances=("aws:p5.48xlarge",))
    assert not found.offers
    assert "takes" in found.nearest
    assert "deadline is 1.0 h" in found.nearest


@pytest.mark.parametrize(
    ("limit", "why"),
    [
        ({"max_devices": 3}, "one has 8 devices, more than the 3 that a cluster may have (--max-devices)."),
        ({"quota": ("0",)}, "the quota allows none (--quota)."),
        ({"where": ("tp=3", "pp=7")}, "no plan: constraints and this number of devices leave none"),
    ],
)  # fmt: skip
def test_limits_that_leave_nothing_are_told_by_name(limit: dict[str, Any], why: str) -> None:
    found = recommend("gpt2", tokens=1e9, batch=64, instances=("aws:p4d.24xlarge",), **limit)
    assert [one.why for one in found.infeasible] == [why]


def test_short_times_are_told_in_seconds() -> None:
    assert [days(1 / 3600), days(0.05), days(5.0), days(72.0)] == [
        "1 s",
        "3.0 min",
        "5.0 h",
        "3.0 d",
    ]


def test_no_price_no_offer() -> None:
    found = recommend("llama3-8b", tokens=1e9, instances=("aws:p5e.48xlarge",))
    assert "price" in found.infeasible[0].why
    spot = recommend("llama3-8b", tokens=1e9, buying="spot", instances=("lambda:gpu_8x_a100",))
    assert "no spot price" in spot.infeasible[0].why


def test_spot_is_cheaper_and_loses_more() -> None:
    asked: dict[str, Any] = {"tokens": 1e11, "instances": ("aws:p5.48xlarge",), "quota": ("16",)}
    firm, spot = (recommend("llama3-8b", buying=b, **asked) for b in ("on-demand", "spot"))
    shares = {}
    for one in spot.offers:
        other = of(firm, one.candidate.count, "aws:p5.48xlarge")
        assert one.usd < 0.6 * other.usd
        assert one.goodput < other.goodput
        shares[one.candidate.count] = one.goodput
    assert shares[16] < 0.8 < shares[2], "every node is a risk for all of them"


def test_large_tables_are_split_by_rows() -> None:
    """Tables that every device held whole would need 292 GiB of it."""
    found = recommend(
        "dlrm-mlperf", samples=1e9, batch=65536, instances=("aws:p5.48xlarge",), quota=("1",)
    )
    assert found.offers[0].plan == "dp8 tables=rows micro=8192", "a device's share at once"


def test_user_constraints_are_kept() -> None:
    found = recommend(
        "llama3-8b",
        tokens=1e9,
        instances=("aws:p5.48xlarge",),
        quota=("2",),
        where=("tp=4", "zero=1"),
    )
    assert {o.plan.split()[0] for o in found.offers} == {"tp4"}
    with pytest.raises(InputError):
        recommend("llama3-8b", tokens=1e9, instances=("aws:p5.48xlarge",), where=("tpp=4",))


def test_stacks_are_asked_for_what_they_can_do() -> None:
    asked: dict[str, Any] = {"tokens": 1e9, "instances": ("aws:p5.48xlarge",), "quota": ("2",)}
    shards = recommend("llama3-8b", runtime="fsdp", **asked)
    assert shards.offers
    assert all("zero" in o.plan and "tp" not in o.plan for o in shards.offers)
    replicas = recommend("llama3-8b", runtime="ddp", **asked)
    assert not replicas.offers, "16 bytes a parameter are more than a device has"


def test_no_plan_beats_the_data_sheet() -> None:
    for one in imagenet().offers:
        assert one.hours > least_hours(imagenet().job, one.candidate)


# --- the answer -------------------------------------------------------------------------------------


def test_the_document_has_the_promised_keys() -> None:
    document = imagenet("24h").to_dict()
    for one in document["offers"]:
        assert {
            "instance", "count", "plan", "hours", "interval_hours", "usd", "price_date", "stalls", "why",
        } <= set(one)  # fmt: skip
        low, high = one["interval_hours"]
        assert low < one["hours"] < high
        assert one["why"]
        assert one["price_date"]
        assert set(one["stalls"]) == set(STALLS)
        assert sum(one["stalls"].values()) == pytest.approx(one["step_seconds"])
        assert one["usd"] == pytest.approx(one["billed_hours"] * one["usd_per_hour"])
    assert all(set(row) == {"instance", "why"} for row in document["infeasible"])
    assert json.loads(json.dumps(document)) == document


def test_the_front_is_simulated_and_undominated() -> None:
    found = imagenet()
    front = found.pareto
    assert all(o.is_simulated and o.is_best for o in front)
    for one in found.offers:
        beaten = any(
            o.usd <= one.usd and o.hours <= one.hours and (o.usd, o.hours) != (one.usd, one.hours)
            for o in found.offers
        )
        assert beaten == (not one.is_best), one.name


def test_same_question_same_answer() -> None:
    again = imagenet.__wrapped__("24h")
    assert again.to_dict() == imagenet("24h").to_dict()


@pytest.mark.parametrize("fmt", ["html", "csv", "md", "txt", "json"])
def test_every_format_renders(fmt: str) -> None:
    text = str(render(imagenet("24h"), fmt))
    assert "aws:p3.8xlarge" in text
    assert "2022" in text
    if fmt == "csv":
        assert len(text.splitlines()) == 1 + len(imagenet("24h").offers)
    if fmt == "html":
        assert text.count("<circle") == len(imagenet("24h").offers)
        assert "<polyline" in text


def test_bad_words_are_named() -> None:
    asked: dict[str, Any] = {"tokens": 1e9, "instances": ("aws:p5.48xlarge",)}
    with pytest.raises(InputError, match="spot"):
        recommend("llama3-8b", buying="spott", **asked)
    with pytest.raises(InputError, match="max_devices"):
        recommend("llama3-8b", max_devices=0, **asked)


def test_progress_is_told() -> None:
    seen: list[tuple[int, int]] = []
    recommend(
        "resnet50", steps=100, batch=64, instances=("aws:p3.*",), quota=("1",), simulated=2,
        progress=lambda done, total: seen.append((done, total)),
    )  # fmt: skip
    assert seen
    assert all(0 < done <= total for done, total in seen)


@pytest.mark.parametrize("buying", ["on-demand", "spot"])
def test_every_assumption_names_the_option_that_changes_it(buying: str) -> None:
    from foretrain.cli.app import app_with

    found = recommend("gpt2", tokens=1e9, instances=["aws:p4d*"], buying=buying)
    words = [re.search(r" \((--[a-z-]+(?:, --[a-z-]+)*)\)$", line) for line in found.notes]
    assert all(words), found.notes
    named = {flag for word in words if word for flag in word[1].split(", ")}
    assert named >= {"--seq", "--batch", "--runtime", "--precision", "--optimizer", "--deadline",
                     "--max-devices", "--prices", "--startup", "--mtbf", "--restart", "--checkpoint-rate"}  # fmt: skip
    assert ("--spot-rate" in named) == (buying == "spot")
    import typer

    command = typer.main.get_command(app_with(["recommend"]))
    options = {flag for one in command.commands["recommend"].params for flag in one.opts}  # type: ignore[attr-defined]
    assert named <= options


def test_what_is_said_is_not_assumed() -> None:
    from foretrain.analysis.goodput import Risk

    risk = Risk(machine_mtbf_hours=1000.0, checkpoint_rate=1e9, restart_seconds=60.0)
    found = recommend(
        "gpt2", tokens=1e9, instances=["aws:p4d*"], batch=64, seq=1024, runtime="ddp", max_devices=8,
        precision="bf16", optimizer="adam", headroom=0.0, deadline="30d", risk=risk, startup=0.0,
    )  # fmt: skip
    assert found.notes == (
        "plans: those that their stacks can run (--hypothetical)",
        "on-demand prices: list prices of the catalog (--prices)",
        "billed from the start of machines: aws in units of 1 s, at least 60 s (--startup)",
    )
