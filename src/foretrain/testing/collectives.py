"""Conformance kit for collective algorithms: `check_collective(algorithm)` raises `AssertionError` on a broken one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import inf, isclose, isfinite

import numpy as np

from foretrain.arrays import Floats, Ints
from foretrain.cluster.cluster import Cluster
from foretrain.cost.collectives import Algorithm, CollectiveProgram, Flows
from foretrain.cost.network import Network

SIZE = 1e9
RANKS = (2, 3, 4, 8)
# Placements of groups over nodes of an eight-GPU machine: even, uneven, one rank each.
PLACEMENTS = ((8,), (4, 4), (2, 2, 2, 2), (1, 1, 1, 1), (2, 3, 3), (1, 7), (6, 2), (1, 2, 3))


# Share of the buffer that the busiest rank must send and receive, whatever the algorithm, unless a switch
# reduces: Patarasuk & Yuan 2009; Thakur, Rabenseifner & Gropp 2005.
LEAST: Mapping[str, Callable[[int], float]] = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n,
    "all_to_all": lambda n: (n - 1) / n,
    "broadcast": lambda n: 1.0,
    "reduce": lambda n: 1.0,
    "parameter_server": lambda n: 2 * (n - 1) / n,
}
CHUNKS = 16  # more than a pipeline over the largest group here has stages


def check_collective(algorithm: Algorithm) -> None:
    """Bytes, agreement with the program, time on a switch, renaming of ranks, steps, irregular groups."""
    assert algorithm.collectives, f"{algorithm.name} carries out nothing"
    for collective in algorithm.collectives:
        ranks = (2,) if collective == "send" else RANKS
        for n in ranks:
            _check_bytes(algorithm, collective, n)
            _check_program(algorithm, collective, n)
            _check_time_on_a_switch(algorithm, collective, n)
            _check_renaming(algorithm, n)
        _check_steps(algorithm, collective)
        _check_irregular(algorithm, collective)


def sent(flows: Flows, ranks: int) -> Floats:
    """Units that leave each rank."""
    return np.bincount(flows.src, flows.weight, minlength=ranks).astype(np.float64)


def received(flows: Flows, ranks: int) -> Floats:
    return np.bincount(flows.dst, flows.weight, minlength=ranks).astype(np.float64)


def switch_seconds(
    algorithm: Algorithm, collective: str, size: float, group: Ints, on: Cluster
) -> float:
    """Seconds without latency of one group alone: the most loaded link decides."""
    network = Network(on)
    loads = network.pattern_loads(algorithm, group[None, :])
    load = np.bincount(loads.link, loads.weight, minlength=len(network.capacity))
    used = load > 0
    volume = algorithm.volume(collective, size, len(group))
    return float((load[used] / network.capacity[used]).max(initial=0.0)) * volume


def _flows(algorithm: Algorithm, group: Ints, domain_of: Ints) -> Flows:
    flows = algorithm.flows(group[None, :], domain_of)
    assert len(flows.src) == len(flows.dst) == len(flows.weight) == len(flows.group)
    assert (flows.group == 0).all(), "a flow of a group that was not asked for"
    assert (flows.src != flows.dst).all(), "a rank sends to itself"
    assert np.isin((flows.src, flows.dst), group).all(), "a rank outside the group takes part"
    assert np.isfinite(flows.weight).all()
    assert (flows.weight > 0).all(), "a flow that carries nothing"
    return flows


def _check_bytes(algorithm: Algorithm, collective: str, n: int) -> None:
    """Every rank sends and receives what the closed form says, and nothing is lost on the way."""
    group = np.arange(n)
    flows = _flows(algorithm, group, np.zeros(n, dtype=np.int64))
    out, into = sent(flows, n), received(flows, n)
    assert isclose(out.sum(), into.sum(), rel_tol=1e-12), "bytes are lost"
    volume = algorithm.volume(collective, SIZE, n)
    where = f"{algorithm.name} {collective} over {n}"
    if collective == "send":
        assert out.tolist() == [1.0, 0.0], f"{where}: the first rank of a pair sends to the second"
        assert volume == SIZE, where
        return
    if collective == "exchange":
        neighbours = [1.0, *([2.0] * (n - 2)), 1.0]
        assert out.tolist() == into.tolist() == neighbours, f"{where}: {out} units sent"
        assert volume == SIZE, where
        return
    program = algorithm.program(collective, SIZE, np.zeros(n, dtype=np.int64))
    if collective in LEAST and not program.uses_switch:
        moved = max(out.max(), into.max()) * volume / SIZE
        least = LEAST[collective](n)
        assert moved >= least * (1 - 1e-9), f"{where}: {moved} of the buffer moved, {least} needed"


def _check_program(algorithm: Algorithm, collective: str, n: int) -> None:
    """Round by round everybody hears what it must, and the steady flows are what the rounds add up to."""
    where = f"{algorithm.name} {collective} over {n}"
    for layout in (np.zeros(n, dtype=np.int64), np.arange(n)):
        program = algorithm.program(collective, SIZE, layout)
        _check_heard(program, collective, where)
        if program.uses_switch:
            continue
        _check_same_bytes(algorithm, collective, layout, program, where)
        _check_same_seconds(algorithm, collective, layout, where)
    rounds = len(algorithm.program(collective, SIZE, np.zeros(n, dtype=np.int64)).rounds)
    steps = algorithm.steps(collective, n, 1)
    if not program.uses_switch:
        assert rounds == steps.inside, f"{where}: {rounds} rounds, latency of {steps.inside}"
    assert algorithm.fan_in(n) >= 1, where


def _check_heard(program: CollectiveProgram, collective: str, where: str) -> None:
    heard = program.heard()
    if collective == "broadcast":
        assert heard[:, 0].all(), f"{where}: the root's data do not reach everybody"
    elif collective == "reduce":
        assert heard[0].all(), f"{where}: somebody's data do not reach the root"
    elif collective in LEAST:
        assert heard.all(), f"{where}: somebody's data do not reach everybody"


def _check_same_bytes(
    algorithm: Algorithm, collective: str, layout: Ints, program: CollectiveProgram, where: str
) -> None:
    """In proportion on every pair of ranks; more only where phases of the program do not overlap."""
    n = len(layout)
    flows = _flows(algorithm, np.arange(n), layout)
    volume = algorithm.volume(collective, SIZE, n)
    if algorithm.is_bound:
        slack = 1 + 1e-9
        assert (program.sent() <= sent(flows, n) * volume * slack).all(), f"{where}: not a bound"
        assert (program.received() <= received(flows, n) * volume * slack).all(), where
        return
    src, dst, size = program.edges()
    pairs, inverse = np.unique(flows.src * n + flows.dst, return_inverse=True)
    assert (pairs == src * n + dst).all(), f"{where}: flows and program join other ranks"
    ratio = np.bincount(inverse, flows.weight) * volume / size
    assert np.allclose(ratio, ratio[0], rtol=1e-9), f"{where}: flows and program differ"
    assert ratio[0] >= 1 - 1e-9, f"{where}: flows carry less than the program"


def _check_same_seconds(algorithm: Algorithm, collective: str, layout: Ints, where: str) -> None:
    """Long messages on uniform links: what one more chunk takes is what the steady flows say."""
    n = len(layout)

    def seconds(chunks: int) -> float:
        return algorithm.program(collective, chunks * 1e6, layout, chunks).seconds(0.0, 1e-9)

    per_byte = (seconds(2 * CHUNKS) - seconds(CHUNKS)) / (CHUNKS * 1e6)
    flows = _flows(algorithm, np.arange(n), layout)
    busiest = max(sent(flows, n).max(), received(flows, n).max())
    steady = busiest * algorithm.volume(collective, 1e9, n) * 1e-9 / 1e9
    if algorithm.is_bound:
        assert steady >= per_byte * (1 - 1e-6), f"{where}: not a bound"
    else:
        assert isclose(steady, per_byte, rel_tol=1e-6), (
            f"{where}: {steady:g} s/B by flows, {per_byte:g} by rounds: where phases do not overlap, "
            f"volume() is {per_byte / steady:g} times what it says"
        )


def _check_time_on_a_switch(algorithm: Algorithm, collective: str, n: int) -> None:
    """On machines of one device each behind an ideal switch the busiest port decides."""
    cluster = Cluster.of(f"{n} x dgx-a100-80gb").placed([1] * n)
    seconds = switch_seconds(algorithm, collective, SIZE, np.arange(n), cluster)
    network = Network(cluster)
    port = float(network.capacity[network.is_network].min())
    flows = _flows(algorithm, np.arange(n), network.domain_of)
    busiest = max(sent(flows, n).max(), received(flows, n).max())
    closed = busiest * algorithm.volume(collective, SIZE, n) / port
    where = f"{algorithm.name} {collective} over {n}"
    assert isclose(seconds, closed, rel_tol=1e-6), f"{where}: {seconds} s, closed form {closed} s"


def _check_renaming(algorithm: Algorithm, n: int) -> None:
    """Other names for the same ranks, in the same order, give the same flows under those names."""
    names = (np.arange(n) * 5 + 3) % (n if n % 5 else n + 1) + 7
    names = np.unique(names) if len(np.unique(names)) == n else np.arange(7, 7 + n)
    one = _flows(algorithm, np.arange(n), np.zeros(n, dtype=np.int64))
    two = _flows(algorithm, names, np.zeros(64, dtype=np.int64))
    assert (names[one.src] == two.src).all()
    assert (names[one.dst] == two.dst).all()
    assert (one.weight == two.weight).all(), (
        f"{algorithm.name}: flows depend on what ranks are called"
    )
    pair = algorithm.flows(np.stack([np.arange(n), names]), np.zeros(64, dtype=np.int64))
    for number, ranks in enumerate((np.arange(n), names)):
        mine = pair.group == number
        alone = _flows(algorithm, ranks, np.zeros(64, dtype=np.int64))
        key = sorted(zip(pair.src[mine], pair.dst[mine], pair.weight[mine], strict=True))
        assert key == sorted(zip(alone.src, alone.dst, alone.weight, strict=True)), (
            "groups disturb each other"
        )


def _check_steps(algorithm: Algorithm, collective: str) -> None:
    """Latency is finite, never negative, and does not shrink when ranks are added."""
    before = -inf
    for n in (2, 4, 8, 64, 1024):
        for domains in (1, 2, n):
            steps = algorithm.steps(collective, n, domains)
            assert isfinite(steps.inside)
            assert isfinite(steps.between)
            assert steps.inside >= 0, (
                f"{algorithm.name} {collective}: {steps} over {n} in {domains}"
            )
            assert steps.between >= 0, (
                f"{algorithm.name} {collective}: {steps} over {n} in {domains}"
            )
            assert steps.inside + steps.between > 0, "a message without latency"
            assert domains > 1 or steps.between == 0, "hops between domains where there is one"
        total = algorithm.steps(collective, n, 1).inside
        assert total >= before, f"{algorithm.name} {collective}: fewer hops for more ranks"
        before = total


def _check_irregular(algorithm: Algorithm, collective: str) -> None:
    """Uneven numbers of ranks per node lose no bytes and cost no more than their slowest port allows."""
    for placement in PLACEMENTS:
        cluster = Cluster.of(f"{len(placement)} x dgx-a100-80gb").placed(placement)
        n = cluster.device_count
        group = np.array([0, n - 1]) if collective == "send" else np.arange(n)
        flows = _flows(algorithm, group, Network(cluster).domain_of)
        assert isclose(sent(flows, n).sum(), received(flows, n).sum(), rel_tol=1e-12)
        assert len(np.union1d(flows.src, flows.dst)) == len(group), (
            f"{placement}: a rank is left out"
        )
        seconds = switch_seconds(algorithm, collective, SIZE, group, cluster)
        assert 0.0 < seconds < inf, f"{algorithm.name} {collective} on {placement}: {seconds} s"
