"""`measure ops`: which kernels are needed, how they are timed, what the store keeps."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from foretrain.compile.execution import Compute
from foretrain.measurement.fitting import calibrate
from foretrain.measurement.local import local_cluster
from foretrain.measurement.machine import Machine
from foretrain.measurement.needs import (
    ACCUMULATE,
    CONTEXT,
    STREAM,
    UPDATE,
    Need,
    needs,
    weight_sizes,
)
from foretrain.measurement.ops import measure_ops
from foretrain.measurement.recipes import recipe, rotation
from foretrain.measurement.records import op_key
from foretrain.measurement.store import Store
from foretrain.measurement.timing import Effort
from foretrain.model.ops.base import LAUNCHES
from foretrain.model.shape import TransformerShape
from foretrain.model.transformer import transformer
from foretrain.resolving import ask
from foretrain.scenario import Scenario
from foretrain.simulate import answer, compile_scenario

HERE = Machine("cpu", 2, 8, (), "", "host", "Linux", (("torch", "2"),))


class FakeBackend:
    """A device that is a formula: a microsecond, 10 GFLOP/s and 5 GB/s."""

    name, device, threads, cache_bytes = "fake", "cpu", 1, 1e6

    def elapsed(self, call: Any, calls: int, before: Any = None) -> float:
        raise AssertionError("a fake runs nothing")

    def normal(self, *shape: int, dtype: str = "fp32") -> Any:
        return shape

    def integers(self, high: int, *shape: int) -> Any:
        return shape


class Timer:
    def __init__(self, ends_after: int | None = None) -> None:
        self.timed: list[Need] = []
        self.ends_after = ends_after

    def __call__(self, need: Need, effort: Effort) -> tuple[float, ...]:
        if self.ends_after is not None and len(self.timed) >= self.ends_after:
            raise KeyboardInterrupt
        self.timed.append(need)
        return (seconds(need),) * 5


def seconds(need: Need) -> float:
    return 1e-6 + need.flops / 1e10 + need.bytes / 5e9


def small(layers: int = 2, batch: int = 2, **options: Any) -> Scenario:
    shape = TransformerShape(
        hidden_size=64, num_hidden_layers=layers, num_attention_heads=2, vocab_size=96,
        max_position_embeddings=16,
    )  # fmt: skip
    return ask(
        transformer(shape, 16, "small"), on="1 x cpu-host", plan="dp1", batch=batch,
        micro_batch=batch, precision="fp32", optimizer="sgd", runtime="cpu-eager", **options,
    )  # fmt: skip


def kernels(question: Scenario) -> set[Any]:
    works = [item.work for item in compile_scenario(question).items]
    found = [w.kernel for w in works if isinstance(w, Compute)]
    return {kernel for kernel in found if kernel.kind != LAUNCHES}


def test_every_kernel_of_the_step_is_needed_once() -> None:
    found = needs([small()])
    listed = [kernel for need in found for kernel in dict.fromkeys(need.kernels)]
    assert set(listed) == kernels(small())
    assert len(listed) == len(set(listed))


def test_deeper_models_need_the_same_kernels_and_another_update() -> None:
    more = {n.kernels for n in needs([small(layers=6)])} - {n.kernels for n in needs([small()])}
    assert len(more) == 1


def test_nothing_of_a_transformer_is_streamed_for_want_of_a_recipe() -> None:
    assert not [need.title for need in needs([small()]) if need.what == STREAM]


def test_accumulated_gradients_are_added_weight_by_weight() -> None:
    options = {"adds_gradients": True}
    added = [n for n in needs([small(runtime_options=options)]) if n.what == ACCUMULATE]
    assert added
    assert all(sum(n.tensors) == n.kernels[0].shape[0] for n in added)


def test_the_update_has_the_model_s_own_tensors() -> None:
    question = small()
    (update,) = [n for n in needs([question]) if n.what == UPDATE]
    assert update.tensors == weight_sizes(question.workload.model)
    assert sum(update.tensors) == question.workload.model.parameters
    assert update.optimizer == "sgd"


def test_times_are_kept_by_kernel_and_found_again(tmp_path: Path) -> None:
    question, timer = small(), Timer()
    with Store.open(tmp_path / "store") as store:
        first = measure_ops([question], store, FakeBackend(), machine=HERE, timer=timer)
        again = measure_ops([question], store, FakeBackend(), machine=HERE, timer=Timer(0))
        kept = [store.known("op", op_key(k, threads=1), HERE) for k in kernels(question)]
    assert first.measured == len(first.rows) == len(timer.timed)
    assert again.measured == 0
    assert len(again.rows) == len(first.rows)
    assert all(kept)


def test_an_interrupted_run_goes_on_where_it_was(tmp_path: Path) -> None:
    question = small()
    with Store.open(tmp_path / "store") as store:
        with pytest.raises(KeyboardInterrupt):
            measure_ops([question], store, FakeBackend(), machine=HERE, timer=Timer(7))
        rest = Timer()
        report = measure_ops([question], store, FakeBackend(), machine=HERE, timer=rest)
    assert len(rest.timed) == len(report.rows) - 7


def test_a_budget_that_is_spent_leaves_the_shortest(tmp_path: Path) -> None:
    with Store.open(tmp_path / "store") as store:
        report = measure_ops(
            [small()], store, FakeBackend(), machine=HERE, timer=Timer(), budget=0.0
        )
    assert not report.rows
    assert len(report.unmeasured) == len(needs([small()]))


def test_progress_counts_what_is_done(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    with Store.open(tmp_path / "store") as store:
        measure_ops(
            [small()], store, FakeBackend(), machine=HERE, timer=Timer(),
            progress=lambda done, total: seen.append((done, total)),
        )  # fmt: skip
    assert seen[0] == (0, len(seen))
    assert seen[-1] == (len(seen) - 1, len(seen))


def test_a_measured_step_takes_what_its_kernels_took(tmp_path: Path) -> None:
    """The prediction of a step whose kernels were all timed is their sum, the host's dispatch and nothing else."""
    question = small()
    with Store.open(tmp_path / "store") as store:
        measure_ops([question], store, FakeBackend(), machine=HERE, timer=Timer())
        calibration = calibrate(store, HERE, threads=1)
    local = replace(question, cluster=local_cluster(calibration), measured=calibration)
    graph = compile_scenario(local)
    price = {
        k: seconds(n) * s
        for n in needs([question])
        for k, s in zip(n.kernels, n.shares(), strict=True)
    }
    total = 0.0
    for task in range(graph.tasks):
        works = [item.work for item in graph.shape(int(graph.task_shape[task]))]
        if graph.streams[int(graph.stream_ids[graph.stream_ptr[task]])][1] == "compute":
            total += sum(price.get(w.kernel, 0.0) for w in works if isinstance(w, Compute))
    tensors = len(weight_sizes(question.workload.model))
    launches = (
        tensors
        * question.runtime.per_tensor_update.kernels_per_tensor
        * question.runtime.host.host_seconds_per_kernel
    )
    assert answer(local).step_seconds == pytest.approx(total + launches, rel=0.02)


# --- with torch on a CPU ------------------------------------------------------------------------------


def cpu() -> Any:
    pytest.importorskip("torch", reason="torch is not installed")
    from foretrain.measurement.backend import CpuBackend

    return CpuBackend(1)


def gated() -> Any:
    shape = TransformerShape(
        hidden_size=64, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=96, vocab_size=64, hidden_act="silu-gated", norm="rmsnorm",
        position="rope", biases="none",
    )  # fmt: skip
    return transformer(shape, 8, "gated")


@pytest.mark.parametrize("model", ["gpt", "gated", "resnet18-cifar"])
def test_every_recipe_runs(model: str) -> None:
    backend = cpu()
    source: Any = {"gpt": small().workload.model, "gated": gated()}.get(model, model)
    question = ask(
        source, on="1 x cpu-host", plan="dp1", batch=2, micro_batch=2, precision="fp32",
        optimizer="adam", runtime="cpu-eager", runtime_options={"adds_gradients": True},
    )  # fmt: skip
    found = [need for need in needs([question]) if need.bytes < 2e7]
    assert len(found) > 20
    for need in found:
        call = rotation(need, backend)
        with backend.torch.set_grad_enabled(call.records):
            call()
            call()


@pytest.mark.parametrize("what", ["linear", "norm", "elementwise", "cross_entropy", "embedding"])
def test_recipes_make_what_the_kernel_s_bytes_say(what: str) -> None:
    """A forward result is as large as the op's output: the recipe runs the op that was asked for."""
    backend = cpu()
    for need in needs([small()]):
        if need.what == what and need.phase == "forward" and need.op is not None:
            made = recipe(need, backend)
            result = made.call(*made.flowing(), *made.lasting())
            size = sum(need.op.elements(t) for t in need.op.outputs)
            assert result.numel() == (1 if what == "cross_entropy" else size)


def test_ops_of_a_small_model_are_timed_for_real(tmp_path: Path) -> None:
    backend = cpu()
    effort = Effort(seconds=0.05, warm_up_seconds=0.005)
    with Store.open(tmp_path / "store") as store:
        report = measure_ops([small(layers=1)], store, backend, effort=effort)
        calibration = calibrate(store, Machine.here(), threads=1)
    assert report.host_seconds_per_kernel is not None
    assert 1e-7 < report.host_seconds_per_kernel < 1e-2
    assert all(0 < row.seconds < 1 for row in report.rows)
    step = answer(
        replace(small(layers=1), cluster=local_cluster(calibration), measured=calibration)
    ).step_seconds
    assert sum(row.seconds for row in report.rows) * 0.5 < step < 1.0


# --- the calls before ---------------------------------------------------------------------------------


def test_a_kernel_is_timed_after_the_calls_that_come_before_it_in_the_step() -> None:
    found = {need.title: need for need in needs([small(layers=4)])}
    fc1 = next(
        n for t, n in found.items() if t.startswith("linear forward") and t.endswith("x256x64")
    )
    assert len(fc1.before) == CONTEXT
    assert {one.phase for one in fc1.before} == {"forward"}
    assert [one.what for one in fc1.before[-3:]] == ["linear", "elementwise", "norm"]


def test_before_the_first_call_comes_the_end_of_the_step_before() -> None:
    (first,) = [n for n in needs([small()]) if n.what == "embedding" and n.phase == "forward"]
    assert first.before[-1].what == UPDATE


def test_kernels_that_one_call_runs_come_before_once() -> None:
    for need in needs([small()]):
        norms = [one for one in need.before if one.what == "norm" and one.phase != "forward"]
        assert len(norms) <= 2  # of which a layer has two, each of three kernels


def test_only_the_call_itself_is_counted() -> None:
    counted = cpu().elapsed(lambda _: None, 5, lambda _: time.sleep(2e-3))
    assert counted < 2e-3


@pytest.mark.parametrize("processes", [1, 2])
def test_making_tensors_is_no_part_of_the_time_for_repeats(processes: int, tmp_path: Path) -> None:
    """Rotations that take a while to make still leave as many repeats as a median needs."""
    backend = cpu()
    normal = backend.normal

    def slow(*shape: int, dtype: str = "fp32") -> Any:
        time.sleep(2e-3)
        return normal(*shape, dtype=dtype)

    backend.normal = slow
    with Store.open(tmp_path / "store") as store:
        effort = Effort(seconds=0.05, warm_up_seconds=0.005)
        pair: Any = Pair() if processes == 2 else None
        report = measure_ops([small(layers=1)], store, backend, effort=effort, group=pair)
    assert min(row.repeats for row in report.rows) >= 5


def test_updates_are_timed_on_gradients_that_are_not_zero() -> None:
    backend = cpu()
    (need,) = [n for n in needs([small()]) if n.what == UPDATE]
    (step,) = recipe(need, backend).flowing()
    weights = [w for group in step.__self__.param_groups for w in group["params"]]
    assert all(float(w.grad.abs().min()) > 1e-12 for w in weights if w.numel() < 1000)


def test_what_flows_in_is_written_anew_and_keeps_its_values() -> None:
    backend = cpu()
    need = next(n for n in needs([small()]) if n.what == "linear" and n.phase == "forward")
    call = rotation(need, backend)
    call.refresh()
    (x, *_) = call._sets[0]
    was, version = x.detach().clone(), x._version
    call.refresh()
    assert x._version > version
    assert bool((x == was).all())
    assert all(kept is not None for kept in call._kept)  # every copy has its memory already


# --- by several processes at once ---------------------------------------------------------------------


class Pair:
    """Two processes of which the other says the same, or knows more."""

    rank, world, per_node, backend, device = 0, 2, 2, "gloo", "cpu"

    def __init__(self, told: float = -1.0) -> None:
        self.told = told

    def largest(self, value: float) -> float:
        return max(value, self.told)

    def mean(self, value: float) -> float:
        return value

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"{name} is not needed")


def test_kernels_timed_by_two_processes_are_kept_apart(tmp_path: Path) -> None:
    question: Any = small()
    with Store.open(tmp_path / "store") as store:
        pair: Any = Pair()
        measure_ops([question], store, FakeBackend(), machine=HERE, timer=Timer())
        both = measure_ops(
            [question], store, FakeBackend(), machine=HERE, timer=Timer(), group=pair
        )
        kept = [
            store.known("op", op_key(k, threads=1, processes=2), HERE) for k in kernels(question)
        ]
    assert both.measured == len(both.rows) > 0
    assert all(kept)


def test_a_process_without_the_store_is_told_what_is_known() -> None:
    pair: Any = Pair(told=3.0)
    report = measure_ops([small()], None, FakeBackend(), machine=HERE, timer=Timer(0), group=pair)
    assert report.measured == 0
    assert {row.seconds for row in report.rows} == {3.0}
