"""Variants from outside that no table takes: each is refused in words that name it and the fault."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from foretrain import runtime as runtimes
from foretrain.cost import collectives
from foretrain.cost.collectives import ALGORITHMS, CollectiveProgram, Round, Steps
from foretrain.cost.collectives.base import FromProgram
from foretrain.cost.collectives.legal import check_algorithm
from foretrain.cost.collectives.ring import Ring
from foretrain.errors import InputError, PlanError, RuntimePresetError
from foretrain.model import ops
from foretrain.model.ops.streaming import MemoryMove
from foretrain.plan import schedules
from foretrain.plan.plan import Plan
from foretrain.plan.schedules.gpipe import GPipe
from foretrain.plan.short_form import parse

LIKE = {"like": "megatron"}


class OtherMemory(MemoryMove):
    name = "other-memory"


class OtherRing(Ring):
    name = pattern = "other-ring"


class OtherGPipe(GPipe):
    name = "other-gpipe"


def _named(variant: Any, name: object) -> Any:
    variant.name = name
    return variant


REGISTER: dict[str, Callable[[Any], Callable[[], None]]] = {
    "op family": lambda name: ops.register(_named(OtherMemory(), name)),
    "collective algorithm": lambda name: collectives.register(_named(OtherRing(), name)),
    "pipeline schedule": lambda name: schedules.register(_named(OtherGPipe(), name)),
    "runtime": lambda name: runtimes.register(name, LIKE),
}


@pytest.mark.parametrize(
    "word", ["zero1", "zero9", "tp8", "tp-8", "dp", "sp", "no-sp", "recompute", "micro"]
)
def test_a_word_of_plans_is_no_schedule(word):
    with pytest.raises(PlanError, match=f"'{word}' is a word of plans"):
        REGISTER["pipeline schedule"](word)
    assert parse("pp2 dp4 zero1").zero == 1


def test_a_schedule_of_ours_stays_what_it_is():
    with pytest.raises(PlanError, match="already"):
        REGISTER["pipeline schedule"]("interleaved")


@pytest.mark.parametrize("what", REGISTER)
@pytest.mark.parametrize("name", ["", "<b>|x", 5, None, "a b", "-x", "x\n", "x" * 41, "é"])
def test_names_are_plain_words(what, name):
    with pytest.raises(InputError, match=f"cannot be the name of an? {what}"):
        REGISTER[what](name)


def test_aliases_of_other_stacks_are_taken():
    for alias in ("fsdp", "HSDP"):
        with pytest.raises(RuntimePresetError, match="stands for 'fsdp' already"):
            runtimes.register("mine", {**LIKE, "aliases": [alias]})
    with pytest.raises(RuntimePresetError, match="is not a name"):
        runtimes.register("mine", {**LIKE, "aliases": ["<b>|x"]})
    assert runtimes.runtime("hsdp").name == "fsdp"


@pytest.mark.parametrize("what", REGISTER)
def test_taking_out_twice_takes_out_once(what):
    first = REGISTER[what]("mine")
    first()
    first()
    second = REGISTER[what]("mine")
    first()
    with pytest.raises(InputError, match="already"):
        REGISTER[what]("mine")
    second()
    REGISTER[what]("mine")()


@pytest.mark.parametrize(
    ("register", "kind", "words"),
    [
        (ops.register, OtherMemory, "an op family"),
        (collectives.register, OtherRing, "a collective algorithm"),
        (schedules.register, OtherGPipe, "a pipeline schedule"),
    ],
)
def test_tables_hold_objects_of_their_kind(register, kind, words):
    with pytest.raises(InputError, match=f"{words} is an object: register {kind.__name__}"):
        register(kind)
    for other in (5, "foo", None, int, Plan):
        with pytest.raises(InputError, match=f"is not {words}: register an object of a subclass"):
            register(other)


def test_a_row_of_a_stack_is_a_mapping():
    for row in (5, "foo", None, ["like"]):
        with pytest.raises(RuntimePresetError, match="is not a row"):
            runtimes.register("mine", row)


class Shifted(FromProgram):
    """Everybody sends `size` times the buffer `shift` further; `answers` in place of what it would say."""

    name = pattern = "shifted"
    collectives: Any = ("all_reduce",)

    def __init__(self, shift: Any = 1, size: Any = 1.0, wraps: bool = True, **answers: Any) -> None:
        self.shift, self.size, self.wraps, self.answers = shift, size, wraps, answers

    def steps(self, collective: str, ranks: int, domains: int) -> Steps:
        return self.answers.get("steps", Steps(1, 0))

    def volume(self, collective: str, size: float, ranks: int) -> float:
        return self.answers.get("volume", size)

    def program(
        self, collective: str, size: float, layout: np.ndarray, chunks: int = 1
    ) -> CollectiveProgram:
        rank = np.arange(len(layout))
        to = (rank + self.shift) % len(rank) if self.wraps else rank + self.shift
        made = CollectiveProgram(len(rank), (Round.of(rank, to, size * self.size),))
        return self.answers.get("program", made)


NAN = float("nan")
UNEVEN = Round(np.arange(2), np.arange(1), np.ones(2))


class OddOnes(Shifted):
    """Goes wrong for three ranks."""

    def steps(self, collective: str, ranks: int, domains: int) -> Steps:
        return Steps(-1 if ranks == 3 else 1, 0)


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (Shifted(size=-1.0), r"program\(\) round 0: a size of -1000000.0"),
        (Shifted(size=NAN), r"program\(\) round 0: a size of nan"),
        (Shifted(size=float("inf")), r"program\(\) round 0: a size of inf"),
        (Shifted(wraps=False), r"program\(\) round 0: rank 2 does not exist"),
        (Shifted(shift=-1, wraps=False), r"program\(\) round 0: rank -1 does not exist"),
        (Shifted(shift=0.5), r"program\(\) round 0: ranks are float64"),
        (Shifted(program=CollectiveProgram(2, ())), r"program\(\) has no rounds"),
        (Shifted(program=CollectiveProgram(2, (5,))), r"program\(\) round 0: is 5, not a Round"),
        (Shifted(program=CollectiveProgram(9, ())), r"program\(\) is of 9 ranks"),
        (Shifted(program=None), r"program\(\) is None, not a CollectiveProgram"),
        (Shifted(steps=Steps(-1, 0)), r"steps\(\) has -1, not a finite number"),
        (Shifted(steps=Steps(1, NAN)), r"steps\(\) has nan, not a finite number"),
        (Shifted(steps=7), r"steps\(\) is 7, not Steps"),
        (Shifted(volume=-5.0), r"volume\(\) has -5.0"),
        (Shifted(volume="much"), r"volume\(\) has 'much'"),
        (Shifted(shift="far"), r"program\(\) \w*Error: "),
        (
            Shifted(program=CollectiveProgram(2, (UNEVEN,))),
            r"program\(\) round 0: senders, receivers and sizes",
        ),
    ],
)
def test_programs_that_cannot_be_run(wrong, told):
    with pytest.raises(InputError, match=f"'shifted' .*:\n.* all_reduce over 2 ranks .*: {told}"):
        collectives.register(wrong)
    assert not any(algorithm.name == "shifted" for algorithm in ALGORITHMS)


def test_groups_of_all_sizes_are_tried_but_pairs_only_for_sends(monkeypatch):
    with pytest.raises(InputError, match="all_reduce over 3 ranks"):
        check_algorithm(OddOnes())
    monkeypatch.setattr(OddOnes, "collectives", ("send",))
    check_algorithm(OddOnes())
    with pytest.raises(InputError, match="send over 2 ranks"):
        check_algorithm(OddOnes(size=-1.0))
    check_algorithm(Shifted(size=0.0))


def test_a_name_is_taken_for_each_of_its_collectives(monkeypatch):
    monkeypatch.setattr(OtherRing, "collectives", ("all_reduce", "brand_new"))
    with pytest.raises(InputError, match="'ring' is in the table already"):
        collectives.register(_named(OtherRing(), "ring"))
    assert collectives.is_outside("other-ring")
    assert not collectives.is_outside("ring")


@pytest.mark.parametrize("carried", ["all_reduce", (), (5,), None, ("a b",), ("all_reduce", "a b")])
def test_collectives_are_a_tuple_of_names(carried, monkeypatch):
    monkeypatch.setattr(Shifted, "collectives", carried)
    with pytest.raises(InputError, match="algorithm 'shifted': its collectives are"):
        collectives.register(Shifted())


def test_all_of_ours_can_be_run():
    for algorithm in ALGORITHMS:
        check_algorithm(algorithm)
    check_algorithm(Shifted())
