"""The hash of a scenario: of its content, not of how numbers were written or things are called."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
import yaml

from foretrain.cluster import Cluster
from foretrain.cluster.cluster import NodeRun
from foretrain.resolving import ask
from foretrain.scenario import digest, plain
from foretrain.simulate import answer

TWO = {"node": "aws:g5.12xlarge", "name": "first", "devices": [{"device": "mine", "count": 4}]}
LIKE: dict[str, Any] = {"mine": {"like": "a10g"}}
ASKED: dict[str, Any] = {"plan": "dp4", "batch": 8, "micro_batch": 1, "runtime": "ddp", "seq": 256}


def test_equal_numbers_are_equal_content():
    assert plain(2.0) == plain(2)
    assert plain((1e12, 0.5)) == plain((10**12, 0.5))
    assert plain(2.0**60) == plain(2**60)
    assert plain(-0.0) == plain(0)


def test_unlike_numbers_are_unlike_content():
    nearest = 2.0 + 2.0**-51
    values = [2, nearest, 2.5, float("inf"), True, "2", None, 2**53 + 1, float(2**53)]
    assert len({json.dumps(plain(value)) for value in values}) == len(values)


def test_a_cluster_that_was_written_and_read_has_the_same_content():
    cluster = Cluster.of("2 x dgx-a100-80gb")
    again = Cluster.from_dict(yaml.safe_load(yaml.safe_dump(cluster.to_dict())))
    assert again == cluster
    assert plain(again) == plain(cluster)


def written(device: str = "mine", node: str = "first", **row: Any) -> dict[str, Any]:
    """A cluster file of one machine of one's own."""
    devices = {device: {**LIKE["mine"], **row}}
    machine = {**TWO, "name": node, "devices": [{"device": device, "count": 4}]}
    return {"name": "c", "devices": devices, "nodes": [machine]}


def test_new_names_of_devices_and_nodes_leave_the_hash() -> None:
    scenario = ask("gpt2", on=written(), **ASKED)
    for names in (("yours", "first"), ("mine", "second"), ("dgx-h100", "h100-sxm5-80gb")):
        other = ask("gpt2", on=written(*names), **ASKED)
        assert other.sha256 == scenario.sha256
        assert answer(other).step_seconds == answer(scenario).step_seconds
    catalog = ask("gpt2", on="1 x aws:g5.12xlarge", **ASKED)
    assert catalog.sha256 == scenario.sha256
    assert answer(catalog).interval == answer(scenario).interval


def test_other_rates_and_prices_do_not() -> None:
    rows: list[dict[str, Any]] = [
        {}, {"like": "a100-sxm4-80gb"}, {"memory_bandwidth": "300 GB/s"}, {"measured_as": "l4"}, {"tdp_watts": 100},
    ]  # fmt: skip
    assert len({ask("gpt2", on=written(**row), **ASKED).sha256 for row in rows}) == len(rows)


def of_runs(*names: tuple[str, str]) -> Cluster:
    """Machines of one kind, with names of their own for machine and device."""
    base = Cluster.of("2 x aws:g5.12xlarge")
    node = base.runs[0].node
    runs = []
    for name, device in names:
        called = replace(node.devices[0], name=device, measured_as=node.devices[0].identity)
        other = replace(node, name=name, measured_as=node.identity, devices=(called,) * 4)
        runs.append(NodeRun(other, 1, 4))
    return replace(base, runs=tuple(runs))


def test_which_of_a_cluster_are_one_kind_is_content() -> None:
    same = of_runs(("a", "x"), ("a", "x"))
    assert digest(same) == digest(of_runs(("b", "y"), ("b", "y")))
    unlike = of_runs(("a", "x"), ("b", "y"))
    assert digest(unlike) == digest(of_runs(("b", "y"), ("a", "x")))
    assert len({digest(one) for one in (same, unlike, of_runs(("a", "x"), ("b", "x")))}) == 3


@pytest.mark.parametrize("part", ["node", "device"])
def test_what_measurements_know_it_by_is_content(part: str) -> None:
    """A name by which nothing was measured, and the name of something measured, with the same rates."""

    def known_as(**told: Any) -> Cluster:
        base = Cluster.of("1 x aws:g5.12xlarge")
        node = base.runs[0].node
        if part == "node":
            node = replace(node, **told)
        else:
            node = replace(node, devices=(replace(node.devices[0], **told),) * 4)
        return replace(base, runs=(replace(base.runs[0], node=node),))

    own = known_as()
    name = own.runs[0].node.identity if part == "node" else own.devices[0].identity
    assert digest(known_as(name="mine", measured_as=name)) == digest(own)
    assert digest(known_as(measured_as=name)) == digest(own)
    assert digest(known_as(name="mine")) != digest(own)
    assert digest(known_as(measured_as="mine")) == digest(known_as(name="mine"))
