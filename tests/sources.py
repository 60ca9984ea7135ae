"""The project's files as they are read to look at their syntax."""

from __future__ import annotations

import ast
import gc
from functools import cache, cached_property
from typing import NamedTuple


class Source:
    """One file, read once, and parsed once somebody asks what is in it."""

    def __init__(self, path: str, text: str) -> None:
        self.path = path
        self._text = text
        self.lines = len(text.splitlines())

    @cached_property
    def tree(self) -> ast.Module:
        """Its syntax."""
        gc.disable()  # it would look at all trees again and again: two thirds of the time
        try:
            return ast.parse(self._text)
        finally:
            gc.enable()

    @property
    def nodes(self) -> list[ast.AST]:
        """All that is in it."""
        return nodes_of(self.tree)


class Breach(NamedTuple):
    """A rule that is broken, and where."""

    path: str
    line: int
    what: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.what}"


@cache  # each rule asks for them
def nodes_of(tree: ast.Module) -> list[ast.AST]:
    """All that is in a file."""
    return list(ast.walk(tree))


def text_of(node: ast.AST) -> str:
    """The node as it is written."""
    if isinstance(node, ast.Name):  # most are: unparse takes ten times as long
        return node.id
    return ast.unparse(node)
