"""Docstrings, comments and messages drawn at random, to be read without their code.

``python -m tests.sentences --seed 7`` prints sixty of the product, without saying where they stand;
``--where`` adds that.  Whoever doesn't understand one at the first reading has found a defect.
"""

from __future__ import annotations

import argparse
import ast
import io
import random
import textwrap
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parents[1]
_COUNT: Final = 60
# A text of fewer words is a name or a unit, which nobody reads alone.
_WORDS_MIN: Final = 5
_ERRORS: Final = ("Error", "Danger", "warn")


class Text(NamedTuple):
    """What somebody wrote for a reader, and where."""

    kind: str
    place: str
    text: str


def texts_of(path: Path) -> Iterator[Text]:
    """Yield the docstrings, comments and messages of a module."""
    source = path.read_text(encoding="utf-8")
    name = path.relative_to(ROOT).as_posix()
    found = [*_docstrings(ast.parse(source)), *_comments(source), *_messages(ast.parse(source))]
    for kind, line, text in found:
        if len(text.split()) >= _WORDS_MIN and not text.startswith("-- "):  # no title of a section
            yield Text(kind, f"{name}:{line}", text)


def _docstrings(tree: ast.Module) -> Iterator[tuple[str, int, str]]:
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(tree):
        if isinstance(node, documented) and (text := ast.get_docstring(node)) is not None:
            yield "docstring", getattr(node, "lineno", 1), text


def _comments(source: str) -> Iterator[tuple[str, int, str]]:
    """Comments on lines that follow each other are one text; one beside code is one by itself."""
    lines: list[str] = []
    last = first = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT:
            continue
        line = token.start[0]
        if token.line[: token.start[1]].strip():
            yield "comment", line, token.string.lstrip("#: ")
            continue
        if lines and line != last + 1:
            yield "comment", first, "\n".join(lines)
            lines = []
        first = line if not lines else first
        last = line
        lines.append(token.string.lstrip("#: "))
    if lines:
        yield "comment", first, "\n".join(lines)


def _messages(tree: ast.Module) -> Iterator[tuple[str, int, str]]:
    """The texts of errors and warnings; what is filled in is shown as ``…``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(_ERRORS):
            given = [*node.args, *(word.value for word in node.keywords)]
            parts = [_literal(value) for value in given]
            yield "message", node.lineno, " ".join(part for part in parts if part)


def _literal(node: ast.expr) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(_literal(part) or "…" for part in node.values)
    return ""


def drawn(seed: int, count: int = _COUNT) -> list[Text]:
    """Return ``count`` texts of the product; the same ones for the same seed and code."""
    paths = sorted([*ROOT.glob("flowctl/**/*.py"), *ROOT.glob("adapters/**/*.py")])
    every = [text for path in paths for text in texts_of(path)]
    return random.Random(seed).sample(every, count)


def main() -> None:
    """Print a drawing."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--where", action="store_true", help="say where each stands")
    given = parser.parse_args()
    for number, text in enumerate(drawn(given.seed), start=1):
        where = f"  {text.place}" if given.where else ""
        print(f"{number}. {text.kind}{where}\n{textwrap.indent(text.text, '    ')}\n")


if __name__ == "__main__":
    main()
