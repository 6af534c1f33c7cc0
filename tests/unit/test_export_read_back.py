"""Exported files are read back: they run the plan that was predicted, or both figures are given, or none are made."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import foretrain
from foretrain.adapters.read.launch import READERS, read, target_of
from foretrain.adapters.read.launch.rerun import as_run
from foretrain.adapters.write import TARGETS, Exported, export
from foretrain.adapters.write.job import ExportJob
from foretrain.errors import FileError, InputError, UnsupportedPlanError
from foretrain.resolving import ask
from foretrain.scenario import Scenario
from foretrain.simulate import simulate_scenario

H100S = "2 x dgx-h100"
SAME = 1e-3

# Plans that the files of a target say as a whole: target, model, plan, what else is asked.
WHOLE: list[tuple[str, str, str, dict[str, Any]]] = [
    ("megatron", "llama3-8b", "tp2 pp2 sp zero1 recompute=selective", {}),
    ("megatron", "llama3-8b", "tp2 pp2 order=tp-pp-dp zero1", {"precision": "fp8"}),
    ("megatron", "llama3-8b", "pp4 vpp2 zero1 recompute=full", {"runtime": "nemo"}),
    ("megatron", "qwen3-8b", "tp2 zero1 cp2 cp=ring", {}),
    ("megatron", "qwen2.5-7b", "pp2 dp8 layers=13,15 zero1", {}),
    ("megatron", "mistral-7b", "tp2 sp zero1 offload=optimizer", {"precision": "mxfp8"}),
    ("megatron", "mixtral-8x7b", "tp2 ep8 etp1 sp zero1", {"runtime": "megatron-bridge"}),
    ("megatron", "mixtral-8x7b", "ep8 zero1 recompute=experts_act,attention", {}),
    ("megatron", "deepseek-v2-lite", "pp2 ep8 zero1 recompute=q_up,kv_up,rope", {}),
    ("megatron", "gpt2-xl", "buckets=64MB", {"optimizer": "sgd", "precision": "fp16"}),
    ("deepspeed", "llama3-8b", "tp2 zero1", {}),
    ("deepspeed", "llama3-8b", "tp2 zero3", {}),
    ("deepspeed", "llama3-8b", "zero3 offload=optimizer buckets=64MB", {}),
    ("deepspeed", "llama3-8b", "zero2", {"optimizer": "sgd", "precision": "fp16"}),
    ("torchrun", "llama3-8b", "zero3 recompute=full", {}),
    ("torchrun", "llama3-8b", "zero3 shard=8 recompute=full*0.5 micro=2", {}),
    ("torchrun", "llama2-7b", "dp16 zero0 buckets=64MB recompute=full", {"optimizer": "sgd"}),
    ("accelerate", "llama3-8b", "zero3 recompute=full", {}),
    ("accelerate", "llama3-8b", "zero2 shard=8", {}),
    ("accelerate", "gpt2", "dp16 zero0", {"precision": "fp16"}),
    ("nanotron", "llama3-8b", "tp2 pp2 cp2 cp=ring sp zero1 recompute=full buckets=64MB", {}),
    ("nanotron", "llama3-8b", "tp2 pp4 gpipe zero1", {}),
    ("nanotron", "mixtral-8x7b", "tp8 pp2 zero1", {}),
    ("nanotron", "qwen2.5-7b", "tp2 zero0", {"optimizer": "plain-sgd"}),
    ("torchtitan", "llama3-8b", "tp2 pp2 cp2 cp=ring sp zero1 recompute=selective", {}),
    ("torchtitan", "llama3-8b", "pp4 vpp2 sp zero3 recompute=full*0.5", {"precision": "fp8"}),
    ("torchtitan", "llama3-8b", "pp2 layers=15,17 zero1 recompute=full", {}),
    ("torchtitan", "llama3-8b", "pp2 zb-v zero1 recompute=none", {}),
    ("torchtitan", "qwen3-8b", "zero2 shard=8", {"optimizer": "adamw"}),
    ("torchtitan", "llama3-8b", "dp16 zero0 recompute=none", {"runtime_options": {"compile": True}}),
    ("megatron-bridge", "llama3-8b", "tp2 pp2 vpp2 sp zero1 recompute=selective", {}),
    ("megatron-bridge", "llama3-8b", "tp2 pp2 order=tp-pp-dp zero1", {"precision": "fp8", "runtime": "nemo"}),
    ("megatron-bridge", "qwen2.5-7b", "pp2 dp8 layers=13,15 zero1 recompute=full", {}),
    ("megatron-bridge", "qwen3-8b", "tp2 zero1 cp2 cp=all-gather", {"runtime": "megatron"}),
    ("megatron-bridge", "mistral-7b", "tp2 sp zero1 offload=optimizer buckets=64MB", {"precision": "mxfp8"}),
    ("megatron-bridge", "mixtral-8x7b", "tp2 ep8 etp1 sp zero1", {}),
    ("megatron-bridge", "deepseek-v2-lite", "pp2 ep8 zero1", {}),
    ("maxtext", "llama3-8b", "tp2 cp2 cp=ring zero3", {}),
    ("maxtext", "llama3-8b", "tp2 sp zero3 shard=4 recompute=full", {"precision": "fp8"}),
    ("maxtext", "llama3-8b", "pp2 zero1 recompute=norm,elementwise", {"optimizer": "adamw"}),
    ("maxtext", "mixtral-8x7b", "ep8 zero3", {}),
    ("maxtext", "deepseek-v2-lite", "ep8 zero3", {}),
    ("maxtext", "qwen2.5-7b", "zero1 offload=optimizer", {"optimizer": "plain-sgd"}),
    ("maxtext", "gpt3-1.3b", "zero0", {}),
    ("axolotl", "llama3-8b", "zero3 recompute=full", {}),
    ("axolotl", "llama3-8b", "zero2 shard=8", {"precision": "fp8"}),
    ("axolotl", "llama3-8b", "zero1 recompute=full buckets=64MB", {"optimizer": "sgd"}),
    ("axolotl", "gpt2", "dp16 zero0 buckets=64MB recompute=full", {"precision": "fp16"}),
    ("llama-factory", "llama3-8b", "zero3 recompute=full", {}),
    ("llama-factory", "llama3-8b", "zero2 shard=8", {"optimizer": "adamw"}),
    ("llama-factory", "llama3-8b", "zero3 offload=optimizer", {"runtime": "deepspeed"}),
    ("llama-factory", "gpt2", "dp16 zero0 recompute=full", {"precision": "fp16", "optimizer": "sgd"}),
]  # fmt: skip


def _stack(target: str, plan: str) -> str:
    if target in ("axolotl", "llama-factory") and "zero1" in plan:
        return "deepspeed"
    if target in ("torchrun", "accelerate", "axolotl", "llama-factory"):
        return "ddp" if "zero0" in plan else "fsdp2"
    return target


def run_of(asked: Scenario, made: Exported) -> Scenario:
    return as_run(read(made.target, made.files), asked, asked.runtime)


@pytest.mark.parametrize(("target", "model", "plan", "more"), WHOLE)
def test_files_that_say_the_whole_plan_run_it(
    target: str, model: str, plan: str, more: dict[str, Any]
) -> None:
    """The same step within 0.1 %; nearly always the very same question."""
    asked = ask(model, on=H100S, plan=plan, batch=64, **{"runtime": _stack(target, plan), **more})
    made = export(asked, target)
    assert made.cannot == ()
    again = run_of(asked, made)
    if again.sha256 == asked.sha256:
        return
    wanted, real = simulate_scenario(asked), simulate_scenario(again)
    assert real.step_seconds == pytest.approx(wanted.step_seconds, rel=SAME)
    assert real.memory.peak_bytes == pytest.approx(wanted.memory.peak_bytes, rel=SAME)


@pytest.mark.parametrize("target", TARGETS)
def test_a_changed_file_is_another_question(target: str) -> None:
    """What is read is what the files say, not what they were made of."""
    plan = {"torchrun": "dp16 zero0", "accelerate": "zero2", "torchtitan": "zero2"}.get(
        target, "zero1"
    )
    asked = ask(
        "llama3.2-1b", on=H100S, plan=plan, batch=64, micro_batch=2, runtime=_stack(target, plan)
    )
    made = export(asked, target)
    edits = {
        "megatron": ("--micro-batch-size 2", "--micro-batch-size 4"),
        "deepspeed": ('"train_micro_batch_size_per_gpu": 2', '"train_micro_batch_size_per_gpu": 4'),
        "torchrun": ("--micro-batch 2", "--micro-batch 4"),
        "accelerate": ("--per_device_train_batch_size 2", "--per_device_train_batch_size 4"),
        "nanotron": ("micro_batch_size: 2", "micro_batch_size: 4"),
        "torchtitan": ("local_batch_size = 2", "local_batch_size = 4"),
        "megatron-bridge": ("train.micro_batch_size = 2", "train.micro_batch_size = 4"),
        "maxtext": ("per_device_batch_size: 2.0", "per_device_batch_size: 4.0"),
        "axolotl": ("micro_batch_size: 2", "micro_batch_size: 4"),
        "llama-factory": ("per_device_train_batch_size: 2", "per_device_train_batch_size: 4"),
    }
    old, new = edits[target]
    assert any(old in text for text in made.files.values())
    files = {name: text.replace(old, new) for name, text in made.files.items()}
    assert run_of(asked, made).plan.schedule.micro_batch == 2
    assert run_of(asked, replace(made, files=files)).plan.schedule.micro_batch == 4


def test_both_figures_where_the_files_run_another_plan() -> None:
    made = foretrain.export(
        "llama3-8b", to="megatron", on=H100S, plan="tp2 pp4 zb-h1 zero1", batch=64
    )
    assert made.runs == "tp2 pp4 dp2 zero1 sp micro=1"
    assert made.step_seconds is not None
    assert made.runs_step_seconds is not None
    step = foretrain.predict(
        "llama3-8b", on=H100S, plan="tp2 pp4 zero1", batch=64, runtime="megatron", micro_batch=1
    ).step_seconds
    assert made.runs_step_seconds == pytest.approx(step, rel=1e-9)
    assert made.step_seconds < made.runs_step_seconds
    (line,) = [line for line in made.warnings if line.startswith("these files run")]
    assert f"# Warning: {line}" in made.files["launch.sh"]


def test_one_plan_of_another_model_says_what_differs() -> None:
    """The words of the plan are the same; two figures for them need a reason."""
    made = foretrain.export("gpt2", to="nanotron", on="1 x dgx-h100", plan="dp8 zero1", batch=64)
    assert made.runs == made.plan
    assert "with another model or software, as listed, predicted" in made.warnings[-1]


def test_one_plan_has_one_figure_or_none() -> None:
    made = foretrain.export("llama3-8b", to="megatron", on=H100S, plan="tp2 pp4 zero1", batch=64)
    assert (made.runs, made.step_seconds, made.runs_step_seconds) == ("", None, None)
    assert made.to_dict()["runs"] == made.plan


def test_another_stack_than_the_targets_is_predicted_as_the_targets() -> None:
    made = foretrain.export(
        "llama3-8b",
        to="megatron",
        on=H100S,
        plan="tp2 pp2 zero1",
        batch=64,
        runtime="nanotron",
        micro_batch=1,
    )
    step = foretrain.predict(
        "llama3-8b",
        on=H100S,
        plan="tp2 pp2 zero1 no-sp",
        batch=64,
        runtime="megatron",
        micro_batch=1,
    )
    assert made.runs_step_seconds == pytest.approx(step.step_seconds, rel=0.05)
    assert made.runs_step_seconds != made.step_seconds


@pytest.mark.parametrize(
    ("target", "plan", "why"),
    [
        ("deepspeed", "pp2 zero2", "pipeline engine refuses ZeRO-2"),
        ("deepspeed", "cp2 zero1", "all-to-all is not modeled"),
        ("torchrun", "zero1", "ZeroRedundancyOptimizer"),
        ("megatron", "pp2 zero3", "ZeRO-2 and ZeRO-3 are Megatron-FSDP"),
    ],
)
def test_what_the_target_refuses_is_not_made(target: str, plan: str, why: str) -> None:
    with pytest.raises(UnsupportedPlanError, match=why) as refusal:
        foretrain.export("llama3-8b", to=target, on=H100S, plan=plan, batch=64)
    assert "Change the plan, or leave --plan out" in str(refusal.value)


def test_what_the_target_refuses_of_the_work_is_not_made() -> None:
    """Rules may ask for the model, its samples and the precision."""
    question = {"on": H100S, "plan": "cp2 zero3", "batch": 64, "micro_batch": 1}
    assert foretrain.export("llama3-8b", to="accelerate", **question).cannot == ()
    with pytest.raises(UnsupportedPlanError, match="cannot run seq=8"):
        foretrain.export("llama3-8b", to="accelerate", seq=8190, **question)


# --- files of strangers -------------------------------------------------------------------------------------


def test_every_target_has_a_reader_that_knows_its_files() -> None:
    assert list(READERS) == list(TARGETS)
    asked = ask("llama3.2-1b", on=H100S, plan="dp16 zero0", batch=64)
    for target in TARGETS:
        assert target_of(export(asked, target).files) == target
    with pytest.raises(FileError, match="not launch files"):
        target_of({"notes.txt": "buy milk\n"})


def test_wrong_values_are_named_all_at_once() -> None:
    text = "--num-layers many\n--tensor-model-parallel-size 0\n--recompute-granularity none\n"
    with pytest.raises(FileError) as refusal:
        read("megatron", {"megatron_args.txt": text})
    assert "num-layers: 'many' is not a whole number" in str(refusal.value)
    assert "tensor-model-parallel-size: 0" in str(refusal.value)


@pytest.mark.parametrize("target", READERS)
@pytest.mark.parametrize(
    "text", ["", "[]", "{", "\0", "a: &a [*a]\n", "--x 'open\n", "1e999", "- - -"]
)
def test_nonsense_is_refused_or_read_as_nothing(target: str, text: str) -> None:
    """No file of a stranger ends in anything but a Launch or an InputError."""
    asked = ask("llama3.2-1b", on=H100S, plan="dp16 zero0", batch=64)
    for name in export(asked, target).files:
        files = {**export(asked, target).files, name: text}
        try:
            read(target, files)
        except InputError:
            continue


def test_a_users_own_flags_are_read() -> None:
    """Megatron's arguments in a script of one's own, written in other ways."""
    script = (
        "#!/bin/bash\nexec torchrun pretrain_gpt.py --num-layers=32 --hidden-size 4096 \\\n"
        "  --num-attention-heads 32 --tensor-model-parallel-size 2 --pipeline-model-parallel-size 4 \\\n"
        "  --num-layers-per-virtual-pipeline-stage 4 --sequence-parallel --bf16 --swiglu \\\n"
        "  --recompute-activations --micro-batch-size 1 --global-batch-size 128 --seq-length 4096\n"
    )
    assert target_of({"run.sh": script}) == "megatron"
    launch = read("megatron", {"run.sh": script})
    words = launch.words()
    assert (words.tp, words.pp, words.vpp, words.sp, words.recompute) == (
        2,
        4,
        2,
        True,
        "selective",
    )
    assert (launch.batch, launch.seq, launch.precision) == (128, 4096, "bf16")
    assert launch.shape["hidden_act"] == "silu-gated"


def test_a_job_says_its_model_back() -> None:
    """The model of the files is drawn anew only where it is another."""
    asked = ask("bert-large", on=H100S, plan="zero1", batch=256, runtime="megatron")
    run = run_of(asked, export(asked, "megatron"))
    assert run.workload.model.parameters != 0
    assert run.workload.model.blocks != asked.workload.model.blocks  # pre-norm
    assert ExportJob.of(asked).shape is not None
