"""The whole job: steps, days, device hours, money and energy, by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from math import inf
from typing import Any

import pytest

from foretrain import compare, predict, schemas, sweep, whatif
from foretrain.analysis.goodput import Interruptions, Risk, checkpoint_bytes
from foretrain.analysis.job import JobTerms, JobTotals, Length
from foretrain.analysis.prediction import Money
from foretrain.cli import run
from foretrain.cluster.cluster import Cluster
from foretrain.errors import FileError, InputError
from foretrain.report import document_of, render, words
from foretrain.report.json import strict
from foretrain.resolving import ask

ASKED: dict[str, Any] = {
    "model": "llama3-8b", "on": "2 x aws:p5.48xlarge", "plan": "dp16 zero3", "batch": 64, "seq": 8192,
}  # fmt: skip
IMAGES: dict[str, Any] = {
    "model": "resnet50", "on": "1 x aws:p3.16xlarge", "batch": 256, "precision": "fp16",
    "runtime": "ddp", "optimizer": "sgd",
}  # fmt: skip


def job(**words: Any) -> JobTotals:
    found = predict(**{**ASKED, **words}).job
    assert found is not None
    return found


def test_without_a_job_there_is_none() -> None:
    assert predict(**ASKED).job is None
    assert predict(**ASKED, usd_per_hour=2.0).job is None  # a price alone is that of the step


@pytest.mark.parametrize(
    ("words", "steps"),
    [
        ({"tokens": 64 * 8192 * 100}, 100),
        ({"tokens": 64 * 8192 * 100 + 1}, 101),
        ({"tokens": "1B"}, 1908),  # 1e9 / (64 * 8192) = 1907.3
        ({"samples": 6400}, 100),
        ({"samples": "6.4k"}, 100),
        ({"steps": 7}, 7),
        ({"steps": "2k"}, 2000),  # a thousand, not 1,024
        ({"epochs": 3, "dataset_samples": 640}, 30),
        ({"epochs": "0.5", "dataset_tokens": 64 * 8192 * 100}, 50),
    ],
)
def test_steps_follow_from_what_is_trained(words: dict[str, Any], steps: int) -> None:
    assert job(**words).steps == steps


def test_totals_by_hand() -> None:
    """Ten days of steps on 16 devices at 2.50 an hour and 700 W, nothing ever failing, a checkpoint that is free."""
    calm = Interruptions(mtbf=inf, checkpoint=0.0, restart=0.0)
    day = 86400.0
    found = JobTotals(
        "1 epochs", 1e6, None, 1000, 16, 10 * day, 10 * day, (9 * day, 11 * day), calm, 2.5, 16 * 700.0, 1.5,
    )  # fmt: skip
    assert found.goodput == 1.0
    assert found.device_hours == pytest.approx(16 * 240)
    assert found.usd == pytest.approx(16 * 240 * 2.5)
    assert found.energy_kwh == pytest.approx(16 * 0.7 * 240 * 1.5)
    document = found.to_dict()
    assert document["compute_days"] == pytest.approx(10)
    assert document["interval_days"] == pytest.approx([9, 11])


def test_a_job_is_its_steps_and_what_interrupts_them() -> None:
    question = ask(**ASKED, steps=10000)
    one = predict(**ASKED, steps=10000)
    found = one.job
    assert found is not None
    assert found.compute_seconds == pytest.approx(10000 * one.step_seconds)
    node = question.cluster.runs[0].node
    risk = Risk().interruptions(checkpoint_bytes(question.workload), [(node, 2)])
    assert found.expected_seconds == pytest.approx(risk.expected(found.compute_seconds))
    assert found.expected_seconds > found.compute_seconds
    assert 0.9 < found.goodput < 1.0
    low, high = found.interval_seconds
    assert low < found.expected_seconds < high
    assert found.device_hours == pytest.approx(16 * found.expected_seconds / 3600)
    assert one.cost.usd_per_hour is not None
    assert found.usd == pytest.approx(one.cost.usd_per_hour * found.expected_seconds / 3600)
    assert found.energy_kwh == pytest.approx(
        16 * 0.7 * found.expected_seconds / 3600
    )  # H100: 700 W
    assert found.tokens == pytest.approx(10000 * 64 * 8192)


def test_an_own_price_is_of_one_device_and_stands_before_the_catalogue_s() -> None:
    one = predict(**ASKED, steps=1000, usd_per_hour="$2.50")
    assert one.cost.usd_per_hour == pytest.approx(16 * 2.5)
    assert one.cost.usd_per_step == pytest.approx(40 * one.step_seconds / 3600)
    assert one.cost.price_date is None
    assert one.job is not None
    assert one.job.usd == pytest.approx(2.5 * one.job.device_hours)
    assert Money.of_step(Cluster.of("2 x dgx-h100"), 3600.0).usd_per_step is None
    assert Money.of_step(Cluster.of("2 x dgx-h100"), 3600.0, 2.5).usd_per_step == pytest.approx(
        40.0
    )


def test_unlike_machines_fail_and_write_each_at_their_own_rate() -> None:
    nodes = [Cluster.of(f"1 x {name}").runs[0].node for name in ("dgx-h100", "dgx-a100-80gb")]
    alone = [Risk().interruptions(1e12, [(node, 2)]) for node in nodes]
    both = Risk().interruptions(1e12, [(node, 2) for node in nodes])
    assert 1 / both.mtbf == pytest.approx(sum(1 / one.mtbf for one in alone))
    assert 1 / both.checkpoint == pytest.approx(sum(1 / one.checkpoint for one in alone))


def test_a_power_factor_and_an_unknown_price_are_told() -> None:
    plain, whole = (
        predict(**{**ASKED, "on": "2 x dgx-h100"}, steps=100, **more) for more in ({}, {"pue": 1.3})
    )
    assert plain.job is not None
    assert whole.job is not None
    assert plain.job.usd is None
    assert plain.job.energy_kwh is not None
    assert whole.job.energy_kwh == pytest.approx(1.3 * plain.job.energy_kwh)
    assert any("cooling are not included" in line for line in plain.assumptions)
    assert any("PUE 1.3" in line for line in whole.assumptions)
    assert plain.interval == predict(**{**ASKED, "on": "2 x dgx-h100"}).interval


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        ({"tokens": 1e9, "steps": 5}, "length: specify one of .* \\(tokens, steps given\\)"),
        ({"tokens": 0}, "tokens: 0 must be positive"),
        ({"steps": "many"}, "steps: 'many' is not an amount"),
        ({"steps": 1.5}, "steps: 1.5 is not a whole number"),
        ({"steps": "1.5"}, "steps: 1.5 is not a whole number"),
        ({"tokens": "1e400"}, "tokens: 1e400 must be positive and at most 1e"),
        ({"epochs": 2}, "epochs: the dataset size is unknown; specify dataset_samples"),
        ({"epochs": 2, "dataset_samples": 5, "dataset_tokens": 5}, "mutually exclusive"),
        ({"dataset_samples": 5}, "dataset_samples: has no effect without a job length"),
        ({"pue": 1.2}, "pue: has no effect without a job length"),
        ({"steps": 5, "pue": 0.9}, "pue: 0.9 must be between 1 and 10"),
        ({"usd_per_hour": "free"}, "usd_per_hour: 'free' is not a price"),
        ({"usd_per_hour": -1}, "usd_per_hour: -1 is not a price"),
        ({"steps": 5, "mtbf": [1]}, r"mtbf: \[1\] is not a time"),
        ({"steps": 5, "restart": {}}, "restart: {} is not a time"),
        ({"steps": 5, "checkpoint_rate": [3]}, r"checkpoint_rate: \[3\] is not a bandwidth"),
        ({"steps": 5, "mtbf": -1}, "mtbf: -1 must be positive"),
    ],
)
def test_what_is_wrong_with_a_job_is_told(words: dict[str, Any], fault: str) -> None:
    with pytest.raises(InputError, match=fault):
        ask(**ASKED, **words)


def test_all_faults_of_a_job_are_told_at_once_and_images_have_no_tokens() -> None:
    with pytest.raises(InputError) as told:
        ask(**IMAGES, tokens=1e9, usd_per_hour="x", pue=99)
    assert len(told.value.faults) == 3
    assert "samples of resnet50 are not sequences" in str(told.value)
    assert ask(**IMAGES, epochs=90, dataset_samples=1281167).job == JobTerms(
        Length(90 * 1281167, "90 epochs")
    )


def test_a_slip_in_an_argument_names_the_nearest() -> None:
    with pytest.raises(InputError, match=r"token: unknown\. Did you mean 'tokens'"):
        predict(**ASKED, token=5)  # type: ignore[call-arg]


def valid(document: Any) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    jsonschema.validate(json.loads(json.dumps(strict(document))), schemas.schema("prediction"))


def test_documents_with_and_without_a_job_are_of_the_schema() -> None:
    valid(predict(**ASKED).to_dict())
    valid(predict(**ASKED, tokens="1T", pue=1.1).to_dict())
    valid(predict(**IMAGES, steps=10).to_dict())
    broken = predict(**IMAGES, steps=10).to_dict()
    del broken["job"]["goodput"]
    with pytest.raises(Exception, match="goodput"):
        valid(broken)


def test_a_job_that_failures_never_let_end_is_null_in_the_document_and_said_in_words() -> None:
    one = predict(**ASKED, steps=10)
    assert one.job is not None
    stuck = JobTotals(
        "10 steps", 640.0, None, 10, 16, 1e9, inf, (inf, inf), Interruptions(1.0, 1e4, 1e4), 2.5, 1e4, None,
    )  # fmt: skip
    never = replace(one, job=stuck)
    assert stuck.goodput == 0.0
    valid(never.to_dict())
    rows = dict(words.job_rows(never))
    assert rows["expected"].startswith("never completes")
    assert "unknown" in rows["cost"]


def test_every_report_tells_of_the_job() -> None:
    one = predict(**ASKED, tokens="300B", usd_per_hour=2.0, pue=1.25)
    assert one.job is not None
    usd = words.usd(one.job.usd or 0.0)
    for fmt in ("txt", "html"):
        told = str(render(one, fmt))
        assert "Job totals" in told
        assert "300B tokens" in told
        assert f"{usd} at $2.00 per device-hour" in told
        assert "PUE 1.25" in told
    assert usd.replace("$", "\\$") in str(render(one, "md"))
    assert f"job.steps,{one.job.steps}" in str(render(one, "csv"))
    assert "Job totals" not in str(render(predict(**ASKED), "html"))


def test_a_larger_batch_is_compared_per_sample() -> None:
    found = whatif(**ASKED, tokens="1T", changes={"batch": 128})
    base, after, page = found.base, found.changed, document_of(found)
    assert after.step_seconds > 1.8 * base.step_seconds
    ratio = after.samples_per_second / base.samples_per_second
    assert page.data["speedup"] == pytest.approx(ratio)
    assert "as fast per sample" in page.headline or "no difference" in page.headline
    tables = (table for section in page.sections if (table := section.table))
    rows = {row[0]: row[1:] for table in tables for row in table.rows}
    assert rows["job cost"] == (words.usd(base.job.usd), words.usd(after.job.usd))  # type: ignore[union-attr, arg-type]
    assert base.job is not None
    assert after.job is not None
    assert 0 <= 2 * after.job.steps - base.job.steps <= 1


def test_compare_has_speed_and_cost_of_both() -> None:
    a, b = predict(**ASKED, tokens="1T"), predict(**{**ASKED, "on": "2 x dgx-h100"})
    found = {row.name: (row.a, row.b) for row in compare(a, b).figures}
    assert found["samples per second"] == (a.samples_per_second, b.samples_per_second)
    assert found["job cost"] == (a.job.usd, None)  # type: ignore[union-attr]
    with pytest.raises(FileError):  # a file that somebody edited
        compare({**a.to_dict(), "cost": "dear", "job": [1]}, a)


def test_jobs_of_different_lengths_are_not_compared_silently() -> None:
    a, b = predict(**ASKED, tokens="10B"), predict(**ASKED, tokens="20B")
    found = compare(a, b)
    assert found.changed == {"job": ("10B tokens", "20B tokens")}
    (remark,) = found.remarks
    assert remark.startswith("The jobs differ in length (10B tokens and 20B tokens)")
    assert found.per == "step"
    assert remark in found.summary


def test_the_same_length_in_other_words_is_no_difference() -> None:
    a, b = predict(**ASKED, tokens="10B"), predict(**ASKED, tokens=1e10)
    assert (compare(a, b).remarks, compare(a, b).changed) == ((), {})
    assert a.provenance["inputs_sha256"] == b.provenance["inputs_sha256"]


def test_as_many_steps_of_another_batch_are_another_length() -> None:
    twice = {**ASKED, "batch": 2 * ASKED["batch"]}
    found = compare(predict(**ASKED, steps=1000), predict(**twice, steps=1000))
    assert "job" in found.changed
    assert "tokens" in found.changed["job"][0]
    assert "The jobs differ in length" in found.remarks[-1]


def test_sweep_has_columns_of_cost_and_leaves_out_what_says_nothing() -> None:
    asked = {key: value for key, value in ASKED.items() if key != "batch"}
    page = document_of(sweep(**asked, tokens="1T", vary={"batch": [64, 7]}))
    shown, failed = (section.table for section in page.sections[:2])
    assert shown is not None
    assert failed is not None
    head = shown.head
    assert head == ("batch", "step", "MFU", "samples/s", "tokens/s/device", "per M tokens", "job", "job cost", "peak of usable")  # fmt: skip
    assert len(shown.rows) == len(failed.rows) == 1
    assert page.headline == "Best of 2: batch=64"
    images = {key: value for key, value in IMAGES.items() if key != "batch"}
    plain = document_of(sweep(**images, vary={"batch": [IMAGES["batch"]]})).sections[0].table
    assert plain is not None
    assert "per k samples" in plain.head
    assert not {"job", "job cost", "per M tokens"} & set(plain.head)


def test_the_command_line_takes_a_job(capsys: pytest.CaptureFixture[str]) -> None:
    line = ["predict", "resnet50", "--on", "1 x aws:p3.16xlarge", "--batch", "256", "--json"]
    assert run([*line, "--epochs", "90", "--dataset-samples", "1.28M", "--usd-per-hour", "3"]) == 0
    found = json.loads(capsys.readouterr().out)["job"]
    assert found["steps"] == 90 * 1280000 / 256
    assert found["usd"] == pytest.approx(3 * found["device_hours"])
    assert run([*line, "--tokens", "1T"]) == 2
    assert "tokens: samples of resnet50 are not sequences" in capsys.readouterr().err
    assert run(["predict", "--cases", "-", "--tokens", "1T"]) == 2
    assert "remove the job options" in capsys.readouterr().err


def test_without_a_catalog_price_the_job_says_how_to_give_one() -> None:
    asked = {**ASKED, "on": "2 x dgx-h100"}
    one = predict(**asked, tokens="1B")
    told = "no catalog price; specify --usd-per-hour"
    for fmt in ("txt", "md", "html"):
        assert told in " ".join(str(render(one, fmt)).split())
    document = one.to_dict()
    assert document["job"]["usd"] is None
    assert [line for line in document["assumptions"] if "no catalog price" in line] == [
        "job: cost unknown: no catalog price for these machines (--usd-per-hour)"
    ]
    valid(document)
    priced = predict(**asked, tokens="1B", usd_per_hour=2.0)
    assert told not in str(render(priced, "txt"))
    assert "no catalog price" not in str(priced.to_dict())


def test_rows_of_a_sweep_have_the_job_too() -> None:
    asked = {key: value for key, value in ASKED.items() if key != "batch"}
    found = sweep(**asked, tokens="1T", usd_per_hour=2.0, vary={"batch": [64, 7]})
    alone = predict(**{**ASKED, "batch": 64}, tokens="1T", usd_per_hour=2.0).job
    assert alone is not None
    first, failed = found.rows()
    assert first["job_days"] == alone.to_dict()["expected_days"]
    assert first["job_usd"] == alone.usd
    assert (failed["job_days"], failed["job_usd"]) == (None, None)
    head = str(render(found, "csv")).splitlines()[0]
    assert "job_days,job_usd" in head


def test_what_interrupts_a_job_can_be_said_and_is_then_no_assumption() -> None:
    usual = predict(**ASKED, tokens="1T")
    said = predict(**ASKED, tokens="1T", mtbf="30d", restart="20m", checkpoint_rate="40GB/s")
    assert usual.job is not None
    assert said.job is not None
    risk = said.job.interruptions
    assert risk.restart == 1200.0
    assert risk.mtbf == pytest.approx(30 * 86400 / said.question["nodes"])
    assert risk.checkpoint < usual.job.interruptions.checkpoint
    assert said.job.expected_seconds > usual.job.expected_seconds
    words = ("(--mtbf)", "(--restart)", "(--checkpoint-rate)")
    assert all(any(line.endswith(word) for line in usual.assumptions) for word in words)
    assert not any(line.endswith(words) for line in said.assumptions)
    assert said.question["mtbf_hours"] == 720.0
    assert said.provenance["inputs_sha256"] != usual.provenance["inputs_sha256"]
