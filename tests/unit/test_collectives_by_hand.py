"""Steps, volumes, gossip partners and graphs, worked out by hand on small groups."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from foretrain.cost.collectives import Steps, algorithms_for
from foretrain.cost.collectives.base import Algorithm, GroupTopology, in_order, members
from foretrain.cost.collectives.direct import AllPairs, Direct, Matrix, Pairwise, Variable
from foretrain.cost.collectives.doubling import (
    Binomial,
    Bruck,
    HalvingDoubling,
    Pat,
    RecursiveDoubling,
    ScatterGather,
    Swing,
)
from foretrain.cost.collectives.gossip import Gossip, HierarchicalGossip, InnerOuter, holds_domain
from foretrain.cost.collectives.graphs import graph
from foretrain.cost.collectives.nvls import Nvls, NvlsTree
from foretrain.cost.collectives.parameter_server import ParameterServer
from foretrain.cost.collectives.program import CollectiveProgram, Round
from foretrain.cost.collectives.ring import ChainAlgorithm, Hierarchical, Ring
from foretrain.cost.collectives.tree import DoubleTree
from foretrain.errors import InputError

STEPS = [
    (Ring(), "all_reduce", 8, 1, 14, 0), (Ring(), "all_reduce", 8, 2, 12, 2), (Ring(), "all_gather", 8, 4, 4, 3),
    (ChainAlgorithm("reduce"), "reduce", 8, 1, 7, 0), (ChainAlgorithm("reduce"), "reduce", 8, 3, 5, 2),
    (Hierarchical("all_reduce"), "all_reduce", 8, 2, 6, 2), (Hierarchical("all_reduce"), "all_reduce", 7, 2, 6, 2),
    (Hierarchical("all_gather"), "all_gather", 12, 3, 3, 2), (Hierarchical("all_gather"), "all_gather", 5, 1, 4, 0),
    (AllPairs(), "all_reduce", 8, 1, 2, 0), (AllPairs(), "all_reduce", 8, 2, 2, 2), (AllPairs(), "all_gather", 8, 2, 1, 1),
    (Pairwise(), "all_to_all", 8, 2, 3, 4), (Pairwise(), "all_to_all", 7, 2, 3, 3), (Direct(), "all_to_all", 8, 2, 1, 1),
    (HalvingDoubling(), "all_reduce", 8, 2, 4, 2), (HalvingDoubling(), "all_reduce", 6, 3, 2, 4),
    (RecursiveDoubling(), "all_reduce", 8, 2, 2, 1), (RecursiveDoubling(), "all_reduce", 6, 1, 4, 0),
    (Swing(), "all_reduce", 8, 1, 6, 0), (Swing(), "all_reduce", 8, 2, 2, 4), (Swing(), "all_reduce", 8, 4, 2, 4),
    (Swing(), "all_reduce", 8, 8, 0, 6), (Swing(), "all_reduce", 6, 3, 0, 6), (Swing(), "all_reduce", 8, 3, 0, 6),
    (Bruck(), "all_to_all", 8, 4, 1, 2), (Pat(), "all_gather", 9, 2, 3, 1), (ScatterGather(), "broadcast", 8, 2, 8, 2),
    (Binomial("all_reduce"), "all_reduce", 8, 2, 4, 2), (Binomial("broadcast"), "broadcast", 8, 2, 2, 1),
    (DoubleTree(), "all_reduce", 8, 2, 6, 2), (DoubleTree(), "all_reduce", 7, 2, 6, 2), (DoubleTree(), "all_reduce", 5, 5, 0, 6),
    (Nvls(), "all_reduce", 8, 1, 1, 0), (NvlsTree(), "all_reduce", 16, 4, 1, 4),
    (ParameterServer(1), "parameter_server", 8, 1, 2, 0), (ParameterServer(3), "parameter_server", 8, 2, 0, 6),
    (ParameterServer(0), "parameter_server", 8, 1, 14, 0), (ParameterServer(2, True), "parameter_server", 8, 1, 4, 0),
    (HierarchicalGossip(), "hierarchical_neighbour_all_reduce", 8, 2, 9, 1), (Gossip(), "neighbour_all_reduce", 8, 2, 1, 1),
    (HierarchicalGossip(), "hierarchical_neighbour_all_reduce", 8, 1, 14, 0),
    (HierarchicalGossip(), "hierarchical_neighbour_all_reduce", 7, 2, 9, 1),
]  # fmt: skip


@pytest.mark.parametrize(
    ("algorithm", "collective", "ranks", "domains", "inside", "between"),
    STEPS,
    ids=lambda x: str(getattr(x, "name", x)),
)
def test_hops_inside_domains_and_between_them(
    algorithm: Algorithm, collective: str, ranks: int, domains: int, inside: int, between: int
) -> None:
    assert algorithm.steps(collective, ranks, domains) == Steps(inside, between)


def test_volumes_where_phases_do_not_overlap() -> None:
    """Of six ranks two hand over their buffer and get it back, beside a core of four."""
    assert HalvingDoubling().volume("all_reduce", 10.0, 6) == pytest.approx(10 * 3.5 / 2.5)
    assert HalvingDoubling().volume("all_reduce", 10.0, 8) == 10.0
    assert RecursiveDoubling().volume("all_reduce", 10.0, 6) == pytest.approx(10 * 4 / 3)
    assert RecursiveDoubling().volume("all_reduce", 10.0, 8) == 10.0
    assert [Binomial(c).volume(c, 10.0, 8) for c in ("all_reduce", "reduce")] == [20.0, 10.0]
    assert Nvls().volume("all_gather", 10.0, 8) == 10.0
    # 2(n-1)/(n+s-2) for s servers among n ranks
    server = ParameterServer(2)
    assert server.volume("parameter_server", 10.0, 8) == pytest.approx(10 * 14 / 8)
    assert ParameterServer(0).volume("parameter_server", 10.0, 8) == pytest.approx(10.0)


def test_connections_side_by_side() -> None:
    nodes = {"link_family": "nvlink", "rate": 1e9}
    assert Ring().streams(GroupTopology(16, 2, **nodes)) == 8
    assert Ring().streams(GroupTopology(3, 4, **nodes)) == 1
    assert Ring().streams(GroupTopology(16, 1, **nodes)) == 1
    assert Direct().streams(GroupTopology(16, 2, **nodes)) == 15


def test_senders_that_meet_in_a_port() -> None:
    """Workers of one server but itself; of several servers their share of the workers."""
    servers = ((1, False, 7), (2, False, 4), (3, False, 3), (0, False, 1), (1, True, 7), (3, True, 2))  # fmt: skip
    for count, is_dedicated, senders in servers:
        assert ParameterServer(count, is_dedicated).fan_in(8) == senders
    # rank 0 sends all it has to 1 and 2, rank 1 all to 2
    uneven = Matrix.of([[9.0, 3.0, 1.0], [0.0, 0.0, 8.0], [0.0, 0.0, 5.0]])
    assert uneven.fan_in(3) == pytest.approx(1 / 4 + 1)
    assert Variable(1.0).fan_in(4) == pytest.approx(3 * 0.5 / (0.5 + 2 / 6))
    assert Gossip("star").fan_in(4) == 3.0
    assert (
        Gossip("edges:0>1,0>2,1>2,2>0").fan_in(3) == 1.5
    )  # half of what 0 sends, all of what 1 does
    assert Gossip("one_peer_exponential2").fan_in(8) == 1.0


def test_servers_are_spread_over_the_group() -> None:
    workers, servers = ParameterServer(3).places(8)
    assert (workers.tolist(), servers.tolist()) == (list(range(8)), [0, 2, 5])
    workers, servers = ParameterServer(9, is_dedicated=True).places(4)
    assert (workers.tolist(), servers.tolist()) == ([3], [0, 1, 2])
    for wrong in ({"servers": -1}, {"servers": 0, "is_dedicated": True}):
        with pytest.raises(InputError, match="must be 1 or more"):
            ParameterServer(**wrong)


def sends(program: CollectiveProgram) -> list[list[tuple[int, int, float]]]:
    """(from, to, bytes) of every round."""
    return [sorted(zip(r.src.tolist(), r.dst.tolist(), r.bytes.tolist(), strict=True)) for r in program.rounds]  # fmt: skip


def test_workers_start_with_their_own_server_and_go_on_to_the_next() -> None:
    """Servers 0, 2 and 4 hold a third each; the pulls are the pushes the other way."""
    program = ParameterServer(3).program("parameter_server", 3.0, np.zeros(6, dtype=np.int64))
    found = sends(program)
    assert found[0] == [(1, 0, 1.0), (3, 2, 1.0), (5, 4, 1.0)]
    assert found[1] == [(w, server, 1.0) for w, server in enumerate((2, 2, 4, 4, 0, 0))]
    assert found[2] == [(w, server, 1.0) for w, server in enumerate((4, 4, 0, 0, 2, 2))]
    assert found[3] == [(0, 1, 1.0), (2, 3, 1.0), (4, 5, 1.0)]


def test_switches_add_up_what_their_domains_send() -> None:
    """Two domains of two: all to their switch, which gives each rank half of the sum; then trees between domains."""
    program = NvlsTree().program("all_reduce", 4.0, np.array([0, 0, 1, 1]))
    found = sends(program)
    assert found[0] == [(0, 4, 4.0), (1, 4, 4.0), (2, 5, 4.0), (3, 5, 4.0)]
    assert found[1] == [(4, 0, 2.0), (4, 1, 2.0), (5, 2, 2.0), (5, 3, 2.0)]
    assert (
        sum(size for _, _, size in found[2]) == 4.0
    )  # a tree each way for both halves of two channels
    one = sends(Nvls().program("reduce_scatter", 4.0, np.zeros(2, dtype=np.int64)))
    assert one == [[(0, 2, 4.0), (1, 2, 4.0)], [(2, 0, 2.0), (2, 1, 2.0)]]


def test_which_groups_a_switch_reduces_for() -> None:
    """Three ranks or more of one switch; trees join several, each with ranks that share it."""

    def able(algorithm: Algorithm, ranks: int, domains: int, **more: Any) -> bool:
        hopper = {"architecture": "hopper", "has_switch": True} | more
        return algorithm.why_not(GroupTopology(ranks, domains, "nvlink", 1e9, **hopper)) is None

    one = [able(Nvls(), *group) for group in ((2, 1), (3, 1), (8, 1), (8, 2))]
    assert one == [False, True, True, False]
    several = [able(NvlsTree(), *group) for group in ((8, 1), (8, 2), (8, 7), (8, 8))]
    assert several == [False, True, True, False]
    for lacking in ({"has_switch": False}, {"architecture": "ampere"}):
        assert not able(Nvls(), 8, 1, **lacking)
        assert not able(NvlsTree(), 8, 2, **lacking)


def test_the_first_rank_is_the_hot_one() -> None:
    src, dst, weight = Variable(1.0).edges(4)
    pairs = dict(zip(zip(src.tolist(), dst.tolist(), strict=True), weight.tolist(), strict=True))
    assert pairs == {(a, b): pytest.approx(0.5 if b == 0 else 1 / 6) for a in range(4) for b in range(4) if a != b}  # fmt: skip
    for wrong in ([[1.0, 2.0, 3.0], [1.0, 2.0, 3.0]], [[1.0, 2.0]] * 3):
        with pytest.raises(InputError, match="must be square"):
            Matrix.of(wrong)
    assert Matrix.of([[0.0, 0.5], [0.0, 0.0]]).mean_bytes == 0.25


def test_what_a_program_says_of_itself() -> None:
    """Rank 0 tells 1, which tells a switch, which tells 2."""
    rounds = tuple(Round.of(np.array([a]), np.array([b]), 5.0) for a, b in ((0, 1), (1, 3), (3, 2)))
    program = CollectiveProgram(3, rounds)
    assert program.uses_switch
    assert not CollectiveProgram(4, rounds).uses_switch
    assert program.heard().astype(int).tolist() == [[1, 0, 0], [1, 1, 0], [1, 1, 1]]
    assert program.sent().tolist() == [5, 5, 0]
    assert program.received().tolist() == [0, 5, 5]
    assert program.messages().tolist() == [1, 1, 0]
    assert program.seconds(1.0, 0.1) == pytest.approx(3 * 1.5)


def test_domains_are_numbered_as_they_are_met() -> None:
    assert in_order(np.array([7, 3, 7, 9, 3])).tolist() == [0, 1, 0, 2, 1]
    assert [own.tolist() for own in members(np.array([0, 1, 0, 2]))] == [[0, 2], [1], [3]]


# --- gossip -------------------------------------------------------------------------------------


def partners(iteration: int, *layout: int) -> list[int]:
    """Whom each rank sends to."""
    [step] = InnerOuter(iteration).program("inner_outer_all_reduce", 1.0, np.array(layout)).rounds
    return [int(step.dst[step.src == rank][0]) for rank in range(len(layout))]


def test_inner_outer_within_one_machine_is_the_one_peer_graph() -> None:
    for iteration, shift in enumerate((1, 2, 4, 1)):
        assert partners(iteration, *[0] * 8) == [(rank + shift) % 8 for rank in range(8)]
    assert partners(2, 0, 0, 0, 0, 0) == [4, 0, 1, 2, 3]


def test_inner_outer_over_three_machines_of_two() -> None:
    """In turn each rank of a machine goes out, one machine further and two; the other sends to it."""
    machines = (0, 0, 1, 1, 2, 2)
    assert partners(0, *machines) == [2, 0, 4, 2, 0, 4]
    assert partners(1, *machines) == [1, 5, 3, 1, 5, 3]
    assert partners(2, *machines) == partners(0, *machines)
    # of unlike machines the place is taken around the smaller
    assert partners(2, 0, 0, 0, 1, 1)[2] == 3


def test_inner_outer_steps_over_the_one_that_is_away() -> None:
    """Four of a machine, rank 1 away: 0 sends 2 further, to 3 in the next iteration's distance …"""
    assert partners(1, 0, 0, 0, 0, 1, 1, 1, 1)[:4] == [3, 5, 0, 2]
    assert partners(4, 0, 0, 0, 0, 1, 1, 1, 1)[:4] == [4, 2, 3, 1]
    assert partners(0, 0, 0, 0, 1, 1, 1)[:3] == [3, 2, 1]


def test_hierarchical_gossip_reduces_exchanges_and_spreads() -> None:
    """Two machines: a ring all-reduce inside, one exchange of first ranks, one buffer along each chain."""
    gossip = HierarchicalGossip("ring_left")
    program = gossip.program("hierarchical_neighbour_all_reduce", 6.0, np.array([0, 0, 0, 1]))
    assert len(program.rounds) == 4 + 1 + 2
    exchange = program.rounds[4]
    assert {*zip(exchange.src.tolist(), exchange.dst.tolist(), strict=True)} == {(0, 3), (3, 0)}
    assert exchange.bytes.tolist() == [6.0, 6.0]
    spread = [(r.src.tolist(), r.dst.tolist(), r.bytes.tolist()) for r in program.rounds[5:]]
    assert spread == [([0], [1], [6.0]), ([1], [2], [6.0])]
    full = HierarchicalGossip("fully_connected")
    last = full.program("hierarchical_neighbour_all_reduce", 6.0, np.array([0, 0, 1, 2])).rounds[-1]
    assert last.bytes.tolist() == [12.0]  # what the two others sent
    one = gossip.program("hierarchical_neighbour_all_reduce", 6.0, np.zeros(3, dtype=np.int64))
    assert len(one.rounds) == 4
    assert holds_domain("hierarchical_neighbour_all_reduce(ring_left)")
    assert not holds_domain("neighbour_all_reduce(ring_left)")


def test_one_peer_turns_are_averaged() -> None:
    src, dst, weight = Gossip("one_peer_exponential2").edges(8)
    assert sorted(set((dst - src) % 8)) == [1, 2, 4]
    assert weight.tolist() == pytest.approx([1 / 3] * 24)
    assert Gossip("one_peer_exponential2").edges(2)[2].tolist() == [1.0, 1.0]


# --- graphs -------------------------------------------------------------------------------------


def mixing(name: str, ranks: int) -> Any:
    return graph(name, ranks).mixing.tolist()


def edges(name: str, ranks: int) -> set[tuple[int, int]]:
    found = graph(name, ranks)
    return set(zip(found.src.tolist(), found.dst.tolist(), strict=True))


def test_drawn_graphs_weigh_all_they_hear_alike() -> None:
    drawn = "edges: 0>1, 1>0,1 > 2,2>0"
    assert edges(drawn, 3) == {(0, 1), (1, 0), (1, 2), (2, 0)}
    assert mixing(drawn, 3) == [pytest.approx(row) for row in ([1 / 3] * 3, [0.5, 0.5, 0], [0, 0.5, 0.5])]  # fmt: skip


@pytest.mark.parametrize("word", ["0>0", "0>3", "3>0", "0", "0>1>2", "a>1", "-1>0", "0>b"])
def test_edges_that_join_no_two_ranks(word: str) -> None:
    with pytest.raises(InputError) as refused:
        graph(f"edges:0>1,1>2,2>0,{word},9>9", 3)
    assert len(refused.value.faults) == 2
    assert repr(word) in refused.value.faults[0]


def test_who_sends_to_whom() -> None:
    assert edges("ring_left", 4) == {(0, 3), (1, 0), (2, 1), (3, 2)}
    assert edges("exponential2", 6) == {(i, (i + s) % 6) for i in range(6) for s in (1, 2, 4)}
    assert edges("exponential_base4", 6) == {(i, (i + s) % 6) for i in range(6) for s in (1, 4)}
    both = {(i, (i + s) % 9) for i in range(9) for s in (1, 4, 5, 8)}
    assert edges("symmetric_exponential4", 9) == both
    tree = {(0, 1), (0, 2), (1, 3), (1, 4), (2, 5)}
    assert edges("binary_tree", 6) == tree | {(b, a) for a, b in tree}
    mesh = {(0, 1), (1, 2), (3, 4), (4, 5), (0, 3), (1, 4), (2, 5)}
    assert edges("mesh2d", 6) == mesh | {(b, a) for a, b in mesh}
    assert len(edges("mesh2d", 9)) == 2 * 12
    assert len(edges("torus2d", 9)) == 2 * 18
    torus = mesh | {(2, 0), (5, 3)}
    assert edges("torus2d", 6) == torus | {(b, a) for a, b in torus}
    assert [edges("one_peer_exponential2@4", 5), edges("one_peer_exponential2", 5)] == [
        {(i, (i + shift) % 5) for i in range(5)} for shift in (2, 1)
    ]
    assert edges("one_peer_exponential2@3", 2) == {(0, 1), (1, 0)}


def test_weights_by_degree() -> None:
    """Metropolis-Hastings on a path of three: 1 / (1 + 2) for both edges, and what is left to oneself."""
    third = 1 / 3
    assert mixing("mesh2d", 3) == [pytest.approx(r) for r in ([2 * third, third, 0], [third] * 3, [0, third, 2 * third])]  # fmt: skip
    assert mixing("star", 3) == [pytest.approx(r) for r in ([third] * 3, [third, 2 * third, 0], [third, 0, 2 * third])]  # fmt: skip
    assert graph("star", 4).bytes_per_rank == 3


def test_arguments_of_collectives() -> None:
    assert algorithms_for("inner_outer_all_reduce(3)") == (InnerOuter(3),)
    assert algorithms_for("hierarchical_neighbour_all_reduce(star)") == (HierarchicalGossip("star"),)  # fmt: skip
