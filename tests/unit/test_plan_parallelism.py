"""Every row of the parallelism tables against its conformance kit, and whole plans against one device."""

from __future__ import annotations

import pytest
from support.plans import tiny_model

from foretrain.plan.parallelism import FACTORINGS, PARALLELISMS
from foretrain.testing import parallelism as kit


@pytest.mark.parametrize("row", PARALLELISMS, ids=lambda row: row.__name__)
def test_every_parallelism_conforms(row):
    kit.check_parallelism(row)


@pytest.mark.parametrize("row", FACTORINGS, ids=lambda row: row.__name__)
def test_every_factoring_conforms(row):
    kit.check_factoring(row)


@pytest.mark.parametrize(
    ("model", "plan"),
    [
        *(
            ("gpt", p)
            for p in ("dp8", "tp8", "tp4 sp", "pp4", "pp2 vpp2", "cp4", "cp2 tp2 pp2 zero1")
        ),
        *(("llama", p) for p in ("tp2 cp2 sp", "tp2 dp4", "zero3", "pp2 zb-h1 tp2", "cp8 cp=ring")),
        *(("moe", p) for p in ("ep8", "tp2 ep4 sp", "tp2 ep8 etp1 sp", "cp2 ep4", "pp2 ep4 zero1")),
        *(("cnn", p) for p in ("dp8", "pp2")),
    ],
)
def test_a_split_conserves_arithmetic(model, plan):
    kit.check_plan(plan, tiny_model(model))


def test_the_kit_sees_a_parallelism_that_cuts_at_degree_one():
    from foretrain.plan.strategy import Cut

    with pytest.raises(AssertionError, match="degree 1"):
        kit.check_parallelism(lambda words, mesh, root: root.with_cuts(Cut(("batch",), ("dp",))))


def test_the_kit_sees_a_parallelism_off_the_mesh():
    from foretrain.plan.strategy import Cut

    def off(words, mesh, root):
        return root if (words.dp or 1) == 1 else root.with_cuts(Cut(("batch",), ("nowhere",)))

    with pytest.raises(AssertionError, match="nowhere"):
        kit.check_parallelism(off)
