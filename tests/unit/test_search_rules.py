"""What a stack can run, in tables of plans: rules written down here, plans told by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from estimated_plan import choices
from support.plans import tiny_model

from foretrain.errors import PlanError
from foretrain.plan.constraints import parse
from foretrain.planning.space import _FEW_LAYERS, _UNEVEN, Space, _all, _allowed, _refused, space
from foretrain.planning.task import Task
from foretrain.testing.asking import ask


def task(*rules: tuple[str, str], model: object = "gpt", batch: int = 8) -> Task:
    """Eight devices and a stack with these rules; "" as the reason says "why"."""
    model = tiny_model(model) if isinstance(model, str) else model
    asked = ask(model, on="1 x dgx-a100-80gb", batch=batch, runtime="generic")
    told = tuple((rule, because or "why") for rule, because in rules)
    stack = asked.runtime.with_features({"supported_plans": {"rules": told}})
    return Task(asked.workload, asked.cluster, stack)


# --- plans as columns ---------------------------------------------------------------------------------------

PLANS = ("dp8", "pp2 dp4 1f1b", "pp2 dp4 gpipe", "pp4 dp2 zb-h1", "tp2 dp4 zero1", "dp8 recompute=full*0.5")  # fmt: skip


@pytest.mark.parametrize(
    ("word", "allowed", "kept"),
    [
        # plans of one stage have no schedule: what asks for one does not mean them, what needs one spares them
        ("schedule=1f1b", (0, 1, 0, 0, 0, 0), (1, 1, 0, 0, 1, 1)),
        ("schedule=gpipe|zb-h1", (0, 0, 1, 1, 0, 0), (1, 0, 1, 1, 1, 1)),
        ("zero>=1", (0, 0, 0, 0, 1, 0), (0, 0, 0, 0, 1, 0)),
        ("pp=1", (1, 0, 0, 0, 1, 1), (1, 0, 0, 0, 1, 1)),
        ("dp!=4", (1, 0, 0, 1, 0, 1), (1, 0, 0, 1, 0, 1)),
        ("recompute=full", (0, 0, 0, 0, 0, 1), (0, 0, 0, 0, 0, 1)),  # of half of the layers, too
        ("layers=even", (1,) * 6, (1,) * 6),
        ("layers!=even", (0,) * 6, (0,) * 6),
        ("order=default", (1,) * 6, (1,) * 6),
        ("cp-exchange=all-gather", (1,) * 6, (1,) * 6),
    ],
)
def test_constraints_are_held_against_every_row(
    word: str, allowed: tuple[int, ...], kept: tuple[int, ...]
) -> None:
    asked = task()
    plans = choices(asked, *(asked.words(text) for text in PLANS))
    (one,) = parse([word])
    assert _allowed(plans, one).tolist() == [bool(each) for each in allowed]
    assert _all(plans, [one]).tolist() == [bool(each) for each in kept]


def test_all_of_several_constraints_must_hold() -> None:
    asked = task()
    plans = choices(asked, *(asked.words(text) for text in PLANS))
    assert _all(plans, parse(["dp=4", "pp=2"])).tolist() == [False, True, True, False, False, False]
    assert _all(plans, []).all()


# --- spaces -------------------------------------------------------------------------------------------------

WHERE = ("no cp", "no offload", "no recompute", "micro=1", "vpp=1", "schedule=1f1b|gpipe")


def texts(plans: Space) -> set[str]:
    tables = [plans.choices(part)[0] for part in plans.parts()]
    return {table.text(row) for table in tables for row in range(len(table))}


@pytest.mark.parametrize(
    ("rule", "is_broken"),
    [
        ("tp>1: zero=0", lambda words: words.tp > 1 and words.zero > 0),
        ("pp>1: schedule=1f1b", lambda words: words.pp > 1 and words.schedule != "1f1b"),
        ("schedule=gpipe: zero=0; tp=1", lambda words: words.pp > 1 and words.schedule == "gpipe" and (words.zero or words.tp > 1)),
        ("tp>1, zero=0: sp", lambda words: words.tp > 1 and not words.zero and not words.sp),
    ],
)  # fmt: skip
def test_plans_that_break_a_rule_are_left_out_and_counted(rule: str, is_broken: object) -> None:
    plain, ruled = space(task(), WHERE), space(task((rule, "")), WHERE)
    every, left = texts(plain), texts(ruled)
    broken = {text for text in every if is_broken(task().words(text))}  # type: ignore[operator]
    assert broken
    assert left == every - broken
    counted = [ruled.choices(part)[1].get("not run by the stack: why", 0) for part in ruled.parts()]
    refused = [sum(plain.choices(part)[1].values()) for part in plain.parts()]
    other = [sum(ruled.choices(part)[1].values()) for part in ruled.parts()]
    assert sum(other) - sum(refused) == len(broken)
    assert sum(counted) >= len(broken), "a plan that would not run anyway may break it, too"


def test_what_no_plan_may_have_is_not_looked_at() -> None:
    ruled = space(task(("zero=0|1", ""), ("sp", ""), ("recompute=none|full", ""), ("cp=1", "")))
    assert (ruled.zero, ruled.sp, ruled.cp) == ((0, 1), (True,), (1,))
    assert ruled.palette.recompute == ("none", "full")
    assert ruled.rules == ()
    hypothetical = space(replace(task(("zero=0|1", "")), is_hypothetical=True))
    assert hypothetical.zero == (0, 1, 2, 3)


def test_a_stack_with_a_schedule_of_its_own_is_searched_with_it() -> None:
    """… though nobody looks at it in other stacks unasked."""
    assert "zb-v" not in space(task()).palette.schedule
    assert space(task(("schedule=zb-v", ""))).palette.schedule == ("zb-v",)
    assert space(task(("schedule=zb-v|1f1b", ""))).palette.schedule == ("1f1b", "zb-v")


@pytest.mark.parametrize(
    ("where", "says"),
    [
        ("zero=2", r"generic cannot run\. Remove them, or use --hypothetical[\s\S]*zero=2: no more than states"),
        ("zero=1|3", r"zero=3: no more than states"),
        ("zero>=2", r"zero>=2 leaves no value of zero; possible values without it: 0, 1\."),
        ("sp", r"sp=on: sequences stay whole"),
    ],
)  # fmt: skip
def test_who_asks_for_what_is_not_run_is_told_why(where: str, says: str) -> None:
    ruled = task(("zero=0|1", "no more than states"), ("no sp", "sequences stay whole"))
    with pytest.raises(PlanError, match=says):
        space(ruled, (where,))
    assert space(ruled, ("zero=1",)).zero == (1,)


def test_pipelines_that_layers_cannot_be_shared_out_over() -> None:
    """Four layers; with several chunks embedding and head count as a layer each, which makes six."""
    four = task(model={"zoo": "llama3-8b", "num_hidden_layers": 4})
    found = _refused(four, (1, 2, 3, 4, 5), (1, 2, 3), set())
    assert {size for size, why in found.items() if why == _FEW_LAYERS} == {(5, 1)}
    assert {size for size, why in found.items() if why == _UNEVEN} == {
        (2, 3), (3, 3), (4, 2), (4, 3), (5, 2), (5, 3)
    }  # fmt: skip
    asked = _refused(four, (1, 2, 3, 4, 5), (1, 2, 3), {2, 3})
    assert set(asked) == {(3, 3), (4, 2), (4, 3), (5, 1), (5, 2), (5, 3)}
    assert set(asked.values()) == {_FEW_LAYERS}
