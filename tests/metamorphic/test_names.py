"""Names change nothing, not even a hash: of clusters, machines, devices and models, in files and in Python, and `like:`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby
from typing import Any

import pytest
import yaml

from foretrain.cluster import Cluster
from foretrain.cluster.catalog import is_node
from foretrain.cluster.cluster import NodeRun
from foretrain.forecast import predict
from foretrain.simulate import answer

from .cases import Case, differences, every, figures, hold


def renamed(cluster: Cluster) -> Cluster:
    """In Python: other names, the same identities."""

    def run(place: int, one: NodeRun) -> NodeRun:
        node = one.node
        devices = tuple(
            replace(device, name=f"mine-{device.name}", measured_as=device.identity)
            for device in node.devices
        )
        other = replace(node, name=f"box-{place}", measured_as=node.identity, devices=devices)
        return replace(one, node=other)

    runs = tuple(run(place, one) for place, one in enumerate(cluster.runs))
    return replace(cluster, name="other", runs=runs)


def has_twins(cluster: Cluster) -> bool:
    """Whether machines of one name get two: a hash counts them as two kinds, since ranks are then told apart."""
    return len({run.node for run in cluster.runs}) < len(cluster.runs)


def described(cluster: Cluster) -> dict[str, Any] | None:
    """In YAML: machines of the catalog, and devices like those of it, under names of the user's own."""
    if not all(is_node(run.node.name) for run in cluster.runs):
        return None
    own = {d: f"mine-{k}" for k, d in enumerate(dict.fromkeys(d for run in cluster.runs for d in run.node.devices))}  # fmt: skip
    network = cluster.to_dict()["network"]
    nodes = [
        {
            "node": run.node.name,
            "name": f"box-{place}",
            "count": run.count,
            "used": run.used,
            "devices": [
                {"device": own[device], "count": len(list(same))}
                for device, same in groupby(run.node.devices)
            ],
        }
        for place, run in enumerate(cluster.runs)
    ]
    like = {name: {"like": device.name} for device, name in own.items()}
    return {"name": "other", "devices": like, "nodes": nodes, "network": network}


def model_file(case: Case) -> dict[str, Any] | None:
    """The model in YAML under another name; its sequence length is said in the question."""
    if isinstance(case.model, str):
        return {"name": "other", "zoo": case.model}
    sizes = {key: value for key, value in case.model.items() if key != "zoo"}
    return {"name": "other", "zoo": case.model["zoo"], "overrides": sizes}


def other_names_in_python(case: Case) -> Iterator[str]:
    workload = case.scenario.workload
    model = replace(workload.model, name="other")
    other = replace(case.scenario, cluster=renamed(case.cluster), workload=replace(workload, model=model))  # fmt: skip
    yield from differences(figures(case.prediction), figures(answer(other)))
    if other.sha256 != case.scenario.sha256 and not has_twins(case.cluster):
        yield "another hash"


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("names")


def test_other_names_in_python_change_nothing(cases):
    hold(every(cases, 16, 1), other_names_in_python)


def test_other_names_in_files_change_nothing(cases, folder):
    def in_files(case: Case) -> Iterator[str]:
        words, model = dict(case.words), case.model
        for name, content in (("on", described(case.cluster)), ("model", model_file(case))):
            if content is None:
                continue
            path = folder / f"{name}.yaml"
            path.write_text(yaml.safe_dump(content), encoding="utf-8")
            if name == "on":
                words["on"] = str(path)
            else:
                model = str(path)
        other = predict(model, **words)
        yield from differences(figures(case.prediction), figures(other))
        same = other.provenance["inputs_sha256"] == case.scenario.sha256
        if not same and not has_twins(case.cluster):
            yield "another hash"

    hold(every(cases, 16, 5), in_files)


def test_a_cluster_written_out_and_read_back_is_the_same(cases):
    def written(case: Case) -> Iterator[str]:
        if Cluster.from_dict(yaml.safe_load(yaml.safe_dump(case.cluster.to_dict()))) != case.cluster:  # fmt: skip
            yield "the cluster is another after it was written and read"

    hold(every(cases, 16, 9), written)
