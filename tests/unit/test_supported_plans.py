"""What a stack can run: predictions warn of the rest, searches leave it out, `hypothetical` lifts it."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foretrain import fit, predict, recommend, search
from foretrain.adapters.write.maxtext import POLICIES
from foretrain.errors import InputError, PlanError, RuntimePresetError, UnsupportedPlanError
from foretrain.plan.constraints import Constraint
from foretrain.plan.defaults import plan_defaults
from foretrain.plan.rules import read
from foretrain.plan.short_form import Words, filled, parse
from foretrain.plan.strategy import recompute_kind
from foretrain.plan.supported import narrowed, refusals, rules_for, rules_of
from foretrain.planning.space import space
from foretrain.planning.task import Task
from foretrain.resolving import ask
from foretrain.runtime import Runtime, presets, register, runtime

STACKS = tuple(presets())
LAYERED = {"model": "llama3.2-1b", "on": "2 x dgx-h100", "batch": 64}


def task_of(stack: str, model: str = "llama3.2-1b", on: str = "2 x dgx-h100") -> Task:
    return Task.of(ask(model, on=on, batch=64, plan="dp16", micro_batch=1, runtime=stack))


@pytest.mark.parametrize("stack", STACKS)
@pytest.mark.parametrize("words", [{}, {"pp": 2}, {"tp": 2}], ids=["replicas", "stages", "tensor"])
def test_what_a_stack_does_by_itself_it_can_run(stack: str, words: dict[str, int]) -> None:
    kept = runtime(stack)
    asked = Words(**words)
    if any(
        isinstance(c, Constraint) and c.name in words and not c.allows(words[c.name])
        for r in rules_of(kept)
        for c in r.needs
    ):
        pytest.skip(f"{stack} has no {asked.text()}")
    whole = filled(words, plan_defaults(kept), 8)
    assert not list(refusals(kept, whole)), whole.text()


@pytest.mark.parametrize(
    ("stack", "plan", "says"),
    [
        ("ddp", "tp2 dp8", "ddp cannot run tp=2: every device has a whole replica"),
        ("ddp", "zero1", "ZeroRedundancyOptimizer"),
        ("horovod", "pp2 dp8", "horovod cannot run pp=2: every device has a whole replica"),
        ("fsdp", "zero1", "fsdp cannot run zero=1: sharding strategies are"),
        ("fsdp2", "pp2 zero3", "fsdp2 cannot run pp=2"),
        ("megatron", "pp2 zero3", "megatron cannot run zero=3 with pp=2: .* Megatron-FSDP"),
        ("megatron", "pp2 zb-h1", "megatron cannot run schedule=zb-h1: Megatron Core has 1F1B"),
        ("megatron-2021", "tp2 sp", "megatron-2021 cannot run sp=on: .* April 2022"),
        ("megatron-2021", "zero1", "came in March 2022"),
        ("megatron-2021", "pp2 vpp2", "megatron-2021 cannot run vpp=2 with pp=2: .* two stages"),
        ("megatron-2021", "pp2 layers=7,9", "megatron-2021 cannot run layers=7,9"),
        ("deepspeed", "pp2 zero2", "deepspeed cannot run pp=2 with zero=2: .* refuses ZeRO-2"),
        ("deepspeed", "pp2 vpp2 zero1", "stages in one piece"),
        ("deepspeed", "cp2 zero3", "Ulysses"),
        ("nanotron", "zero2", "nanotron has ZeRO-1 or none"),
        ("nanotron", "recompute=selective", "as a whole or not at all"),
        ("torchtitan", "tp2 no-sp", "torchtitan cannot run tp=2 with sp=off"),
        ("maxtext", "pp2 1f1b", "GPipe"),
    ],
)  # fmt: skip
def test_a_prediction_says_what_the_stack_cannot_run(stack: str, plan: str, says: str) -> None:
    warnings = predict(**LAYERED, plan=plan, micro_batch=1, runtime=stack).warnings
    (line,) = [text for text in warnings if "cannot run" in text]
    assert re.search(says, line), line
    assert line.endswith(". Predicted as if it could.")


@pytest.mark.parametrize(
    ("stack", "plan"),
    [
        ("generic", "tp2 pp2 zb-h1 zero3"),
        ("megatron", "pp4 vpp3 zero1"),
        ("megatron", "tp2 sp zero1 recompute=full*0.5"),
        ("megatron-bridge", "zero3"),
        ("megatron-2021", "pp4 vpp3 recompute=full@0,1"),
        ("deepspeed", "pp2 zero1"),
        ("deepspeed", "zero3 offload=optimizer"),
        ("fsdp", "zero3 shard=8"),
        ("torchtitan", "pp2 zb-v zero1"),
        ("torchtitan", "tp16 sp"),
        ("torchtitan", "pp16 1f1b"),
        ("torchtitan", "pp2 dualpipev zero3"),
        ("nanotron", "pp2 gpipe zero1"),
        ("maxtext", "zero3 shard=8"),
    ],
)
def test_what_it_can_run_goes_without_a_word(stack: str, plan: str) -> None:
    assert not list(refusals(runtime(stack), parse(plan, plan_defaults(runtime(stack)), 16)))


@pytest.mark.parametrize("stack", STACKS)
def test_a_space_has_plans_that_its_stack_can_run_alone(stack: str) -> None:
    """All of them, and none of those that are in the hypothetical space and can be run is left out."""
    is_of_tables = any(
        "model=recommender" in text for text, _ in runtime(stack).supported_plans.rules
    )
    task = task_of(stack, "dlrm-small" if is_of_tables else "llama3.2-1b")
    where = ["micro=1|2", "cp<=2"]
    able = _texts(task, where)
    every = _texts(replace(task, is_hypothetical=True), where)
    can = {text for text in every if not any(refusals(task.runtime, task.words(text), task.facts))}
    assert able, "some plan is left"
    assert able == can


def _texts(task: Task, where: list[str]) -> set[str]:
    plans = space(task, where)
    tables = [plans.choices(part)[0] for part in plans.parts()]
    return {table.text(row) for table in tables for row in range(len(table))}


def test_plans_that_are_not_run_are_counted_by_the_reason() -> None:
    found = search(**LAYERED, runtime="deepspeed", where="tp=1, cp=1, micro=1", top=1)
    (reason,) = [text for text in found.plans_pruned if "refuses ZeRO-2" in text]
    assert reason.startswith("not run by the stack: ")
    assert found.plans_pruned[reason] > 0


@pytest.mark.parametrize("where", ["tp=2", "pp=1|2", "zero=3", "sp"])
def test_constraints_that_ask_for_more_are_refused_with_the_way_out(where: str) -> None:
    with pytest.raises(
        PlanError, match=r"that ddp cannot run\. .*--hypothetical[\s\S]*every device has"
    ):
        search(**LAYERED, runtime="ddp", where=where)


def test_a_hypothetical_search_has_them() -> None:
    found = search(**LAYERED, runtime="ddp", where="tp=2, micro=1, cp=1", hypothetical=True, top=1)
    assert parse(found.best[0].plan.text).tp == 2
    assert found.task.is_hypothetical


def test_offers_keep_to_what_the_stack_can_run() -> None:
    asked: dict[str, Any] = {
        "tokens": 1e9,
        "batch": 64,
        "instances": ["aws:p4d*"],
        "max_devices": 8,
    }
    plain = recommend("llama3.2-1b", **asked, runtime="ddp")
    assert all(not list(refusals(runtime("ddp"), parse(o.plan))) for o in plain.offers)
    assert plain.offers
    odd = recommend("llama3.2-1b", **asked, runtime="ddp", where="tp=2", hypothetical=True)
    assert all("tp2" in offer.plan for offer in odd.offers)
    assert odd.offers


def test_strategies_per_layer_are_for_stacks_that_have_them() -> None:
    asked = {"where": "vpp=1, cp=1, pp=1, micro=1", "per_layer": True, "top": 1}
    with pytest.raises(InputError, match="nanotron cannot run different strategies per layer"):
        search(**LAYERED, runtime="nanotron", **asked)
    assert search(**LAYERED, runtime="nanotron", hypothetical=True, **asked).best


def test_where_only_recomputation_may_differ_nothing_else_does() -> None:
    tight = {"model": "llama3-8b", "on": "1 x dgx-a100-40gb", "batch": 16, "top": 8}
    where = "vpp=1, cp=1, no offload, pp=1, micro=2, tp=2, zero=3"
    found = search(**tight, runtime="megatron", where=where, per_layer=True)
    walks = [row.plan for row in found.best if not row.plan.text]
    assert walks
    for plan in walks:
        layers = [node for node in plan.root.children if node.select.startswith("layer")]
        assert len({node.split for node in layers}) == 1
        assert {node.recompute for node in layers} <= {"none", "full", None}


# --- rules as texts ---------------------------------------------------------------------------------


@pytest.mark.parametrize("stack", STACKS)
def test_rules_are_read_and_have_reasons(stack: str) -> None:
    for rule in rules_of(runtime(stack)):
        assert rule.needs
        assert len(rule.because) > 15
        assert not rule.because.endswith(".")


def test_a_stack_of_ones_own_has_its_rules() -> None:
    rules = {"pp=1": "it has no pipelines", "tp>1: zero=0": "states of split weights stay whole"}
    undo = register("own", {"like": "generic", "supported_plans": {"rules": rules}})
    try:
        (line,) = refusals(runtime("own"), parse("tp2 zero1", devices=8))
        assert line == "own cannot run tp=2 with zero=1: states of split weights stay whole"
        assert space(task_of("own")).pp == (1,)
    finally:
        undo()


def test_rules_on_replicas_are_those_of_searches_too() -> None:
    undo = register(
        "few", {"like": "generic", "supported_plans": {"rules": {"dp<=4": "at most four"}}}
    )
    try:
        found = search(
            "gpt2", on="1 x dgx-a100-80gb", batch=16, runtime="few", where="micro=1", top=4
        )
        assert all((parse(row.plan.text, devices=8).dp or 1) <= 4 for row in found.best)
        assert found.best
    finally:
        undo()


def test_sequences_are_split_where_tensors_are() -> None:
    undo = register("own", {"like": "generic", "supported_plans": {"rules": {"sp": "always"}}})
    try:
        assert not list(refusals(runtime("own"), parse("pp2", devices=8)))
        assert list(refusals(runtime("own"), parse("tp2 no-sp", devices=8)))
    finally:
        undo()


def test_a_fit_offers_what_the_stack_can_run() -> None:
    asked: dict[str, Any] = {"on": "1 x dgx-a100-40gb", "batch": 64, "plan": "dp8"}
    texts = [change.change for change in fit("gpt3-6.7b", runtime="ddp", **asked).changes]
    assert texts
    assert not [text for text in texts if re.search("zero|tp|pp|offload", text)]
    assert any("zero" in c.change for c in fit("gpt3-6.7b", runtime="generic", **asked).changes)


def test_a_rule_that_cannot_be_read_is_named() -> None:
    broken = Runtime("own").with_features({"supported_plans": {"rules": (("tp~1", "why"),)}})
    with pytest.raises(RuntimePresetError, match=r"'own': supported_plans\.rules[\s\S]*tp~1"):
        rules_of(broken)


@pytest.mark.parametrize(
    ("rule", "because", "says"),
    [
        ("foo=1", "why", "unknown name 'foo'"),
        ("schedule=nonsense", "why", "unknown schedule"),
        ("tp>1:", "why", "nothing after the colon"),
        ("tp=1", " ", "no reason"),
    ],
)
def test_stacks_with_rules_that_mean_nothing_are_not_registered(
    rule: str, because: str, says: str
) -> None:
    with pytest.raises(RuntimePresetError, match=says):
        register("own", {"supported_plans": {"rules": {rule: because}}})
    assert "own" not in presets()


def test_every_value_that_a_stack_lacks_is_named() -> None:
    (line,) = refusals(runtime("ddp"), parse("tp2 pp2", devices=8))
    assert line.startswith("ddp cannot run tp=2 or pp=2: every device has a whole replica")


def test_why_not_says_that_the_stack_cannot() -> None:
    found = search(**LAYERED, runtime="ddp", top=1)
    assert found.why("tp=2").sentence == (
        "tp=2: ddp cannot run it (tp=2: every device has a whole replica)."
    )


def test_a_hypothetical_answer_says_so() -> None:
    asked = {**LAYERED, "runtime": "ddp", "where": "zero=3, micro=1, tp=1, pp=1, cp=1", "top": 1}
    found = search(**asked, hypothetical=True)
    assert any("cannot run are searched" in line for line in found.task.warnings)
    (row,) = found.best
    again = predict(**{**LAYERED, "runtime": "ddp"}, plan=row.plan.text, micro_batch=1)
    assert again.warnings
    assert set(again.warnings) <= set(row.prediction.warnings)
    plain = search(**LAYERED, runtime="ddp", top=1)
    assert any(line.startswith("plans: those that ddp can run") for line in plain.task.assumptions)


def test_offers_that_are_asked_for_what_a_stack_lacks_are_refused() -> None:
    with pytest.raises(PlanError, match=r"zero=3: every device has all states"):
        recommend("gpt2", tokens=1e9, batch=64, runtime="ddp", where="zero=3")


@pytest.mark.parametrize("rules", [["tp=1"], "tp=1", 3])
def test_rules_without_reasons_are_refused(rules: object) -> None:
    with pytest.raises(RuntimePresetError, match="not a mapping of rules"):
        register("own", {"supported_plans": {"rules": rules}})


@pytest.mark.parametrize(
    ("word", "kind"),
    [
        ("none", "none"), ("selective", "selective"), ("full", "full"), ("full*0.5", "full"), ("full@0,3", "full"),
        ("q_up,kv_up", "ops"),
    ],
)  # fmt: skip
def test_recomputations_are_of_four_kinds(word: str, kind: str) -> None:
    assert recompute_kind(word) == kind


def test_constraints_of_our_own_lose_the_values_that_a_stack_lacks() -> None:
    asked = ("tp=1|2|4", "sp", "zero=0|1|3", "schedule=1f1b", "micro=1|2", "no offload")
    assert narrowed(asked, runtime("ddp")) == ("tp=1", "zero=0", "schedule=1f1b", "micro=1|2", "no offload")  # fmt: skip
    assert narrowed(asked, runtime("generic")) == asked


@settings(max_examples=60, deadline=None)
@given(
    stack=st.sampled_from(STACKS),
    tp=st.sampled_from((1, 2)),
    pp=st.sampled_from((1, 2, 4)),
    zero=st.sampled_from((0, 1, 2, 3)),
    recompute=st.sampled_from(("none", "selective", "full")),
)
def test_rules_say_the_same_of_columns_and_of_words(
    stack: str, tp: int, pp: int, zero: int, recompute: str
) -> None:
    task = replace(task_of("generic"), runtime=runtime(stack), is_hypothetical=True)
    where = [f"tp={tp}", f"pp={pp}", f"zero={zero}", f"recompute={recompute}", "micro=1", "cp=1"]
    every = space(task, where)
    plans = replace(every, rules=rules_for(runtime(stack), task.facts))
    kept: set[str] = set()
    for part in plans.parts():
        table = plans.choices(part)[0]
        kept |= {table.text(row) for row in range(len(table))}
    whole = [t for part in every.parts() for t in [every.choices(part)[0]]]
    words = {t.text(row): t.words(row) for t in whole for row in range(len(t))}
    able = {t for t, one in words.items() if not any(refusals(runtime(stack), one, task.facts))}
    assert kept == able


# --- what changed with releases, and what rules ask of the work ------------------------------------------

MIXTURE: dict[str, Any] = {"model": "mixtral-8x7b", "on": "2 x dgx-h100", "batch": 64, "micro_batch": 1}  # fmt: skip


def refused(**asked: Any) -> list[str]:
    return [line for line in predict(**asked).warnings if "cannot run" in line]


@pytest.mark.parametrize(
    ("stack", "plan", "says"),
    [
        ("megatron", "tp4 ep8 etp1 zero1", None),
        ("megatron", "tp4 ep8 etp2 zero1", None),
        ("megatron-2024", "tp4 ep4 zero1", None),
        ("megatron-2024", "tp4 ep8 etp1 zero1", "cannot run ep=8 with etp=1 or tp=4: .* came with Megatron Core 0.10"),
        ("megatron-2024", "tp4 ep8 zero1", "etp=1"),  # too few replicas for experts that are split like the rest
        ("torchtitan", "tp4 ep8 etp1 zero3", None),
        ("torchtitan", "tp4 ep8 etp2 zero3", "cannot run etp=2 or tp=4: experts are split like other layers"),
        ("torchtitan", "tp2 cp4 ep2 etp1 zero3", "experts lie on ranks"),
    ],
)  # fmt: skip
def test_experts_are_split_as_far_as_the_stack_can(stack: str, plan: str, says: str | None) -> None:
    lines = refused(**MIXTURE, runtime=stack, plan=plan)
    assert len(lines) == (says is not None), lines
    assert says is None or re.search(says, lines[0]), lines


def test_expert_tensor_parallelism_of_its_own_is_another_plan() -> None:
    """A rank holds a whole expert of eight, or half of one of four: more is exchanged where they are split."""
    whole, split = (
        predict(**MIXTURE, runtime="megatron", plan=f"tp4 ep8 zero1 sp {words}")
        for words in ("etp1", "etp2")
    )
    assert whole.step_seconds < split.step_seconds
    assert whole.memory.peak_bytes > split.memory.peak_bytes


@pytest.mark.parametrize(
    ("container", "says"),
    [("24.07", ["counts of layers", "Megatron Core 0.10"]), ("24.09", ["Megatron Core 0.10"]), ("25.09", [])],
)  # fmt: skip
def test_rules_are_those_of_the_release_that_a_container_names(
    container: str, says: list[str]
) -> None:
    lines = refused(
        **MIXTURE,
        runtime="nemo",
        plan="tp2 pp4 ep2 etp1 dp2 zero1 layers=7,8,8,9",
        runtime_options={"container": f"nvcr.io/nvidia/nemo:{container}"},
    )
    assert len(lines) == len(says)
    assert all(any(word in line for line in lines) for word in says)


@pytest.mark.parametrize(
    ("stack", "layers", "is_able"),
    [
        ("megatron", "6,9,8,9", True),
        ("nemo", "6,9,9,8", True),  # the first and the last stage alone differ
        ("nemo", "6,9,8,9", False),
        ("nemo-1", "6,9,9,8", False),
        ("nemo-1", "8,8,8,8", True),
    ],
)  # fmt: skip
def test_layouts_are_of_three_kinds(stack: str, layers: str, is_able: bool) -> None:
    words = parse(f"pp4 dp4 zero1 layers={layers}", plan_defaults(runtime(stack)), 16)
    assert (not any(refusals(runtime(stack), words))) == is_able


@pytest.mark.parametrize(
    ("stack", "plan", "batch", "says"),
    [
        ("megatron", "pp4 vpp2 dp4", 40, None),  # ten micro-batches in groups of four and six
        ("megatron-2024", "pp4 vpp2 dp4", 40, "interleaving needs a number of micro-batches"),
        ("torchtitan", "pp4 vpp2 dp4 zero1", 40, None),  # two rounds of five
        ("torchtitan", "pp4 vpp2 dp4 zero1", 36, "interleaving runs rounds"),
        ("torchtitan", "pp4 dp4 zero1 1f1b", 12, "a micro-batch for every stage"),
        ("maxtext", "pp4 dp4 zero1", 40, "stages must divide"),
        ("maxtext", "pp4 dp4 zero1", 32, None),
    ],
)  # fmt: skip
def test_pipelines_have_as_many_micro_batches_as_the_stack_can_run(
    stack: str, plan: str, batch: int, says: str | None
) -> None:
    asked = {"model": "llama3-8b", "on": "2 x dgx-h100", "batch": batch, "micro_batch": 1}
    lines = refused(**asked, plan=plan, runtime=stack)
    assert len(lines) == (says is not None), lines
    assert says is None or says in lines[0]


def test_a_micro_batch_that_is_left_open_is_one_that_the_stack_can_run() -> None:
    rules = {"micro % 4 = 0": "kernels take samples by fours"}
    undo = register("fours", {"like": "generic", "supported_plans": {"rules": rules}})
    try:
        asked = {"model": "gpt2", "on": "1 x dgx-a100-80gb", "plan": "dp8", "runtime": "fours"}
        found = predict(**asked, batch=96)
        assert not [line for line in found.warnings if "cannot run" in line]
        assert "micro-batch 12" in " ".join(found.assumptions)
        assert refused(**asked, batch=48)  # six samples a replica: no size is a multiple of four
    finally:
        undo()


def test_context_parallelism_of_nanotron_is_a_ring() -> None:
    asked = {"model": "llama3-8b", "on": "2 x dgx-h100", "batch": 64, "micro_batch": 1}
    plain = predict(**asked, plan="cp2 tp2 dp4", runtime="nanotron")
    ring = predict(**asked, plan="cp2 tp2 dp4 cp=ring", runtime="nanotron")
    assert plain.step_seconds == ring.step_seconds
    assert not [line for line in plain.warnings if "cannot run" in line]
    assert refused(**asked, plan="cp2 tp2 dp4 cp=all-gather", runtime="nanotron")
    found = search("llama3-8b", on="2 x dgx-h100", batch=64, runtime="nanotron", where="cp=2, micro=1, pp=1", top=1)  # fmt: skip
    assert "cp=ring" in found.best[0].plan.text


@pytest.mark.parametrize(
    ("stack", "model", "precision", "says"),
    [
        ("megatron", "resnet50", "bf16", "its models are transformers"),
        ("ddp", "resnet50", "bf16", None),
        ("torchrec", "llama3.2-1b", "bf16", "it trains recommenders"),
        ("nanotron", "llama3.2-1b", "fp8", "FP8 is not done"),
        ("megatron", "llama3.2-1b", "fp8", None),
        ("deepspeed", "llama3.2-1b", "fp8", "FP16 and BF16"),
    ],
)
def test_work_is_such_as_the_stack_has_code_for(
    stack: str, model: str, precision: str, says: str | None
) -> None:
    asked = {"model": model, "on": "1 x dgx-h100", "batch": 64, "precision": precision}
    lines = refused(**asked, plan="dp8", micro_batch=1, runtime=stack)
    assert len(lines) == (says is not None), lines
    if says is not None:
        assert says in lines[0]
        with pytest.raises(UnsupportedPlanError, match=says):
            search(**asked, runtime=stack, top=1)


def test_trees_are_held_against_rules_like_words() -> None:
    tree = {"split": {"batch": "dp", "heads,kv_heads": "tp", "ffn": "tp", "vocab": "tp"}}
    plan = {"mesh": {"dp": 8, "tp": 2}, "tree": {**tree, "state": {"optimizer": ["dp"]}}}
    asked = {"model": "llama3.2-1b", "on": "2 x dgx-h100", "batch": 64, "micro_batch": 1}
    text = " ".join(refused(**asked, plan=plan, runtime="ddp"))
    assert "tp=2" in text
    assert "zero=1" in text
    assert not refused(**asked, plan=plan, runtime="megatron")
    some = {"mesh": {"dp": 8, "tp": 2}, "tree": {**tree, "children": {"layers[8:]": {"recompute": "full"}}}}  # fmt: skip
    assert not refused(**asked, plan=some, runtime="megatron")
    (line,) = refused(**asked, plan=some, runtime="megatron-2021")
    assert "different recomputation in parts of the model" in line


@pytest.mark.parametrize(
    "where", ["tp>1", "zero>=2", "pp>1", "tp>=2, pp>=2", "pp=2, schedule=1f1b"]
)
def test_why_not_says_that_the_stack_cannot_run_a_range(where: str) -> None:
    found = search(**LAYERED, runtime="ddp", top=1)
    sentence = found.why(where).sentence
    assert sentence.startswith(f"{where}: ddp cannot run it (")
    assert "every device has" in sentence


@pytest.mark.parametrize("where", ["schedule=zb-h1", "vpp=2", "schedule=interleaved"])
def test_pipelines_are_refused_where_there_are_none(where: str) -> None:
    with pytest.raises(UnsupportedPlanError, match="every device has a whole replica"):
        search(**LAYERED, runtime="ddp", where=where)


@pytest.mark.parametrize("text", ["pp4 dualpipe", "pp4 schedule=dualpipe"])
def test_dualpipe_is_said_by_the_plan_that_equals_it(text: str) -> None:
    with pytest.raises(PlanError, match="dualpipev with half of the stages and twice the replicas"):
        parse(text)
    with pytest.raises(PlanError, match="twice the replicas"):
        search(**LAYERED, where="schedule=dualpipe")


@pytest.mark.parametrize("schedule", ["zb-h1", "zb-v", "v-half", "v-min"])
def test_primus_splits_weight_gradients_where_nothing_runs_again(schedule: str) -> None:
    stack = runtime("primus")
    defaults = plan_defaults(stack)
    assert not any(refusals(stack, parse(f"pp4 {schedule}", defaults, 16)))
    (line,) = refusals(stack, parse(f"pp4 {schedule} recompute=full", defaults, 16))
    assert "cannot be freed" in line
    assert any(refusals(runtime("megatron"), parse(f"pp4 {schedule}", defaults, 16)))


def test_maxtext_is_searched_with_its_policies_alone() -> None:
    tried = space(task_of("maxtext", "llama3-8b")).palette.recompute
    assert set(tried) == set(POLICIES.values())


def test_a_number_that_a_model_does_not_have_decides_nothing() -> None:
    rules = {"tp>1: kv-heads % tp = 0": "heads go whole", "experts>8: ep>1": "many experts"}
    undo = register("own", {"like": "generic", "supported_plans": {"rules": rules}})
    try:
        assert space(task_of("own", "resnet50")).parts()
        assert not any(refusals(runtime("own"), parse("tp2", devices=8), {"batch": 8}))
        facts = {"kv-heads": 3, "batch": 8}
        assert any(refusals(runtime("own"), parse("tp2", devices=8), facts))
    finally:
        undo()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("pp>1: micro-batches % = 0", "'micro-batches %' is no calculation"),
        ("pp>1: (micro-batches % pp = 0", "is no calculation"),
        ("pp>1: micro-batches % pp ) = 0", "is no calculation"),
        ("pp>1: *pp = 0", "is no calculation"),
        ("pp>1: pp pp % 2 = 0", "is no calculation"),
        ("pp>1: 2 ( pp % 2 ) = 0", "is no calculation"),
        (f"pp>1: {'(' * 30}pp{')' * 30} % 2 = 0", "is no calculation"),
        ("pp>1: micro-batches % pq = 0", "unknown number 'pq'"),
        ("pp>1: seq=abc", "'abc' is not a whole number"),
        ("pp>1: model=whale", "unknown model 'whale'"),
        ("pp>1:", "nothing after the colon"),
        ("micro-batches", "not a"),
    ],
)
def test_rules_that_cannot_be_read_say_what_is_wrong(text: str, says: str) -> None:
    with pytest.raises(PlanError, match=re.escape(says)):
        read(((text, "a reason"),))
    with pytest.raises(PlanError, match="no reason"):
        read((("pp>1: zero<=1", " "),))
