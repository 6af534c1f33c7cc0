"""What a stack can run: its rules (`runtime.features.supported_plans`), held against plans."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from foretrain.errors import PlanError, RuntimePresetError, UnsupportedPlanError
from foretrain.plan.constraints import Constraint, parse, value_in
from foretrain.plan.short_form import Words
from foretrain.plan.strategy import recompute_kind
from foretrain.runtime import Runtime


@dataclass(frozen=True, slots=True)
class Rule:
    """Plans that are as `when` says (all plans, if it says nothing) must be as `needs` says."""

    when: tuple[Constraint, ...]
    needs: tuple[Constraint, ...]
    because: str

    def allows(self, words: Words) -> bool:
        if not all(_holds(one, words) for one in self.when):
            return True
        return not self.lacking(words)

    def lacking(self, words: Words) -> tuple[Constraint, ...]:
        """What a plan that the rule is about does not have."""
        return tuple(one for one in self.needs if not _holds(one, words, unsaid=True))


def _holds(one: Constraint, words: Words, *, unsaid: bool = False) -> bool:
    """`unsaid`: what is said of a choice that a plan does not have."""
    value = value_in(words, one.name)
    if value is None or (one.name == "sp" and words.tp == 1):
        return unsaid
    return one.allows(as_ruled(one.name, value))


def as_ruled(name: str, value: Any) -> Any:
    """A value as rules name it: of recomputations their kind."""
    return recompute_kind(value) if name == "recompute" else value


def rules_of(stack: Runtime) -> tuple[Rule, ...]:
    """The rules of a stack, those without a condition first."""
    try:
        return _read(stack.supported_plans.rules)
    except PlanError as error:
        raise RuntimePresetError(
            f"runtime {stack.name!r}: supported_plans.rules cannot be read:",
            faults=error.faults or (str(error),),
        ) from None


@lru_cache(maxsize=128)
def _read(texts: tuple[tuple[str, str], ...]) -> tuple[Rule, ...]:
    found = []
    for text, because in texts:
        when, _, needs = text.rpartition(":")
        rule = Rule(parse([when]), parse([needs]), because.strip())
        if not rule.needs:
            raise PlanError(
                f"{text}: nothing after the colon. Write what such plans must have, as pp>1: zero<=1."
            )
        if not rule.because:
            raise PlanError(f"{text}: no reason. Write why the stack cannot run other plans.")
        found.append(rule)
    return tuple(sorted(found, key=lambda rule: bool(rule.when)))


def always(rules: Sequence[Rule], name: str) -> tuple[tuple[Constraint, str], ...]:
    """What rules without a condition ask of a choice, and why."""
    return tuple(
        (one, rule.because)
        for rule in rules
        if not rule.when
        for one in rule.needs
        if one.name == name
    )


def refusals(stack: Runtime, words: Words) -> Iterator[str]:
    """Why a stack cannot run a plan; nothing where it can."""
    for rule in rules_of(stack):
        if rule.allows(words):
            continue
        lacks, where = (
            list(
                dict.fromkeys(f"{one.name}={shown_value(value_in(words, one.name))}" for one in has)
            )
            for has in (rule.lacking(words), rule.when)
        )
        what = " with ".join([*(one for one in where if one not in lacks), " or ".join(lacks)])
        yield f"{stack.name} cannot run {what}: {rule.because}"


def warned(stack: Runtime, words: Words) -> tuple[str, ...]:
    """What predictions say of a plan that the stack cannot run."""
    return tuple(f"{refusal}. Predicted as if it could." for refusal in refusals(stack, words))


def expect_able(stack: Runtime, asked: Sequence[Constraint]) -> None:
    """Values that are asked for by name must be such as the stack can run."""
    rules = rules_of(stack)
    faults = [
        f"{one.name}={shown_value(value)}: {because}."
        for one in asked
        if one.sign == "="
        for value in one.values
        for able, because in always(rules, one.name)
        if not able.allows(as_ruled(one.name, value))
    ]
    if faults:
        raise UnsupportedPlanError(
            f"constraints ask for plans that {stack.name} cannot run. Remove them, or use --hypothetical "
            "to search such plans as well:",
            faults=tuple(dict.fromkeys(faults)),
        )


def shown_value(value: object) -> object:
    """A value as plans and constraints write it."""
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else value


def narrowed(where: Sequence[str], stack: Runtime) -> tuple[str, ...]:
    """Constraints of our own, without the values that a stack cannot run; one that has no others is left out."""
    rules, found = rules_of(stack), []
    for one in parse(where):
        able = [c for c, _ in always(rules, one.name)]
        values = [
            v
            for v in one.values
            if one.sign != "=" or all(c.allows(as_ruled(one.name, v)) for c in able)
        ]
        if values:
            found.append(_text(one, values))
    return tuple(found)


def _text(one: Constraint, values: Sequence[object]) -> str:
    texts = ("true" if v is True else "false" if v is False else str(v) for v in values)
    return one.text if len(values) == len(one.values) else f"{one.name}{one.sign}{'|'.join(texts)}"
