"""Any plan that can be said in words can be written down, and reads back as the same plan."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from support.plans import MODELS, plan_words

from foretrain.plan.plan import Plan
from foretrain.runtime import runtime


@settings(deadline=None, derandomize=True, max_examples=300)
@given(st.data())
def test_words_and_documents_round_trip(data):
    devices = data.draw(st.sampled_from((1, 2, 4, 6, 8)))
    text, _ = data.draw(plan_words(devices, data.draw(st.sampled_from(MODELS))))
    plan = Plan.of(text, devices=devices, runtime=runtime("megatron"))
    spelled = Plan.of(plan.text, devices=devices, runtime=runtime("megatron"))
    assert (spelled.mesh, spelled.root) == (plan.mesh, plan.root)
    assert Plan.from_dict(plan.to_dict()) == plan
    assert plan.mesh.ranks == devices
    assert (
        plan.replicas * plan.mesh.size("tp") * plan.mesh.size("pp") * plan.mesh.size("cp")
        == devices
    )
