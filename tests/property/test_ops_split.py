"""Cutting an op in any legal way neither loses nor invents work."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from foretrain.model import zoo
from foretrain.model.graph import Op
from foretrain.model.ops import FAMILIES, family
from foretrain.testing.ops import check_split, split_groups
from tests.support.mamba import mamba

MODELS = (
    "gpt2", "llama3-8b", "mixtral-8x7b", "deepseek-v3", "bert-base", "t5-small", "vit-b", "resnet50",
    "vgg16", "inception-v3", "gnmt", "deepspeech2", "dlrm-mlperf", "dlrm-dcnv2", "neumf", "yolov3",
)  # fmt: skip


def _ops() -> list[Op]:
    """A few ops of every kind, so that rare kinds are drawn as often as common ones."""
    by_kind: dict[str, list[Op]] = {kind: [] for kind in FAMILIES}
    for model in (*map(zoo.build, MODELS), mamba()):
        for _, op in model.ops():
            if len(by_kind[op.kind]) < 12 and op not in by_kind[op.kind]:
                by_kind[op.kind].append(op)
    return [op for ops in by_kind.values() for op in ops]


OPS = _ops()


def test_no_kind_of_op_is_left_out() -> None:
    missing = FAMILIES.keys() - {op.kind for op in OPS}
    assert not missing, (
        f"no model of this test has an op of kind {sorted(missing)}: add one to MODELS (or beside mamba, from "
        "tests/support) in tests/property/test_ops_split.py"
    )


@st.composite
def splits(draw: st.DrawFn) -> tuple[Op, dict[str, int], tuple[tuple[str, ...], ...], int]:
    op = draw(st.sampled_from(OPS))
    batch = draw(st.sampled_from([1, 2, 4, 12]))
    degrees: dict[str, int] = {}
    groups = []
    for group in split_groups(op):
        sizes = [op.size[dim] * (batch if dim == "batch" else 1) for dim in group]
        dividing = [d for d in (1, 2, 3, 4, 6, 8, 16) if all(size % d == 0 for size in sizes)]
        degree = draw(st.sampled_from(dividing))
        groups.append(group)
        degrees |= dict.fromkeys(group, degree)
    return op, degrees, tuple(groups), batch


@settings(max_examples=300, deadline=None)
@given(splits())
def test_parts_add_up(split: tuple[Op, dict[str, int], tuple[tuple[str, ...], ...], int]) -> None:
    op, degrees, groups, batch = split
    check_split(op, degrees, groups, batch)


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(OPS), st.integers(1, 64))
def test_one_part_is_the_whole(op: Op, batch: int) -> None:
    assert op.local({}, 1) == op
    assert op.local(dict.fromkeys(op.dims, 1), batch) == op.local({}, batch)


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(OPS), st.data())
def test_uneven_parts_count_as_the_largest(op: Op, data: st.DataObject) -> None:
    dim = data.draw(st.sampled_from(op.dims))
    degree = data.draw(st.integers(1, 9))
    local = op.local({dim: degree}, 1)
    assert local.size[dim] * degree >= op.size[dim]
    assert (local.size[dim] - 1) * degree < op.size[dim]
    assert family(op).flops(local) <= family(op).flops(op)
