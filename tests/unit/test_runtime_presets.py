"""Runtime presets and how a case's words become a Runtime."""

from __future__ import annotations

import re
from dataclasses import fields
from typing import Any

import pytest
from stack_words import stack_of_run

from foretrain.errors import RuntimePresetError
from foretrain.model.optimizer import optimizer
from foretrain.model.precision import precision
from foretrain.report.catalog import check_document
from foretrain.resolving.stack import nearest
from foretrain.runtime import Runtime, checking, names, option_table, preset_file, presets, runtime
from foretrain.runtime.runtime import CORE, OPTIONAL

MIB = 1 << 20
NAMES = [
    "megatron", "megatron-deepspeed", "nemo", "nanotron", "fsdp", "fsdp2",
    "torchtitan", "composer", "fms-fsdp", "fms-fsdp-eager", "ddp", "horovod", "horovod-mxnet",
    "horovod-tf", "bluefog", "hugectr", "pytorch-dlrm", "deepspeed", "alpa",
    "mist", "aceso", "libai", "oneflow", "paddle", "hf-eager",
    "accelerate-megatron", "maxtext", "hai-llm", "megatron-bridge", "generic", "cpu-gloo",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_every_stack_has_a_preset(name: str) -> None:
    assert runtime(name).name == name


@pytest.mark.parametrize("preset", presets().values(), ids=lambda preset: preset.name)
def test_presets_are_physical_and_cited(preset: Runtime) -> None:
    assert len(preset.source) > 20
    assert preset.title
    assert preset.kernels.attention in ("flash", "flash3", "triton", "cudnn", "unfused")
    assert preset.communication.library in ("nccl", "nccl-pods", "gloo", "mpi")
    assert 1e-6 < preset.host.host_seconds_per_kernel < 6e-5
    assert preset.host.host_seconds_per_kernel <= preset.host.host_seconds_per_collective < 1e-3
    assert 0 < preset.gradients.first_bucket_bytes <= preset.gradients.bucket_bytes
    assert preset.gradients.gradient_bytes in (None, 2.0, 4.0)
    assert 1e8 < preset.memory.context_bytes < 4e9
    assert 0 <= preset.memory.fragmentation + preset.memory.exchange_fragmentation < 0.75
    assert 0 <= preset.expert_parallel.expert_overlap <= 1
    assert sorted(preset.plan.rank_order) == ["cp", "dp", "pp", "tp"]
    words = dict(preset.plan.defaults)
    assert set(words) >= {"recompute", "zero", "sequence_parallel"}
    assert words["zero"] in ("0", "1", "2", "3")
    listed = "," in words["recompute"]  # of ops that run again
    assert listed or words["recompute"] in ("none", "selective", "full")


def test_fields_hold_the_types_they_declare() -> None:
    """YAML 1.1 reads `1e-6` as text; such a slip must not reach the arithmetic."""
    for preset in presets().values():
        records = (getattr(preset, feature) for feature in (*CORE, *OPTIONAL))
        for record in filter(None, records):
            for field in fields(record):
                value, where = getattr(record, field.name), (preset.name, field.name)
                if str(field.type).startswith(("float", "int")):
                    assert value is None or isinstance(value, float | int), where
                if field.type == "bool":
                    assert isinstance(value, bool), where


def test_options_change_known_fields_only() -> None:
    for key, values in preset_file()["options"].items():
        for value, changes in values.items():
            assert set(changes) <= option_table().keys(), (key, value)


ROW = {"title": "Late", "source": "this test", "host": {"jitter_seconds": -1}}


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({}, ""),
        ({"unmodelled": {"late": ROW}}, "unmodelled.late: expected string, got"),
        ({"late": ROW}, "late: unknown key"),
        ({"presets": {"late": ROW}}, r"presets.late.host.jitter_seconds: -1 must be"),
        ({"options": {"sync": {"on": {"jiter_seconds": 1}}}}, "Did you mean 'jitter_seconds'"),
    ],
)
def test_the_check_of_the_catalogue_reads_the_whole_file(
    changes: dict[str, Any], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checking, "preset_file", lambda: {**preset_file(), **changes})
    document = check_document()
    assert document.is_no == bool(changes)
    assert re.search(told, " ".join(document.data["faults"]))


def test_aliases_are_unique_and_spelling_is_forgiven() -> None:
    listed = [name for preset in presets().values() for name in (preset.name, *preset.aliases)]
    assert len(listed) == len(names())
    assert runtime("Megatron_LM").name == "megatron"
    assert runtime("LLM Foundry").name == "composer"


def test_known_library_defaults() -> None:
    assert (runtime("ddp").gradients.bucket_bytes, runtime("ddp").gradients.first_bucket_bytes) == (
        25 * MIB,
        MIB,
    )
    assert runtime("horovod").gradients.bucket_bytes == 64 * MIB
    assert runtime("bluefog").gradients.bucket_bytes == 8 * MIB
    assert runtime("megatron").plan.pads_vocabulary_to == 128
    assert runtime("nanotron").gradients.gradient_bytes == 4.0
    assert not runtime("megatron-deepspeed").gradients.overlaps_gradients
    assert runtime("nemo").gradients.overlaps_gradients
    assert runtime("cpu-gloo").communication.library == "gloo"


def test_nanotron_updates_in_separate_passes() -> None:
    """AdamW's decay, two moments, root, division, sum and step read and write 80 bytes of fp32, the copy to bf16 six."""
    fused = optimizer("adam").update_bytes(1.0, precision("bf16"))
    passes = 8 + 12 + 8 + 12 + 8 + 8 + 8 + 16
    counted_elsewhere = 2  # gradients are wider than a fused update takes them for
    assert runtime("nanotron").update.update_passes * fused == pytest.approx(
        passes + 6 - counted_elsewhere
    )


def test_unknown_names_are_errors_with_a_hint() -> None:
    with pytest.raises(RuntimePresetError, match="Did you mean 'nanotron'"):
        runtime("nanotrom")


def test_unknown_options_are_errors_with_a_hint() -> None:
    with pytest.raises(RuntimePresetError, match="Did you mean 'attention'"):
        runtime("ddp").with_options({"atention": "flash"})


def test_switches_of_a_case_reach_the_fields() -> None:
    chosen, _, warnings = stack_of_run(
        "megatron",
        {
            "attention": "unfused",
            "cuda_graphs": True,
            "overlap_grad_reduce": True,
            "tp_comm_overlap": True,
            "scatter_gather": False,
            "grad_accum_dtype": "bf16",
            "ddp_bucket_mb": 40,
            "container": "whatever",
        },
    )
    assert all("has no effect: the plan has no" in one for one in warnings)
    assert chosen.kernels.attention == "unfused"
    assert chosen.host.uses_cuda_graphs
    assert chosen.gradients.overlaps_gradients
    assert chosen.tensor_parallel.tp_comm_overlap
    assert not chosen.pipeline.scatters_pipeline
    assert chosen.gradients.gradient_bytes == 2.0
    assert (chosen.gradients.bucket_bytes, chosen.gradients.first_bucket_bytes) == (
        40 * MIB,
        40 * MIB,
    )


def test_a_small_first_bucket_survives_a_stated_bucket_size() -> None:
    chosen, _, _ = stack_of_run("nanotron", {"ddp_bucket_mb": 50})
    assert (chosen.gradients.bucket_bytes, chosen.gradients.first_bucket_bytes) == (50 * MIB, MIB)
    tiny, _, _ = stack_of_run("nanotron", {"ddp_bucket_mb": 0.5})
    assert tiny.gradients.first_bucket_bytes == MIB / 2


def test_off_switches_turn_off_what_the_preset_does() -> None:
    chosen, _, _ = stack_of_run("nemo", {"tp_comm_overlap": False, "overlap_grad_reduce": False})
    assert not chosen.tensor_parallel.tp_comm_overlap
    assert not chosen.gradients.overlaps_gradients


def test_compiling_fuses_and_never_slows_a_quick_host() -> None:
    slow, _, _ = stack_of_run("torchtitan", {"compile": False})
    fast, _, _ = stack_of_run("torchtitan", {"compile": True})
    assert fast.kernels.fuses_elementwise
    assert not slow.kernels.fuses_elementwise
    assert fast.host.host_seconds_per_kernel < slow.host.host_seconds_per_kernel
    quick, _, _ = stack_of_run("maxtext", {"compile": True})
    assert quick.host.host_seconds_per_kernel == runtime("maxtext").host.host_seconds_per_kernel


def test_nulls_follow_the_preset_and_say_so() -> None:
    chosen, assumptions, warnings = stack_of_run("nemo", {"attention": None})
    assert chosen == runtime("nemo")
    assert "attention flash: nemo default (--set attention=…)" in assumptions
    assert warnings == ()


def test_an_unknown_runtime_is_the_nearest() -> None:
    chosen, _, warnings = stack_of_run("NeMo 25.04", {})
    assert chosen.name == "nemo"
    assert "'NeMo 25.04'" in warnings[0]
    assert nearest("megatron-deepspeed-fork") == "megatron-deepspeed"
    assert nearest("zzz") == "generic"


def test_values_nobody_knows_warn_and_impossible_sizes_are_errors() -> None:
    chosen, _, warnings = stack_of_run("ddp", {"attention": "telepathy"})
    assert chosen == runtime("ddp")
    assert "telepathy" in warnings[0]
    _, _, warnings = stack_of_run("ddp", {"compile": ["odd"]})
    assert "odd" in warnings[0]
    with pytest.raises(RuntimePresetError, match=r"ddp_bucket_mb: -1"):
        stack_of_run("ddp", {"ddp_bucket_mb": -1})


def test_switches_without_a_counterpart_are_listed() -> None:
    _, _, warnings = stack_of_run("nemo", {"unpadded": True, "container": "x"})
    assert any(line.startswith("unpadded = True is not modeled") for line in warnings)
    assert not any("container" in line for line in warnings)


def test_a_case_may_state_the_cycle_time():
    chosen, _, _ = stack_of_run("horovod", {"cycle_time_ms": 1})
    assert chosen.fusion_cycles.cycle_seconds == 1e-3
    with pytest.raises(RuntimePresetError, match=r"cycle_time_ms: 'often' is not a time"):
        stack_of_run("horovod", {"cycle_time_ms": "often"})


def test_options_in_seconds_may_carry_a_unit():
    assert (
        runtime("horovod").with_options({"cycle_seconds": "1ms"}).fusion_cycles.cycle_seconds
        == 1e-3
    )


def test_switches_date_a_stack() -> None:
    def told(name: str, **options: str | bool | None) -> str:
        return stack_of_run(name, options)[0].name

    assert told("deepspeed", attention="Unfused") == "deepspeed-2021"
    assert told("deepspeed", attention="flash") == told("deepspeed", attention=None) == "deepspeed"
    assert told("megatron", attention="unfused") == "megatron"  # its later releases have it too
