"""Host chains and data loading."""

from __future__ import annotations

import numpy as np
import pytest
from support.chains import chain_summary

from foretrain.cluster.node import Host
from foretrain.compile.execution import Load
from foretrain.cost.host import chain_summaries
from foretrain.cost.items import load_seconds
from foretrain.errors import Bug
from foretrain.model.workload import DataSource


def test_a_device_bound_chain_starves_only_for_its_first_kernel() -> None:
    chain = chain_summary([10.0, 10.0, 10.0], [1.0, 1.0, 1.0])
    assert chain == (30.0, 3.0, 1.0)
    assert chain.device_end(device_in=0.0, host_in=0.0) == 31.0
    assert chain.device_end(device_in=5.0, host_in=0.0) == 35.0


def test_a_host_bound_chain_ends_one_kernel_after_the_last_launch() -> None:
    chain = chain_summary([1.0, 1.0, 1.0], [10.0, 10.0, 10.0])
    assert chain == (3.0, 30.0, 28.0)
    assert chain.device_end(device_in=0.0, host_in=0.0) == 31.0


def test_an_empty_chain_is_three_zeros() -> None:
    assert chain_summary([], []) == (0.0, 0.0, 0.0)
    many = chain_summaries(np.array([0, 0, 2, 2]), [1.0, 2.0], [0.5, 0.5])
    assert many.device.tolist() == [0.0, 3.0, 0.0]
    assert many.lead.tolist() == [0.0, 0.5, 0.0]
    assert len(chain_summaries(np.array([0]), [], []).host) == 0


IMAGES = DataSource(bytes_per_sample=1e5, prep_seconds_per_sample=0.01, workers=4)
NODE = Host(cpu_cores=16.0, storage_bandwidth=1e9)


def test_fetching_shares_the_disk_of_the_node() -> None:
    assert load_seconds(Load(100.0, "fetch"), IMAGES, NODE) == pytest.approx(0.01)
    assert load_seconds(Load(100.0, "fetch"), IMAGES, NODE, devices=8) == pytest.approx(0.08)


def test_preparing_is_bound_by_workers_and_then_by_cores() -> None:
    assert load_seconds(Load(100.0, "prep"), IMAGES, NODE) == pytest.approx(1.0 / 4)
    assert load_seconds(Load(100.0, "prep"), IMAGES, NODE, devices=8) == pytest.approx(1.0 / 2)


def test_an_unstated_host_does_not_bound_loading() -> None:
    assert load_seconds(Load(100.0, "fetch"), IMAGES, Host(), devices=8) == 0.0
    assert load_seconds(Load(100.0, "prep"), IMAGES, Host(), devices=8) == pytest.approx(0.25)


def test_an_unknown_kind_of_load_is_a_bug() -> None:
    with pytest.raises(Bug, match="guess"):
        load_seconds(Load(1.0, "guess"), IMAGES, NODE)
