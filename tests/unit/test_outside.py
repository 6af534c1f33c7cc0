"""Variants from outside: an op family, a collective algorithm and a software stack that the package does not know, each
registered by one call, answer every kind of question."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import ClassVar

import numpy as np
import pytest

import foretrain
from foretrain import runtime as runtimes
from foretrain.cost import collectives
from foretrain.cost.collectives import CollectiveProgram, Round, Steps
from foretrain.cost.collectives.base import FromProgram
from foretrain.errors import InputError, ModelError, RuntimePresetError
from foretrain.model import ops
from foretrain.model.graph import Op, Tensor
from foretrain.model.ops import FAMILIES
from foretrain.model.ops.base import (
    FORWARD,
    INPUT_GRADIENT,
    Kernel,
    KernelChoices,
    largest,
    memory,
    tensor_bytes,
)
from foretrain.model.ops.family import OpFamily
from foretrain.model.precision import Precision
from foretrain.testing.collectives import check_collective
from foretrain.testing.ops import check_model

STACK = {
    "like": "megatron",
    "title": "A toy",
    "source": "this test",
    "host": {"host_seconds_per_kernel": 1e-3},
}


class Fourier(OpFamily):
    """Mixes tokens by a Fourier transform, `passes` times over what it reads; nothing is kept."""

    name = "fourier"
    is_layer = True
    runs_again_selectively = True
    attributes: ClassVar = {"passes": ((lambda value: value in (1, 2, 3)), "1, 2 or 3")}

    def flops(self, op: Op) -> float:
        return 0.0

    def _kernels(self, op: Op, precision: Precision, phase: str) -> tuple[Kernel, ...]:
        moved = tensor_bytes(op, (*op.inputs, *op.outputs), precision)
        return (memory(phase, moved, largest(op), 5.0),) * int(op.attr.get("passes", 1))

    def forward(self, op: Op, precision: Precision, choices: KernelChoices) -> tuple[Kernel, ...]:
        return self._kernels(op, precision, FORWARD)

    def backward(self, op: Op, precision: Precision, choices: KernelChoices) -> tuple[Kernel, ...]:
        return self._kernels(op, precision, INPUT_GRADIENT)

    def saved(self, op: Op, precision: Precision, choices: KernelChoices) -> tuple[Tensor, ...]:
        return (Tensor(f"{op.name}.phases", op.inputs[0].dims),)

    def divides(self, op: Op, dims: tuple[str, ...]) -> bool:
        return dims in (("batch",), ("hidden",))


class Everyone(FromProgram):
    """All-reduce by sending the whole buffer to everybody, one neighbour further every round."""

    name = "everyone"
    pattern = "everyone"
    collectives: tuple[str, ...] = ("all_reduce",)

    def steps(self, collective: str, ranks: int, domains: int) -> Steps:
        inside = -(-ranks // domains) - 1
        return Steps(inside, ranks - 1 - inside)

    def program(
        self, collective: str, size: float, layout: np.ndarray, chunks: int = 1
    ) -> CollectiveProgram:
        rank = np.arange(len(layout))
        rounds = (Round.of(rank, (rank + k) % len(rank), size) for k in range(1, len(rank)))
        return CollectiveProgram(len(rank), tuple(rounds))


@pytest.fixture(autouse=True)
def variants() -> Iterator[None]:
    undo: list[Callable[[], None]] = [
        ops.register(Fourier()),
        collectives.register(Everyone()),
        runtimes.register("toy-stack", STACK),
    ]
    yield
    for take_out in reversed(undo):
        take_out()


def drawn(passes: int = 2) -> dict[str, object]:
    """A model written as a file would write it."""
    known = {"batch": 1, "seq": 512, "hidden": 1024, "ffn": 4096}
    tokens, inner = "[batch, seq, hidden]", "[batch, seq, ffn]"

    def op(name: str, kind: str, source: str, result: str, **more: object) -> dict[str, object]:
        sizes = {dim: size for dim, size in known.items() if dim in source + result}
        row = {"name": name, "kind": kind, "sizes": sizes, "inputs": [source], "outputs": [result]}
        return row | more

    layer = [
        op("mix", "fourier", f"x{tokens}", f"mixed{tokens}", attrs={"passes": passes}),
        op("fc1", "linear", f"mixed{tokens}", f"h{inner}", weights=["weight[hidden, ffn]"]),
        op("act", "elementwise", f"h{inner}", f"a{inner}", attrs={"op": "gelu"}),
        op("fc2", "linear", f"a{inner}", f"y{tokens}", weights=["weight[ffn, hidden]"]),
    ]
    ends = {"inputs": [f"x{tokens}"], "outputs": [f"y{tokens}"], "sizes": known}
    block = {"name": "layer", "repeat": 8, "ops": layer, **ends}
    return {"name": "fnet", "seq": 512, "blocks": [block]}


ASKED = {"on": "1 x dgx-h100", "batch": 64, "runtime": "toy-stack"}


def test_the_variants_conform():
    check_model(foretrain.Model.of(drawn()))
    check_collective(Everyone())


def test_kits_say_what_to_mend(monkeypatch):
    monkeypatch.setattr(Fourier, "flops", lambda self, op: 8.0 * op.size["batch"])
    with pytest.raises(AssertionError, match=r"flops\(\) says 8, its contraction kernels run 0"):
        check_model(foretrain.Model.of(drawn()))
    monkeypatch.setattr(Everyone, "volume", lambda self, collective, size, ranks: 2 * size)
    with pytest.raises(AssertionError, match=r"phases do not overlap, volume\(\) is 0.5 times"):
        check_collective(Everyone())


def test_predict():
    answer = foretrain.predict(drawn(), plan="tp2 dp4", **ASKED)
    assert answer.step_seconds > foretrain.predict(drawn(1), plan="tp2 dp4", **ASKED).step_seconds
    usual = foretrain.predict(drawn(), plan="tp2 dp4", **{**ASKED, "runtime": "megatron"})
    assert answer.step_seconds > 2 * usual.step_seconds, "a millisecond for every kernel"


def test_selective_recomputation_means_the_op_that_says_so():
    kept = foretrain.predict(drawn(), plan="dp8", **ASKED)
    again = foretrain.predict(drawn(), plan="dp8 recompute=selective", **ASKED)
    assert again.step_seconds > kept.step_seconds
    assert again.memory.peak_bytes < kept.memory.peak_bytes


def test_the_algorithm_runs_where_it_is_asked_for():
    options = {"algorithms": "all_reduce:everyone"}
    answer = foretrain.predict(drawn(), plan="dp8", runtime_options=options, **ASKED)
    usual = foretrain.predict(drawn(), plan="dp8", **ASKED)
    assert answer.step_seconds > usual.step_seconds, "seven times the buffer instead of 7/4 of it"
    assert "everyone" not in {a.name for a in collectives.algorithms_for("all_reduce")}


def test_compile():
    graph = foretrain.compile_graph(drawn(), plan="tp2 dp4", **ASKED)
    works = {item.work.op for item in graph.items if hasattr(item.work, "op")}
    assert "layer.mix" in works


def test_search():
    answer = foretrain.search(
        drawn(), **ASKED, runtime_options={"algorithms": "all_reduce:everyone"}
    )
    assert answer.rows()
    assert answer.task.runtime.name == "toy-stack"


@pytest.mark.parametrize(
    "own",
    [
        {"runtime": "toy-stack"},
        {"runtime_options": {"algorithms": "all_reduce:everyone"}},
        {},
    ],
)
def test_a_command_is_shown_where_a_shell_can_run_it(own):
    answer = foretrain.search("gpt2", on="1 x dgx-h100", batch=64, where="dp=8", **own)
    assert (answer.command is None) == bool(own)
    assert (answer.to_dict()["command"] is None) == bool(own)


def test_workers_know_nothing_of_it():
    asked = {"on": "1 x dgx-h100", "batch": 64, "where": "dp=8", "workers": 2}
    with pytest.raises(
        InputError, match=r"op family 'fourier': .* worker processes. Use workers=1"
    ):
        foretrain.search(drawn(), **asked)
    options = {"algorithms": "all_reduce:everyone"}
    with pytest.raises(InputError, match=r"algorithm 'everyone': .* worker processes"):
        foretrain.search("gpt2", **asked, runtime_options=options)
    assert foretrain.search("gpt2", **asked, runtime="toy-stack", top=1).best, (
        "a task has its stack"
    )


def test_export():
    exported = foretrain.export(drawn(), to="torchrun", plan="dp8", **ASKED)
    assert "launch.sh" in exported.files


def test_attributes_of_a_family_are_checked():
    with pytest.raises(ModelError, match="1, 2 or 3"):
        foretrain.Model.of(drawn(4))


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), -1e12, 1e300, "many", None])
def test_formulas_count_from_nothing_up(monkeypatch, wrong):
    asked = {"model": drawn(), "on": "1 x dgx-h100", "batch": 64, "plan": "dp8"}
    told = r"op 'mix': {} of family 'fourier' is .*, not a number from 0"
    for method in ("flops", "stored_bytes"):
        with monkeypatch.context() as patched:
            patched.setattr(Fourier, method, lambda *_: wrong)
            patched.setitem(FAMILIES, "fourier", Fourier())  # of one that is known, blocks are kept
            with pytest.raises(ModelError, match=told.format(rf"{method}\(\)")):
                foretrain.predict(**asked)
    for method in ("forward", "backward"):
        for field in ("flops", "bytes"):
            counted = {"flops": 1.0, "bytes": 1.0, field: wrong}
            kernel = Kernel("memory", FORWARD, dtype="fp32", shape=(1,), **counted)
            with monkeypatch.context() as patched:
                patched.setattr(Fourier, method, lambda *_, made=kernel: (made,))
                with pytest.raises(ModelError, match=told.format(rf"{method}\(\)\[0\].{field}")):
                    foretrain.predict(**asked)


def test_formulas_answer_with_kernels(monkeypatch):
    monkeypatch.setattr(Fourier, "forward", lambda *_: (5,))
    with pytest.raises(ModelError, match=r"op 'mix': forward\(\) .* not a tuple of kernels"):
        foretrain.predict(drawn(), on="1 x dgx-h100", batch=64, plan="dp8")


def test_names_are_taken_once():
    with pytest.raises(ModelError, match="already"):
        ops.register(Fourier())
    with pytest.raises(InputError, match="already"):
        collectives.register(Everyone())
    with pytest.raises(RuntimePresetError, match="already"):
        runtimes.register("Toy Stack", STACK)
    with pytest.raises(RuntimePresetError) as refused:
        runtimes.register("toy-two", {"like": "megatorn", "hosts": 1, "host": {"jitter_second": 1}})
    assert all(word in str(refused.value) for word in ("megatron", "hosts", "jitter_seconds"))
    assert "toy-two" not in runtimes.presets()
