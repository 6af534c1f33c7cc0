"""What libraries choose and what it costs, from constants made up so that every term can be worked out by hand."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from foretrain.cost.collectives import algorithms_for, chosen, selector, tuner
from foretrain.cost.collectives import constants as kept
from foretrain.cost.collectives.base import GroupTopology
from foretrain.cost.collectives.selector import (
    AlgorithmChoice,
    has_tuner,
    link_efficiency,
    reported_latency,
)

US = 1e-6
RING = {
    "LL": {"base_us": 4, "inside_us": {"default": 0.5}, "between_us": 2, "efficiency": 0.5},
    "LL128": {"base_us": 6, "inside_us": {"default": 1}, "between_us": 3, "efficiency": 0.8, "families": ["nvlink"], "direct": True},
    "Simple": {"base_us": 10, "inside_us": {"nvlink": 1, "default": 2}, "between_us": 5, "efficiency": 1.0, "half_bytes": {"nvlink": 1e6}},
}  # fmt: skip
TREE = {name: {**row, "base_us": 20, "half_bytes": {}} for name, row in RING.items()}
RULES = [
    {"algorithm": "tree", "to_bytes": 1000},
    {"algorithm": "recursive_doubling", "to_pair_bytes": 500},
    {"algorithm": "hierarchical", "below_ranks": 4},
    {"algorithm": "ring"},
]
EAGER = {
    "base_us": 1,
    "inside_us": {"default": 1},
    "between_us": 1,
    "efficiency": 1.0,
    "to_message_bytes": 100,
}
CONSTANTS: dict[str, Any] = {
    "libraries": {
        "hand": {
            "tuner": True, "transport": "rdma", "candidates": {"all_reduce": ["ring", "tree"]},
            "rows": {"default": RING, "tree": TREE},
        },
        "sockets": {
            "transport": "tcp", "candidates": {}, "per_sender_gbps": 4.0,
            "rows": {"default": {"tcp": {**EAGER, "efficiency": 0.5, "to_message_bytes": float("inf")}}},
        },
        "ruled": {
            "transport": "rdma", "rules": {"all_reduce": RULES},
            "candidates": {"all_reduce": ["ring", "tree", "recursive_doubling", "hierarchical"]},
            "rows": {"default": {"eager": EAGER, "late": {**EAGER, "base_us": 9, "to_message_bytes": 1e12}}},
        },
    },
    "nccl_tuner": {
        "ll_max": {"hopper": [10.0, 20.0, 30.0], "ampere": [1.0, 2.0, 3.0]}, "channels": {"hopper": [4, 2], "ampere": [8, 8]},
        "channel_ring_ll128": {"hopper": [5.0, 6.0, 7.0]}, "channel_tree": {"hopper": [19.0, 19.0, 57.0]},
        "channel_tree_ll128": {"hopper": [1.0, 9.0, 90.0]}, "channel_nvls_tree": {"hopper": [1.0, 2.0, 3.0]},
        "nvls_efficiency": {"hopper": 0.8}, "tree_ll128_share": [0.5, 0.75],
        "tree_correction": {"LL": [0.9, 0.4, 0.8], "LL128": [0.9, 0.4, 0.8], "Simple": [0.9, 0.4, 0.8]},
        "net_overhead_us": {"LL": 0.25, "LL128": 1.5, "Simple": 3.0}, "ring_plateau": {"hopper": 1.5, "ampere": 2.0},
        "ring_plateau_bytes": 64,
    },
    "incast": {"tcp": {"per_sender": 0.25, "most": 1.0}, "rdma": {"per_sender": 0.0, "most": 0.0}},
    "tcp": {
        "flow_gbps": 8.0, "connections": {"hand": 3}, "channels": {"pcie": 5, "default": 7}, "pair_share": 0.25, "falls": 0.5,
    },
    "link_efficiency": {"network": {"ether": 0.9, "ethernet": 0.5, "default": 0.7}, "interconnect": {"default": 1.0}},
    "reported_us": {"efa": 75.0, "default": 1.0},
}  # fmt: skip
NVLINK = {"ranks": 8, "domains": 1, "link_family": "nvlink", "rate": 1e11, "architecture": "hopper"}


@pytest.fixture(autouse=True)
def made_up(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for module in (kept, selector, tuner):
        monkeypatch.setattr(module, "constants", lambda: CONSTANTS)
    remembered = (algorithms_for, selector.protocols, selector.select)
    for function in remembered:
        function.cache_clear()
    yield
    for function in remembered:
        function.cache_clear()


def select(
    wish: str = "", size: float = 512.0, library: str = "hand", **wiring: Any
) -> AlgorithmChoice:
    """An all-reduce of `size` bytes, of eight ranks on NVLink where nothing else is said."""
    choose = chosen({"all_reduce": wish}) if wish else ()
    return selector.select(
        "all_reduce", size, GroupTopology(**{**NVLINK, **wiring}), library, choose
    )


# --- latency ------------------------------------------------------------------------------------


def test_latency_is_a_base_and_hops() -> None:
    """Of eight ranks a ring has 2·7 hops, 2·1 of them between two domains, where hops inside take 3 us at least."""
    assert select("ring/Simple").latency == pytest.approx((10 + 14 * 1) * US)
    assert select("ring/Simple", link_family="pcie").latency == pytest.approx((10 + 14 * 2) * US)
    assert select("ring/Simple", domains=2).latency == pytest.approx((10 + 12 * 3 + 2 * 5) * US)
    assert select("ring/LL", domains=2).latency == pytest.approx((4 + 12 * 0.5 + 2 * 2) * US)
    # a tree has no such least
    assert select("tree/Simple", domains=2).latency == pytest.approx((20 + 6 * 1 + 2 * 5) * US)


def test_what_ifs_and_long_ways_lengthen_hops() -> None:
    far = {"domains": 2, "inside_latency": 2.0, "between_latency": 3.0}
    assert select("ring/Simple", **far).latency == pytest.approx((10 + 12 * 6 + 2 * 15) * US)
    late = select("ring/Simple", domains=2, delays=(("ring", 7 * US), ("other", 1.0)))
    assert late.latency == pytest.approx((10 + 12 * 3 + 2 * 5 + 2 * 7) * US)


def test_long_rings_over_several_nodes_reach_a_plateau() -> None:
    """From 64 bytes for each of two channels and eight ranks."""
    short, long = (select("ring/Simple", size, domains=2).latency for size in (1023.0, 1024.0))
    assert long == pytest.approx(1.5 * short)
    assert select("ring/Simple", 1024.0).latency == pytest.approx((10 + 14) * US)
    assert select("ring/LL", 1e6, domains=2).latency == select("ring/LL", domains=2).latency
    four = select("ring/Simple", 1024.0, domains=2, channels=4)
    assert four.latency == pytest.approx(short)


# --- bandwidth ----------------------------------------------------------------------------------


def reached(wish: str, size: float, **wiring: Any) -> float:
    """Useful bytes/s on links without a limit: the ceiling."""
    choice = select(wish, size, **wiring)
    return choice.moved / (choice.seconds(1e30) - choice.latency)


def test_volume_is_what_keeps_links_busy() -> None:
    """A buffer crosses a ring of eight 2·7/8 times; within a domain half the bandwidth is reached at a megabyte."""
    choice = select("ring/Simple", 2e6)
    assert choice.moved == pytest.approx(3.5e6)
    assert choice.volume == pytest.approx(3.5e6 * (1 + 1 / 2))
    assert choice.max_rate is None
    assert select("ring/Simple", 2e6, domains=2).volume == pytest.approx(3.5e6)
    assert select("ring/LL128", 2e6, domains=2).volume == pytest.approx(3.5e6 / 0.8)
    assert select("tree/Simple", 64 * 2.0**2, domains=2).volume == pytest.approx(2 * 256 / 0.8)
    assert choice.seconds(1e11) == pytest.approx(choice.latency + choice.volume / 1e11)


@pytest.mark.parametrize(
    ("wish", "domains", "most"),
    [
        ("ring/LL", 1, 10), ("ring/LL", 2, 20), ("ring/LL", 3, 30), ("ring/LL", 8, 30),
        ("ring/LL128", 1, 5 * 4), ("ring/LL128", 2, 6 * 2),
        ("tree/Simple", 1, 0.4 * 19 * 4), ("tree/Simple", 4, 0.4 * 57 * 2),
        ("tree/LL", 1, 0.4 * 10), ("tree/LL", 2, 0.4 * 19 * 2 / 3.8),
        ("tree/LL128", 1, 0.4 * 1 * 4), ("tree/LL128", 2, 0.4 * 9 * 2), ("tree/LL128", 3, 0.4 * 57 * 2 * 0.75),
    ],
)  # fmt: skip
def test_ceilings_in_gigabytes_a_second(wish: str, domains: int, most: float) -> None:
    """Of the table's column for one domain, two or more, by channel but for LL; trees corrected at 128 bytes."""
    assert reached(wish, 128.0, domains=domains) == pytest.approx(most * 1e9)


def test_a_tree_by_ll128_keeps_a_share_of_its_channels() -> None:
    assert reached("tree/LL128", 128.0, domains=2, channels=1) == pytest.approx(0.4 * 9e9)
    share, most = tuner.bandwidth_terms("tree", "LL128", 64.0, "hopper", 1, 1)
    assert (share, most) == (pytest.approx(0.9 * 0.5), pytest.approx(0.9 * 1e9))
    share, most = tuner.bandwidth_terms("tree", "LL128", 256.0, "hopper", 2, 1)
    assert (share, most) == (pytest.approx(0.8 * 0.75), pytest.approx(0.8 * 9e9))


def test_the_other_rows_of_the_tuner() -> None:
    assert tuner.bandwidth_terms("nvls", "Simple", 1e6, "hopper", 1, 4) == (0.8, None)
    assert tuner.bandwidth_terms("nvls", "Simple", 1e6, "volta", 1, 4) == (1.0, None)
    assert tuner.bandwidth_terms("nvls_tree", "Simple", 1e6, "hopper", 9, 4) == (1.0, 12e9)
    assert tuner.bandwidth_terms("ring", "Simple", 1e6, "hopper", 1, 4) == (1.0, None)
    assert [tuner.correction("LL", 64.0 * 2**n) for n in range(4)] == [0.9, 0.4, 0.8, 1.0]
    assert tuner.correction("LL", 63.0) == 1.0
    assert tuner.correction("LL", 127.0) == 0.9


def test_generations_of_devices() -> None:
    known = {"Hopper": "hopper", "blackwell-ultra": "blackwell", "ada": "ampere", "turing": "volta", "pascal": "volta", "cdna3": "ampere"}  # fmt: skip
    assert {name: tuner.generation(name) for name in known} == known
    assert tuner.reduces_in_switch("hopper")
    assert not tuner.reduces_in_switch("ampere")
    assert [tuner.channels("hopper", domains) for domains in (1, 2, 9)] == [4, 2, 2]


# --- sockets ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wiring", "flows"),
    [
        ({"domains": 2}, 2 * 3 * 0.25),  # two channels of three connections, a quarter of it between a pair
        ({"domains": 2, "channels": 9}, 9 * 3 * 0.25),
        ({"domains": 2, "link_family": "xgmi"}, 2 * 3 * 0.25),
        ({"domains": 2, "link_family": "pcie"}, 5 * 3 * 0.25),
        ({"domains": 2, "link_family": "default"}, 7 * 3 * 0.25),
        ({"domains": 3}, 2 * 3),
        ({"domains": 4, "ranks": 12}, 2 * 3 * (3 / 4) ** 0.5),
        ({"domains": 12, "ranks": 12}, 2 * 3 / 2),
    ],
)  # fmt: skip
def test_tcp_connections_bound_what_neighbours_exchange(wiring: dict[str, Any], flows: float) -> None:  # fmt: skip
    """Each of 8 Gb/s, at half of that on ethernet."""
    choice = select("ring/Simple", 1e8, transport="tcp", **wiring)
    assert choice.max_rate == pytest.approx(flows * 0.5e9)
    low = select("ring/LL", 1e8, transport="tcp", **wiring)
    assert low.max_rate == pytest.approx(min(flows * 0.5e9 * 0.5, 30e9) / 0.5)


def test_sockets_need_several_domains_and_card_memory_none() -> None:
    assert select("ring/Simple", transport="tcp").max_rate is None
    assert select("ring/Simple", transport="rdma", domains=2).max_rate is None
    # LL128 asks for cards that reach device memory, and for NVLink
    ways = ({"domains": 1, "transport": "tcp"}, {"domains": 2, "transport": "tcp"}, {"domains": 2}, {"domains": 2, "link_family": "pcie"})  # fmt: skip
    both = {"LL", "LL128", "Simple"}
    assert [_protocols(way) for way in ways] == [both, both - {"LL128"}, both, both - {"LL128"}]


def _protocols(wiring: dict[str, Any]) -> set[str]:
    group = GroupTopology(**{**NVLINK, **wiring})
    message = selector._Message("all_reduce", 512.0, group, "hand")
    return {p.name for p in message.protocols(algorithms_for("all_reduce", "hand")[0], "")}


def test_senders_that_meet_slow_each_other_on_tcp_only() -> None:
    """Seven workers push to one server: six more than one, a quarter each but 1 at most."""

    def volume(servers: int, **wiring: Any) -> float:
        group = GroupTopology(**{**NVLINK, "domains": 8, **wiring})
        name = f"parameter_server({servers})"
        choice = selector.select(name, 1e6, group, "sockets")
        return choice.volume / choice.moved * 0.5

    assert volume(1) == pytest.approx(2.0)
    assert volume(2) == pytest.approx(1 + 0.25 * 3)
    assert volume(1, domains=2) == pytest.approx(2.0)
    ring = select("ring", library="sockets", domains=8)
    assert ring.volume == pytest.approx(ring.moved / 0.5)
    assert volume(1, transport="rdma") == volume(1, domains=1) == pytest.approx(1.0)


def test_a_sender_of_a_library_without_a_tuner_has_a_ceiling() -> None:
    assert select("ring", library="sockets").max_rate == pytest.approx(4e9 / 0.5)
    two = select("ring", library="sockets", domains=2)
    assert two.max_rate == pytest.approx(4 * 4e9 / 0.5)  # of four ranks in a domain
    assert select("all_pairs", library="sockets").max_rate == pytest.approx(7 * 4e9 / 0.5)
    free = select("ring", library="ruled")
    assert (free.max_rate, free.volume) == (None, free.moved)


# --- choices ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "ranks", "algorithm"),
    [
        (1000.0, 8, "tree"), (1001.0, 8, "recursive_doubling"), (4000.0, 8, "recursive_doubling"),
        (4001.0, 8, "ring"), (4001.0, 4, "ring"), (4001.0, 3, "hierarchical"),
    ],
)  # fmt: skip
def test_written_thresholds(size: float, ranks: int, algorithm: str) -> None:
    rates = tuple((a.pattern, 1e9) for a in algorithms_for("all_reduce", "ruled"))
    choice = select(size=size, library="ruled", ranks=ranks, domains=ranks, rates=rates)
    assert choice.algorithm == algorithm


def test_eager_messages_are_short_ones() -> None:
    """A ring of eight cuts its 7/4 of the buffer into fourteen messages: 100 bytes each of 800."""
    assert select("ring", 800.0, library="ruled").protocol == "eager"
    assert select("ring", 801.0, library="ruled").protocol == "late"
    assert select("ring", 800.0, library="ruled", domains=2).protocol == "eager"


def test_the_quickest_pair_is_taken() -> None:
    assert select(size=8.0).protocol == "LL"
    wide = select(size=1e3, ranks=16, domains=16)
    assert wide.algorithm == "tree"  # 2·4 hops between domains instead of 2·15
    assert select(size=1e9).algorithm == "ring"


def test_links_by_their_longest_prefix() -> None:
    assert link_efficiency("network", "ethernet-25g") == 0.5
    assert link_efficiency("network", "ether") == 0.9
    assert link_efficiency("network", "slingshot") == 0.7
    assert reported_latency("efa") == pytest.approx(75 * US)
    assert reported_latency("roce") == pytest.approx(US)
    assert has_tuner("hand")
    assert not has_tuner("sockets")
