"""Options out of range, of the wrong type or unknown are refused with what they may be, never a traceback."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

import foretrain
from foretrain.errors import InputError, PlanError, RuntimePresetError
from foretrain.plan.short_form import _READERS, Words, words_in
from foretrain.runtime import Runtime, option_table, presets, register, runtime

ON = "1 x dgx-a100-80gb"
USUAL = Runtime(name="usual")
NUMBERS = [
    name
    for name in option_table()
    if isinstance(USUAL.option(name), int | float | None)
    and not isinstance(USUAL.option(name), bool)
]


@pytest.mark.parametrize("preset", presets().values(), ids=lambda preset: preset.name)
def test_presets_lie_within_the_ranges(preset: Runtime) -> None:
    assert preset.with_options({name: preset.option(name) for name in option_table()}) == preset


def test_a_preset_from_outside_lies_within_the_ranges() -> None:
    row = {
        "like": "megatron",
        "aliases": ["nemo"],
        "host": {"jitter_seconds": -0.005},
        "kernels": {"kernel_slowdown": 0.0},
        "memory": {"headroom": 2},
        "plan": 3,
    }
    with pytest.raises(RuntimePresetError) as caught:
        register("outside", row)
    told = str(caught.value)
    for path in ("host.jitter_seconds", "kernels.kernel_slowdown", "memory.headroom", "plan"):
        assert f"- {path}: " in told
    assert "'nemo' stands for 'nemo' already" in told
    assert "outside" not in presets()


def test_a_preset_from_outside_may_write_units_and_switches() -> None:
    row = {
        "like": "ddp",
        "gradients": {"bucket_bytes": "50 MiB"},
        "plan": {"defaults": {"sequence_parallel": True}},
    }
    undo = register("outside", row)
    assert runtime("outside").gradients.bucket_bytes == 50 * 2**20
    assert runtime("outside").plan.defaults == (("sequence_parallel", "true"),)
    undo()


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("value", [-1, 1e300, "abc", True, [1], float("nan")])
def test_a_number_out_of_range_is_refused(name: str, value: Any) -> None:
    with pytest.raises(RuntimePresetError, match=name):
        runtime("ddp").with_options({name: value})


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("aligned_to", 0, "from 1 to 4,096"),
        ("kernel_slowdown", 0, "from 0.01 to 100"),
        ("gradient_bytes", 0, "from 0.5 to 1,000"),
        ("bucket_bytes", 0, "from 1 to"),
        ("pads_vocabulary_to", 0, "whole number from 1"),
        ("prefetched_blocks", 1.5, "whole number"),
        ("gathers_quantised", 1, "list of names"),
        ("gathers_quantised", "fp9", "fp8, mxfp8, nvfp4"),
        ("rank_order", 2, "list of names"),
        ("rank_order", "tp-tp", "pp, dp, cp and tp once"),
        ("synchronises", "x", "all_reduce"),
        ("synchronises", "neighbour_all_reduce(ring", "all_reduce"),
    ],
)
def test_what_an_option_may_be_is_told(name: str, value: Any, told: str) -> None:
    with pytest.raises(RuntimePresetError, match=name) as caught:
        runtime("ddp").with_options({name: value})
    assert told in str(caught.value)


@pytest.mark.parametrize("value", ["abc", 1_000_000, True, 2.7, 0])
def test_predicted_positions_are_tokens_of_the_sequence(value: Any) -> None:
    with pytest.raises(InputError, match=r"max_predictions.*512"):
        foretrain.predict(
            "bert-large", on=ON, batch=64, seq=512, runtime_options={"max_predictions": value}
        )


@pytest.mark.parametrize(
    ("batch", "told"), [(200, "a micro-batch of 5"), (201, "a global batch of 192 or 256")]
)
def test_a_micro_batch_that_does_not_divide_is_told_the_next_smaller(batch: int, told: str) -> None:
    with pytest.raises(PlanError, match=rf"Try {told}\."):
        foretrain.predict("gpt2", on=ON, plan="dp8", batch=batch, micro_batch=8)


@pytest.mark.parametrize("value", ["abc", True, -1, 1e9])
def test_a_capacity_factor_is_a_number(value: Any) -> None:
    with pytest.raises(InputError, match=r"moe_capacity_factor.*0 to 1,000"):
        foretrain.predict(
            "mixtral-8x7b", on=ON, batch=64, runtime_options={"moe_capacity_factor": value}
        )


def test_every_plan_word_has_a_reader() -> None:
    assert sorted(_READERS) == sorted(field.name for field in fields(Words))


@pytest.mark.parametrize(
    ("plan", "told"),
    [
        ({"tp": 2, "foo": 1}, "foo: unknown plan keyword"),
        ({"tp": 2, 1: 1}, "1: unknown plan keyword"),
        ({"tp": "2"}, "tp: '2' is not a positive whole number"),
        ({"tp": True}, "tp: True"),
        ({"zero": 4}, "zero: 4"),
        ({"sp": "yes"}, "sp: 'yes'"),
        ({"schedule": "1f2b"}, "schedule: '1f2b'"),
        ({"recompute": 3}, "recompute: 3"),
        ({"offload": "optimiser"}, "offload: 'optimiser'"),
        ({"order": 5}, "order: 5"),
        ({"buckets": 0}, "buckets: 0"),
        ({"layers": "8"}, "layers: '8'"),
        ({"micro": 0}, "micro: 0"),
    ],
)
def test_words_of_a_plan_as_data_are_checked(plan: Any, told: str) -> None:
    with pytest.raises(PlanError) as caught:
        foretrain.predict("gpt3-1.3b", on=ON, batch=64, plan=plan)
    assert told in str(caught.value)


def test_words_of_a_plan_as_data_are_taken() -> None:
    said = {"tp": 2, "sp": False, "zero": 1, "layers": None, "offload": ["optimizer"]}
    assert words_in(said) == {"tp": 2, "sp": False, "zero": 1, "offload": ("optimizer",)}
