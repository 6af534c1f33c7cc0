"""What a stack can run: its rules (`runtime.features.supported_plans`), held against plans."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from foretrain.errors import PlanError, RuntimePresetError, UnsupportedPlanError
from foretrain.plan.constraints import Constraint, parse
from foretrain.plan.facts import NO_FACTS, Facts
from foretrain.plan.plan import Plan
from foretrain.plan.plan_words import freedom, words_of
from foretrain.plan.relations import NEVER, Relation
from foretrain.plan.rules import Rule, as_ruled, look_at, read, shown, shown_value
from foretrain.plan.schedules import DEFAULT
from foretrain.plan.short_form import Words
from foretrain.runtime import Runtime
from foretrain.runtime.features.supported_plans import PER_LAYER

__all__ = [
    "Rule",
    "always",
    "as_ruled",
    "expect_able",
    "narrowed",
    "refusals",
    "rules_for",
    "rules_of",
    "warned",
]


def rules_of(stack: Runtime) -> tuple[Rule, ...]:
    """The rules of a stack, those without a condition first."""
    try:
        return read(stack.supported_plans.rules)
    except PlanError as error:
        raise RuntimePresetError(
            f"runtime {stack.name!r}: supported_plans.rules cannot be read:",
            faults=error.faults or (str(error),),
        ) from None


def rules_for(stack: Runtime, facts: Facts) -> tuple[Rule, ...]:
    """What the rules ask of plans for a work that is known."""
    left = (rule.of(facts) for rule in rules_of(stack))
    return tuple(rule for rule in left if rule is not None)


def always(rules: Sequence[Rule], name: str) -> tuple[tuple[Constraint, str], ...]:
    """What rules without a condition ask of a choice, and why."""
    return tuple(
        (one, rule.because)
        for rule in rules
        if not rule.when
        for one in rule.needs
        if isinstance(one, Constraint) and one.name == name
    )


def refusals(stack: Runtime, words: Words, facts: Facts = NO_FACTS) -> Iterator[str]:
    """Why a stack cannot run a plan; nothing where it can."""
    look = look_at(words, facts)
    for rule in rules_of(stack):
        if rule.allows(words, facts):
            continue
        lacks, where = (
            list(dict.fromkeys(text for one in has for text in shown(one, look)))
            for has in (rule.lacking(words, facts), rule.when)
        )
        what = " with ".join([*(one for one in where if one not in lacks), " or ".join(lacks)])
        yield f"{stack.name} cannot run {what}: {rule.because}"


def warned(stack: Runtime, plan: Plan, facts: Facts) -> tuple[str, ...]:
    """What predictions say of a plan, said in words or as a tree, that the stack cannot run."""
    lines = [*refusals(stack, words_of(plan, stack), facts), *_unlike_layers(stack, plan)]
    return tuple(f"{refusal}. Predicted as if it could." for refusal in lines)


def _unlike_layers(stack: Runtime, plan: Plan) -> Iterator[str]:
    """What differs between the parts of a model that may not."""
    able, has = stack.supported_plans.per_layer, freedom(plan)
    if PER_LAYER.index(has) <= PER_LAYER.index(able):
        return
    what = "recomputation" if has == "recompute" else "splits"
    alone = "recomputation alone may" if able == "recompute" else "nothing may"
    yield f"{stack.name} cannot run different {what} in parts of the model: {alone} differ from layer to layer"


_ASK_FOR = {"schedule": "pp", "vpp": "pp", "sp": "tp", "cp-exchange": "cp"}
"""Choices that mean something only beside more than one of another."""
_PLAIN = (1, False, DEFAULT, "all-gather")
"""What they are without it."""


def expect_able(stack: Runtime, asked: Sequence[Constraint], facts: Facts = NO_FACTS) -> None:
    """Values that are asked for by name must be such as the stack can run, and the work one that it does."""
    rules = rules_of(stack)
    faults = [
        f"{one.name}={shown_value(value)}: {because}."
        for one in asked
        if one.sign == "="
        for value in one.values
        for because in _why_not(rules, one.name, value)
    ]
    work = [
        f"{' or '.join(shown(one, facts.get)[0] for one in rule.needs)}: {rule.because}."
        for rule in rules
        if not rule.when and (left := rule.of(facts)) and _is_hopeless(left)
    ]
    if work:
        raise UnsupportedPlanError(
            f"{stack.name} cannot run this work. Choose another stack, or use --hypothetical to search "
            "as if it could:",
            faults=tuple(dict.fromkeys(work)),
        )
    if faults:
        raise UnsupportedPlanError(
            f"constraints ask for plans that {stack.name} cannot run. Remove them, or use --hypothetical "
            "to search such plans as well:",
            faults=tuple(dict.fromkeys(faults)),
        )


def _why_not(rules: Sequence[Rule], name: str, value: object) -> Iterator[str]:
    """Why no plan can have a value, itself or what it asks for."""
    beside = _ASK_FOR.get(name)
    for able, because in always(rules, name):
        if not able.allows(as_ruled(name, value)):
            yield because
    if beside is not None and value not in _PLAIN:
        for able, because in always(rules, beside):
            if not able.allows(2):
                yield because


def _is_hopeless(rule: Rule) -> bool:
    """Whether no plan keeps to a rule."""
    return any(isinstance(one, Relation) and one.term == NEVER for one in rule.needs)


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
