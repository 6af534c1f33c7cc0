"""A few micro-batches on the engine against running every step in order, and against what can be counted by hand."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from test_search_pipelines import run_in_order

from foretrain.arrays import Floats
from foretrain.planning.exchanges import Exchanges, SendLinks
from foretrain.planning.hosts import leads
from foretrain.planning.plan_batch import mesh_of
from foretrain.planning.short_runs import Layout, PieceSeconds, ends, tasks_of
from foretrain.planning.task import Task
from foretrain.resolving import ask


def links(usage: Floats, classes: int = 1) -> SendLinks:
    """[directions · stages, links] of pipelines in step, or the same of several classes with an equal share each."""
    each = np.stack([usage / classes] * classes)
    fastest = np.full(each.shape[:2], float(classes))
    return SendLinks([np.array([number]) for number in range(classes)], each, fastest)


APART = links(np.zeros((4, 0)))  # two stages whose sends share no link


def layout(
    kind: str,
    stages: int,
    chunks: int = 1,
    *,
    has_host: bool = False,
    host_waits: bool = False,
    sends_block: bool = False,
) -> Layout:
    return Layout(kind, stages, chunks, has_host, host_waits, sends_block)


def pieces(
    *durations: Floats | list[float],
    latency: float = 0.0,
    flow: float = 0.0,
    host: float = 0.0,
    lead: float = 0.0,
) -> PieceSeconds:
    """Of one plan: forward, backward and weight-gradient seconds of its parts."""
    device = np.concatenate([np.asarray(column, dtype=np.float64) for column in durations])[None]
    sends = len(durations[0]) - 1
    return PieceSeconds(
        device,
        np.full_like(device, host),
        np.full_like(device, lead),
        np.full((1, sends), latency),
        np.full((1, sends), flow),
    )


def lasts(what: Layout, of: PieceSeconds, count: int, usage: SendLinks = APART) -> float:
    return float(ends(what, of, usage, np.array([float(count)])).max())


@pytest.mark.parametrize("count", [4, 8, 20, 52])
@pytest.mark.parametrize(
    ("kind", "stages", "chunks"),
    [
        ("1f1b", 4, 1),
        ("gpipe", 4, 1),
        ("zb-h1", 4, 1),
        ("interleaved", 2, 3),
        ("interleaved", 4, 2),
    ],
)
def test_runs_are_those_of_steps_in_order(kind: str, stages: int, chunks: int, count: int) -> None:
    random = np.random.default_rng(stages * chunks)
    parts = stages * chunks
    forward, backward, weight = (random.uniform(0.5, 1.5, parts) for _ in range(3))
    durations = (forward, 2.0 * backward, weight if kind == "zb-h1" else 0.0 * weight)
    usage = links(np.zeros((2 * stages, 0)))
    whole = run_in_order(kind, stages, durations, 0.3, count)
    found = lasts(layout(kind, stages, chunks), pieces(*durations, latency=0.3), count, usage)
    assert found == pytest.approx(whole, rel=1e-9 if count <= 8 else 2e-3)


def test_counts_that_stages_do_not_divide_are_run_as_they_are() -> None:
    durations = (np.array([1.0, 1.2, 0.9]), np.array([2.0, 2.2, 2.1]), np.zeros(3))
    usage = links(np.zeros((6, 0)))
    whole = run_in_order("1f1b", 3, durations, 0.1, 50)
    found = lasts(layout("1f1b", 3), pieces(*durations, latency=0.1), 50, usage)
    assert found == pytest.approx(whole, rel=1e-9)


def test_a_lone_micro_batch_waits_for_its_sends() -> None:
    found = lasts(layout("1f1b", 2), pieces([1.0, 1.0], [2.0, 2.0], [0.0, 0.0], latency=0.5, flow=0.25), 1)  # fmt: skip
    assert found == pytest.approx(1.0 + 0.75 + 1.0 + 2.0 + 0.75 + 2.0)


def test_sends_that_meet_on_a_link_take_longer() -> None:
    """Forward sends of the first stage and those back of the second on one link: two seconds of each for every
    micro-batch are all that it can carry."""
    shared = links(np.array([[1.0], [0.0], [0.0], [1.0]]))
    what = pieces([0.1, 0.1], [0.1, 0.1], [0.0, 0.0], flow=2.0)
    assert lasts(layout("1f1b", 2), what, 41, shared) == pytest.approx(4.0 * 41, rel=0.02)
    assert lasts(layout("1f1b", 2), what, 41) < 3.0 * 41


def test_sends_that_block_keep_their_stage_from_its_next_step() -> None:
    what = pieces([1.0, 1.0], [1.0, 1.0], [0.0, 0.0], latency=0.5)
    free, held = (
        lasts(layout("gpipe", 2, sends_block=blocks), what, 40) for blocks in (False, True)
    )
    assert held - free == pytest.approx(39 * 0.5 + 39 * 0.5)


def test_hosts_that_run_ahead_are_paid_for_once() -> None:
    what = pieces([1.0, 1.0], [1.0, 1.0], [0.0, 0.0], host=0.4, lead=0.2)
    plain = lasts(layout("1f1b", 2), what, 30)
    assert lasts(layout("1f1b", 2, has_host=True), what, 30) == pytest.approx(plain + 0.2)


def test_hosts_that_wait_for_a_lone_micro_batch_begin_when_it_is_there() -> None:
    """The first step's lead, then those of the last stage's forward step and of the first stage's backward step."""
    what = pieces([1.0, 1.0], [1.0, 1.0], [0.0, 0.0], host=0.4, lead=0.2)
    waiting = layout("1f1b", 2, has_host=True, host_waits=True)
    assert lasts(waiting, what, 1) == pytest.approx(4.0 + 3 * 0.2)


def test_slow_hosts_set_the_pace() -> None:
    what = pieces([1.0, 1.0], [1.0, 1.0], [0.0, 0.0], host=3.0, lead=2.0)
    assert lasts(layout("1f1b", 2, has_host=True), what, 50) == pytest.approx(50 * 6.0, rel=0.02)


def test_plans_side_by_side_do_not_meet() -> None:
    shared = links(np.array([[1.0], [0.0], [0.0], [1.0]]))
    one = pieces([0.3, 0.2], [0.5, 0.4], [0.0, 0.0], flow=0.4, latency=0.1)
    other = pieces([0.6, 0.7], [0.5, 0.9], [0.0, 0.0], flow=0.9)
    columns = ("device", "host", "lead", "latency", "flow")
    both = PieceSeconds(*(np.concatenate([getattr(p, n) for p in (one, other)]) for n in columns))
    found = ends(layout("1f1b", 2), both, shared, np.array([9.0, 9.0])).max(axis=1)
    assert found.tolist() == [lasts(layout("1f1b", 2), each, 9, shared) for each in (one, other)]


def test_plans_that_run_alike_are_run_once() -> None:
    one = pieces([0.3, 0.2], [0.5, 0.4], [0.0, 0.0], flow=0.4)
    other = pieces([0.3, 0.2], [0.5, 0.4], [0.0, 0.0], flow=0.5)
    columns = ("device", "host", "lead", "latency", "flow")
    rows = (one, other, one, one)
    several = PieceSeconds(*(np.concatenate([getattr(p, n) for p in rows]) for n in columns))
    first, stands_for = several.distinct(np.array([8.0, 8.0, 8.0, 9.0]))
    assert len(first) == 3
    assert stands_for[0] == stands_for[2]
    assert len({*stands_for[[0, 1, 3]].tolist()}) == 3


def test_chunks_send_round_the_ends() -> None:
    tasks = tasks_of(layout("interleaved", 2, 2), 2)
    assert sorted(set(tasks.boundary.tolist())) == [0, 1, 2]
    assert sorted(set(tasks.route.tolist())) == [0, 1, 2, 3]
    assert len(tasks.boundary) == 2 * 2 * 3


def meeting(on: str, plan: str) -> set[tuple[int, ...]]:
    """Which sends (direction · stages + stage) have a link in common."""
    asked = ask("gpt2", on=on, batch=32)
    task = Task(asked.workload, asked.cluster, asked.runtime)
    mesh = mesh_of(task, task.words(plan))
    found = Exchanges(task.network, task.runtime.communication.library).send_links(mesh)
    usage = found.usage.sum(axis=0)
    assert usage.shape[0] == 2 * mesh.size("pp")
    assert (usage.max(axis=1, initial=0.0) <= 1.0 + 1e-9).all()
    return {tuple(np.flatnonzero(link).tolist()) for link in usage.T}


def test_sends_both_ways_leave_a_node_over_its_one_card() -> None:
    """Each of four stages has a node: sends ahead and back leave it over the same card, and two arrive there."""
    found = meeting("4 x aws:p3.16xlarge", "pp4 dp8")
    leaving = {(stage, 4 + stage) for stage in range(4)}
    arriving = {tuple(sorted(((stage - 1) % 4, 4 + (stage + 1) % 4))) for stage in range(4)}
    assert found == leaving | arriving


def test_sends_inside_a_node_meet_nobody() -> None:
    assert meeting("2 x dgx-a100-80gb", "pp2 dp8 order=tp-cp-pp-dp") == set()


def classes_of(on: str, plan: str) -> list[list[int]]:
    asked = ask("gpt2", on=on, batch=32)
    task = Task(asked.workload, asked.cluster, asked.runtime)
    mesh = mesh_of(task, task.words(plan))
    exchanges = Exchanges(task.network, task.runtime.communication.library)
    return sorted(mine.tolist() for mine in exchanges.send_links(mesh).classes)


def test_pipelines_over_one_lane_and_over_two_are_classes_of_their_own() -> None:
    """Two stages on a node of V100s: some of their pairs have two NVLink lanes, some one."""
    unequal = classes_of("4 x aws:p3.16xlarge", "pp8 dp4")
    assert len(unequal) == 2
    assert sorted(np.concatenate(unequal).tolist()) == [0, 1, 2, 3]
    assert len(classes_of("4 x aws:p3.16xlarge", "pp4 dp8")) == 1  # a node for every stage
    assert len(classes_of("4 x dgx-a100-80gb", "pp8 dp4")) == 1  # switched


def test_classes_alike_run_as_one() -> None:
    shared = np.array([[1.0], [0.0], [0.0], [1.0]])
    one = pieces([0.1, 0.1], [0.1, 0.1], [0.0, 0.0], latency=0.2, flow=2.0)
    two = replace(one, latency=np.tile(one.latency, 2))
    expected = lasts(layout("1f1b", 2), one, 9, links(shared))
    assert lasts(layout("1f1b", 2), two, 9, links(shared, 2)) == pytest.approx(expected, rel=1e-9)


def test_classes_out_of_step_use_a_link_while_others_compute() -> None:
    shared = np.array([[1.0], [0.0], [0.0], [1.0]])
    one = pieces([0.5, 0.5], [0.5, 0.5], [0.0, 0.0], flow=0.5)
    apart = replace(one, latency=np.array([[0.0, 0.4]]))
    slower = replace(one, latency=np.array([[0.4]]))
    found = lasts(layout("1f1b", 2), apart, 64, links(shared, 2))
    assert found < lasts(layout("1f1b", 2), slower, 64, links(shared))


def test_hosts_fall_behind_block_by_block() -> None:
    """Two blocks of which the second is short on the device: the host has to be ahead for it by more."""
    layers = SimpleNamespace(
        forward=np.array([[[1.0, 0.1]]]),
        backward=np.array([[[1.0, 0.1]]]),
        weight=np.array([[[0.0, 0.0]]]),
        host_forward=np.array([[0.5, 0.5]]),
        host_backward=np.array([[0.5, 0.5]]),
        host_weight=np.array([[0.0, 0.0]]),
        lead=np.array([[[0.2, 0.2, 0.0], [0.3, 0.3, 0.0]]]),
    )
    task = SimpleNamespace(runtime=SimpleNamespace(network_polling=None))
    batch = SimpleNamespace(
        task=task, layers=layers, rows=np.array([0]), share=np.array([[1.0, 3.0]])
    )
    sends = SimpleNamespace(is_far=True)
    ahead, back, weight = (float(column[0, 0]) for column in leads(batch, sends))
    assert ahead == pytest.approx(max(0.2, -0.5 + 0.3 + 2 * 0.4))
    assert back == pytest.approx(max(0.3 + 2 * 0.4, 3 * 0.4 + 0.2))
    assert weight == 0.0
