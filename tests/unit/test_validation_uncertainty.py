"""Intervals: parts that go together, parts that do not, terms for what is not known, and what rests on measurements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import log, sqrt

import numpy as np
import pytest

from foretrain.analysis.stalls import stalls
from foretrain.analysis.uncertainty import Z80, KnownFacts, Trust, scales, term_of, trust
from foretrain.cluster.device import Device
from foretrain.cost.compute import KernelCosts, Roofline
from foretrain.model.ops.base import Kernel
from foretrain.scenario import Scenario
from foretrain.simulate import answer, compile_scenario, cost_scenario, simulate
from foretrain.testing.asking import ask


class Stated:
    """The roofline with a spread by family, and kernels of some families measured."""

    def __init__(self, spread: dict[str, float], measured: Sequence[str] = ()) -> None:
        self.spread, self.measured = spread, measured

    def seconds(self, kernels: Sequence[Kernel], device: Device) -> KernelCosts:
        found = Roofline().seconds(kernels, device)
        kinds = [kernel.kind for kernel in kernels]
        return replace(
            found,
            spread=np.array([self.spread.get(kind, 0.0) for kind in kinds]),
            measured=np.array([kind in self.measured for kind in kinds]),
        )


def question(layers: int = 2) -> Scenario:
    model = {
        "family": "gpt", "hidden_size": 1024, "num_hidden_layers": layers, "num_attention_heads": 8,
        "num_key_value_heads": 8, "intermediate_size": 4096, "vocab_size": 8192,
        "tie_word_embeddings": True, "hidden_act": "gelu",
    }  # fmt: skip
    from foretrain.model.case import model_from_case

    return ask(
        model_from_case(model, 1024)[0],
        on="1 x dgx-a100-80gb",
        plan="dp8",
        batch=64,
        micro_batch=8,
        runtime_options={"host_seconds_per_kernel": 0.0, "host_seconds_per_collective": 0.0},
    )


def trust_of(asked: Scenario, model: Stated, known: KnownFacts | None = None) -> Trust:
    graph = compile_scenario(asked)
    costs = cost_scenario(asked, graph, model)
    run = simulate(graph, costs)
    found = stalls(graph, costs, run, float(run.end.max()))
    return trust(graph, costs, found, known or KnownFacts())


def test_kernels_of_a_family_are_off_together() -> None:
    """All kernels off by a tenth: the step is off by a tenth of their share, however many there are."""
    few, many = (trust_of(question(layers), Stated({"gemm": 0.1})) for layers in (2, 24))
    everything = Stated(dict.fromkeys(("gemm", "attention", "memory", "embedding"), 0.1))
    assert few.parts["kernels"] <= 0.1
    assert many.parts["kernels"] == pytest.approx(few.parts["kernels"], rel=0.25)
    assert trust_of(question(), everything).parts["kernels"] < 0.1  # families do not all err alike


def test_families_are_off_independently() -> None:
    gemm = trust_of(question(), Stated({"gemm": 0.1})).parts["kernels"]
    memory = trust_of(question(), Stated({"memory": 0.2})).parts["kernels"]
    both = trust_of(question(), Stated({"gemm": 0.1, "memory": 0.2})).parts["kernels"]
    assert both == pytest.approx(sqrt(gemm**2 + memory**2))
    assert both < gemm + memory


def test_measured_share_is_that_of_the_step() -> None:
    asked = question()
    none = trust_of(asked, Stated({})).measured_share
    some = trust_of(asked, Stated({}, ("gemm",))).measured_share
    kinds = ("gemm", "attention", "memory", "embedding")
    every = trust_of(asked, Stated({}, kinds))
    assert none < some < every.measured_share <= 1.0
    # all kernels are measured, and the collectives of one machine have a measured curve or not
    computing = answer(asked, compute=Stated({}, kinds)).stalls
    step = sum(computing.values())
    assert every.measured_share >= (computing["compute"] + computing["optimizer"]) / step - 1e-9


def test_an_interval_is_even_in_logarithms_and_holds_the_step() -> None:
    found = trust_of(question(), Stated({"gemm": 0.1}))
    low, high = found.interval(2.0)
    assert log(high / 2.0) == pytest.approx(log(2.0 / low))
    assert log(high / 2.0) == pytest.approx(Z80 * found.spread)


@pytest.mark.parametrize(
    "worse",
    [
        KnownFacts(devices=2),
        KnownFacts(devices=16, nodes=2),
        KnownFacts(is_runtime_known=False),
        KnownFacts(unknown_switches=9),
        KnownFacts(has_experts=True),
    ],
)
def test_knowing_less_is_wider(worse: KnownFacts) -> None:
    asked, model = question(), Stated({"gemm": 0.1})
    assert trust_of(asked, model, worse).spread > trust_of(asked, model).spread


def test_what_has_no_runs_shares_a_term() -> None:
    assert term_of(("runtime", "no such"), scales()) == "runtime other"
    assert term_of(("architecture", "hopper"), scales()) == "architecture hopper"
    own = trust_of(question(), Stated({}), KnownFacts(runtime="no such", architecture="hopper"))
    expected = {**own.parts, **own.terms, "runtime other": 1.0, "architecture hopper": 1.0}
    assert own.spread == pytest.approx(
        sqrt(sum((scales()[name] * value) ** 2 for name, value in expected.items()))
    )


def test_every_part_and_term_has_a_size() -> None:
    found = trust_of(question(), Stated({}))
    assert set(found.parts) | set(found.terms) <= set(scales())
    assert all(0.0 <= size < 10.0 for size in scales().values())
