"""Memory: kinds add up, moments are right, and what is split, kept or sent away shows."""

from __future__ import annotations

import pytest

from foretrain.analysis.prediction import MEMORY_KINDS
from foretrain.cluster.cluster import Cluster
from foretrain.forecast import answer, ask
from foretrain.testing.plans import tiny_model

NODE = "1 x dgx-a100-80gb"
LEAN = {"context_bytes": 0.0, "fragmentation": 0.0}


def predicted(model, plan, on=NODE, batch=16, micro=1, **options):
    return answer(
        ask(
            tiny_model(model),
            on=on,
            plan=plan,
            batch=batch,
            micro_batch=micro,
            runtime_options=options,
        )
    )


PLANS = (
    "dp8",
    "tp8",
    "tp2 pp2 dp2 zero1 sp",
    "pp4 dp2",
    "cp2 dp4 zero3",
    "pp2 vpp2 dp4",
    "pp4 zb-h1 dp2",
)


@pytest.mark.parametrize("plan", PLANS)
def test_kinds_add_up_to_the_peak_on_every_stage(plan):
    memory = predicted("gpt", plan).memory
    assert tuple(memory.by_kind) == MEMORY_KINDS
    assert sum(memory.by_kind.values()) == pytest.approx(memory.peak_bytes, rel=1e-12)
    for stage in memory.by_stage:
        assert sum(stage.by_kind.values()) == pytest.approx(stage.peak_bytes, rel=1e-12)
        assert min(stage.by_kind.values()) >= 0
    assert memory.peak_bytes == max(stage.peak_bytes for stage in memory.by_stage)
    assert memory.by_stage[memory.peak_stage].peak_bytes == memory.peak_bytes


def test_slack_and_context_are_on_top():
    lean = predicted("gpt", "dp8", **LEAN).memory
    slack = predicted("gpt", "dp8", context_bytes=1e9, fragmentation=0.1).memory
    assert slack.peak_bytes == pytest.approx(1.1 * lean.peak_bytes + 1e9)


def test_the_first_stage_of_1f1b_holds_most_and_gpipe_holds_all():
    one, all_ = (
        predicted("llama", f"pp4 {s}", on=Cluster.of(NODE).first(4), **LEAN).memory
        for s in ("1f1b", "gpipe")
    )
    held = [stage.by_kind["activations"] for stage in one.by_stage[:3]]
    assert held[0] > held[1] > held[2]
    assert all_.by_stage[0].by_kind["activations"] > 2 * held[0]


def test_memory_of_activations_grows_with_the_micro_batch_only():
    small, large = (predicted("gpt", "dp8", batch=64, micro=m, **LEAN).memory for m in (1, 4))
    assert large.by_kind["activations"] == pytest.approx(4 * small.by_kind["activations"])
    assert large.by_kind["weights"] == small.by_kind["weights"]
    more = predicted("gpt", "dp8", batch=128, micro=1, **LEAN).memory
    assert more.peak_bytes == small.peak_bytes


@pytest.mark.parametrize("word", ["recompute=full", "recompute=selective", "offload=activations"])
def test_what_is_not_kept_is_not_counted(word):
    plain = predicted("gpt", "dp8", micro=2, attention="unfused", **LEAN)
    less = predicted("gpt", f"dp8 {word}", micro=2, attention="unfused", **LEAN)
    assert less.memory.by_kind["activations"] < plain.memory.by_kind["activations"]
    assert less.step_seconds > plain.step_seconds


def test_an_optimizer_on_the_host_leaves_the_device():
    away = predicted("gpt", "dp8 offload=optimizer", **LEAN).memory
    assert away.by_kind["optimizer"] == 0
    assert predicted("gpt", "dp8", **LEAN).memory.by_kind["optimizer"] > 0


def test_sharded_weights_need_room_for_what_is_gathered():
    memory = predicted("llama", "dp8 zero3", **LEAN).memory
    layer = (tiny_model("llama").parameters - 2 * 2048 * 1024) / 4 * 2.0
    assert memory.by_kind["buffers"] >= layer
    assert memory.by_kind["weights"] == pytest.approx(tiny_model("llama").parameters * 2.0 / 8)


def test_the_stage_with_the_least_room_decides_on_mixed_machines():
    """Stage 0 of a pipeline holds more bytes, but stage 1 sits on the smaller device."""
    mixed = Cluster.of(
        {"nodes": [{"node": "dgx-a100-80gb", "used": 1}, {"node": "aws:g4dn.12xlarge", "used": 1}]}
    )
    memory = predicted("llama", "pp2", on=mixed).memory
    assert memory.peak_stage == 1
    assert memory.capacity_bytes < 20e9
    assert memory.fits
    shares = [s.peak_bytes / c for s, c in zip(memory.by_stage, (80e9, 16e9), strict=True)]
    assert shares[1] > shares[0]


def test_what_does_not_fit_says_so():
    p = answer(ask("gpt3-175b", on=NODE, plan="tp8", batch=1))
    assert not p.fits
    assert p.memory.peak_bytes > p.memory.capacity_bytes
