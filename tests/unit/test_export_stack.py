"""Launch files are for the stack that their target runs, unless another one is asked for."""

from __future__ import annotations

import pytest

import foretrain
from foretrain.adapters.write import TARGETS
from foretrain.resolving.defaults import defaults


@pytest.mark.parametrize(
    ("target", "model", "words", "stack"),
    [
        ("megatron", "gpt2", {"on": "1 x dgx-h100"}, "megatron"),
        ("deepspeed", "gpt2", {"on": "2 x dgx-h100"}, "deepspeed"),
        ("nanotron", "llama3.2-1b", {"on": "1 x dgx-h100"}, "nanotron"),
        ("torchrun", "gpt2", {"on": "2 x dgx-h100"}, "fsdp2"),
        ("torchrun", "gpt2", {"on": "2 x dgx-h100", "plan": "dp16 zero0"}, "ddp"),
        ("torchrun", "resnet50", {"on": "1 x dgx-h100"}, "ddp"),
        ("accelerate", "gpt2", {"on": "2 x dgx-h100", "plan": "zero1"}, "accelerate-fsdp"),
        ("accelerate", "gpt2", {"on": "1 H100"}, "ddp"),
        ("accelerate", "dlrm-mlperf", {"on": "1 x dgx-h100"}, "ddp"),
    ],
)
def test_the_target_names_the_stack(
    target: str, model: str, words: dict[str, str], stack: str
) -> None:
    batch = 65536 if model.startswith("dlrm") else 64
    made = foretrain.export(model, to=target, batch=batch, **words)
    assert f"runtime {stack}: --to {target} (--runtime)" in made.assumptions
    beyond = ["accelerate-fsdp cannot run dp=16 with zero=1", "these files run dp16 zero2 micro=4"]
    named = [line.split(":")[0].split(",")[0] for line in made.warnings]
    assert named == (beyond if words.get("plan") == "zero1" else [])


def test_a_stack_of_its_own_gives_its_own_plan() -> None:
    made = foretrain.export("llama3-8b", to="deepspeed", on="2 x dgx-h100", batch=128)
    assert made.plan == "dp16 zero3 micro=1"


def test_a_contradicting_runtime_is_warned_about_by_both_names() -> None:
    made = foretrain.export(
        "gpt2", to="deepspeed", runtime="megatron", on="1 x dgx-h100", plan="dp8", batch=64
    )
    line, runs = made.warnings
    assert line.startswith("--runtime megatron with --to deepspeed:")
    assert runs.startswith("these files run dp8 zero0 micro=")
    assert f"# Warning: {line}" in made.files["launch.sh"]
    assert made.to_dict()["warnings"] == [line, runs]


def test_a_related_runtime_is_no_contradiction() -> None:
    made = foretrain.export("gpt2", to="megatron", runtime="nemo", on="1 x dgx-h100", batch=64)
    assert not made.warnings


def test_every_target_has_its_stacks() -> None:
    assert set(defaults()["targets"]) == set(TARGETS)


def test_nanotron_chooses_what_its_files_can_express() -> None:
    made = foretrain.export("llama3-8b", to="nanotron", on="2 x dgx-h100", batch=128)
    assert not made.cannot
