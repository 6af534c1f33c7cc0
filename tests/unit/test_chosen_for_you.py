"""What is chosen where a question leaves it open, and that every page says so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import foretrain
from foretrain import Plan, predict
from foretrain.asked import Asked
from foretrain.errors import PlanError
from foretrain.model.workload import DataSource
from foretrain.plan.schedules import SCHEDULES
from foretrain.report import render
from foretrain.resolving import ask
from foretrain.runtime import runtime

TINY = {"zoo": "llama3-8b", "num_hidden_layers": 2}


@pytest.mark.parametrize("words", [{"batch": 1}, {"batch": 63, "plan": "auto"}])
def test_a_stack_without_a_plan_that_runs_gives_way(words: dict[str, object]) -> None:
    """FSDP has replicas only; a batch that they cannot share is split otherwise."""
    found = ask(TINY, on="1 x dgx-h100", **words)  # type: ignore[arg-type]
    assert found.runtime.name == "megatron"
    assert any("no fsdp2 plan fits" in line and "--runtime" in line for line in found.assumptions)
    assert found.workload.global_batch % found.plan.replicas == 0


def test_a_stack_that_was_asked_for_stays() -> None:
    found = ask(TINY, on="1 x dgx-h100", batch=1, runtime="fsdp2")
    assert found.runtime.name == "fsdp2"


@pytest.mark.parametrize("text", ["dp8 zero3", "dp8", "tp2 dp4"])
def test_a_tree_gets_the_stack_of_its_words(text: str) -> None:
    said = ask(TINY, on="1 x dgx-h100", batch=8, micro_batch=1, plan=text)
    tree = Plan.of(text, devices=8, runtime=said.runtime).to_dict()
    assert ask(TINY, on="1 x dgx-h100", batch=8, plan=tree).runtime.name == said.runtime.name


@pytest.mark.parametrize("schedule", [{}, {"schedule": {"kind": "1f1b"}}])
@pytest.mark.parametrize("door", ["mapping", "file"])
def test_a_tree_without_a_micro_batch_gets_one_like_words(
    schedule: dict[str, object], door: str, tmp_path: Path
) -> None:
    plan = {"mesh": {"dp": 8}, "tree": {"split": {"batch": "dp"}, **schedule}}
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(plan))
    asked = {"on": "1 x dgx-h100", "batch": 128, "runtime": "ddp"}
    found = ask("gpt2", **asked, plan=plan if door == "mapping" else str(file))  # type: ignore[arg-type]
    words = ask("gpt2", **asked, plan="dp8")  # type: ignore[arg-type]
    assert found.plan.schedule.micro_batch == words.plan.schedule.micro_batch > 1
    assert [line for line in found.assumptions if "micro-batch" in line] == [
        line for line in words.assumptions if "micro-batch" in line
    ]


def test_a_tree_keeps_the_micro_batch_it_says() -> None:
    tree = {"split": {"batch": "dp"}, "schedule": {"micro_batch": 2}}
    found = ask("gpt2", on="1 x dgx-h100", batch=128, plan={"mesh": {"dp": 8}, "tree": tree})
    assert found.plan.schedule.micro_batch == 2
    assert not any("micro-batch" in line for line in found.assumptions)


def test_a_file_that_is_no_plan_is_not_ignored(tmp_path: Path) -> None:
    file = tmp_path / "plan.yaml"
    file.write_text("# nothing\n")
    with pytest.raises(PlanError, match="is not a plan"):
        ask("gpt2", on="1 x dgx-h100", batch=128, plan=str(file))


def test_devices_come_in_a_machine_that_is_named() -> None:
    short, whole = (predict(TINY, on=on, plan="dp8", batch=8) for on in ("8 H100", "1 x dgx-h100"))
    assert short.interval == whole.interval
    assert short.provenance["inputs_sha256"] == whole.provenance["inputs_sha256"]
    assert any("dgx-h100" in line and "(--on)" in line for line in short.assumptions)
    assert not any("(--on)" in line for line in whole.assumptions)


def test_a_schedule_that_was_not_said_is_named() -> None:
    others = "1f1b, gpipe, zb-h1, zb-v, dualpipev, v-half or v-min"
    line = f"schedule 1f1b: generic default ({others} in the plan)"
    asked = {"on": "1 x dgx-h100", "batch": 64, "runtime": "generic"}
    assert line in predict("gpt2", plan="pp2", **asked).assumptions
    for plan in ("pp2 1f1b", "pp2 vpp2", "dp8"):
        assert line not in predict("gpt2", plan=plan, **asked).assumptions


def test_every_schedule_that_is_named_for_a_plan_is_what_it_then_runs() -> None:
    asked = {"on": "1 x dgx-h100", "batch": 64, "runtime": "generic"}
    (line,) = (x for x in ask("gpt2", plan="pp2", **asked).assumptions if x.startswith("schedule"))
    named = line.split("(")[1].removesuffix(" in the plan)").replace(" or ", ", ").split(", ")
    ran = {name: ask("gpt2", plan=f"pp2 {name}", **asked).plan.schedule.kind for name in SCHEDULES}
    assert named == [name for name, kind in ran.items() if kind == name]
    assert set(SCHEDULES) - set(named) == {"interleaved"}  # chunks ask for that one


def test_no_schedule_is_named_that_the_stack_cannot_run() -> None:
    asked = {"on": "1 x dgx-h100", "batch": 64, "plan": "pp2"}
    said = {
        stack: next(x for x in ask("gpt2", runtime=stack, **asked).assumptions if "schedule" in x)
        for stack in ("megatron", "nanotron")
    }
    assert said == {
        "megatron": "schedule 1f1b: megatron default (--runtime)",
        "nanotron": "schedule 1f1b: nanotron default (1f1b or gpipe in the plan)",
    }


def test_a_batch_chosen_with_its_plan_is_told_in_tokens() -> None:
    told = predict("llama3-8b", on="2 x dgx-h100").assumptions
    assert any("4.19 M tokens per step, 32 micro-batches per replica" in line for line in told)


def test_assumptions_do_not_widen_intervals() -> None:
    said = {"on": "1 x dgx-h100", "plan": "dp8 zero3 recompute=none", "batch": 8, "micro_batch": 1}
    less = predict(TINY, **said)  # type: ignore[arg-type]
    more = predict(TINY, **said, runtime="fsdp2", precision="bf16", optimizer="adam")  # type: ignore[arg-type]
    assert less.question["runtime"] == "fsdp2"
    assert len(more.assumptions) < len(less.assumptions)
    assert more.interval == less.interval


def test_every_report_lists_what_was_assumed() -> None:
    question = {"on": "1 x dgx-h100", "batch": 8}
    answers = (
        foretrain.fit(TINY, **question),  # type: ignore[arg-type]
        foretrain.whatif(TINY, changes={"network.bandwidth": "2x"}, **question),  # type: ignore[arg-type]
        foretrain.sweep(TINY, vary={"batch": [8, 16]}, on="1 x dgx-h100"),
        foretrain.search(TINY, where="tp<=2, pp=1, cp=1, no offload", top=1, **question),  # type: ignore[arg-type]
    )  # fmt: skip
    for answer in answers:
        for form in ("txt", "md"):
            text = " ".join(str(render(answer, form)).split())
            assert "Assumptions" in text
            assert "(--runtime)" in text


def test_a_sweep_shows_what_was_chosen_from_point_to_point() -> None:
    found = foretrain.sweep(TINY, vary={"on": ["1 x dgx-h100", "2 x dgx-h100"]}, batch=16)
    assert [row["runtime"] for row in found.rows()] == ["fsdp2", "megatron"]
    assert "runtime" in str(render(found, "txt"))


def test_the_winner_of_a_search_asked_again_is_the_same_answer() -> None:
    question = {"on": "1 x dgx-h100", "batch": 8}
    best = foretrain.search(TINY, where="cp=1, no offload, pp=1", top=1, **question).best[0]  # type: ignore[arg-type]
    again = predict(
        TINY, plan=best.plan.text, runtime=best.prediction.question["runtime"], **question
    )  # type: ignore[arg-type]
    assert again.step_seconds == best.prediction.step_seconds
    assert again.interval == best.prediction.interval
    assert runtime("megatron").name == best.prediction.question["runtime"]


def test_more_memory_is_there_before_anything_is_chosen() -> None:
    question = {
        "on": "1 x dgx-a100-40gb",
        "plan": "dp8 zero3",
        "batch": 512,
        "seq": 8192,
        "headroom": "2GiB",
    }
    found = foretrain.whatif(TINY, changes={"device.memory": "2x"}, **question)  # type: ignore[arg-type]
    assert found.changed.memory.headroom_bytes == pytest.approx(2 * 2**30)
    assert found.changed.question["micro_batch"] > found.base.question["micro_batch"]


def test_a_what_if_compares_by_what_is_alike() -> None:
    question = {"on": "1 x dgx-h100", "plan": "dp8", "batch": 8, "runtime": "megatron"}
    shorter = foretrain.whatif(TINY, changes={"seq": 1024}, **question)  # type: ignore[arg-type]
    assert shorter.unit == "token"
    assert shorter.speedup == shorter.changed.tokens_per_second / shorter.base.tokens_per_second
    assert shorter.remarks == ()
    other = foretrain.whatif(TINY, changes={"model": "gpt2", "seq": 1024}, **question)  # type: ignore[arg-type]
    assert "gpt2" in other.remarks[0]


def test_fit_splits_as_the_stack_does() -> None:
    """Sharded states alone leave no room for activations of sequences as long."""
    question = {"on": "1 x dgx-h100", "plan": "dp8", "batch": 64, "seq": 16384}
    found = foretrain.fit("llama3-8b", **question, runtime="megatron")  # type: ignore[arg-type]
    split = [one.change for one in found.changes if one.change.startswith("tp")]
    assert split
    assert all(" sp" in one and "no-sp" not in one for one in split)


def test_the_word_of_a_default_that_is_on_turns_it_off() -> None:
    """torch.compile only turns fusion on; stacks with fused kernels of their own have another word."""
    asked: Asked = {"on": "1 x dgx-h100", "plan": "dp8", "batch": 64, "runtime": "megatron"}
    line = next(line for line in ask("gpt2", **asked).assumptions if "elementwise" in line)
    assert "--set fuses_elementwise=" in line
    off = ask("gpt2", **asked, runtime_options={"fuses_elementwise": False})
    assert not off.runtime.kernels.fuses_elementwise
    assert not any("elementwise" in line for line in off.assumptions)
    told = ask("gpt2", **asked, runtime_options={"compile": False}).warnings
    assert any("compile = false has no effect" in line for line in told)
    assert not ask(
        "gpt2", **{**asked, "runtime": "fsdp2"}, runtime_options={"compile": False}
    ).warnings


def test_bytes_that_no_storage_delivers_are_told() -> None:
    data = DataSource(bytes_per_sample=1e8)
    told = ask("resnet50", on="1 x dgx-h100", batch=256, data=data).warnings
    assert any("storage bandwidth of dgx-h100 is unknown" in line for line in told)
    assert not ask("resnet50", on="1 x dgx-h100", batch=256, data=DataSource(0.0)).warnings
