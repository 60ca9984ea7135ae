"""The project's files as they are read to look at their syntax."""

from __future__ import annotations

import ast
from functools import cached_property
from typing import NamedTuple


class Source:
    """One file, read once."""

    def __init__(self, path: str, text: str) -> None:
        self.path = path
        self.lines = len(text.splitlines())
        self.tree = ast.parse(text)

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """All that is in it."""
        return list(ast.walk(self.tree))


class Breach(NamedTuple):
    """A rule that is broken, and where."""

    path: str
    line: int
    what: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.what}"


def text_of(node: ast.AST) -> str:
    """The node as it is written."""
    return ast.unparse(node)
