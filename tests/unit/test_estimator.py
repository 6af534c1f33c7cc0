"""The estimator beside hand-computed bytes and seconds of tiny plans, and beside the simulator's.

Memory is the simulator's, byte by byte. Times are where a plan is so small that its time is known by hand; what
pipelines, overlap and shared links make of larger ones is `tests/accuracy/test_search_quality.py`.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import pairwise

import pytest
from estimated_plan import choices, estimated, held_bytes
from support.plans import tiny_model

from foretrain.cluster.cluster import Cluster
from foretrain.compile.execution import Communication
from foretrain.model.graph import Block, Model, Op, Tensor
from foretrain.planning.estimator import Estimator
from foretrain.planning.task import Task
from foretrain.scenario import Scenario
from foretrain.simulate import Simulation, peak_memory, simulate_scenario
from foretrain.testing.asking import ask

NODE = "1 x dgx-a100-80gb"
ONE_NIC_EACH = "2 x aws:p3.16xlarge"  # eight devices of a node leave it by one card
IDEAL = {
    "host_seconds_per_kernel": 0.0,
    "host_seconds_per_collective": 0.0,
    "overlaps_pipeline": True,
    "host_blocks_on_pipeline": False,
    "scatters_pipeline": False,
    "clips_gradients": False,
    "overlaps_gradients": False,
}


@cache
def chain(*widths: int) -> Model:
    """Linear layers without biases, each a block of its own."""
    blocks = []
    for number, (wide, out) in enumerate(pairwise(widths)):
        x, y = (Tensor(n, ("batch", "seq", d)) for n, d in (("x", "hidden"), ("y", "hidden_out")))
        sizes = (("batch", 1), ("seq", 16), ("hidden", wide), ("hidden_out", out))
        weight = Tensor("weight", ("hidden", "hidden_out"), "weight")
        op = Op("fc", "linear", sizes, (x,), (y,), (weight,))
        blocks.append(Block(f"layer{number}", (op,), (x,), (y,), 1, sizes))
    return Model("chain", tuple(blocks), 16)


def asked(model: Model | str, plan: str, *, on=NODE, batch=16, stack="megatron", **options):
    model = tiny_model(model) if isinstance(model, str) else model
    return ask(
        model, on=on, plan=plan, batch=batch, micro_batch=1, runtime=stack, runtime_options=options
    )


def ideal(model: Model, plan: str, **more) -> Scenario:
    return asked(model, plan, **(IDEAL | more))


def alone(simulated: Simulation, purpose: str) -> list[float]:
    """Seconds of each collective for a purpose, with nothing else on its links."""
    return [
        float(simulated.costs.item_seconds[:, number].max())
        for number, item in enumerate(simulated.graph.items)
        if isinstance(item.work, Communication) and item.work.purpose == purpose
    ]


# --- memory ---------------------------------------------------------------------------------------------

STACKS = ("megatron", "megatron-deepspeed", "nemo", "fsdp", "fsdp2", "ddp", "deepspeed", "horovod")
PLANS = (
    "dp8",
    "dp8 zero1",
    "dp8 zero2",
    "dp8 zero3",
    "dp8 zero1 offload=optimizer",
    "dp8 zero1 offload=activations",
    "pp2 dp4 offload=activations recompute=full",
    "dp8 zero3 buckets=1MiB",
    "pp4 dp2",
    "pp4 gpipe dp2",
    "pp2 dp4 recompute=full",
    "tp2 pp2 dp2 zero1 sp",
)


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("stack", STACKS)
def test_memory_is_the_simulators(stack, plan):
    scenario = asked("gpt", plan, stack=stack)
    # of two nearly equal moments each may take another for the fullest
    near = 2e-6 if "buckets" in plan else 1e-9
    assert held_bytes(scenario) == pytest.approx(peak_memory(scenario).peak_bytes, rel=near)


@pytest.mark.parametrize("stack", ["megatron", "fms-fsdp"])
@pytest.mark.parametrize("recompute", ["full*0.5", "full*0.25", "selective"])
@pytest.mark.parametrize("plan", ["dp8", "pp2 dp4"])
def test_blocks_of_which_some_run_again_are_as_the_compiler_has_them(stack, recompute, plan):
    scenario = asked("gpt", f"{plan} recompute={recompute}", stack=stack)
    found, simulated = estimated(scenario), simulate_scenario(scenario)
    assert found.memory[0] == pytest.approx(simulated.memory.peak_bytes, rel=1e-9)
    assert found.seconds[0] == pytest.approx(simulated.step_seconds, rel=0.02)


@pytest.mark.parametrize("plan", ["pp2 vpp2 dp4", "pp4 zb-h1 dp2", "pp2 zb-v dp4", "pp2 dualpipev dp4"])  # fmt: skip
@pytest.mark.parametrize("stack", STACKS)
def test_memory_of_stages_with_unlike_parts_is_the_simulators(stack, plan):
    """Which micro-batches are in flight at the fullest moment depends on what each part of a stage keeps."""
    for model in ("gpt", "cnn") if "zb-v" in plan else ("gpt",):
        scenario = asked(model, plan, stack=stack)
        expected = peak_memory(scenario).peak_bytes
        assert held_bytes(scenario) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("model", ["llama", "moe", "cnn"])
@pytest.mark.parametrize("plan", ["dp8 zero1", "dp8 zero3", "pp2 dp4"])
def test_memory_is_the_simulators_for_other_ops(model, plan):
    scenario = asked(model, plan)
    assert held_bytes(scenario) == pytest.approx(peak_memory(scenario).peak_bytes, rel=1e-9)


def held(model: Model, plan: str, **options) -> float:
    return held_bytes(asked(model, plan, fragmentation=0.0, **options))


def test_states_of_adam_in_mixed_precision_take_18_bytes_an_element():
    """bf16 weights 2, fp32 gradients 4, master 4 and moments 8; ZeRO splits the last two."""
    small, large = chain(256, 256), chain(256, 256 + 8)
    more = 256 * 8
    beside = 16 * 8 * 2  # of one micro-batch's output that the wider layer hands on
    for plan, each in (("dp8", 18.0), ("dp8 zero1", 6.0 + 12.0 / 8)):
        grown = held(large, plan) - held(small, plan)
        assert grown == pytest.approx(each * more, abs=2 * beside)


@pytest.mark.parametrize(("plan", "share"), [("dp8", 0.0), ("dp8 zero1", 1 / 8)])
def test_copies_of_an_update_are_held_of_split_states_alone(plan, share):
    model = chain(512, 512)
    more = held(model, plan, update_copies=2.0) - held(model, plan, update_copies=0.0)
    assert more == pytest.approx(2.0 * 12.0 * 512 * 512 * share)


def kept(plan: str, batch: int) -> float:
    """Bytes that the plan holds beyond those of a step with one micro-batch."""
    model = chain(1024, 1024, 1024, 1024, 1024)
    bare = {"on": Cluster.of(NODE).first(4), "fragmentation": 0.0}
    several, one = (held_bytes(asked(model, plan, batch=n, **bare)) for n in (batch, 1))
    return several - one


@pytest.mark.parametrize(
    ("schedule", "in_flight"), [("1f1b", 4), ("gpipe", 16), ("zb-h1", 4)]
)  # fmt: skip
def test_the_first_of_four_stages_keeps_as_many_micro_batches_as_are_in_flight(schedule, in_flight):
    one = 16 * 1024 * 2.0  # its layer's input in bf16
    assert kept(f"pp4 {schedule}", 16) == pytest.approx((in_flight - 1) * one)


@pytest.mark.parametrize("plan", ["tp2 dp4 zero1", "tp2 dp4 recompute=full", "tp2 pp2 dp2"])
def test_copies_of_what_leaves_are_waited_for(plan):
    def step(offload: str) -> Scenario:
        model = {"zoo": "gpt3-6.7b", "num_hidden_layers": 8}
        return ask(model, on=NODE, batch=32, plan=f"{plan}{offload}", micro_batch=2)

    stays, leaves = step(""), step(" offload=activations")
    taken, longer = (simulate_scenario(s).step_seconds for s in (stays, leaves))
    assert longer > 1.005 * taken
    assert estimated(leaves).seconds[0] == pytest.approx(longer, rel=0.05)


@pytest.mark.parametrize("order", [1, -1])
def test_an_offloaded_update_is_as_slow_as_the_slowest_host(order):
    nodes = [{"node": "gcp:a2-highgpu-4g"}, {"node": "aws:p3.8xlarge"}][::order]
    mixed = {"name": "mixed", "nodes": nodes, "network": {"topology": "star"}}
    scenario = asked("gpt", "dp8 zero1 offload=optimizer", on=mixed)
    (optimizer,) = {simulate_scenario(scenario).prediction.stalls["optimizer"]}
    assert estimated(scenario).update[0] >= 0.99 * optimizer
    swapped = asked("gpt", "dp8 zero1 offload=optimizer", on={**mixed, "nodes": nodes[::-1]})
    assert estimated(scenario).update[0] == pytest.approx(estimated(swapped).update[0])


# --- the update -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("stack", ["megatron", "megatron-deepspeed", "ddp", "fsdp", "deepspeed"])
def test_an_update_takes_what_it_does_in_the_simulator(stack):
    scenario = asked("gpt", "dp1", on=Cluster.of(NODE).first(1), stack=stack)
    optimizer = simulate_scenario(scenario).prediction.stalls["optimizer"]
    assert estimated(scenario).update[0] == pytest.approx(optimizer, rel=5e-3)


def test_an_accumulation_buffer_is_cleared_and_for_clipping_read_twice_and_written():
    """Adam moves 2 + 2 + 4 · 6 = 28 bytes an element, a buffer of fp32 gradients 2 more of its own and 4 a pass."""
    model, one = chain(8192, 8192), Cluster.of(NODE).first(1)
    plain, cleared, clipped = (
        float(estimated(asked(model, "dp1", on=one, adds_gradients=a, clips_gradients=c)).update[0])
        for a, c in ((False, False), (True, False), (True, True))
    )
    passes = (clipped - plain) / (cleared - plain)
    assert passes == pytest.approx((2.0 + 16.0) / (2.0 + 4.0), rel=0.01)


def test_the_norm_of_gradients_is_added_up_over_all_ranks_before_the_update():
    far = Cluster.of("2 x dgx-a100-80gb").scaled(network_latency=1000.0)
    scenarios = [
        asked("gpt", "tp2 pp2 dp4", on=far, clips_gradients=c, adds_gradients=False)
        for c in (False, True)
    ]
    free, clipped = (float(estimated(s).update[0]) for s in scenarios)
    (norm,) = alone(simulate_scenario(scenarios[1]), "norm")
    assert clipped - free == pytest.approx(norm, rel=1e-3)


# --- reductions -----------------------------------------------------------------------------------------


def test_equal_stages_reduce_for_as_long_as_the_first_one_does():
    """Going back, the first stage is the last to be done: what the others reduce, they do while it is at work."""
    scenario = ideal(chain(*[2048] * 5), "pp4 dp2")
    simulated = simulate_scenario(scenario)
    (reduction,) = alone(simulated, "data")
    found = estimated(scenario)
    assert found.data[0] == pytest.approx(reduction, rel=1e-6)
    assert found.seconds[0] == pytest.approx(simulated.step_seconds, rel=0.01)


def test_the_last_stage_reduces_while_those_before_it_go_back():
    """All weights on the last stage: what is left of its reduction when the first stage is through."""
    scenario = ideal(chain(64, 64, 64, 4096, 8192), "pp4 dp2")
    simulated = simulate_scenario(scenario)
    reduction = max(alone(simulated, "data"))
    found = estimated(scenario)
    assert 0.85 * reduction < found.data[0] < reduction
    assert found.seconds[0] == pytest.approx(simulated.step_seconds, rel=0.005)


def test_stages_with_like_weights_share_the_card_of_their_node():
    """Four stages on each node reduce over one card at once, but for what the first may do alone at the end."""
    scenario = ideal(chain(*[2048] * 5), "pp4 dp4 order=pp-tp-dp", on=ONE_NIC_EACH)
    (reduction,) = alone(simulate_scenario(scenario), "data")
    assert estimated(scenario).data[0] == pytest.approx(4.0 * reduction, rel=0.03)


def test_a_stage_that_holds_all_weights_has_the_card_of_its_node_for_itself():
    scenario = ideal(chain(64, 64, 64, 4096, 8192), "pp4 dp4 order=pp-tp-dp", on=ONE_NIC_EACH)
    reduction = max(alone(simulate_scenario(scenario), "data"))
    assert estimated(scenario).data[0] == pytest.approx(reduction, rel=0.02)


@pytest.mark.parametrize("zero", [0, 1, 2])
def test_split_states_are_reduced_to_their_owners_and_weights_gathered(zero):
    """A ring moves as much in a reduce-scatter and an all-gather as in an all-reduce."""
    scenario = ideal(chain(4096, 4096), f"dp8 zero{zero}")
    simulated = simulate_scenario(scenario)
    found = estimated(scenario)
    assert found.seconds[0] == pytest.approx(simulated.step_seconds, rel=0.03)
    whole = ideal(chain(4096, 4096), "dp8")
    if zero:
        assert found.update[0] < estimated(whole).update[0]
        assert found.data[0] < estimated(whole).data[0]


# --- whole steps ----------------------------------------------------------------------------------------

TWO_NODES = "2 x dgx-a100-80gb"
WIDE = (4096,) * 9  # eight layers
SLOW_HOST = {"host_seconds_per_kernel": 1e-4}


@pytest.mark.parametrize(
    ("plan", "near"),
    [
        # nothing runs beside anything else: steps are sums
        ("dp16", 1e-3),
        ("dp16 zero1", 1e-3),
        ("dp16 zero1 shard=8", 1e-3),
        ("dp16 recompute=full", 1e-3),
        ("dp16 zero1 offload=optimizer", 1e-3),
        # stages wait for one another
        ("pp2 dp8", 5e-3),
        ("pp8 dp2", 0.01),
        ("pp8 dp2 gpipe", 2e-3),
        ("pp8 dp2 zb-h1", 0.03),
        ("pp4 dp4 order=pp-tp-dp", 2e-3),
        # reductions of every micro-batch beside the next
        ("pp4 dp4 zero2", 0.03),
    ],
)
def test_steps_of_an_ideal_stack_are_the_simulators(plan, near):
    scenario = ideal(chain(*WIDE), plan, on=TWO_NODES, batch=64)
    step = simulate_scenario(scenario).step_seconds
    assert estimated(scenario).seconds[0] == pytest.approx(step, rel=near)


@pytest.mark.parametrize(
    ("stack", "plan", "near"),
    [
        ("ddp", "dp16", 1e-3),
        ("ddp", "dp16 zero1", 1e-3),
        ("deepspeed", "dp16", 2e-3),
        ("fsdp", "dp16", 1e-3),
        ("fsdp", "dp16 zero3", 0.01),
        ("horovod", "dp16", 1e-3),
        ("horovod", "dp16 zero1", 1e-3),
        ("torchtitan", "dp16", 1e-3),
        ("torchtitan", "dp16 zero3", 0.02),
    ],
)
def test_steps_of_data_parallel_stacks_are_the_simulators(stack, plan, near):
    scenario = asked(chain(*WIDE), plan, on=TWO_NODES, batch=64, stack=stack)
    step = simulate_scenario(scenario).step_seconds
    assert estimated(scenario).seconds[0] == pytest.approx(step, rel=near)


@pytest.mark.parametrize(
    ("model", "plan", "near"),
    [
        ("moe", "dp16 ep8", 2e-3),
        ("moe", "tp2 dp8 ep4", 0.01),
        ("moe", "pp2 dp8 ep8", 0.01),
        ("llama", "tp4 dp4", 0.02),
        ("llama", "cp2 dp8", 2e-3),
        ("llama", "tp2 pp2 dp4 sp", 0.01),
    ],
)
def test_steps_of_split_blocks_are_the_simulators(model, plan, near):
    scenario = ideal(tiny_model(model), plan, on=TWO_NODES, batch=64)
    step = simulate_scenario(scenario).step_seconds
    assert estimated(scenario).seconds[0] == pytest.approx(step, rel=near)


@pytest.mark.parametrize("plan", ["dp16", "pp2 dp8"])
def test_a_slow_host_takes_as_long_as_it_issues_kernels(plan):
    """A tenth of a millisecond a kernel is longer than any of these takes on a device."""
    model = chain(*[256] * 9)
    scenario = ideal(model, plan, on=TWO_NODES, batch=64, **SLOW_HOST)
    step = simulate_scenario(scenario).step_seconds
    assert estimated(scenario).seconds[0] == pytest.approx(step, rel=0.05)
    fast = ideal(model, plan, on=TWO_NODES, batch=64)
    assert estimated(fast).seconds[0] < 0.5 * step


def test_the_parts_of_an_estimate_add_up():
    for plan in ("dp16", "pp4 dp4", "pp4 dp4 zero1", "pp2 vpp2 dp8"):
        found = estimated(asked("gpt", plan, on=TWO_NODES, batch=64))
        parts = found.work + found.pipeline + found.data + found.update
        assert parts[0] == pytest.approx(found.seconds[0])
        assert min(float(c[0]) for c in (found.work, found.data, found.update)) >= 0.0


def test_plans_in_one_table_are_estimated_as_each_alone():
    scenario = asked("gpt", "dp8", batch=32)
    task = Task.of(scenario)
    texts = ("dp8", "dp8 zero1", "dp8 zero3", "pp4 dp2", "pp4 gpipe dp2", "tp2 dp4", "dp8 recompute=full", "pp2 dp4 zero2")  # fmt: skip
    words = [replace(task.words(text), micro=micro) for text in texts for micro in (1, 2)]
    together = Estimator(task, only_fitting=False).estimate(choices(task, *words))
    for row, one in enumerate(words):
        alone_ = Estimator(task, only_fitting=False).estimate(choices(task, one))
        for name in ("seconds", "memory", "usable", "work", "pipeline", "data", "update"):
            told, own = getattr(together, name)[row], getattr(alone_, name)[0]
            # of micro-batches in one table the larger grow from the smaller
            assert told == pytest.approx(own, rel=1e-6), (one, name)


def test_plans_that_do_not_fit_are_not_timed_unless_asked():
    scenario = asked("gpt", "dp8", on="1 x dgx-a100-80gb", fragmentation=0.0, context_bytes=79.0 * 2**30)  # fmt: skip
    task = Task.of(scenario)
    table = choices(task, replace(task.words("dp8"), micro=1))
    untimed = Estimator(task).estimate(table)
    assert not untimed.fits[0]
    assert untimed.seconds[0] == float("inf")
    assert Estimator(task, only_fitting=False).estimate(table).seconds[0] < 1.0


def test_plans_that_a_model_refuses_have_its_reason():
    scenario = asked("gpt", "dp8")
    task = Task.of(scenario)
    table = choices(task, *(replace(task.words(text), micro=1) for text in ("tp8", "dp8")))
    narrow = replace(task, workload=asked(chain(256, 255), "dp8").workload)
    found = Estimator(narrow, only_fitting=False).estimate(table)
    assert found.refused.tolist() == [0, -1]
    assert "255" in found.refusal[0] or "tp" in found.refusal[0]
    assert found.fits.tolist() == [False, True]


@pytest.mark.parametrize("stack", ["fsdp", "deepspeed"])
def test_gathers_of_stages_on_one_node_take_longer_than_alone(stack):
    """Four stages share the card of their node: weights that are not fetched ahead are waited for."""
    apart = ideal(chain(*[2048] * 5), "pp4 dp4 zero3", on=ONE_NIC_EACH, stack=stack, prefetched_blocks=0)  # fmt: skip
    near = ideal(chain(*[2048] * 5), "pp4 dp4 zero3 order=pp-tp-dp", on=ONE_NIC_EACH, stack=stack, prefetched_blocks=0)  # fmt: skip
    inside, across = (estimated(s) for s in (apart, near))
    assert across.seconds[0] > 5.0 * inside.seconds[0]
    simulated = simulate_scenario(near).step_seconds
    assert across.seconds[0] == pytest.approx(simulated, rel=0.35)


def test_weights_of_reruns_are_gathered_once_more():
    once, again = (
        estimated(
            ideal(
                chain(*WIDE), "dp16 zero3 recompute=full", on=TWO_NODES, batch=64, gathers_rerun=g
            )
        )
        for g in (False, True)
    )
    assert again.seconds[0] > once.seconds[0]


def test_without_an_optimizer_nothing_is_updated():
    scenario = ask(
        chain(512, 512), on=NODE, plan="dp8", batch=8, optimizer="none", runtime_options=IDEAL
    )
    assert estimated(scenario).update[0] == 0.0
    step = simulate_scenario(scenario).step_seconds
    assert estimated(scenario).seconds[0] == pytest.approx(step, rel=1e-3)


def test_scatters_that_wait_for_backward_come_after_it():
    model = chain(*WIDE)
    soon, late = (
        estimated(
            ideal(
                model,
                "dp16 zero1",
                on=TWO_NODES,
                batch=16,
                overlaps_gradients=True,
                overlaps_scatters=o,
            )
        )
        for o in (True, False)
    )
    assert late.data[0] > soon.data[0]


def test_a_pipeline_without_blocking_sends_hides_them():
    model = chain(*[4096] * 9)
    words = {"on": TWO_NODES, "batch": 64, "host_seconds_per_kernel": 2e-5, "host_blocks_on_pipeline": True}  # fmt: skip
    hidden, waited = (
        estimated(ideal(model, "pp8 dp2", **words, overlaps_pipeline=o)) for o in (True, False)
    )
    assert waited.seconds[0] >= hidden.seconds[0]


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
@pytest.mark.parametrize("overlaps", [False, True])
def test_gradients_that_nobody_waits_for_are_held_by_neither_speed(zero, overlaps):
    words = {"on": NODE, "batch": 8, "optimizer": "none", "runtime": "megatron"}
    options = IDEAL | {"overlaps_gradients": overlaps, "fragmentation": 0.0}
    scenario = ask(chain(4096, 4096), plan=f"dp8 zero{zero}", runtime_options=options, **words)
    assert estimated(scenario).memory[0] == pytest.approx(
        peak_memory(scenario).peak_bytes, rel=1e-9
    )


@pytest.mark.parametrize("overlaps", [False, True])
@pytest.mark.parametrize("zero", [1, 2])
def test_weights_that_were_not_updated_are_not_gathered(zero, overlaps):
    scenario = ask(
        chain(4096, 4096),
        on=TWO_NODES,
        plan=f"dp16 zero{zero}",
        batch=16,
        optimizer="none",
        runtime_options=IDEAL | {"overlaps_parameter_gather": overlaps},
    )
    simulated = simulate_scenario(scenario)
    assert alone(simulated, "weights") == []
    assert estimated(scenario).seconds[0] == pytest.approx(simulated.step_seconds, rel=0.02)


@pytest.mark.parametrize("graph", ["torus2d", "star", "ring_left"])
@pytest.mark.parametrize("stack", ["ddp", "bluefog"])
def test_neighbours_that_average_take_what_the_slowest_of_them_does(stack, graph):
    scenario = asked(
        chain(*[2048] * 5),
        "dp8",
        on="2 x aws:p3.8xlarge",
        stack=stack,
        synchronises=f"neighbour_all_reduce({graph})",
    )
    step = simulate_scenario(scenario).step_seconds
    assert estimated(scenario).seconds[0] == pytest.approx(step, rel=0.02)
