"""V-shaped schedules: the model goes down the stages with one chunk and up again with the other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.verify import verify_all
from test_closed_forms import IDEAL, devices, uniform

from foretrain import export, predict, search
from foretrain.compile.execution import CHAIN, Communication
from foretrain.errors import InputError
from foretrain.plan.schedules import BACKWARD, BACKWARD_WEIGHT, FORWARD, SCHEDULES
from foretrain.plan.schedules.closed_form import Pipelines
from foretrain.plan.schedules.running import in_turn
from foretrain.plan.short_form import parse
from foretrain.planning.explain import estimate
from foretrain.planning.space import space
from foretrain.planning.task import Task
from foretrain.simulate import compile_scenario, simulate_scenario
from foretrain.testing import schedules as kit
from foretrain.testing.asking import ask

TORCH = {"zb-v": "ScheduleZBVZeroBubble", "dualpipev": "ScheduleDualPipeV"}
PHASES = {
    "FORWARD": (FORWARD,),
    "BACKWARD_INPUT": (BACKWARD,),
    "BACKWARD_WEIGHT": (BACKWARD_WEIGHT,),
    "FULL_BACKWARD": (BACKWARD, BACKWARD_WEIGHT),
}


def torch_actions(name: str, stage: int, stages: int, micro_batches: int) -> list:
    """What PyTorch's class works out, which it does before it needs any process group."""
    module = pytest.importorskip("torch.distributed.pipelining.schedules")
    kind = getattr(module, TORCH[name])
    made = object.__new__(kind)
    made.pp_group_size, made._n_microbatches = stages, micro_batches
    made.num_stages = made._num_stages = 2 * stages
    return [a for a in made._calculate_single_rank_operations(stage) if a is not None]


def as_torch_has_it(name: str, stage: int, stages: int, micro_batches: int) -> list[list[int]]:
    actions = torch_actions(name, stage, stages, micro_batches)
    actions = [part for action in actions for part in action.sub_actions or (action,)]
    return [
        [phase, int(action.stage_index != stage), action.microbatch_index]
        for action in actions
        for phase in PHASES[action.computation_type.name]
    ]


@pytest.mark.parametrize("name", TORCH)
@pytest.mark.parametrize("stages", [1, 2, 3, 4, 5, 8])
def test_orders_are_those_of_pytorch(name: str, stages: int) -> None:
    subject = SCHEDULES[name]
    for micro_batches in (1, 2, 3, 5, 7, 8, 15, 16, 17, 24, 40):
        if not subject.fits(stages, micro_batches):
            continue
        for stage in range(stages):
            found = subject.order(stage, stages, micro_batches, 2).tolist()
            assert found == as_torch_has_it(name, stage, stages, micro_batches)


@pytest.mark.parametrize("name", TORCH)
def test_pieces_lie_along_a_v(name: str) -> None:
    pieces = SCHEDULES[name].pieces(4, 2)
    assert pieces.of.tolist() == [[0, 1, 2, 3], [7, 6, 5, 4]]
    assert pieces.stage_of.tolist() == [0, 1, 2, 3, 3, 2, 1, 0]
    assert pieces.hops.tolist() == [1, 1, 1, 0, -1, -1, -1]


@pytest.mark.parametrize("stages", [1, 2, 3, 4, 8])
def test_zb_v_leaves_no_gap_between_steps_that_take_equally_long(stages: int) -> None:
    for micro_batches in (2 * stages, 5 * stages):
        clock: dict[int, list[float]] = {}
        done: list[float] = []
        for turn in in_turn(SCHEDULES["zb-v"], stages, micro_batches, 2):
            mine = clock.setdefault(turn.stage, [])
            begin = max([*mine[-1:], *([done[turn.needed]] if turn.needed >= 0 else [])], default=0)
            assert not mine or begin == mine[-1], f"stage {turn.stage} waits at {begin}"
            mine.append(begin + 1.0)
            done.append(begin + 1.0)
        assert [len(clock[s]) for s in range(stages)] == [6 * micro_batches] * stages


@pytest.mark.parametrize("stages", [1, 2, 3, 4, 6, 8])
def test_dualpipe_v_idles_as_published_where_pairs_are_one_step(stages: int) -> None:
    """(PP/2 - 1)(F&B + B - 3W) with PP = 2p pieces, all of forward, input and weight gradients 1. Here a forward pass sends
    what it has made before the backward pass beside it begins, so that pipelines fill one pass sooner."""
    micro_batches = 5 * stages
    published = (stages - 1) * (3 + 2 - 3) / 2  # a chunk is half a stage
    assert _idle_in_pairs(stages, micro_batches) / 2 == published
    idle = kit.idle(SCHEDULES["dualpipev"], stages, micro_batches, 2)
    assert idle == pytest.approx(max(published - 0.5, 0.0))


def _idle_in_pairs(stages: int, micro_batches: int) -> float:
    """Run PyTorch's actions, each of which ends at once for all that wait for it."""
    took = {"FORWARD": 1.0, "BACKWARD_INPUT": 1.0, "BACKWARD_WEIGHT": 1.0, "FULL_BACKWARD": 2.0}
    queues = [torch_actions("dualpipev", s, stages, micro_batches) for s in range(stages)]
    done: dict[tuple[bool, int, int], float] = {}
    clock = [0.0] * stages
    while any(queues):
        for stage, queue in enumerate(queues):
            while queue:
                parts = queue[0].sub_actions or (queue[0],)
                needs = [need for part in parts for need in _needs(part, 2 * stages)]
                if any(need not in done for need in needs):
                    break
                names = [part.computation_type.name for part in parts]
                clock[stage] = max([clock[stage], *(done[need] for need in needs)])
                clock[stage] += sum(took[name] for name in names)
                for part, name in zip(parts, names, strict=True):
                    if name != "BACKWARD_WEIGHT":
                        key = (name == "FORWARD", part.stage_index, part.microbatch_index)
                        done[key] = clock[stage]
                queue.pop(0)
    return max(clock) - 6.0 * micro_batches


def _needs(action, pieces: int) -> list[tuple[bool, int, int]]:
    name, piece, micro = (
        action.computation_type.name, action.stage_index, action.microbatch_index,
    )  # fmt: skip
    if name == "BACKWARD_WEIGHT" or (name == "FORWARD" and piece == 0):
        return []
    if name == "FORWARD":
        return [(True, piece - 1, micro)]
    return [(True, piece, micro) if piece == pieces - 1 else (False, piece + 1, micro)]


def test_dualpipe_v_names_what_it_needs() -> None:
    with pytest.raises(
        InputError, match="fewer micro-batches than 2 per stage: 7 micro-batches, 4"
    ):
        SCHEDULES["dualpipev"].order(0, 4, 7, 2)
    where = "schedule=dualpipev, pp=4, tp=1, cp=1, zero=1, no offload, recompute=none"
    question = {"on": "1 x dgx-h100", "plan": "dp8", "batch": 64, "runtime": "torchtitan"}
    task = Task.of(ask("gpt2-xl", **question))
    plans = space(task, where.split(", "))
    kept, pruned = zip(*(plans.choices(part) for part in plans.parts()), strict=True)
    assert sum(map(len, kept)) > 0
    assert any("dualpipev schedule: fewer micro-batches than 2 per stage" in one for one in pruned)


@pytest.mark.parametrize("stages", [2, 4, 8])
def test_zb_v_holds_what_the_first_stage_of_1f1b_does(stages: int) -> None:
    for count in (2 * stages, 64):
        held = SCHEDULES["zb-v"].moments(stages, 2, count).held
        most = held.sum(axis=2).max(axis=1) / 2
        assert (most == SCHEDULES["1f1b"].in_flight(0, stages, 64, 1)).all()


@pytest.mark.parametrize("name", [*TORCH, "1f1b", "zb-h1"])
@pytest.mark.parametrize(("stages", "micro_batches"), [(2, 4), (2, 16), (4, 8), (4, 13), (4, 40)])
def test_equal_stages_run_as_long_on_the_engine_as_the_form_says(name, stages, micro_batches):
    slow = devices(stages).scaled(compute=1e-6, memory_bandwidth=1e-6)
    question = ask(
        uniform(8), on=slow, plan=f"pp{stages} {name}", batch=micro_batches, micro_batch=1,
        optimizer="none", runtime_options=IDEAL,
    )  # fmt: skip
    simulated = simulate_scenario(question)
    took = simulated.run.end - simulated.run.start
    is_work = simulated.graph.task_kind == CHAIN
    parts = stages * question.plan.schedule.chunks
    forward, backward, weight = (
        np.full((1, parts), took[is_work & (simulated.graph.task_phase == phase)].max(initial=0.0))
        for phase in (FORWARD, BACKWARD, BACKWARD_WEIGHT)
    )
    none, count = np.zeros((1, parts - 1)), np.array([float(micro_batches)])
    columns = Pipelines(stages, forward, backward, weight, none, count, none)
    said = float(SCHEDULES[name].seconds(columns)[0])
    assert simulated.step_seconds == pytest.approx(said, rel=1e-4)


@pytest.mark.parametrize("name", TORCH)
@pytest.mark.parametrize("runtime", ["megatron", "torchtitan", "deepspeed"])
@pytest.mark.parametrize("plan", ["pp2 dp4 zero1", "pp4 dp2", "pp8"])
def test_search_and_simulator_agree(name: str, runtime: str, plan: str, monkeypatch) -> None:
    verify_all(monkeypatch)
    question = ask(
        "gpt2-xl",
        on="1 x dgx-h100",
        plan=f"{plan} {name}",
        batch=64,
        micro_batch=1,
        runtime=runtime,
    )
    task, simulated = Task.of(question), simulate_scenario(question)
    estimated = estimate(task, task.words(f"{question.plan.text} micro=1"))
    assert estimated.seconds == pytest.approx(simulated.step_seconds, rel=0.02)
    assert estimated.memory == pytest.approx(simulated.memory.peak_bytes, rel=0.001)


@pytest.mark.parametrize("name", TORCH)
def test_folding_changes_nothing(name: str) -> None:
    question = ask("gpt2", on="2 x aws:p3.8xlarge", plan=f"pp4 dp2 {name}", batch=16, micro_batch=1)
    folded, whole = (simulate_scenario(question, is_folded=f) for f in (True, False))
    assert folded.step_seconds == pytest.approx(whole.step_seconds, rel=1e-9)


@pytest.mark.parametrize("name", TORCH)
def test_tied_ends_on_one_stage_exchange_nothing(name: str) -> None:
    def tied(plan: str) -> list[float]:
        question = ask("gpt2", on="1 x dgx-h100", plan=plan, batch=64, micro_batch=1)
        graph = compile_scenario(question)
        works = (item.work for item in graph.items)
        return [w.bytes for w in works if isinstance(w, Communication) and w.purpose == "embedding"]

    assert tied("pp4 dp2 1f1b")
    assert not tied(f"pp4 dp2 {name}")


@pytest.mark.parametrize("name", TORCH)
def test_words_leave_its_chunks_open(name: str) -> None:
    words = parse(f"pp4 dp2 {name}")
    assert words.vpp == 2
    assert words.text() == f"pp4 dp2 {name}"
    assert parse(f"pp4 dp2 vpp2 {name}") == words
    document = {"mesh": {"pp": 4}, "tree": {"schedule": {"kind": name, "stages": 4}}}
    question = ask("gpt2", on=devices(4), plan=document, batch=32, micro_batch=1)
    assert question.plan.schedule.chunks == 2
    with pytest.raises(InputError, match=r"2 model chunks per stage, got 4.*set vpp to 2"):
        predict("gpt2-xl", on="1 x dgx-h100", plan=f"pp4 dp2 vpp4 {name}", batch=32)
    one = predict("gpt2", on="1 x dgx-h100", plan=f"dp8 {name}", batch=32)
    assert f"{name} in the plan has no effect: pp is 1." in one.warnings


@pytest.mark.parametrize("name", TORCH)
def test_numbers_that_do_not_suit_it_are_refused_with_a_remedy(name: str) -> None:
    def asked(plan: str, **words: Any) -> None:
        ask("gpt2-xl", on="1 x dgx-h100", plan=plan, batch=32, micro_batch=1, **words)

    with pytest.raises(InputError, match=f"vpp1: schedule '{name}' runs 2 model chunks.*Drop vpp1"):
        asked(f"pp4 dp2 vpp1 {name}")
    with pytest.raises(InputError, match=f"lists 4 parts but {name} has 2 chunks.*list 8 parts"):
        asked(f"pp4 dp2 {name} layers=12,12,12,12")
    with pytest.raises(InputError, match="lists 3 parts but pp 4 x vpp 1 = 4: list 4 parts"):
        asked("pp4 dp2 layers=16,16,16")


def test_too_few_micro_batches_come_with_a_remedy() -> None:
    told = r"1 micro-batch, 4 stages\. Use at least 8 micro-batches, or schedule 'zb-v'\."
    with pytest.raises(InputError, match=told):
        SCHEDULES["dualpipev"].order(0, 4, 1, 2)


@pytest.mark.parametrize("name", TORCH)
def test_searches_look_at_it_when_asked(name: str) -> None:
    where = f"schedule={name}, pp=2|4, tp=1, cp=1, zero=1, no offload, recompute=none, micro=1"
    question = {"on": "1 x dgx-h100", "batch": 64, "runtime": "torchtitan"}
    best = search("gpt2", **question, where=where, top=2)
    assert best.best
    assert all(row.plan.schedule.kind == name for row in best.best)
    task = Task.of(ask("gpt2", on="1 x dgx-h100", plan="dp8", batch=64))
    assert name not in space(task).palette.schedule


@pytest.mark.parametrize("name", TORCH)
def test_pages_and_exports_know_it(name: str, tmp_path) -> None:
    page = tmp_path / "page.html"
    predict("gpt2", on="1 x dgx-h100", plan=f"pp4 dp2 {name}", batch=64).save(page)
    assert name in page.read_text(encoding="utf-8")
    for target, reason in (("megatron", "Megatron-LM runs 1F1B"), ("nanotron", "1F1B is used")):
        made = export("llama3-8b", to=target, on="1 x dgx-h100", plan=f"pp4 dp2 {name}", batch=64)
        assert any(line.startswith(f"{name}: ") and reason in line for line in made.cannot)


# --- building blocks of controllable memory ---------------------------------------------------------


@pytest.mark.parametrize("name", ["v-min", "v-half"])
@pytest.mark.parametrize("stages", [1, 2, 3, 4, 5, 6, 7, 8, 12, 16])
def test_blocks_do_not_meet(name: str, stages: int) -> None:
    """Six slots apart, no two passes of any two blocks want the same slot of a stage, and none comes before the pass that
    it waits for."""
    kind = SCHEDULES[name]
    blocks = np.array([kind.block(stage, stages) for stage in range(stages)])  # type: ignore[attr-defined]
    assert all(len(set(row % 6)) == 4 for row in blocks)
    way = [*blocks[:, 0], *blocks[::-1, 1], *blocks[:, 2], *blocks[::-1, 3]]
    assert (np.diff(way) >= 1).all(), "each is a slot behind the one before it"


@pytest.mark.parametrize(
    ("name", "stages", "held", "idle"),
    [
        ("v-min", 4, 2.0, 11), ("v-min", 8, 4.0, 27), ("v-min", 16, 6.0, 59), ("v-min", 6, 3.0, 21),
        ("v-half", 4, 3.0, 12), ("v-half", 8, 5.0, 26), ("v-half", 16, 9.0, 54), ("v-half", 5, 3.0, 14),
    ],
)  # fmt: skip
def test_memory_and_bubble_of_blocks(name: str, stages: int, held: float, idle: int) -> None:
    """About a third and a half of 1F1B's activations on all stages, with less idle time than it: in passes of a half stage,
    of which 1F1B waits for 6 (p - 1)."""
    kind = SCHEDULES[name]
    most = max(kind.in_flight(stage, stages, 6 * stages, 2) for stage in range(stages))
    assert most / 2 == held
    assert kit.idle(kind, stages, 6 * stages, 2) * 2 == pytest.approx(idle)
    assert idle < 6 * (stages - 1)


@pytest.mark.parametrize("name", ["v-min", "v-half"])
def test_blocks_can_be_predicted_and_estimated(name: str) -> None:
    asked = {"on": "1 x dgx-h100", "batch": 64, "micro_batch": 1, "runtime": "generic"}
    peaks = {
        word: predict("gpt2-xl", plan=f"pp4 dp2 {word}", **asked).memory.peak_bytes
        for word in (name, "zb-v")
    }
    assert peaks[name] < peaks["zb-v"]
