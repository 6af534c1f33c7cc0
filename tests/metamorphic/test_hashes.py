"""A scenario's hash: equal scenarios share it, and answers that differ never do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import yaml

from foretrain.cluster import Cluster
from foretrain.errors import InputError
from foretrain.model.workload import DataSource
from foretrain.resolving import ask
from foretrain.scenario import Scenario, plain
from foretrain.simulate import simulate_scenario

from .cases import Case, every, figures, hold

SLOW = DataSource(bytes_per_sample=1e6, prep_seconds_per_sample=1.0, workers=1)


def mutations(case: Case) -> list[dict[str, Any]]:
    """Other values of each word of a question, one at a time."""
    scenario, words = case.scenario, case.words
    micro = scenario.plan.schedule.micro_batch
    batch = scenario.workload.global_batch
    other = "sgd" if scenario.workload.optimizer.name != "sgd" else "adam"
    changes: list[dict[str, Any]] = [
        {"on": "1 x dgx-a100-40gb"}, {"plan": "dp8"}, {"batch": 2 * batch}, {"micro_batch": 2 * micro},
        {"seq": 96}, {"precision": "fp32"}, {"precision": "fp16"}, {"optimizer": other},
        {"runtime": "ddp"}, {"runtime": "megatron"}, {"runtime_options": {"host_seconds_per_kernel": 1e-4}},
        {"runtime_options": {"attention": "unfused"}}, {"data": SLOW}, {"stragglers": {0: 1.5}}, {"headroom": 0.3},
        {"steps": 100}, {"steps": 200, "usd_per_hour": 2.0}, {"micro_batch": micro}, {"batch": batch},
    ]  # fmt: skip
    return [{**words, **change} for change in changes[case.number // 16 % 4 :: 4]]


def answered(scenario: Scenario) -> Any:
    found = simulate_scenario(scenario).prediction
    job = None if found.job is None else found.job.to_dict()
    return plain({**figures(found), "usd": found.cost.usd_per_hour, "job": job})


def known_otherwise(case: Case) -> Iterator[tuple[Scenario, str]]:
    """The same rates on devices and machines that measurements know by another name, or by none."""
    for identity in ("a100-sxm4-80gb", "a10g", "nobody's"):
        for told in ({"measured_as": identity}, {"name": identity, "measured_as": None}):
            runs = []
            for run in case.cluster.runs:
                devices = tuple(replace(device, **told) for device in run.node.devices)
                runs.append(replace(run, node=replace(run.node, devices=devices)))
            yield replace(case.scenario, cluster=replace(case.cluster, runs=tuple(runs))), str(told)
    nodes = (replace(run, node=replace(run.node, measured_as="box")) for run in case.cluster.runs)
    yield replace(case.scenario, cluster=replace(case.cluster, runs=tuple(nodes))), "other machines"


def known_apart(case: Case) -> Iterator[str]:
    known = {case.scenario.sha256: (answered(case.scenario), "the question itself")}
    for scenario, told in known_otherwise(case):
        found = answered(scenario)
        before = known.setdefault(scenario.sha256, (found, told))
        if before[0] != found:
            yield f"{told} has the hash of {before[1]}"


def told_apart(case: Case) -> Iterator[str]:
    known = {case.scenario.sha256: (answered(case.scenario), "the question itself")}
    for words in mutations(case):
        try:
            scenario = ask(case.model, **words)
            found = answered(scenario)
        except InputError:
            continue
        before = known.setdefault(scenario.sha256, (found, str(words)))
        if before[0] != found:
            yield f"{words} has the hash of {before[1]}"


def shared(case: Case) -> Iterator[str]:
    scenario, again = case.scenario, ask(case.model, **case.words)
    if again.sha256 != scenario.sha256 or again != scenario:
        yield "asked twice, two scenarios"
    for part in ("workload", "cluster", "plan", "runtime"):
        if plain(getattr(again, part)) != plain(getattr(scenario, part)):
            yield f"asked twice, two contents of its {part}"
    read = Cluster.from_dict(yaml.safe_load(yaml.safe_dump(case.cluster.to_dict())))
    if read == case.cluster and plain(read) != plain(case.cluster):
        yield "an equal cluster of another content"
    given = {**case.words, "on": case.cluster}
    if ask(case.model, **given).sha256 != scenario.sha256:
        yield "the cluster as a value and as words, two hashes"


def test_answers_that_differ_have_different_hashes(cases):
    hold(every(cases, 16, 0), told_apart)


def test_what_measurements_know_it_by_is_part_of_the_hash(cases):
    hold(every(cases, 32, 6), known_apart)


def test_equal_scenarios_share_a_hash(cases):
    hold(every(cases, 16, 4), shared)
