"""What low-precision recipes and experts cost besides their products."""

from __future__ import annotations

import pytest

from foretrain.compile.execution import Communication, Compute
from foretrain.model import zoo
from foretrain.model.ops import FAMILIES, family
from foretrain.model.ops.base import KernelChoices
from foretrain.model.precision import precision
from foretrain.simulate import answer, compile_scenario, cost_scenario
from foretrain.testing.asking import ask


def question(model="llama3-8b", plan="tp4 dp2 sp", **more):
    options = {"batch": 16, "seq": 4096, "runtime": "nemo"} | more
    return ask(model, on="1 x dgx-h100", plan=plan, **options)


def kernels(asked):
    return [i.work for i in compile_scenario(asked).items if isinstance(i.work, Compute)]


def op_of(model: str, name: str):
    return next(op for block in zoo.build(model).blocks for op in block.ops if op.name == name)


@pytest.mark.parametrize("name", ["fp8", "mxfp8", "nvfp4"])
def test_the_head_and_attention_stay_wide(name):
    formats = {work.op.rsplit(".", 1)[-1]: work.kernel.dtype for work in kernels(question(precision=name))
               if work.kernel.kind != "memory" and work.kernel.kind != "embedding"}  # fmt: skip
    assert formats["logits"] == formats["attention"] == "bf16"
    assert formats["fc1"] == formats["proj"] == precision(name).matmul


def test_operands_are_cast_once_and_written_twice():
    op, casts = op_of("llama3-8b", "fc2"), FAMILIES["linear"].casts
    forward, backward = casts(op, precision("fp8"))
    assert forward.bytes == 4.0 * op.elements(op.inputs[0])
    assert backward.bytes == 4.0 * op.elements(op.outputs[0])
    assert casts(op, precision("bf16")) == ()
    assert casts(op_of("llama3-8b", "logits"), precision("fp8")) == ()
    # 4-bit recipes look for the largest value first
    assert casts(op, precision("nvfp4"))[0].bytes == pytest.approx(
        5.125 * op.elements(op.inputs[0])
    )


def test_a_stack_that_fuses_casts_has_no_kernels_for_them():
    apart = kernels(question(precision="fp8"))
    fused = kernels(question(precision="fp8", runtime_options={"fuses_casts": True}))
    plain = kernels(question(precision="bf16"))
    assert len(apart) > len(fused) == len(plain)


def test_what_a_quantised_product_reads_is_gathered_quantised():
    def gathered(name, **more):
        items = compile_scenario(question(precision=name, **more)).items
        works = [work for i in items for work in (i.work, i.beside)]
        return {
            work.bytes
            for work in works
            if isinstance(work, Communication)
            and (work.collective, work.purpose) == ("all_gather", "tensor")
        }

    wide = max(gathered("bf16"))
    assert wide / 2 in gathered("fp8")
    # the head reads what it reads in 16 bit
    assert gathered("fp8") == {wide, wide / 2}
    assert gathered("fp8", runtime_options={"keeps_quantised": False}) == {wide}


def test_exchanges_that_take_few_units_slow_products_less():
    seconds = [
        answer(question(runtime_options={"exchange_share": share})).step_seconds
        for share in (0.02, 0.1, 0.3)
    ]
    assert seconds == sorted(seconds)
    assert seconds[0] < seconds[2]
    any_collective = answer(question(runtime_options={"exchange_share": 0.0})).step_seconds
    assert seconds[1] < any_collective


def test_experts_one_by_one_are_plain_products_with_an_unfused_activation():
    op, act = op_of("mixtral-8x7b", "experts_fc1"), op_of("mixtral-8x7b", "experts_act")
    number = precision("bf16")
    (grouped,) = family(op).forward(op, number, KernelChoices())
    alone = family(op).forward(op, number, KernelChoices(groups_experts=False))
    assert len(alone) == grouped.shape[0] == 8
    assert {kernel.kind for kernel in alone} == {"gemm"}
    assert sum(kernel.flops for kernel in alone) == grouped.flops
    moved = [
        sum(k.bytes for k in family(act).forward(act, number, KernelChoices(groups_experts=way)))
        for way in (True, False)
    ]
    assert moved[0] < moved[1]


def test_tokens_of_experts_are_not_exchanged_beside_their_products():
    asked = question("mixtral-8x7b", "tp2 dp4 ep4 sp")
    graph = compile_scenario(asked)
    beside = [i for i in graph.items if i.beside is not None and isinstance(i.work, Compute)]
    assert beside
    assert all("experts" not in item.work.op for item in beside)
    assert cost_scenario(asked, graph).seconds.min() >= 0.0
