"""A few micro-batches on the engine against running every step in order, and against what can be counted by hand."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from estimated_plan import fleet
from test_search_pipelines import run_in_order

from foretrain.arrays import Floats
from foretrain.planning.exchanges import Exchanges, SendLinks, _hops
from foretrain.planning.hosts import leads
from foretrain.planning.plan_batch import mesh_of
from foretrain.planning.sends import sends
from foretrain.planning.short_runs import Layout, PieceSeconds, _run, ends, tasks_of, tasks_of_run
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


@pytest.mark.parametrize("second", [1.0, 1e-3])
def test_sends_that_meet_on_a_link_take_longer(second: float) -> None:
    """Forward sends of the first stage and those back of the second on one link: two seconds of each for every
    micro-batch are all that it can carry."""
    shared = links(np.array([[1.0], [0.0], [0.0], [1.0]]))
    work = [0.1 * second] * 2
    what = pieces(work, work, [0.0, 0.0], flow=2.0 * second)
    assert lasts(layout("1f1b", 2), what, 41, shared) == pytest.approx(4.0 * 41 * second, rel=0.02)
    assert lasts(layout("1f1b", 2), what, 41) < 3.0 * 41 * second


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


@pytest.mark.parametrize(("kind", "is_joined"), [("zb-v", False), ("dualpipev", True)])
def test_gradients_leave_with_the_weight_gradients_they_are_made_with(kind: str, is_joined: bool) -> None:  # fmt: skip
    """… in schedules that join them, and as soon as they are made in others."""
    tasks, parts = tasks_of(layout(kind, 2, 2), 6), 4
    first = len(tasks.step)  # of the sends, which come after all steps
    leaves = tasks.source[: len(tasks.boundary)]
    assert tasks.target[: len(leaves)].tolist() == list(range(first, first + len(leaves)))
    phase, part = np.divmod(tasks.step[leaves], parts)
    assert (part - np.minimum(phase, 1) == tasks.boundary).all()
    assert set(phase.tolist()) == ({0, 1, 2} if is_joined else {0, 1})


class Wires:
    """A network of links written down: `paths[sender, receiver]` are those a send goes over."""

    def __init__(self, domains: list[int], capacity: list[float], is_network: list[bool], paths: dict[tuple[int, int], list[int]]) -> None:  # fmt: skip
        self.domain_of, self.capacity = np.array(domains), np.array(capacity)
        self.is_network, self.paths = np.array(is_network), paths

    def algorithms(self, collective: str) -> tuple[str]:
        assert collective == "send"
        return ("direct",)

    def pattern_loads(self, algorithm: str, pairs: Floats) -> SimpleNamespace:
        over = [(number, link) for number, pair in enumerate(pairs.tolist()) for link in self.paths[*pair]]  # fmt: skip
        group, link = np.array(over).T
        return SimpleNamespace(group=group, link=link, weight=np.ones(len(over)))


def wired(network: Wires, pipelines: list[list[int]]) -> SendLinks:
    mesh = SimpleNamespace(groups=lambda axes: np.array(pipelines))
    return Exchanges(network, "nccl").send_links(mesh)


@pytest.mark.parametrize(
    ("domains", "far"),
    [
        ([0, 0, 1, 0, 0, 1], [False, True, True]),  # … and the last sends to the first
        ([0, 0, 0, 0, 0, 1], [False, True, True]),  # one of the pipelines is enough
        ([0, 0, 0, 1, 1, 1], [False, False, False]),
    ],
)
def test_stages_are_far_where_any_pipeline_crosses(domains: list[int], far: list[bool]) -> None:
    ranks = np.arange(6).reshape(2, 3)
    found, pairs = _hops(Wires(domains, [], [], {}), ranks)  # type: ignore[arg-type]
    assert found.tolist() == far
    assert pairs.tolist() == [[[0, 1], [1, 2], [2, 0]], [[3, 4], [4, 5], [5, 3]]]


def test_a_send_uses_most_of_the_link_that_holds_it_back() -> None:
    """Two pipelines of two stages, a node each: cards of 2 and 4 out of the nodes, and a spine of 8 that all go over.
    The two sends out of the first node take 1 s of its card and 1/4 s of the spine; those out of the other a half of
    its card and 1/4 of the spine, half as long. What only one of all sends goes over is shared with nobody."""
    ahead, back = [0, 2], [1, 2]
    paths = {(0, 1): [*ahead, 3], (2, 3): ahead, (1, 0): back, (3, 2): back}
    network = Wires([0, 1, 0, 1], [2.0, 4.0, 8.0, 100.0], [True] * 4, paths)
    found = wired(network, [[0, 1], [2, 3]])
    assert [mine.tolist() for mine in found.classes] == [[0, 1]]
    # a stage's sends forward and back go the same way here: rows are forward of both stages, then back
    assert sorted(found.usage[0].T.tolist()) == [[0.0, 1.0, 0.0, 1.0], [0.25, 0.5, 0.25, 0.5], [1.0, 0.0, 1.0, 0.0]]  # fmt: skip
    assert found.fastest.tolist() == [[1.0] * 4]


def test_a_class_alone_is_as_much_faster_as_its_share_is_small() -> None:
    """Three pipelines, of which one has half the lane between its first two stages; all leave the node by one card."""
    paths: dict[tuple[int, int], list[int]] = {}
    for number in range(3):
        first, second, far = range(3 * number, 3 * number + 3)
        paths |= {(first, second): [number], (second, first): [number]}
        paths |= {(second, far): [3], (far, first): [4], (far, second): [4], (first, far): [3]}
    network = Wires([0, 0, 1] * 3, [2.0, 2.0, 1.0, 5.0, 5.0], [False] * 3 + [True] * 2, paths)
    found = wired(network, [[0, 1, 2], [3, 4, 5], [6, 7, 8]])
    assert sorted(mine.tolist() for mine in found.classes) == [[0, 1], [2]]
    two = [len(mine) for mine in found.classes].index(2)
    # forward of three stages, then back: those between the first two stages stay inside
    far = [1, 2, 3, 5]
    assert found.fastest[two][far] == pytest.approx(3 / 2)
    assert found.fastest[1 - two][far] == pytest.approx(3.0)
    assert found.usage[two].max(axis=1)[far] == pytest.approx(2 / 3)
    assert not found.usage[:, [0, 4]].any()


def test_sends_of_a_class_are_timed_over_its_own_lanes() -> None:
    """Between nodes all take as long; inside, those over one lane longer than those over two."""
    asked = ask("gpt2", on="4 x aws:p3.16xlarge", plan="pp8 dp4", batch=32)
    f = fleet(asked)
    between = f.exchanges.send_links(f.mesh)
    found = sends(f)
    each = found.latencies(between)
    assert each.shape == (1, 2, 7)
    far = np.array(found.flow[0] > 0.0)
    assert far.tolist() == [False, True] * 3 + [False]
    assert each[0, 0, far] == pytest.approx(each[0, 1, far])
    assert (each[0, 0, ~far] != each[0, 1, ~far]).all()
    assert each[0, :, ~far].max(axis=1) == pytest.approx(found.seconds[0, ~far]), (
        "the slower one decides"
    )
    lone = fleet(ask("gpt2", on="4 x dgx-a100-80gb", plan="pp8 dp4", batch=32))
    alike = sends(lone)
    found = alike.latencies(lone.exchanges.send_links(lone.mesh))
    assert found[:, 0] == pytest.approx(alike.seconds - alike.flow)
    assert len(found[0]) == 1


@pytest.mark.parametrize(("batch", "tasks"), [(16, 4 * 4 * 2), (32, 4 * 6 * 2), (3200, 4 * 6 * 2)])
def test_the_longer_of_two_runs_has_three_rounds(batch: int, tasks: int) -> None:
    """A step and a send each way of every part: of all micro-batches of four replicas, or of three times as many as there
    are stages."""
    f = fleet(ask("gpt2", on="1 x dgx-a100-80gb", plan="pp2 dp4", batch=batch, micro_batch=1))
    assert tasks_of_run(f).tolist() == [tasks]
    made = tasks_of(layout("1f1b", 2), min(batch // 4, 6))
    assert 0.7 * tasks < len(made) <= tasks


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


@pytest.mark.parametrize("late", [(0.0, 0.1), (0.03, 0.33), (0.0, 0.9)])
@pytest.mark.parametrize("count", [20, 65, 200])
def test_a_few_rounds_tell_what_all_take(late: tuple[float, float], count: int) -> None:
    """Of two classes that get out of step with each other, too."""
    shared = links(np.array([[1.0], [0.0], [0.0], [1.0]]), 2)
    one = pieces([0.5, 0.5], [0.5, 0.5], [0.0, 0.0], flow=0.5)
    apart, what = replace(one, latency=np.array([late])), layout("1f1b", 2)
    found = ends(what, apart, shared, np.array([float(count)]))
    assert found == pytest.approx(_run(what, count, apart, shared), rel=1e-3)


def test_a_stage_is_done_when_its_slowest_class_is() -> None:
    one = pieces([0.5, 0.5], [0.5, 0.5], [0.0, 0.0])
    both = replace(one, latency=np.array([[0.0, 0.4]]))
    slower = replace(one, latency=np.array([[0.4]]))
    unshared = links(np.zeros((4, 0)), 2)
    assert lasts(layout("1f1b", 2), both, 6, unshared) == lasts(layout("1f1b", 2), slower, 6)
    assert lasts(layout("1f1b", 2), slower, 6) > lasts(layout("1f1b", 2), one, 6)


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
