"""Programs round by round against the closed forms of the literature.

Thakur, Rabenseifner & Gropp 2005; Patarasuk & Yuan 2009; Sanders, Speck & Träff 2009; Bruck et al. 1997.
"""

from __future__ import annotations

from math import ceil, log2

import numpy as np
import pytest

from foretrain.cluster.cluster import Cluster
from foretrain.cost.collectives import ALGORITHMS, Matrix, algorithms_for
from foretrain.cost.collectives.base import Steps, levels, log_steps, one_exchange
from foretrain.cost.collectives.direct import AllPairs, Direct, Pairwise, Send, Variable
from foretrain.cost.collectives.doubling import (
    Binomial,
    Bruck,
    HalvingDoubling,
    Pat,
    RecursiveDoubling,
    RecursiveHalves,
    ScatterGather,
    Swing,
)
from foretrain.cost.collectives.gossip import Gossip, HierarchicalGossip, InnerOuter
from foretrain.cost.collectives.nvls import Nvls
from foretrain.cost.collectives.parameter_server import ParameterServer
from foretrain.cost.collectives.ring import ChainAlgorithm, Hierarchical, Ring
from foretrain.cost.collectives.tree import DoubleTree, Tree, double_parents
from foretrain.cost.network import Network
from foretrain.errors import InputError
from foretrain.testing import collectives as kit

M = 1e9
ALPHA, BETA = 1e-5, 1e-10
POWERS = (2, 4, 8, 16)


def flat(n: int) -> np.ndarray:
    return np.zeros(n, dtype=np.int64)


def alone(n: int) -> np.ndarray:
    return np.arange(n)


def evenly(domains: int, each: int) -> np.ndarray:
    return np.repeat(np.arange(domains), each)


# Algorithm, collective, rounds and bytes of the busiest port as a share of the buffer.
CLOSED = [
    (Ring(), "all_reduce", lambda n: 2 * (n - 1), lambda n: 2 * (n - 1) / n),
    (Ring(), "reduce_scatter", lambda n: n - 1, lambda n: (n - 1) / n),
    (Ring(), "all_gather", lambda n: n - 1, lambda n: (n - 1) / n),
    (HalvingDoubling(), "all_reduce", lambda n: 2 * log2(n), lambda n: 2 * (n - 1) / n),
    (Swing(), "all_reduce", lambda n: 2 * log2(n), lambda n: 2 * (n - 1) / n),
    (RecursiveDoubling(), "all_reduce", log2, log2),
    (RecursiveHalves(), "reduce_scatter", log2, lambda n: (n - 1) / n),
    (RecursiveHalves(), "all_gather", log2, lambda n: (n - 1) / n),
    (AllPairs(), "all_reduce", lambda n: 2, lambda n: 2 * (n - 1) / n),
    (Pairwise(), "all_to_all", lambda n: n - 1, lambda n: (n - 1) / n),
    (Pairwise(), "reduce_scatter", lambda n: n - 1, lambda n: (n - 1) / n),
    (Bruck(), "all_to_all", log2, lambda n: log2(n) / 2),
    (Pat(), "all_gather", log2, lambda n: (n - 1) / n),
    (Binomial("broadcast"), "broadcast", log2, log2),
    (Binomial("reduce"), "reduce", log2, log2),
    (Binomial("all_reduce"), "all_reduce", lambda n: 2 * log2(n), lambda n: 2 * log2(n)),
    (ScatterGather(), "broadcast", lambda n: log2(n) + n - 1, lambda n: 2 * (n - 1) / n),
    (ParameterServer(1), "parameter_server", lambda n: 2, lambda n: 2 * (n - 1)),
    (ParameterServer(0), "parameter_server", lambda n: 2 * (n - 1), lambda n: 2 * (n - 1) / n),
    (Gossip("fully_connected"), "neighbour_all_reduce", lambda n: 1, lambda n: n - 1),
    (Gossip("exponential2"), "neighbour_all_reduce", lambda n: 1, log2),
    (Gossip("one_peer_exponential2@1"), "neighbour_all_reduce", lambda n: 1, lambda n: 1),
]


@pytest.mark.parametrize("n", POWERS)
@pytest.mark.parametrize(
    ("algorithm", "collective", "rounds", "share"),
    CLOSED,
    ids=[f"{a.pattern} {c}" for a, c, _, _ in CLOSED],
)
def test_rounds_take_the_time_of_the_closed_form(algorithm, collective, rounds, share, n):
    seconds = algorithm.program(collective, M, flat(n)).seconds(ALPHA, BETA)
    assert seconds == pytest.approx(rounds(n) * ALPHA + share(n) * M * BETA, rel=1e-12)
    steps = algorithm.steps(collective, n, 1)
    flows = algorithm.flows(np.arange(n)[None, :], flat(n))
    busiest = max(kit.sent(flows, n).max(), kit.received(flows, n).max())
    steady = steps.inside * ALPHA + busiest * algorithm.volume(collective, M, n) * BETA
    assert steady == pytest.approx(seconds, rel=1e-6)


MESSAGES = [
    (Ring(), "all_reduce", lambda n: 2 * (n - 1)),
    (HalvingDoubling(), "all_reduce", lambda n: 2 * log2(n)),
    (Swing(), "all_reduce", lambda n: 2 * log2(n)),
    (RecursiveDoubling(), "all_reduce", log2),
    (Direct(), "all_to_all", lambda n: n - 1),
    (Bruck(), "all_to_all", log2),
    (Gossip("exponential2"), "neighbour_all_reduce", log2),
]


@pytest.mark.parametrize("n", POWERS)
@pytest.mark.parametrize(("algorithm", "collective", "count"), MESSAGES, ids=lambda x: str(x)[:9])
def test_messages_per_rank(algorithm, collective, count, n):
    assert (algorithm.program(collective, M, flat(n)).messages() == count(n)).all()


@pytest.mark.parametrize("n", [3, 5, 6, 7, 12])
def test_numbers_that_are_no_powers_of_two_cost_two_more_hops_of_the_buffer(n):
    core = 2 ** int(log2(n))
    seconds = HalvingDoubling().program("all_reduce", M, flat(n)).seconds(0.0, BETA)
    assert seconds == pytest.approx((2 * (core - 1) / core + 2) * M * BETA, rel=1e-12)
    seconds = RecursiveDoubling().program("all_reduce", M, flat(n)).seconds(0.0, BETA)
    assert seconds == pytest.approx((log2(core) + 2) * M * BETA, rel=1e-12)
    kit.check_collective(HalvingDoubling())


def test_swing_stays_near():
    """Distances 1, 1, 3, 5 … (De Sensi et al. 2024, section 3.1), half of what is left in each round."""
    rounds = Swing().program("all_reduce", 1.0, flat(32)).rounds[:5]
    for step, (far, share) in zip(rounds, [(1, 2), (1, 4), (3, 8), (5, 16), (11, 32)], strict=True):
        around = np.abs(step.src - step.dst)
        assert (np.minimum(around, 32 - around) == far).all()
        assert (step.bytes == 1 / share).all()
        assert (step.dst[step.dst] == step.src).all(), "partners exchange"


@pytest.mark.parametrize("network", ["ring", "torus(sizes=[4, 4])"])
def test_swing_loads_cables_less_than_doubling_distances_do(network):
    cluster = Cluster.of(f"16 x dgx-a100-80gb on {network}").placed([1] * 16)
    seconds = {
        one.name: kit.switch_seconds(one, "all_reduce", M, np.arange(16), cluster)
        for one in (Swing(), HalvingDoubling())
    }
    assert seconds["swing"] < 0.8 * seconds["halving_doubling"]


@pytest.mark.parametrize("n", [2, 3, 4, 5, 8, 13, 16, 33])
def test_double_trees_share_no_inner_node_and_are_of_logarithmic_depth(n):
    """Every node but the roots is a leaf of one tree; the program's rounds are twice the depth."""
    one, two = double_parents(n)
    inner = [set(tree[tree >= 0].tolist()) for tree in (one, two)]
    roots = {int(np.flatnonzero(tree < 0)[0]) for tree in (one, two)}
    assert len(roots) == 2
    assert inner[0] & inner[1] <= roots | ({0, n - 1} if n % 2 else set())
    rounds = DoubleTree().program("all_reduce", M, alone(n)).rounds
    assert len(rounds) == 2 * ceil(log2(n))


@pytest.mark.parametrize("n", [4, 8, 16, 32])
def test_a_double_tree_moves_twice_the_buffer_through_every_port_but_the_roots(n):
    sent = DoubleTree().program("all_reduce", M, alone(n)).sent()
    assert sent.max() == pytest.approx(2 * M)
    assert (np.sort(sent)[2:] >= 1.5 * M).all()
    assert sent.sum() == pytest.approx(2 * (n - 1) * M)  # Each edge of a spanning tree twice.


@pytest.mark.parametrize("n", [4, 8])
def test_the_even_tree_takes_as_long_as_the_real_one_on_a_switch(n):
    cluster = Cluster.of(f"{n} x dgx-a100-80gb").placed([1] * n)
    group = np.arange(n)
    real = kit.switch_seconds(DoubleTree(), "all_reduce", M, group, cluster)
    even = kit.switch_seconds(Tree(), "all_reduce", M, group, cluster)
    assert even == pytest.approx(real, rel=1e-9)


@pytest.mark.parametrize(("domains", "each"), [(2, 4), (4, 2), (4, 8), (3, 3)])
def test_a_hierarchy_is_the_sum_of_its_phases(domains, each):
    """T_RS(g, M) + T_AR(m, M/g) + T_AG(g, M); the rails of a domain carry 2(m-1)/m of the buffer together."""
    g, m = each, domains
    program = Hierarchical("all_reduce").program("all_reduce", M, evenly(m, g))
    inside, between = 2 * (g - 1) / g * M, 2 * (m - 1) / m * M / g
    seconds = program.seconds(ALPHA, BETA)
    assert seconds == pytest.approx(
        2 * (g - 1 + m - 1) * ALPHA + (inside + between) * BETA, rel=1e-12
    )
    layout = evenly(m, g)
    src, dst, size = program.edges()
    out = size[(layout[src] == 0) & (layout[dst] != 0)].sum()
    assert out == pytest.approx(2 * (m - 1) / m * M)
    assert program.heard().all()


@pytest.mark.parametrize("collective", ["broadcast", "reduce"])
@pytest.mark.parametrize("layout", [flat(8), evenly(2, 4), np.array([0, 0, 1, 1, 1])])
def test_chains_pay_their_length_once(collective, layout):
    """k chunks: (n - 2 + k) rounds of M/k, so the buffer once for many chunks."""
    chain, n = ChainAlgorithm(collective), len(layout)
    assert len(chain.program(collective, M, layout, 1000).rounds) == n - 2 + 1000
    seconds = chain.program(collective, M, layout, 1000).seconds(0.0, BETA)
    assert seconds == pytest.approx(M * BETA, rel=2e-2)


@pytest.mark.parametrize(("n", "s"), [(8, 1), (8, 2), (8, 4), (8, 8), (12, 3)])
def test_shards_divide_what_a_server_takes(n, s):
    server = ParameterServer(s)
    program = server.program("parameter_server", M, flat(n))
    assert program.seconds(0.0, BETA) == pytest.approx(2 * (n - 1) / s * M * BETA, rel=1e-12)
    kit.check_collective(server)


@pytest.mark.parametrize(("workers", "s"), [(8, 1), (8, 2), (8, 4)])
def test_servers_of_their_own_take_every_workers_part(workers, s):
    """2·s messages of each worker and 2·(n/s)·M·beta."""
    server = ParameterServer(s, is_dedicated=True)
    program = server.program("parameter_server", M, flat(workers + s))
    assert program.messages()[s:].tolist() == [s] * workers
    expected = 2 * s * ALPHA + 2 * workers / s * M * BETA
    assert program.seconds(ALPHA, BETA) == pytest.approx(expected, rel=1e-12)


def test_a_server_of_its_own_conforms():
    kit.check_collective(ParameterServer(1, is_dedicated=True))


def test_a_switch_that_reduces_moves_the_buffer_once():
    """M + M/n each way: for eight ranks 1.125 M instead of a ring's 1.75 M."""
    sent = Nvls().program("all_reduce", M, flat(8)).sent()
    assert sent.tolist() == pytest.approx([1.125 * M] * 8)
    assert Nvls().volume("all_reduce", M, 8) == pytest.approx(1.125 * M)


# --- all-to-all of unlike parts ----------------------------------------------------------------------------


def seconds_on_a_switch(algorithm, collective, n):
    cluster = Cluster.of(f"{n} x dgx-a100-80gb").placed([1] * n)
    network = Network(cluster)
    port = network.capacity[network.is_network].min()
    return kit.switch_seconds(algorithm, collective, M, np.arange(n), cluster) * port / M


@pytest.mark.parametrize("n", [2, 4, 8])
def test_no_skew_is_the_balanced_all_to_all(n):
    assert seconds_on_a_switch(Variable(0.0), "all_to_all_v", n) == pytest.approx((n - 1) / n)


def test_the_rank_that_most_is_sent_to_decides():
    assert seconds_on_a_switch(Variable(1.0), "all_to_all_v", 8) == pytest.approx(2 * 7 / 8)
    assert seconds_on_a_switch(Variable(7.0), "all_to_all_v", 8) == pytest.approx(7.0)


def test_a_matrix_of_sizes_is_bound_by_its_largest_row_or_column():
    sizes = np.array([[5, 1, 1, 1], [4, 0, 0, 0], [4, 0, 0, 0], [4, 0, 0, 0]], dtype=float)
    matrix = Matrix.of(sizes)
    assert matrix.mean_bytes == 5.0
    assert seconds_on_a_switch(matrix, "all_to_all_v", 4) == pytest.approx(12 / 5)
    assert seconds_on_a_switch(Matrix.of(sizes.T), "all_to_all_v", 4) == pytest.approx(12 / 5)
    assert matrix.pattern != Matrix.of(sizes.T).pattern


@pytest.mark.parametrize(
    "sizes", [[[1.0]], [[1.0, 2.0]], [[0.0, 0.0], [0.0, 0.0]], [[1.0, -1.0], [1.0, 1.0]]]
)
def test_a_broken_matrix_is_refused(sizes):
    with pytest.raises(InputError, match="all_to_all_v"):
        Matrix.of(sizes)


# --- gossip on machines --------------------------------------------------------------------------------


def test_inner_outer_schedule_is_bluefogs():
    """Four machines of four: rank 0 sends to 4, 3, 1, 2, 4 … (BlueFog's GetInnerOuterExpo2…)."""
    to = []
    for iteration in range(5):
        [step] = InnerOuter(iteration).program("inner_outer_all_reduce", M, evenly(4, 4)).rounds
        to.append(int(step.dst[step.src == 0][0]))
    assert to == [4, 3, 1, 2, 4]


@pytest.mark.parametrize("iteration", range(6))
def test_inner_outer_sends_one_buffer_out_of_every_machine(iteration):
    layout = evenly(4, 4)
    program = InnerOuter(iteration).program("inner_outer_all_reduce", M, layout)
    assert program.sent().tolist() == program.received().tolist() == [M] * 16
    src, dst, size = program.edges()
    crossing = layout[src] != layout[dst]
    assert np.bincount(layout[src[crossing]], size[crossing]).tolist() == [M] * 4


def test_one_peer_sends_to_doubling_distances_in_turn():
    """n = 16, rank 0: 1, 2, 4, 8, 1 … (BlueFog's GetDynamicOnePeerSendRecvRanks)."""
    to = []
    for iteration in range(5):
        one = Gossip(f"one_peer_exponential2@{iteration}")
        flows = one.flows(np.arange(16)[None, :], flat(16))
        to.append(int(flows.dst[flows.src == 0][0]))
    assert to == [1, 2, 4, 8, 1]


def test_hierarchical_gossip_sends_one_buffer_per_neighbour_machine():
    layout = evenly(8, 4)
    gossip = HierarchicalGossip("exponential2")
    src, dst, size = gossip.program("hierarchical_neighbour_all_reduce", M, layout).edges()
    crossing = layout[src] != layout[dst]
    assert np.bincount(layout[src[crossing]], size[crossing]).tolist() == [3 * M] * 8
    assert (layout[src[crossing]] * 4 == src[crossing]).all()  # the first rank of each machine only


# --- collectives with an argument -------------------------------------------------------------------------


def test_arguments_make_the_algorithm():
    assert algorithms_for("all_to_all_v(0.5)") == (Variable(0.5),)
    assert algorithms_for("parameter_server(4)") == (ParameterServer(4),)
    assert algorithms_for("neighbour_all_reduce(torus2d)") == (Gossip("torus2d"),)


@pytest.mark.parametrize("text", ["all_reduce(3)", "all_to_all_v(much)", "all_to_all_v(-1)"])
def test_arguments_that_make_no_sense_are_refused(text):
    with pytest.raises(InputError):
        algorithms_for(text)


def test_every_row_is_named_once_per_collective():
    rows = [(a.name, c) for a in ALGORITHMS for c in a.collectives]
    assert len(rows) == len(set(rows))


@pytest.mark.parametrize(
    ("rounds", "domains", "per_level", "inside", "between"),
    [(3, 1, 1, 3, 0), (3, 2, 1, 2, 1), (4, 4, 1, 2, 2), (4, 3, 1, 2, 2), (6, 2, 2, 4, 2), (2, 16, 1, 0, 2)],
)  # fmt: skip
def test_far_hops_are_one_set_for_every_doubling_of_domains(rounds, domains, per_level, inside, between):  # fmt: skip
    assert log_steps(rounds, 8, domains, per_level) == Steps(inside, between)


def test_levels_are_doublings_rounded_up():
    assert [levels(count) for count in (0, 1, 2, 3, 4, 5, 8, 9)] == [0, 0, 1, 2, 2, 3, 3, 4]


@pytest.mark.parametrize(("domains", "sent", "posted"), [(1, Steps(1, 0), Steps(1, 0)), (2, Steps(0, 1), Steps(1, 1))])  # fmt: skip
def test_a_send_is_one_hop_and_what_is_posted_at_once_one_of_each_kind(domains, sent, posted):
    assert Send().steps("send", 2, domains) == sent
    assert one_exchange(domains) == posted


@pytest.mark.parametrize(
    "sizes", [[[1.0]], [[0.0, 1.0]], [0.0, 1.0], [[0.0, 0.0], [0.0, 0.0]], [[0.0, -1.0], [1.0, 0.0]], [[0.0, np.inf], [1.0, 0.0]]]
)  # fmt: skip
def test_matrices_that_say_nothing_are_refused(sizes):
    with pytest.raises(InputError, match="all_to_all_v"):
        Matrix.of(sizes)


def test_the_smallest_matrix_is_of_two_ranks():
    assert Matrix.of([[0.0, 1.0], [2.0, 0.0]]).sizes == ((0.0, 1.0), (2.0, 0.0))
