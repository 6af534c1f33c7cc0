"""A schedule that no file of the package knows: registered, predicted, searched, exported and drawn."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from foretrain import export, predict, search
from foretrain.errors import InputError, PlanError
from foretrain.plan.schedules import (
    BACKWARD,
    FORWARD,
    SCHEDULES,
    PipelineSchedule,
    Steps,
    register,
)
from foretrain.plan.schedules.base import read_only, steps
from foretrain.plan.schedules.pieces import Pieces, folded
from foretrain.resolving import ask
from foretrain.schemas import schema
from foretrain.testing.schedules import check_schedule, idle


class Accordion(PipelineSchedule):
    """GPipe on a V: all forward steps, one chunk after the other, then all backward steps."""

    name = "accordion"
    aliases = ("gpipev",)
    separates_phases = True
    chunks = range(2, 3)

    def pieces(self, stages: int, chunks: int) -> Pieces:
        return folded(stages, chunks)

    def order(self, stage: int, stages: int, micro_batches: int, chunks: int) -> Steps:
        self.check(stages, micro_batches, chunks)
        chunk, micro = np.divmod(np.arange(chunks * micro_batches), micro_batches)
        ahead, back = steps(FORWARD, chunk, micro), steps(BACKWARD, chunk[::-1], micro)
        return read_only(np.concatenate((ahead, back)))


@pytest.fixture(autouse=True)
def accordion() -> Iterator[PipelineSchedule]:
    kind = Accordion()
    undo = register(kind)
    yield kind
    undo()
    assert kind.name not in SCHEDULES


def test_it_keeps_the_contract(accordion: PipelineSchedule) -> None:
    assert check_schedule("accordion") >= 15
    assert idle(accordion, 4, 8, 2) == pytest.approx(idle(SCHEDULES["gpipe"], 4, 8, 1))


def test_it_is_predicted(tmp_path) -> None:
    found, gpipe = (
        predict("gpt2-xl", on="1 x dgx-h100", plan=f"pp4 dp2 {name}", batch=64, micro_batch=1)
        for name in ("accordion", "gpipe")
    )
    assert found.question["plan"] == "pp4 dp2 accordion"
    assert found.step_seconds == pytest.approx(gpipe.step_seconds, rel=0.02)
    found.save(tmp_path / "page.html")
    assert "accordion" in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_documents_and_cases_know_it() -> None:
    mapped = {"pp": 4, "dp": 2, "schedule": "accordion"}
    tree = {
        "mesh": {"pp": 4, "dp": 2},
        "tree": {"split": {"batch": "dp"}, "schedule": {"kind": "accordion", "stages": 4}},
    }
    for plan in (mapped, tree):
        question = ask("gpt2-xl", on="1 x dgx-h100", plan=plan, batch=64, micro_batch=1)
        assert question.plan.schedule.kind == "accordion"
        assert question.plan.schedule.chunks == 2
    assert "accordion" in str(schema("plan"))


def test_it_is_searched_when_asked_for() -> None:
    question = {"model": "gpt2-xl", "on": "1 x dgx-h100", "batch": 64}
    where = "pp=4, tp=1, cp=1, zero=1, no offload, recompute=none"
    with pytest.raises(InputError, match="schedule=accordion: Megatron Core has 1F1B"):
        search(**question, where=f"{where}, schedule=accordion")
    pinned = search(**question, where=f"{where}, schedule=accordion", top=3, hypothetical=True)
    assert {row.plan.schedule.kind for row in pinned.best} == {"accordion"}
    assert pinned.command is None, "no other process knows the schedule"
    for row in pinned.best:
        assert row.estimated_seconds == pytest.approx(row.score.step_seconds, rel=0.05)
    every = search(**question, where=where, top=3)
    assert "accordion" not in {row.plan.schedule.kind for row in every.best}
    assert every.command is not None


def test_workers_know_nothing_of_it() -> None:
    question = {"model": "gpt2", "on": "1 x dgx-h100", "batch": 64, "workers": 2}
    with pytest.raises(InputError, match=r"schedule 'accordion': .* worker processes"):
        search(**question, where="pp=4, schedule=accordion", hypothetical=True)
    assert search(**question, where="pp=4, tp=1, schedule=1f1b", top=1).best


@pytest.mark.parametrize("target", ["megatron", "nanotron", "deepspeed"])
def test_exports_say_that_a_target_lacks_it(target: str) -> None:
    made = export("llama3-8b", to=target, on="1 x dgx-h100", plan="pp4 dp2 accordion", batch=64)
    assert any(line.startswith("accordion: ") for line in made.cannot)


def test_names_are_taken_once_and_stand_in_plans() -> None:
    with pytest.raises(PlanError, match="already"):
        register(Accordion())
    odd = Accordion()
    odd.name = "Zig-Zag"
    with pytest.raises(PlanError, match="small letters"):
        register(odd)
