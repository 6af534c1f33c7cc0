"""Arithmetic between choices in rules of stacks: `micro-batches % pp = 0`, `micro-batches >= 2*pp`, `etp = tp`.

Numbers, names, `*`, `//`, `%` and brackets on either side of a comparison. What is divided by is at least 1, so that
`micro-batches % (micro-batches // pp) = 0` holds where there are fewer micro-batches than stages. What a name stands for
is looked up by who asks: a number of one plan, or a column of many.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from foretrain.errors import PlanError, hint

Look = Callable[[str], Any]
"""What a name stands for; None where a plan has no such choice."""
_TOKEN = re.compile(r"\s*(?:(?P<number>\d{1,18})|(?P<name>[a-z][a-z-]*)|(?P<sign>//|[*%()]))")
_APART = re.compile(r"(.+?)(<=|>=|!=|=|<|>)(.+)")


def _at_least_one(divide: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    return lambda left, right: divide(left, np.maximum(right, 1))


_DO: Mapping[str, Callable[[Any, Any], Any]] = {
    "*": operator.mul, "//": _at_least_one(operator.floordiv), "%": _at_least_one(operator.mod),
    "<=": operator.le, ">=": operator.ge, "<": operator.lt, ">": operator.gt,
    "=": operator.eq, "!=": operator.ne,
}  # fmt: skip
MICRO_BATCHES = "micro-batches"
_MADE_OF = {MICRO_BATCHES: "batch//(dp*micro)"}
"""Names that stand for others: the micro-batches of a replica in a step."""
_DEEPEST = 20  # brackets in brackets


@dataclass(frozen=True, slots=True)
class Term:
    """A number, a name, or a sign between two others."""

    value: int | str
    left: Term | None = None
    right: Term | None = None

    def at(self, look: Look) -> Any:
        """What it comes to; None where a name has no value."""
        if self.left is not None and self.right is not None:
            left, right = self.left.at(look), self.right.at(look)
            return None if left is None or right is None else _DO[str(self.value)](left, right)
        return look(self.value) if isinstance(self.value, str) else self.value

    def names(self) -> Iterator[str]:
        if self.left is not None and self.right is not None:
            yield from (*self.left.names(), *self.right.names())
        elif isinstance(self.value, str):
            yield self.value

    def put(self, facts: Mapping[str, Any]) -> Term:
        """The same with the numbers of names that are known."""
        if self.left is not None and self.right is not None:
            return Term(self.value, self.left.put(facts), self.right.put(facts))
        return Term(facts.get(self.value, self.value)) if isinstance(self.value, str) else self


@dataclass(frozen=True, slots=True)
class Relation:
    """A comparison of two terms. `said` are the names in it as it was written."""

    text: str
    term: Term
    said: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(self.term.names()))

    def at(self, look: Look) -> Any:
        """Whether it holds, for one plan or a column; None where a name has no value."""
        return self.term.at(look)

    def put(self, facts: Mapping[str, Any]) -> Relation:
        return Relation(self.text, self.term.put(facts), self.said)


NEVER = Term("=", Term(0), Term(1))
"""What no plan is."""


def is_relation(word: str, numbers: Collection[str]) -> bool:
    """Whether a comparison is one between choices: something is calculated, or a name is on its right."""
    match = _APART.fullmatch(word)
    return match is not None and (
        any(sign in match[1] + match[3] for sign in "*%/") or match[3].strip() in numbers
    )


def relation(word: str, numbers: Collection[str]) -> Relation:
    match = _APART.fullmatch(word)
    if match is None:
        raise PlanError(f"{word}: not a comparison.")
    said: list[str] = []
    sides = [_Reader(word, text, numbers, said).whole() for text in (match[1], match[3])]
    return Relation(word, Term(match[2], *sides), tuple(dict.fromkeys(said)))


def value_of(name: str, look: Look) -> Any:
    """What a name as it was written comes to."""
    return _read(_MADE_OF.get(name, name)).at(look)


def _read(text: str) -> Term:
    return _Reader(text, text, None, []).whole()


class _Reader:
    """One side of a comparison; signs of the same rank from left to right."""

    def __init__(
        self, word: str, text: str, numbers: Collection[str] | None, said: list[str]
    ) -> None:
        self.word, self.text, self.numbers, self.said = word, text.strip(), numbers, said
        self.place = self.depth = 0

    def whole(self) -> Term:
        term = self._product()
        if self.place != len(self.text):
            raise self._wrong()
        return term

    def _product(self) -> Term:
        left = self._one()
        while (sign := self._next("sign")) and sign != ")":
            if sign == "(":
                raise self._wrong()
            self._take()
            left = Term(sign, left, self._one())
        return left

    def _one(self) -> Term:
        if self._next("sign") == "(" and self.depth < _DEEPEST:
            self._take()
            self.depth += 1
            inner = self._product()
            if self._next("sign") != ")":
                raise self._wrong()
            self._take()
            self.depth -= 1
            return inner
        number, name = self._next("number"), self._next("name")
        if number is None and name is None:
            raise self._wrong()
        self._take()
        return Term(int(number)) if number is not None else self._named(str(name))

    def _named(self, name: str) -> Term:
        if self.numbers is None:
            return Term(name)
        if name not in self.numbers:
            raise PlanError(f"{self.word}: unknown number {name!r}.{hint(name, self.numbers)}")
        self.said.append(name)
        return _read(_MADE_OF[name]) if name in _MADE_OF else Term(name)

    def _next(self, kind: str) -> str | None:
        match = _TOKEN.match(self.text, self.place)
        return match[kind] if match else None

    def _take(self) -> None:
        match = _TOKEN.match(self.text, self.place)
        assert match is not None
        self.place = match.end()

    def _wrong(self) -> PlanError:
        return PlanError(f"{self.word}: {self.text!r} is no calculation of numbers and names.")
