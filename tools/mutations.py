"""Small changes to Python source, each of which some test should notice.

A mutation replaces one expression or statement: an operator by its neighbour, a number by the next, a truth by its
opposite, a minimum by a maximum. Annotations, decorators, texts, assertions and error paths are left alone: nothing
that tests should ask for changes with them.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_BINARY: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult, ast.Pow: ast.Mult, ast.MatMult: ast.Add, ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd, ast.BitXor: ast.BitOr,
}  # fmt: skip
_COMPARED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
_CALLED = {
    "min": "max", "max": "min", "any": "all", "all": "any", "minimum": "maximum",
    "maximum": "minimum", "argmin": "argmax", "argmax": "argmin", "ceil": "floor", "floor": "ceil",
}  # fmt: skip
_OPAQUE = (ast.JoinedStr, ast.Assert, ast.Raise, ast.Import, ast.ImportFrom)
_NO_ANSWER = ("strict", "dtype", "kind", "assume_unique")  # keywords that change no answer


@dataclass(frozen=True, slots=True)
class Mutation:
    """A change of a module's text, told by the line before and after it. `function`: the outermost function it is in, by name and line; else empty."""

    path: Path
    line: int
    old: str
    new: str
    function: str
    begins: int
    text: str  # of the module after it

    def __str__(self) -> str:
        return f"{self.path}:{self.line}\n    - {self.old}\n    + {self.new}"


def mutations(path: Path, text: str) -> list[Mutation]:
    """All mutations of a module, in the order of its source."""
    found = [
        _mutation(path, text, node, other, function)
        for node, function in _nodes(ast.parse(text))
        for other in _others(node)
    ]
    return sorted(found, key=lambda m: (m.line, m.old, m.new))


Function = ast.FunctionDef | ast.AsyncFunctionDef
Place = tuple[str, int]


def _nodes(tree: ast.Module) -> Iterator[tuple[ast.AST, Place]]:
    """Nodes that answers depend on, with the outermost function each is in."""
    todo: list[tuple[ast.AST, str, Place]] = [(tree, "", ("", 0))]
    while todo:
        node, prefix, inside = todo.pop()
        if isinstance(node, _OPAQUE) or _is_shown(node):
            continue
        yield node, inside
        if isinstance(node, ast.ClassDef):
            todo += [(child, f"{prefix}{node.name}.", inside) for child in node.body]
            continue
        if isinstance(node, Function):
            todo += [(child, prefix, inside) for child in _defaults(node)]
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            mine = inside if inside[0] else (f"{prefix}{node.name}", first)
            todo += [(child, prefix, mine) for child in node.body]
            continue
        skipped = {id(getattr(node, name, None)) for name in ("annotation", "returns")}
        if isinstance(node, ast.Call):
            skipped |= {id(word) for word in node.keywords if word.arg in _NO_ANSWER}
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.For):
            skipped.add(id(node.target))
        todo += [(c, prefix, inside) for c in ast.iter_child_nodes(node) if id(c) not in skipped]


def _defaults(function: Function) -> Iterator[ast.expr]:
    """Of the parameters that the body reads: what an interface asks for and nobody reads may be anything."""
    read = {name.id for line in function.body for name in ast.walk(line) if isinstance(name, ast.Name)}  # fmt: skip
    given = function.args
    places = [*given.posonlyargs, *given.args]
    pairs = [*zip(reversed(places), reversed(given.defaults), strict=False)]
    for parameter, default in (*pairs, *zip(given.kwonlyargs, given.kw_defaults, strict=True)):
        if default is not None and parameter.arg in read:
            yield default


def _is_shown(node: ast.AST) -> bool:
    """Types that are told by an operator (`int | None`), and what is only shown."""
    if isinstance(node, Function):
        return node.name == "__repr__"
    return isinstance(node, ast.Assign) and isinstance(node.value, ast.BinOp | ast.Subscript) and (
        isinstance(node.targets[0], ast.Name)
        and node.targets[0].id[:1].isupper()
        and not node.targets[0].id.isupper()
    )  # fmt: skip


def _others(node: ast.AST) -> Iterator[ast.AST]:
    match node:
        case ast.BinOp(op=op) | ast.AugAssign(op=op) if type(op) in _BINARY:
            if not _is_text(node):
                yield _with(node, op=_BINARY[type(op)]())
        case ast.Compare(ops=[op]):
            yield _with(node, ops=[_COMPARED[type(op)]()])
        case ast.BoolOp():
            yield _with(node, op=ast.And() if isinstance(node.op, ast.Or) else ast.Or())
        case ast.UnaryOp(op=ast.Not() | ast.USub() | ast.Invert()):
            yield node.operand
        case ast.IfExp():
            yield _with(node, body=node.orelse, orelse=node.body)
        case ast.Constant(value=bool(value)):
            yield ast.Constant(not value)
        case ast.Constant(value=int(value) | float(value)):
            yield ast.Constant(value + 1)
        case ast.Call(func=ast.Name(id=name)) if name in _CALLED:
            yield _with(node, func=ast.Name(_CALLED[name]))
        case ast.Call(func=ast.Attribute(attr=name)) if name in _CALLED:
            yield _with(node, func=_with(node.func, attr=_CALLED[name]))
        case _:
            return


def _is_text(node: ast.BinOp | ast.AugAssign) -> bool:
    sides = (node.left, node.right) if isinstance(node, ast.BinOp) else (node.value,)
    return any(
        isinstance(side, ast.JoinedStr | ast.List | ast.Tuple)
        or (isinstance(side, ast.Constant) and isinstance(side.value, str))
        for side in sides
    )


def _with(node: ast.AST, **fields: object) -> ast.AST:
    other = copy.copy(node)
    for name, value in fields.items():
        setattr(other, name, value)
    return other


def _mutation(path: Path, text: str, node: ast.AST, other: ast.AST, place: Place) -> Mutation:
    assert isinstance(node, ast.expr | ast.stmt)
    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    new = ast.unparse(other)
    lines = text.encode().splitlines(keepends=True)
    before = b"".join(lines[: node.lineno - 1]) + lines[node.lineno - 1][: node.col_offset]
    after = lines[node.end_lineno - 1][node.end_col_offset :] + b"".join(lines[node.end_lineno :])
    put = new if isinstance(node, ast.stmt) else f"({new})"
    changed = (before + put.encode() + after).decode()
    shown = (each.splitlines()[node.lineno - 1].strip() for each in (text, changed))
    return Mutation(path, node.lineno, *shown, *place, changed)
