"""Advice: moves that the stack can run, each as text to paste, the fastest first; what makes a plan fit."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest

from foretrain import fit, predict
from foretrain.advice.facade import fixes, what_would_help
from foretrain.advice.judging import simulated, together
from foretrain.advice.moves import Move, Place, difference, plan_moves
from foretrain.advice.switches import _rows, precision_moves, switch_moves
from foretrain.analysis.prediction import Remedy
from foretrain.errors import InputError
from foretrain.plan.constraints import parse
from foretrain.plan.supported import refusals
from foretrain.planning.choices import lone
from foretrain.planning.estimator import Estimator
from foretrain.planning.task import Task
from foretrain.resolving import ask
from foretrain.runtime import presets
from foretrain.scenario import Scenario
from foretrain.simulate import Simulation, simulate_scenario

ASKED: tuple[dict[str, Any], ...] = (
    {"model": "llama3-8b", "on": "2 x dgx-h100", "plan": "tp4 pp2 dp2 zero1", "batch": 64, "seq": 4096},
    {"model": "gpt3-6.7b", "on": "2 x dgx-a100-80gb", "plan": "tp2 pp4 dp2 micro=2", "batch": 64},
    {"model": "mixtral-8x7b", "on": "4 x dgx-h100", "plan": "tp2 pp2 dp8 ep8 zero1", "batch": 64},
    {"model": "resnet50", "on": "2 x dgx-a100-80gb", "batch": 512},
    {"model": "bert-large", "on": "1 x dgx-1-v100-32gb", "batch": 64},
    {"model": "llama3-8b", "on": "1 x dgx-h100", "plan": "dp8", "batch": 64, "runtime": "megatron"},
    {"model": "llama3-8b", "on": "2 x dgx-a100-80gb", "plan": "tp2 dp8", "batch": 64, "runtime": "torchtitan"},
    {"model": "gpt2", "on": "1 x dgx-h100"},
)  # fmt: skip


def pasted(asked: dict[str, Any], paste: str) -> dict[str, Any]:
    """The question with the options of a remedy, as a command line has them: the last of each counts."""
    words, options = shlex.split(paste), dict(asked.get("runtime_options", {}))
    changed = dict(asked)
    for name, value in zip(words[::2], words[1::2], strict=True):
        key = name.removeprefix("--").replace("-", "_")
        if key == "set":
            option, _, setting = value.partition("=")
            options[option] = {"true": True, "false": False}.get(setting, setting)
        else:
            changed[key] = int(value) if value.isdecimal() else value
    return {**changed, "runtime_options": options} if options else changed


@pytest.mark.parametrize("asked", ASKED, ids=lambda asked: f"{asked['model']} {asked.get('plan')}")
def test_what_is_pasted_gives_what_was_said(asked: dict[str, Any]) -> None:
    said = predict(**asked).what_would_help
    moves = [remedy for remedy in said if remedy.kind != "hardware"]
    assert moves
    for remedy in moves:
        found = predict(**pasted(asked, remedy.paste))
        assert found.step_seconds == pytest.approx(remedy.step_seconds, rel=1e-12), remedy.paste
        assert found.memory.peak_bytes == pytest.approx(remedy.peak_bytes, rel=1e-12)
        assert found.fits
        assert remedy.usd_per_hour == (
            found.cost.usd_per_hour if remedy.kind == "machine" else None
        )


def test_plans_come_before_machines_and_those_before_factors_on_hardware() -> None:
    said = predict(**ASKED[0]).what_would_help
    kinds = [{"plan": 0, "option": 0, "machine": 1, "hardware": 2}[remedy.kind] for remedy in said]
    assert kinds == sorted(kinds)
    assert set(kinds) == {0, 1, 2}
    for number in (0, 1):
        steps = [r.step_seconds for r, kind in zip(said, kinds, strict=True) if kind == number]
        assert steps == sorted(steps)
    assert all(remedy.speedup >= 1.005 for remedy in said)
    assert not [remedy for remedy in said if not remedy.fits]


def test_a_narrower_format_says_that_the_arithmetic_is_another() -> None:
    said = predict(**ASKED[0]).what_would_help
    assert [r.remark for r in said if r.paste.startswith("--precision fp8")] == [
        "products are computed in fp8"
    ]
    assert not [r for r in predict(**ASKED[4]).what_would_help if "fp8" in r.paste]  # V100


def test_faster_kernels_are_no_remedy_for_a_full_device() -> None:
    asked = {**ASKED[5], "micro_batch": 1}
    found = predict(**asked)
    assert not found.fits
    assert found.what_would_help
    assert {remedy.kind for remedy in found.what_would_help} <= {"plan", "option", "machine"}
    assert found.what_would_help[0].change == fit(**asked).changes[0].change


def test_advice_is_worked_out_when_it_is_looked_at() -> None:
    code = (
        "import sys; from foretrain import predict\n"
        "p = predict('gpt2', on='1 x dgx-h100', plan='dp8', batch=64); p.step_seconds\n"
        "early = [m for m in sys.modules if m.startswith(('foretrain.advice', 'foretrain.planning'))]\n"
        "assert not early, early\n"
        "assert len(p.what_would_help) and 'foretrain.advice.facade' in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_few_simulations_are_run_for_a_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted, not timed: a simulation takes as long as a prediction."""
    from foretrain.advice import judging

    count = 0

    def counted(scenario: Scenario) -> Simulation:
        nonlocal count
        count += 1
        return simulate_scenario(scenario)

    monkeypatch.setattr(judging, "simulate_scenario", counted)
    for asked in ASKED:
        count = 0
        list(predict(**asked).what_would_help)
        assert 0 < count <= 16


# --- moves ----------------------------------------------------------------------------------------------


def moves_of(**asked: Any) -> list[Move]:
    return list(plan_moves(Place(ask(asked.pop("model"), **asked))))


@pytest.mark.parametrize("stack", sorted(presets()))
def test_moves_are_what_the_stack_can_run(stack: str) -> None:
    asked = {"on": "2 x dgx-a100-80gb", "batch": 64, "seq": 1024, "runtime": stack}
    for plan in ("dp16", "tp2 pp2", "pp4"):
        at = Place(ask("gpt3-1.3b", plan=plan, micro_batch=1, **asked))
        known = set(refusals(at.scenario.runtime, at.words))
        texts = set()
        for move in plan_moves(at):
            assert move.words is not None
            assert set(refusals(at.scenario.runtime, move.words)) <= known, move.paste
            texts.add(move.paste)
        assert len(texts) == len({move.paste for move in plan_moves(at)})


def test_every_kind_of_move_is_among_the_neighbours() -> None:
    moves = moves_of(
        model="gpt3-6.7b", on="2 x dgx-a100-80gb", plan="tp4 pp2 dp2 zero1", micro_batch=2, batch=64,
        runtime="generic",
    )  # fmt: skip
    told = " ".join(f"{move.change};" for move in moves)
    for what in (
        "micro-batch 1;", "micro-batch 4;", "no-sp;", "zero0;", "zero2;", "zero3;", "recompute=full;",
        "recompute=full*0.5;", "vpp2;", "layers=", "tp8 dp1", "tp2 dp4;", "dp4 pp1", "pp4 dp1", "cp2 dp1",
        "offload=optimizer;", "offload=activations;", "gpipe;", "zb-h1;", "order=tp-cp-pp-dp;", "buckets=",
        "tp2 pp4;", "tp8 pp1",
    ):  # fmt: skip
        assert what in told, what
    experts = moves_of(
        model="mixtral-8x7b", on="2 x dgx-h100", plan="dp16 ep8", batch=64, micro_batch=1
    )
    assert {"ep4", "ep2"} <= {move.change for move in experts}


def test_schedules_keep_to_the_chunks_they_have() -> None:
    """GPipe has one piece per stage: from two chunks it is a move that changes both."""
    moves = moves_of(
        model="gpt2-xl", on="1 x dgx-h100", plan="pp4 dp2 vpp2", micro_batch=1, batch=32, runtime="generic",
    )  # fmt: skip
    found = [move for move in moves if move.words is not None and move.words.schedule == "gpipe"]
    assert found
    assert all(move.words.vpp == 1 for move in found if move.words is not None)


def test_a_strategy_tree_has_switches_and_no_words() -> None:
    text = ask("gpt2", on="1 x dgx-h100", plan="dp8", batch=64).plan.to_dict()
    del text["text"]
    at = Place(ask("gpt2", on="1 x dgx-h100", plan=text, batch=64, runtime="megatron"))
    assert not list(plan_moves(at))
    assert list(switch_moves(at))


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ("tp8 dp2 zero1 sp micro=4", "tp4 dp4 zero1 sp micro=4", "tp4 dp4"),
        ("tp8 pp2 sp micro=4", "tp8 dp2 sp micro=2", "dp2 micro-batch 2 pp1"),
        ("dp8 zero1 micro=1", "dp8 micro=1", "zero0"),
        ("dp8 offload=optimizer micro=1", "dp8 micro=1", "without offload=optimizer"),
        ("pp2 gpipe", "pp2 1f1b", "1f1b"),
    ],
)
def test_a_move_is_told_by_what_differs(before: str, after: str, told: str) -> None:
    assert difference(before, after) == told


def test_plans_together_are_estimated_as_each_alone() -> None:
    scenario = ask("gpt3-6.7b", on="2 x dgx-a100-80gb", plan="tp2 pp2 dp4", micro_batch=1, batch=64)
    task = Task.of(scenario)
    words = [m.words for m in plan_moves(Place(scenario)) if m.words and m.words.layers is None]
    every = Estimator(task, only_fitting=False).estimate(together(words))
    for row, one in enumerate(words):
        alone = Estimator(task, only_fitting=False).estimate(lone(one))
        assert every.seconds[row] == pytest.approx(alone.seconds[0], rel=1e-12)
        assert every.memory[row] == pytest.approx(alone.memory[0], rel=1e-12)


# --- switches -------------------------------------------------------------------------------------------


def test_switches_are_of_stacks_that_there_are_and_change_something() -> None:
    for row in (*_rows()["switches"], *_rows()["precisions"]):
        assert row["source"]
        assert row["stacks"]
        assert set(row["stacks"]) <= set(presets())
    for row in _rows()["switches"]:
        assert parse([row["needs"]])
        ((name, value),) = row["set"].items()
        changed = []
        for stack in row["stacks"]:
            plain = {"on": "1 x dgx-h100", "plan": "dp8", "batch": 64, "runtime": stack}
            without = ask("gpt2", **plain).runtime
            with_it = ask("gpt2", **plain, runtime_options={name: value}).runtime
            changed.append(without != with_it)
        assert any(changed), name


def test_a_switch_that_the_plan_cannot_use_is_not_offered() -> None:
    def offered(plan: str) -> set[str]:
        asked = {"on": "2 x dgx-h100", "batch": 64, "micro_batch": 1, "runtime": "megatron"}
        at = Place(ask("gpt3-1.3b", plan=plan, **asked))
        return {move.change for move in switch_moves(at)}

    assert "tp_comm_overlap=true" in offered("tp2 dp8")
    assert "tp_comm_overlap=true" not in offered("dp16")
    assert "cuda_graphs=true" in offered("dp16")
    assert "cuda_graphs=true" not in offered("dp16 recompute=full")


# --- fit ------------------------------------------------------------------------------------------------

MODELS = ("gpt3-6.7b", "llama3-8b", "gpt3-13b", "llama2-13b", "mixtral-8x7b")
CLUSTERS = ("1 x dgx-a100-40gb", "2 x dgx-a100-40gb", "1 x dgx-h100", "1 x aws:g5.48xlarge")
STACKS = ("megatron", "deepspeed", "fsdp2", "torchtitan", "generic", "nemo", "nanotron")
PLANS = ("dp{n}", "tp2 dp{n2}", "pp2 dp{n2}", "tp4 dp{n4}", "tp2 pp2 dp{n4} zero1")


@cache
def misfits() -> tuple[Simulation, ...]:
    """Drawn in a fixed order, until there are enough."""
    return tuple(_misfits(36))


def _misfits(count: int) -> Iterator[Simulation]:
    drawn = 0
    for number in range(10_000):
        model, cluster = MODELS[number % 5], CLUSTERS[number // 3 % 4]
        devices = int(cluster[0]) * 8
        plan = PLANS[number // 2 % 5].format(n=devices, n2=devices // 2, n4=devices // 4)
        asked = {
            "on": cluster, "plan": plan, "batch": 64, "micro_batch": (1, 2, 4)[number // 7 % 3], "seq": 2048,
            "runtime": STACKS[number % 7],
        }  # fmt: skip
        try:
            found = simulate_scenario(ask(model, **asked))
        except InputError:
            continue
        if not found.memory.fits:
            yield found
            drawn += 1
        if drawn == count:
            return


def every_move(found: Simulation) -> list[float]:
    """Steps of all single moves that fit, simulated one by one."""
    at = Place(found.scenario)
    moves = (*plan_moves(at), *switch_moves(at), *precision_moves(at))
    return [one.step_seconds for _, one in simulated(moves) if one.memory.fits]


@pytest.mark.parametrize("part", range(6))
def test_the_change_named_first_is_the_fastest_that_fits(part: int) -> None:
    mine = misfits()[part::6]
    assert len(misfits()) >= 30
    for found in mine:
        said, steps = fixes(found), every_move(found)
        if not steps:
            assert not said[0].fits or said[0].change.count(" ") >= 1  # several moves
            continue
        assert said[0].fits
        assert said[0].step_seconds == pytest.approx(min(steps), rel=1e-9), found.scenario


def test_most_misfits_have_a_single_move_that_fits() -> None:
    """Else the test above would be about little."""
    assert sum(fixes(found, 1)[0].fits for found in misfits()[::3]) >= 8


def test_where_one_move_is_too_few_several_are_tried() -> None:
    asked = {"on": "1 x dgx-a100-40gb", "plan": "dp8", "batch": 64, "micro_batch": 4}
    found = fit("llama2-13b", **asked, runtime="nanotron")
    assert not found.fits
    assert found.changes[0].fits
    again = predict(
        "llama2-13b", **pasted({**asked, "runtime": "nanotron"}, found.changes[0].paste)
    )
    assert again.fits


def test_a_fit_says_its_changes_in_its_document() -> None:
    found = fit(
        "llama3-8b", on="1 x dgx-h100", plan="dp8", batch=64, micro_batch=1, runtime="megatron"
    )
    document = found.to_dict()
    assert document["changes"][0]["paste"].startswith('--plan "dp8 zero2"')
    assert document["changes"] == document["prediction"]["what_would_help"]
    assert isinstance(found.changes[0], Remedy)


def test_sequence_parallelism_is_named_before_recomputation_that_is_slower() -> None:
    """The fastest change is named, not the one that saves most memory."""
    asked = {"on": "8 x dgx-a100-80gb", "batch": 256, "micro_batch": 1, "runtime": "megatron"}
    found = fit("gpt3-175b", plan="tp8 pp8 no-sp", **asked)
    assert not found.fits
    steps = {one.change: one.step_seconds for one in found.changes if one.kind == "plan"}
    assert (
        steps["sp"] * 1.3
        < predict("gpt3-175b", plan="tp8 pp8 no-sp recompute=full", **asked).step_seconds
    )
    assert found.changes[0].step_seconds == min(steps.values()) <= steps["sp"]


def test_what_helps_is_deterministic() -> None:
    scenario = ask("gpt2", on="1 x dgx-h100", plan="dp8", batch=64)
    first, second = (what_would_help(simulate_scenario(scenario)) for _ in range(2))
    assert first == second


def test_moves_leave_layers_for_every_part_of_a_pipeline() -> None:
    """One layer with embedding and head makes three parts: schedules of two chunks have none for the fourth."""
    shape = {"zoo": "mistral-7b", "num_hidden_layers": 1, "hidden_size": 1024, "vocab_size": 4096,
             "num_attention_heads": 8, "num_key_value_heads": 4, "intermediate_size": 1376}  # fmt: skip
    found = predict(shape, on="2 x a100-80gb", plan="pp2 dp1 1f1b", seq=1024, batch=8)
    assert list(found.what_would_help)
