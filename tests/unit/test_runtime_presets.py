"""Runtime presets and how a case's words become a Runtime."""

from __future__ import annotations

from dataclasses import fields

import pytest
from stack_words import stack_of_run

from foretrain.errors import RuntimePresetError
from foretrain.model.optimizer import optimizer
from foretrain.model.precision import precision
from foretrain.resolving.stack import nearest
from foretrain.runtime import Runtime, presets, runtime
from foretrain.runtime.runtime import names, preset_file

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
    assert preset.attention in ("flash", "flash3", "triton", "cudnn", "unfused")
    assert preset.library in ("nccl", "nccl-pods", "gloo", "mpi")
    assert 1e-6 < preset.host_seconds_per_kernel < 6e-5
    assert preset.host_seconds_per_kernel <= preset.host_seconds_per_collective < 1e-3
    assert 0 < preset.first_bucket_bytes <= preset.bucket_bytes
    assert preset.gradient_bytes in (None, 2.0, 4.0)
    assert 1e8 < preset.context_bytes < 4e9
    assert 0 <= preset.fragmentation + preset.exchange_fragmentation < 0.75
    assert 0 <= preset.expert_overlap <= 1
    assert sorted(preset.rank_order) == ["cp", "dp", "pp", "tp"]
    words = dict(preset.defaults)
    assert set(words) >= {"recompute", "zero", "sequence_parallel"}
    assert words["zero"] in ("0", "1", "2", "3")
    listed = "," in words["recompute"]  # of ops that run again
    assert listed or words["recompute"] in ("none", "selective", "full")


def test_fields_hold_the_types_they_declare() -> None:
    """YAML 1.1 reads `1e-6` as text; such a slip must not reach the arithmetic."""
    for preset in presets().values():
        for field in fields(preset):
            value = getattr(preset, field.name)
            if str(field.type).startswith(("float", "int")):
                assert value is None or isinstance(value, float | int), (preset.name, field.name)
            if field.type == "bool":
                assert isinstance(value, bool), (preset.name, field.name)


def test_options_change_known_fields_only() -> None:
    known = {field.name for field in fields(Runtime)}
    for key, values in preset_file()["options"].items():
        for value, changes in values.items():
            assert set(changes) <= known, (key, value)


def test_aliases_are_unique_and_spelling_is_forgiven() -> None:
    listed = [name for preset in presets().values() for name in (preset.name, *preset.aliases)]
    assert len(listed) == len(names())
    assert runtime("Megatron_LM").name == "megatron"
    assert runtime("LLM Foundry").name == "composer"


def test_known_library_defaults() -> None:
    assert (runtime("ddp").bucket_bytes, runtime("ddp").first_bucket_bytes) == (25 * MIB, MIB)
    assert runtime("horovod").bucket_bytes == 64 * MIB
    assert runtime("bluefog").bucket_bytes == 8 * MIB
    assert runtime("megatron").pads_vocabulary_to == 128
    assert runtime("nanotron").gradient_bytes == 4.0
    assert not runtime("megatron-deepspeed").overlaps_gradients
    assert runtime("nemo").overlaps_gradients
    assert runtime("cpu-gloo").library == "gloo"


def test_nanotron_updates_in_separate_passes() -> None:
    """AdamW's decay, two moments, root, division, sum and step read and write 80 bytes of fp32, the copy to bf16 six."""
    fused = optimizer("adam").update_bytes(1.0, precision("bf16"))
    passes = 8 + 12 + 8 + 12 + 8 + 8 + 8 + 16
    counted_elsewhere = 2  # gradients are wider than a fused update takes them for
    assert runtime("nanotron").update_passes * fused == pytest.approx(
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
    assert warnings == ()
    assert chosen.attention == "unfused"
    assert chosen.uses_cuda_graphs
    assert chosen.overlaps_gradients
    assert chosen.exchanges_in_pieces
    assert not chosen.scatters_pipeline
    assert chosen.gradient_bytes == 2.0
    assert (chosen.bucket_bytes, chosen.first_bucket_bytes) == (40 * MIB, 40 * MIB)


def test_a_small_first_bucket_survives_a_stated_bucket_size() -> None:
    chosen, _, _ = stack_of_run("nanotron", {"ddp_bucket_mb": 50})
    assert (chosen.bucket_bytes, chosen.first_bucket_bytes) == (50 * MIB, MIB)
    tiny, _, _ = stack_of_run("nanotron", {"ddp_bucket_mb": 0.5})
    assert tiny.first_bucket_bytes == MIB / 2


def test_off_switches_turn_off_what_the_preset_does() -> None:
    chosen, _, _ = stack_of_run("nemo", {"tp_comm_overlap": False, "overlap_grad_reduce": False})
    assert not chosen.exchanges_in_pieces
    assert not chosen.overlaps_gradients


def test_compiling_fuses_and_never_slows_a_quick_host() -> None:
    slow, _, _ = stack_of_run("torchtitan", {"compile": False})
    fast, _, _ = stack_of_run("torchtitan", {"compile": True})
    assert fast.fuses_elementwise
    assert not slow.fuses_elementwise
    assert fast.host_seconds_per_kernel < slow.host_seconds_per_kernel
    quick, _, _ = stack_of_run("maxtext", {"compile": True})
    assert quick.host_seconds_per_kernel == runtime("maxtext").host_seconds_per_kernel


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
    assert chosen.cycle_seconds == 1e-3
    with pytest.raises(RuntimePresetError, match=r"cycle_time_ms: 'often' is not a time"):
        stack_of_run("horovod", {"cycle_time_ms": "often"})


def test_options_in_seconds_may_carry_a_unit():
    assert runtime("horovod").with_options({"cycle_seconds": "1ms"}).cycle_seconds == 1e-3


def test_switches_date_a_stack() -> None:
    def told(name: str, **options: str | bool | None) -> str:
        return stack_of_run(name, options)[0].name

    assert told("deepspeed", attention="Unfused") == "deepspeed-2021"
    assert told("deepspeed", attention="flash") == told("deepspeed", attention=None) == "deepspeed"
    assert told("megatron", attention="unfused") == "megatron"  # its later releases have it too
