"""What can be changed in the functions of a module, one thing at a time; for ``tests.mutants``."""

from __future__ import annotations

import ast
import difflib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

Slot = tuple[ast.AST, str, int | None]  # where a node stands: its parent, the field, the index


class Mutant(NamedTuple):
    """One change: where, of what kind, and the lines of the function before and after."""

    file: str
    line: int
    end: int
    number: int  # of the changes of its file
    kind: str
    change: str  # "before => after"

    @property
    def name(self) -> str:
        return f"{self.file}:{self.line}:{self.number}"


class Edit(NamedTuple):
    """A change that can be made to a tree, in place."""

    line: int
    end: int
    kind: str
    function: ast.AST
    slot: Slot
    node: ast.AST  # what comes there

    def make(self) -> ast.AST:
        """Make it; return what stood there."""
        return _put(self.slot, self.node)


_COMPARED: Final[dict[type[ast.cmpop], type[ast.cmpop]]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
_COMPUTED: Final[dict[type[ast.operator], type[ast.operator]]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult, ast.BitOr: ast.BitAnd, ast.BitAnd: ast.BitOr,
}  # fmt: skip
_EXTREMES: Final = {"min": "max", "max": "min", "any": "all", "all": "any"}
_LEAPS: Final[dict[type[ast.stmt], type[ast.stmt]]] = {
    ast.Break: ast.Continue,
    ast.Continue: ast.Break,
}
_UNTOUCHED: Final = {"annotation", "returns", "decorator_list", "exc"}


def edits(tree: ast.Module) -> list[Edit]:
    """All changes that can be made to the functions of a module, always in the same order."""
    return [edit for function in _functions(tree) for edit in _edits_of(function)]


def _functions(node: ast.AST) -> Iterator[ast.AST]:
    """The outermost functions."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            if child.name != "__repr__":
                yield child
        else:
            yield from _functions(child)


def _edits_of(function: ast.AST) -> Iterator[Edit]:
    for slot in _slots(function):
        node = _at(slot)
        line = getattr(node, "lineno", None)
        if line is None:
            continue
        end = _first_line_of_body(node) or getattr(node, "end_lineno", line)
        for kind, changed in _changes(node, slot):
            yield Edit(line, end, kind, function, slot, changed)


def _slots(node: ast.AST) -> Iterator[Slot]:
    """Each place in a function whose node may be changed; what people read is left alone."""
    for field, value in ast.iter_fields(node):
        if field in _UNTOUCHED or isinstance(value, ast.arguments):
            continue
        for index, child in enumerate(value) if isinstance(value, list) else [(None, value)]:
            if isinstance(child, ast.AST) and not (
                _is_told(child) or _is_type(node, index) or _is_beside(child)
            ):
                yield node, field, index
                yield from _slots(child)


def _is_told(node: ast.AST) -> bool:
    """A docstring, or something that is logged."""
    if not isinstance(node, ast.Expr):
        return False
    value = node.value
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
        return "log" in ast.unparse(value.func.value).lower() or value.func.attr == "_log"
    return isinstance(value, ast.Constant)


def _is_type(node: ast.AST, index: int | None) -> bool:
    """One of the types that ``isinstance`` asks for."""
    return index == 1 and isinstance(node, ast.Call) and ast.unparse(node.func) == "isinstance"


def _is_beside(node: ast.AST) -> bool:
    """``strict`` of ``zip``: both are as long, or it would be a defect; where a warning points."""
    return isinstance(node, ast.keyword) and node.arg in ("strict", "stacklevel")


def _at(slot: Slot) -> Any:
    parent, field, index = slot
    value = getattr(parent, field)
    return value if index is None else value[index]


def _put(slot: Slot, node: ast.AST) -> ast.AST:
    parent, field, index = slot
    before: ast.AST = _at(slot)
    ast.copy_location(node, before)
    if index is None:
        setattr(parent, field, node)
    else:
        getattr(parent, field)[index] = node
    return before


def _first_line_of_body(node: ast.AST) -> int | None:
    """Where the head of a compound statement ends: its body has changes of its own."""
    body = getattr(node, "body", None)
    return body[0].lineno if isinstance(body, list) and body else None


def _changes(node: Any, slot: Slot) -> Iterator[tuple[str, ast.AST]]:
    if isinstance(node, ast.stmt):
        yield from _other_statements(node)
    elif isinstance(node, ast.expr):
        yield from _other_values(node)
    if slot[1] == "test" and not isinstance(slot[0], ast.Assert):
        yield "negated", ast.UnaryOp(ast.Not(), node)


def _other_statements(node: ast.stmt) -> Iterator[tuple[str, ast.AST]]:
    """Left out, or another leap or result."""
    match node:
        case ast.Expr(value=ast.Call() | ast.Await()) | ast.AugAssign() | ast.Raise():
            yield "left out", ast.Pass()
        case ast.Assign(targets=[target]) | ast.Delete(targets=[target]) if not _is_name(target):
            yield "left out", ast.Pass()
        case ast.Return(value=ast.expr() as value) if ast.unparse(value) not in ("None", "False"):
            yield "returns None", ast.Return(ast.Constant(None))
        case ast.Break() | ast.Continue():
            yield "other leap", _LEAPS[type(node)]()
    if isinstance(node, ast.AugAssign) and type(node.op) in _COMPUTED:
        other = _COMPUTED[type(node.op)]()
        yield "other sum", ast.AugAssign(node.target, other, node.value)


def _other_values(node: ast.expr) -> Iterator[tuple[str, ast.AST]]:
    match node:
        case ast.Compare(ops=[op, *rest]) if type(op) in _COMPARED:
            yield (
                "compared",
                ast.Compare(node.left, [_COMPARED[type(op)](), *rest], node.comparators),
            )
        case ast.BoolOp():
            other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
            yield "and/or", ast.BoolOp(other, node.values)
        case ast.UnaryOp(op=ast.Not()):
            yield "not", node.operand
        case ast.BinOp() if type(node.op) in _COMPUTED and not _is_text(node):
            yield "other sum", ast.BinOp(node.left, _COMPUTED[type(node.op)](), node.right)
        case ast.Constant(value=bool() as value):
            yield "constant", ast.Constant(not value)
        case ast.Constant(value=int() | float() as number):
            yield (
                "constant",
                ast.Constant(number + 1 if isinstance(number, int) else number * 2 + 1),
            )
        case ast.Call(func=ast.Name(id=name)) if name in _EXTREMES:
            other_name = ast.copy_location(ast.Name(_EXTREMES[name], ast.Load()), node.func)
            yield "other extreme", ast.Call(other_name, node.args, node.keywords)
        case ast.Call(args=[first, second, *more]) if not _is_type_test(node):
            yield "swapped", ast.Call(node.func, [second, first, *more], node.keywords)


def _is_name(node: ast.expr) -> bool:
    """A local name: one that is never set would be noticed at once, and to end one does nothing."""
    return isinstance(node, ast.Name | ast.Tuple)


def _is_text(node: ast.BinOp) -> bool:
    return any(isinstance(side, ast.JoinedStr) for side in (node.left, node.right))


def _is_type_test(node: ast.Call) -> bool:
    return ast.unparse(node.func) in {"isinstance", "cast", "getattr"}


def mutants(file: str, root: Path) -> list[Mutant]:
    """All mutants of a file."""
    found = []
    for number, edit in enumerate(edits(ast.parse((root / file).read_text(encoding="utf-8")))):
        before = ast.unparse(edit.function).splitlines()
        old = edit.make()
        after = ast.unparse(edit.function).splitlines()
        _put(edit.slot, old)
        if before != after:
            change = _difference(before, after)
            found.append(Mutant(file, edit.line, edit.end, number, edit.kind, change))
    return found


def _difference(before: list[str], after: list[str]) -> str:
    lines = list(difflib.unified_diff(before, after, n=0, lineterm=""))[3:]
    old, new = (" ".join(line[1:].strip() for line in lines if line[0] == sign) for sign in "-+")
    return f"{old} => {new}"
