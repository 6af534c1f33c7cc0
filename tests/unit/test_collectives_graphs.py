"""Communication graphs: degrees, messages, mixing."""

from __future__ import annotations

import csv
import os
from pathlib import Path

import numpy as np
import pytest

from foretrain.cost.collectives.gossip import Gossip
from foretrain.cost.collectives.graphs import GRAPHS, ONE_PEER, Graph, graph, one_peer
from foretrain.errors import InputError
from foretrain.testing import collectives as kit

HERE = Path(__file__).resolve().parents[2]
FOLDER = Path(os.environ.get("FORETRAIN_TRUTH", HERE.parent / "shared" / "truth"))
FILE = FOLDER / "topology_properties.csv"
NAMES = {
    "erdos_renyi_p0.5_seed0": "erdos_renyi",
    "one_peer_exponential2_dynamic": ONE_PEER,
}
ROWS = list(csv.DictReader(FILE.read_text().splitlines())) if FILE.is_file() else []


def sigma(found: Graph) -> float:
    """Largest singular value beside the average: what one exchange leaves of the disagreement at most."""
    average = np.full_like(found.mixing, 1.0 / found.ranks)
    return float(np.linalg.svd(found.mixing - average, compute_uv=False)[0])


def one_peer_product(ranks: int) -> np.ndarray:
    """Mixing of a whole period of the one-peer graph: the exact average where n is a power of two."""
    total = np.eye(ranks)
    for iteration in range(max(1, (ranks - 1).bit_length())):
        total = one_peer(ranks, iteration).mixing @ total
    return total


@pytest.mark.skipif(not ROWS, reason=f"no {FILE} (set FORETRAIN_TRUTH)")
def test_all_graphs_and_sizes_are_in_the_table():
    assert {NAMES.get(r["topology"], r["topology"]) for r in ROWS} == {*GRAPHS, ONE_PEER}
    assert {int(r["n"]) for r in ROWS} == {4, 8, 16, 32, 64, 128}
    assert len(ROWS) == 72


@pytest.mark.skipif(not ROWS, reason=f"no {FILE} (set FORETRAIN_TRUTH)")
@pytest.mark.parametrize("row", ROWS, ids=lambda r: f"{r['topology']}-{r['n']}")
def test_graphs_equal_the_published_table(row):
    """Weights and figures of BlueFog's topology_util, 12 graphs × 6 sizes."""
    n = int(row["n"])
    found = graph(NAMES.get(row["topology"], row["topology"]), n)
    assert len(found.src) == int(row["edges_directed"])
    assert len(found.src) == int(row["msgs_total"])
    assert int(found.out_degree.max()) == int(row["out_degree_max"])
    assert int(found.in_degree.max()) == int(row["in_degree_max"])
    assert float(found.out_degree.mean()) == pytest.approx(float(row["out_degree_mean"]), abs=6e-4)
    assert found.bytes_per_rank == int(row["bytes_sent_per_rank_max_in_M"])
    assert int(found.in_degree.max()) == int(row["bytes_recv_per_rank_max_in_M"])
    if row["rho_eig"]:
        assert found.rho == pytest.approx(float(row["rho_eig"]), abs=1e-6)
        assert 1.0 - found.rho == pytest.approx(float(row["spectral_gap"]), abs=1e-6)
        assert sigma(found) == pytest.approx(float(row["sigma2"]), abs=1e-6)
    else:
        rest = np.linalg.svd(one_peer_product(n) - 1 / n, compute_uv=False)[0]
        assert rest == pytest.approx(float(row["sigma2"]), abs=1e-9)


# Cited figures, always at hand: BlueFog's weights; Ying et al. 2021.
@pytest.mark.parametrize(
    ("name", "n", "messages", "rho"),
    [
        ("star", 8, 14, 0.875),
        ("ring_bidirectional", 16, 32, 0.949253),
        ("ring_left", 8, 8, 0.92388),
        ("mesh2d", 16, 48, 0.868641),
        ("torus2d", 64, 256, 0.882843),
        ("binary_tree", 8, 14, 0.945928),
        ("exponential2", 16, 64, 0.6),
        ("exponential_base4", 32, 96, 0.808582),
        ("symmetric_exponential4", 128, 896, 0.75),
        ("fully_connected", 8, 56, 0.0),
        ("erdos_renyi", 32, 472, 0.491183),
    ],
)
def test_cited_figures(name, n, messages, rho):
    found = graph(name, n)
    assert len(found.src) == messages
    assert found.rho == pytest.approx(rho, abs=1e-6)


@pytest.mark.parametrize("n", [4, 8, 16, 64])
def test_the_exponential_graph_mixes_as_its_formula_says(n):
    """rho = 1 - 2/(1 + log2 n) for powers of two (Ying et al. 2021)."""
    assert graph("exponential2", n).rho == pytest.approx(1 - 2 / (1 + np.log2(n)), abs=1e-12)


@pytest.mark.parametrize("n", [4, 8, 32])
def test_a_period_of_the_one_peer_graph_is_the_exact_average(n):
    assert np.allclose(one_peer_product(n), 1 / n, atol=1e-12)


def test_a_period_is_not_exact_for_other_numbers():
    assert not np.allclose(one_peer_product(6), 1 / 6, atol=1e-3)


@pytest.mark.parametrize("name", [*GRAPHS, ONE_PEER])
@pytest.mark.parametrize("n", [4, 8, 9, 12])
def test_weights_are_doubly_stochastic_and_lie_on_the_edges(name, n):
    found = graph(name, n)
    assert np.allclose(found.mixing.sum(axis=0), 1)
    assert np.allclose(found.mixing.sum(axis=1), 1)
    assert (found.mixing >= -1e-12).all()
    assert (found.mixing[found.dst, found.src] > 0).all()
    assert np.count_nonzero(found.mixing - np.diag(np.diag(found.mixing))) == len(found.src)


@pytest.mark.parametrize("name", sorted({*GRAPHS, ONE_PEER, f"{ONE_PEER}@2"} - {"erdos_renyi"}))
def test_gossip_over_every_graph_conforms(name):
    kit.check_collective(Gossip(name))


def test_unknown_and_broken_graphs_are_refused():
    with pytest.raises(InputError, match="Did you mean 'torus2d'"):
        graph("torus", 8)
    with pytest.raises(InputError, match="isolated"):
        graph("erdos_renyi", 6)
