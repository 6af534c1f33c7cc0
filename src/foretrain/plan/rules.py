"""Rules of what a stack can run, as its preset writes them, and what holds of one plan."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from foretrain.errors import PlanError, hint
from foretrain.model.precision import precisions
from foretrain.plan import facts as of_work
from foretrain.plan import relations
from foretrain.plan.constraints import NUMBERS, Constraint, parse, value_in
from foretrain.plan.facts import NO_FACTS, Facts
from foretrain.plan.relations import MICRO_BATCHES, NEVER, Look, Relation, is_relation, relation
from foretrain.plan.short_form import Words
from foretrain.plan.strategy import recompute_kind

Condition = Constraint | Relation
COUNTED = (*NUMBERS, MICRO_BATCHES, *of_work.NUMBERS)
"""What relations may calculate with."""
_FACT = re.compile(r"(?P<name>[a-z-]+)\s*(?P<sign><=|>=|!=|=|<|>)\s*(?P<values>[a-z0-9|\s-]+)")


@dataclass(frozen=True, slots=True)
class Rule:
    """Plans that are as `when` says (all plans, if it says nothing) must be as `needs` says."""

    when: tuple[Condition, ...]
    needs: tuple[Condition, ...]
    because: str

    @property
    def names(self) -> tuple[str, ...]:
        """All that it asks about."""
        every = (*self.when, *self.needs)
        return tuple(
            n for one in every for n in (one.names if isinstance(one, Relation) else (one.name,))
        )

    def allows(self, words: Words, facts: Facts = NO_FACTS) -> bool:
        if not all(_holds(one, words, facts) for one in self.when):
            return True
        return not self.lacking(words, facts)

    def lacking(self, words: Words, facts: Facts = NO_FACTS) -> tuple[Condition, ...]:
        """What a plan that the rule is about does not have."""
        return tuple(one for one in self.needs if not _holds(one, words, facts, unsaid=True))

    def of(self, facts: Facts) -> Rule | None:
        """What is left to ask of plans where the work is known; nothing where it decides the rule."""
        when = [_settled(one, facts, unsaid=False) for one in self.when]
        needs = [_settled(one, facts, unsaid=True) for one in self.needs]
        if False in when or all(one is True for one in needs):
            return None
        return Rule(
            tuple(one for one in when if not isinstance(one, bool)),
            tuple(
                Relation(was.text, NEVER) if one is False else one
                for was, one in zip(self.needs, needs, strict=True)
                if not isinstance(one, bool) or not one
            ),
            self.because,
        )


def _settled(one: Condition, facts: Facts, *, unsaid: bool) -> Condition | bool:
    """A condition on the work alone is true or false; in others numbers of the work stand for their names. `unsaid`: what
    is said of a number that a model does not have."""
    if isinstance(one, Relation):
        put = one.put(facts)
        if any(name in of_work.NUMBERS for name in put.names):
            return unsaid
        return put if put.names else bool(put.at(facts.get))
    if one.name in (*of_work.NAMES, *of_work.NUMBERS):
        value = facts.get(one.name)
        return unsaid if value is None else one.allows(value)
    return one


def _holds(one: Condition, words: Words, facts: Facts, *, unsaid: bool = False) -> bool:
    """`unsaid`: what is said of a choice that a plan does not have."""
    look = look_at(words, facts)
    if isinstance(one, Relation):
        found = one.at(look)
        return unsaid if found is None else bool(found)
    value = look(one.name)
    if value is None or (one.name == "sp" and words.tp == 1):
        return unsaid
    return one.allows(as_ruled(one.name, value))


def look_at(words: Words, facts: Facts) -> Look:
    """What names in rules stand for in a plan."""

    def look(name: str) -> Any:
        if name in facts:
            return facts[name]
        if name in (*of_work.NAMES, *of_work.NUMBERS):
            return None
        return words.micro if name == "micro" else value_in(words, name)

    return look


LAYOUTS = ("even", "ends", "uneven")
"""How layers are shared out: alike, all but the first and the last part alike, or otherwise."""


def as_ruled(name: str, value: Any) -> Any:
    """A value as rules name it: of recomputations and layouts of layers their kind."""
    if name == "recompute":
        return recompute_kind(value)
    if name == "layers" and value != "even":
        return _layout(str(value).split(","))
    return value


def _layout(parts: list[str]) -> str:
    if len({*parts}) == 1:
        return "even"
    return "ends" if len({*parts[1:-1]}) <= 1 else "uneven"


@lru_cache(maxsize=128)
def read(texts: tuple[tuple[str, str], ...]) -> tuple[Rule, ...]:
    """Rules from their texts and reasons, those without a condition first."""
    found = []
    for text, because in texts:
        when, _, needs = text.rpartition(":")
        rule = Rule(_conditions(when), _conditions(needs), because.strip())
        if not rule.needs:
            raise PlanError(
                f"{text}: nothing after the colon. Write what such plans must have, as pp>1: zero<=1."
            )
        if not rule.because:
            raise PlanError(f"{text}: no reason. Write why the stack cannot run other plans.")
        found.append(rule)
    return tuple(sorted(found, key=lambda rule: bool(rule.when)))


def _conditions(text: str) -> tuple[Condition, ...]:
    return tuple(_condition(word) for word in map(str.strip, re.split(r"[,;]", text)) if word)


def _condition(word: str) -> Condition:
    if is_relation(word, COUNTED):
        return relation(word, COUNTED)
    match = _FACT.fullmatch(word)
    if match is None or match["name"] not in (*_RULED, *of_work.NUMBERS, MICRO_BATCHES):
        return parse([word])[0]
    if match["name"] == MICRO_BATCHES:
        return relation(word, COUNTED)
    values = [part.strip() for part in match["values"].split("|")]
    return Constraint(
        word, match["name"], match["sign"], tuple(_values(word, match["name"], values))
    )


_RULED = (*of_work.NAMES, "layers")
"""What rules name by words of their own."""
_KNOWN: Mapping[str, Collection[str]] = {
    "model": (*of_work.KINDS_OF_MODELS, of_work.OTHER),
    "layers": LAYOUTS,
    "tied": ("yes", "no"),
}


def _values(word: str, name: str, texts: Collection[str]) -> Iterator[int | str]:
    for text in texts:
        if name in of_work.NUMBERS:
            if not (text.isdecimal() and len(text) < 19):
                raise PlanError(f"{word}: {text!r} is not a whole number.")
            yield int(text)
            continue
        known = _KNOWN.get(name) or precisions()
        if text not in known:
            raise PlanError(f"{word}: unknown {name} {text!r}.{hint(text, known)}")
        yield text


def shown(one: Condition, look: Look) -> list[str]:
    """What a plan has of a condition, as it would write it."""
    names = one.said if isinstance(one, Relation) else (one.name,)
    return [f"{name}={shown_value(relations.value_of(name, look))}" for name in names]


def shown_value(value: object) -> object:
    """A value as plans and constraints write it."""
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else value
