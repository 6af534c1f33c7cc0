"""What every task of a graph costs, put together once more task by task: from its items, its host and its links."""

from __future__ import annotations

import numpy as np
import pytest
from support.plans import tiny_model

from foretrain.compile.execution import (
    BACKWARD,
    CHAIN,
    COLLECTIVE,
    COPY,
    FORWARD,
    LAUNCH,
    LAUNCH_REST,
    TRANSFER,
    Communication,
    Compute,
    Copy,
)
from foretrain.cost import interference
from foretrain.cost.compute.base import latest
from foretrain.cost.compute.calibrated import Calibrated
from foretrain.cost.drift import with_waits
from foretrain.cost.host import chain_clock, host_seconds
from foretrain.cost.items import Surroundings, copy_rate, kernel_costs
from foretrain.cost.network import network_of
from foretrain.simulate import Simulation, simulate_scenario
from foretrain.testing.asking import ask

QUESTIONS = {
    "tensor and pipeline": ("gpt", "2 x dgx-a100-80gb", "tp4 pp2 dp2", {}),
    "experts that hide": ("moe", "1 x dgx-a100-80gb", "pp2 ep4 dp4", {"expert_overlap": 0.25}),
    "experts in the open": ("moe", "2 x dgx-1-v100-32gb", "ep8 dp16", {"expert_overlap": 0.0}),
    "copies": ("llama", "1 x aws:g5.48xlarge", "dp8 zero1 offload=optimizer", {}),
    "gathers": ("llama", "2 x dgx-a100-80gb", "dp16 zero3", {"overlap_param_gather": True}),
    "without slowing": ("gpt", "1 x dgx-a100-80gb", "tp2 dp4", {"overlap_slows": False}),
    "privileged": ("gpt", "2 x dgx-1-v100-32gb", "pp4 dp4", {"overlap_grad_reduce": True, "priorities": "pipeline:4"}),
    "in pieces": ("gpt", "1 x dgx-a100-80gb", "tp4 dp2 sp", {"tp_comm_overlap": True, "overlap_slows": False}),
    "mixed": ("gpt", "1 x dgx-a100-80gb + 1 x dgx-1-v100-32gb", "pp2 dp8", {"overlap_grad_reduce": True}),
}  # fmt: skip


def simulated(name: str) -> Simulation:
    model, on, plan, options = QUESTIONS[name]
    return simulate_scenario(ask(tiny_model(model), on=on, plan=plan, batch=64, runtime_options=options))  # fmt: skip


def lone_passes(graph) -> set[int]:
    """Forward before a device's first backward pass, backward after its last forward pass."""
    passes = {}
    for task in range(graph.tasks):
        if graph.task_kind[task] in (CHAIN, COLLECTIVE):
            phase, owner = int(graph.task_phase[task]), int(graph.task_class[task])
            passes.setdefault((owner, phase), []).append(task)
    lone = set()
    for owner in range(graph.fold.classes):
        ahead, back = passes.get((owner, FORWARD), []), passes.get((owner, BACKWARD), [])
        lone |= {t for t in ahead if not back or t < back[0]}
        lone |= {t for t in back if not ahead or t > ahead[-1]}
    return lone


class ByHand:
    """The parts that a task is made of."""

    def __init__(self, name: str) -> None:
        done = simulated(name)
        self.graph, self.costs, self.scenario = done.graph, done.costs, done.scenario
        self.hides = self.scenario.runtime.expert_parallel.expert_overlap
        self.lone = lone_passes(self.graph) if self.hides else set()

    def charge(self, work, task):
        fold, owner = self.graph.fold, int(self.graph.task_class[task])
        return self.costs.known.collective_costs[
            work, fold.mover_class(work.group, work.collective, owner)
        ]

    def hidden(self, work) -> float:
        is_hidden = isinstance(work, Communication) and work.purpose == "expert"
        return self.hides if is_hidden else 0.0

    def device_and_host(self, task) -> list[tuple[float, float]]:
        """Of every item of a task, one after the other."""
        graph, host = self.graph, self.scenario.runtime.host
        shape, owner = int(graph.task_shape[task]), int(graph.task_class[task])
        low, high = graph.shape_ptr[shape : shape + 2]
        found = []
        for index in graph.shape_items[low:high].tolist():
            item, seconds = graph.items[index], float(self.costs.item_seconds[owner, index])
            if task in self.lone:  # nothing to hide under: all of it is seen
                hidden = self.hidden(item.work)
                seconds += self.charge(item.work, task).seconds * hidden if hidden else 0.0
            is_kernel = isinstance(item.work, Compute)
            issue = host.host_seconds_per_kernel if is_kernel else host.host_seconds_per_collective
            if item.beside is not None:
                issue += host.host_seconds_per_collective
            found.append((seconds, issue))
        return found


def own_parts(hand: ByHand, task: int, index: int) -> list[float]:
    """Of one item on a task's class of ranks: seconds of its kernel, on links of a node, and on the network."""
    owner, item = int(hand.graph.task_class[task]), hand.graph.items[index]
    scenario, parts = hand.scenario, [0.0] * 4
    fold, cluster = hand.graph.fold, scenario.cluster
    kind = int(np.asarray(cluster.device_kind)[fold.examples[owner]])
    if isinstance(item.work, Compute):
        around = Surroundings(cluster, scenario.runtime, network_of(cluster), Calibrated())
        parts[0] = float(kernel_costs([item.work.kernel], kind, around).seconds[0])
    if isinstance(item.work, Copy):
        node = cluster.node(int(cluster.node_of[fold.examples[owner]]))
        parts[1] = item.work.bytes / copy_rate(cluster.devices[kind], node, item.work.direction)
    if isinstance(item.work, Communication):
        charged = hand.charge(item.work, task)
        parts[1 + charged.is_network] = charged.seconds * (1.0 - hand.hidden(item.work))
    if item.beside is not None:
        ranks = fold.groups[item.beside.group].groups.shape[1]
        under = parts[0] * ((ranks - 1) / ranks if item.in_pieces else 1.0)
        charged = hand.charge(item.beside, task)
        parts[1 + charged.is_network] = max(0.0, charged.contended_seconds - under)
    return parts


def ends(items: list[tuple[float, float]]) -> tuple[float, float, float]:
    """Device seconds, host seconds, and how far the host must be ahead, kernel by kernel."""
    ran = issued = lead = 0.0
    for device, host in items:
        issued += host
        lead = max(lead, issued - ran)
        ran += device
    return ran, issued, lead


@pytest.mark.parametrize("name", QUESTIONS)
def test_seconds_of_every_task_are_those_of_its_items(name):
    hand = ByHand(name)
    graph, costs = hand.graph, hand.costs
    for task in range(graph.tasks):
        kind, items = int(graph.task_kind[task]), hand.device_and_host(task)
        device, host, lead = ends(items)
        expected = {LAUNCH: lead, LAUNCH_REST: host - lead}.get(kind, device)
        if kind in (COLLECTIVE, TRANSFER):
            (work,) = (item.work for item in graph.shape(int(graph.task_shape[task])))
            seen = 1.0 if task in hand.lone else 1.0 - hand.hidden(work)
            expected = hand.charge(work, task).choice.latency * seen
        assert costs.seconds[task] == pytest.approx(expected, rel=1e-12, abs=1e-18)
        row = costs.alike[task]
        if kind == CHAIN:
            assert costs.breakdown[row].sum() == pytest.approx(device, rel=1e-12)
            assert costs.first_launch[row] == pytest.approx(items[0][1])
            share = costs.breakdown[row, 0] / device if device else 0.0
            assert costs.sensitivity[task] == pytest.approx(min(1.0, share))
        else:
            assert costs.breakdown[row].tolist() == [0.0] * 4
            assert costs.first_launch[row] == 0.0
            assert costs.sensitivity[task] == 1.0


@pytest.mark.parametrize("name", QUESTIONS)
def test_items_take_their_kernels_copies_or_collectives(name):
    hand = ByHand(name)
    graph, costs, pieces = hand.graph, hand.costs, 0
    known = {}
    for task in range(graph.tasks):
        kind, owner, shape = (int(c[task]) for c in (graph.task_kind, graph.task_class, graph.task_shape))  # fmt: skip
        if kind not in (CHAIN, COPY):
            continue
        low, high = graph.shape_ptr[shape : shape + 2]
        total = np.zeros(4)
        for index in graph.shape_items[low:high].tolist():
            if (owner, index) not in known:
                known[owner, index] = own_parts(hand, task, index)
            total += known[owner, index]
            pieces += graph.items[index].in_pieces
            assert costs.item_seconds[owner, index] == pytest.approx(sum(known[owner, index]))
            work = graph.items[index].work
            if isinstance(work, Communication):
                charged, alone = hand.charge(work, task), costs.item_seconds[owner, index]
                assert costs.item_measured[owner, index] == (alone if charged.is_measured else 0.0)
                assert costs.item_left[owner, index] == (alone if charged.left else 0.0)
        if kind == CHAIN and task not in hand.lone:
            assert costs.breakdown[costs.alike[task]] == pytest.approx(total)
    assert bool(pieces) == (name == "in pieces")


def test_what_kernels_rest_on_and_how_certain_they_are_is_kept_beside_their_seconds():
    done = simulated("mixed")
    costs, fold, cluster = done.costs, done.graph.fold, done.scenario.cluster
    around = Surroundings(cluster, done.scenario.runtime, network_of(cluster), Calibrated())
    kinds = np.asarray(cluster.device_kind)[fold.examples]
    measured = set()
    for index, item in enumerate(done.graph.items):
        if not isinstance(item.work, Compute):
            continue
        for owner, kind in enumerate(kinds.tolist()):
            alone = kernel_costs([item.work.kernel], kind, around)
            seconds, is_measured = float(alone.seconds[0]), bool(alone.measured[0])
            assert costs.item_spread[owner, index] == pytest.approx(alone.spread[0] * seconds)
            assert costs.item_measured[owner, index] == pytest.approx(is_measured * seconds)
            measured.add(is_measured)
    assert True in measured


@pytest.mark.parametrize("name", QUESTIONS)
def test_flows_carry_their_volume_over_their_own_route(name):
    hand = ByHand(name)
    graph, costs = hand.graph, hand.costs
    priorities = dict(hand.scenario.runtime.communication.priorities)
    used, routes = costs.network_routes, costs.routes
    for task in range(graph.tasks):
        if graph.task_kind[task] not in (COLLECTIVE, TRANSFER):
            assert (costs.volume[task], costs.route[task]) == (0.0, -1)
            assert not costs.is_network[task]
            assert costs.moved[costs.alike[task]] == 0.0
            continue
        (work,) = (item.work for item in graph.shape(int(graph.task_shape[task])))
        cost, priority = hand.charge(work, task), priorities.get(work.purpose, 1.0)
        seen = 1.0 if task in hand.lone else 1.0 - hand.hidden(work)
        assert costs.volume[task] == pytest.approx(cost.choice.volume * seen / priority)
        assert costs.moved[costs.alike[task]] == pytest.approx(cost.choice.moved / priority)
        assert costs.is_network[task] == cost.is_network
        mine, there = (
            slice(*pointers[at : at + 2])
            for pointers, at in ((routes.ptr, costs.route[task]), (used.ptr, cost.route))
        )
        assert routes.link[mine].tolist() == used.link[there].tolist()
        assert routes.weight[mine] == pytest.approx(used.weight[there] * priority)
        ceiling = (cost.choice.max_rate or np.inf) / priority
        assert routes.ceiling[costs.route[task]] == pytest.approx(ceiling)


@pytest.mark.parametrize("name", QUESTIONS)
def test_a_task_slows_what_runs_beside_it_by_what_it_does(name):
    """Read back from the table that the engine takes: the factor of each pair of tasks of one device."""
    hand = ByHand(name)
    graph, costs, cluster = hand.graph, hand.costs, hand.scenario.cluster
    kinds = np.asarray(cluster.device_kind)[graph.fold.examples]
    felt = hand.scenario.runtime.communication.overlap_slows
    seen = {}
    for task in range(graph.tasks):
        seen.setdefault((int(graph.task_class[task]), int(costs.activity[task])), task)
        if not graph.task_accompanied[task] or graph.task_kind[task] == TRANSFER:
            assert costs.activity[task] == 0

    def does(task: int) -> tuple[str, bool]:
        kind = int(graph.task_kind[task])
        if costs.activity[task] == 0:
            return "nothing", False
        if kind == COPY:
            (item,) = graph.shape(int(graph.task_shape[task]))
            return {"to_device": "copy_in", "to_host": "copy_out"}[item.work.direction], False
        return ("compute" if kind == CHAIN else "collective"), bool(costs.is_network[task])

    for owner, one in seen:
        for other_owner, other in seen:
            if owner != other_owner:
                continue
            (first, is_far), (second, is_other_far) = (does(seen[owner, n]) for n in (one, other))
            expected = 1.0
            both = first == second == "collective"
            if felt and "nothing" not in (first, second) and not (both and is_far + is_other_far):
                table = interference.factors(cluster.devices[kinds[owner]], is_far or is_other_far)
                names = interference.ACTIVITIES
                expected = table[names.index(first), names.index(second)]
            assert costs.slowdown[one, other] == pytest.approx(expected)


@pytest.mark.parametrize("name", ["tensor and pipeline", "gathers", "mixed"])
def test_routes_are_as_fast_as_the_worst_link_that_all_groups_load(name):
    """Every group of the cluster on every link, in dictionaries."""
    done = simulated(name)
    costs, fold = done.costs, done.graph.fold
    routes, network = costs.network_routes, network_of(done.scenario.cluster)
    collectives = {work.group: set() for work, _ in costs.known.collective_costs}
    for work, _ in costs.known.collective_costs:
        collectives[work.group].add(work.collective)
    checked = 0
    for (communicator, pattern, mover), route in routes.number.items():
        found = fold.groups[communicator]
        for collective in sorted(collectives.get(communicator, ())):
            able = {a.pattern: a for a in network.algorithms(collective)}
            if pattern not in able or (communicator, collective) in fold.subgroups:
                continue
            loads = network.pattern_loads(able[pattern], found.groups)
            mine, alike, all_ = {}, {}, {}
            for group, link, weight in zip(loads.group, loads.link, loads.weight, strict=True):
                all_[link] = all_.get(link, 0.0) + weight
                if found.group_class[group] == mover:
                    alike[link] = alike.get(link, 0.0) + weight
                if group == found.examples[mover]:
                    mine[link] = mine.get(link, 0.0) + weight
            capacity = network.capacity
            own = min((capacity[link] / w for link, w in mine.items()), default=np.inf)
            rate = min((capacity[link] / w for link, w in alike.items()), default=np.inf)
            crowd = min((capacity[link] / all_[link] for link in alike), default=np.inf)
            assert routes.own_rate[route] == pytest.approx(own)
            assert routes.rate[route] == pytest.approx(rate)
            assert routes.contended_rate[route] == pytest.approx(crowd)
            assert routes.is_network[route] == any(network.is_network[link] for link in alike)
            at = slice(*routes.ptr[route : route + 2])
            kinds = {(float(capacity[link]), round(w, 9)) for link, w in alike.items()}
            told = zip(routes.capacity[routes.link[at]], routes.weight[at], strict=True)
            assert {(float(rate), round(w, 9)) for rate, w in told} == kinds
            checked += 1
    assert checked >= 2
    for constraint, link in enumerate(routes.example.tolist()):
        assert routes.capacity[constraint] == network.capacity[link]
        assert routes.on_network[constraint] == network.is_network[link]
    assert (routes.count >= 1).all()


@pytest.mark.parametrize("name", ["tensor and pipeline", "experts in the open", "gathers"])
def test_waits_grow_with_the_root_of_the_time_since_a_class_met_others(name):
    done = simulated(name)
    graph, costs = done.graph, done.costs
    late = with_waits(graph, costs, 1e-3, 16)
    pace, apart = 1e-3 * latest(16), dict.fromkeys(range(graph.fold.classes), 0.0)
    for task in range(graph.tasks):
        owner, shape, more = int(graph.task_class[task]), int(graph.task_shape[task]), 0.0
        if graph.task_kind[task] == COLLECTIVE:
            more, apart[owner] = pace * apart[owner] ** 0.5, 0.0
        elif graph.task_kind[task] == CHAIN:
            low, high = graph.shape_ptr[shape : shape + 2]
            for index in graph.shape_items[low:high].tolist():
                if isinstance(graph.items[index].work, Communication):
                    more, apart[owner] = more + pace * apart[owner] ** 0.5, 0.0
                else:
                    apart[owner] += costs.item_seconds[owner, index]
            before = costs.breakdown[costs.alike[task]]
            assert late.breakdown[task] == pytest.approx(before + np.array([0.0, more, 0.0, 0.0]))
            assert late.first_launch[task] == costs.first_launch[costs.alike[task]]
        assert late.seconds[task] == pytest.approx(costs.seconds[task] + more)
    assert late.alike.tolist() == list(range(graph.tasks))
    assert late.seconds.sum() > costs.seconds.sum()
    assert with_waits(graph, costs, 0.0, 16) is costs
    assert with_waits(graph, costs, 1e-3, 1) is costs


def test_hosts_of_tensor_parallel_groups_are_late_where_pipelines_cross_the_network():
    """Each of four ranks by so much; inside a node nothing is waited for, and kernels never do."""
    polling = {"host_delay_on_network": 1e-5}
    for name, each in (("tensor and pipeline", 1e-5), ("in pieces", 0.0)):
        done = simulated(name)
        items, fold = done.graph.items, done.graph.fold
        plain = done.scenario.runtime
        found, usual = (
            host_seconds(items, fold, done.scenario.cluster, stack)
            for stack in (plain.with_options(polling), plain)
        )
        for item, late in zip(items, (found - usual).tolist(), strict=True):
            work = item.work if isinstance(item.work, Communication) else item.beside
            is_tensor = work is not None and work.purpose == "tensor"
            assert late == pytest.approx(4 * each if is_tensor else 0.0, abs=1e-12)


@pytest.mark.parametrize("name", ["mixed", "tensor and pipeline"])
@pytest.mark.parametrize("graphs", [False, True])
def test_the_clock_of_a_chain_is_that_of_its_kernels_and_of_the_host_that_issues_them(name, graphs):
    """A kernel ends after it was issued and after the one before it has ended."""
    done = simulated(name)
    scenario, graph = done.scenario, done.graph
    stack = scenario.runtime.with_options(
        {"uses_cuda_graphs": graphs, "host_seconds_per_kernel": 2e-5, "kernel_slowdown": 1.5}
    )
    chains = {int(s) for s, k in zip(graph.task_shape, graph.task_kind, strict=True) if k == CHAIN}
    items = graph.shape(max(chains, key=lambda shape: len(graph.shape(shape))))
    found = chain_clock(scenario.cluster, stack, Calibrated(), items)
    issued = ended = 0.0
    expected = [0.0]
    for item in items:
        if isinstance(item.work, Compute):
            each = [Calibrated().seconds([item.work.kernel], d).seconds[0] for d in scenario.cluster.devices]  # fmt: skip
            issued += 0.0 if graphs else 2e-5
            ended = max(ended, issued) + 1.5 * max(each)
        expected.append(ended)
    assert found == pytest.approx(expected)
