"""How the files of the product import each other: figures of ``make house``.

By the syntax of each file, so that nothing has to be installed.  What only type checkers import
does not count.
"""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Final, NamedTuple, TypeAlias

from tests.sources import nodes_of, text_of

ROOMS_TOLD: Final = ("flowctl.core", "flowctl.runtime", "flowctl.bolts", "flowctl.delivery")
# Names that each package has, or that say what is in them only within their room.
NAMES_OF_EACH: Final = frozenset({"__init__", "__main__"})

_OWN: Final = ("self", "cls")  # inherited
# Public in all but their name: those of named tuples, of pymysql's connections, of requests'
# responses and of librdkafka's errors.
_OF_OTHERS: Final = frozenset(
    {
        "_asdict",
        "_fields",
        "_make",
        "_replace",
        "_sock",
        "_content",
        "_ALL_BROKERS_DOWN",
        "_TRANSPORT",
    }
)

Graph: TypeAlias = dict[str, set[str]]


class Module(NamedTuple):
    """One file: its dotted name, and what it holds."""

    name: str
    tree: ast.Module
    is_package: bool


def module(path: str, tree: ast.Module) -> Module:
    """Return the module of a file of ``flowctl`` or ``adapters``."""
    parts = path.removeprefix("adapters/").removesuffix(".py").split("/")
    is_package = parts[-1] == "__init__"
    return Module(".".join(parts[:-1] if is_package else parts), tree, is_package)


def graph(modules: Iterable[Module], *, at_start: bool) -> Graph:
    """Who imports whom; ``at_start``: only what is imported as soon as the file is."""
    known = {each.name: each for each in modules}
    return {
        name: {
            found
            for node in _imports(each.tree, at_start=at_start)
            for found in _named(node, known)
            if found != name
        }
        for name, each in known.items()
    }


def _imports(node: ast.AST, *, at_start: bool) -> Iterator[ast.Import | ast.ImportFrom]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield child
        elif isinstance(child, ast.expr) or _is_for_types(child):
            continue  # most of a file are expressions, which hold none
        elif not (at_start and isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)):
            yield from _imports(child, at_start=at_start)


def _is_for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and text_of(node.test) == "TYPE_CHECKING"


def _named(node: ast.Import | ast.ImportFrom, known: Mapping[str, object]) -> Iterator[str]:
    for alias in node.names:
        named = alias.name if isinstance(node, ast.Import) else f"{node.module}.{alias.name}"
        if named in known:
            yield named
        elif isinstance(node, ast.ImportFrom) and node.module in known:
            yield node.module


def longest_chain(imports: Graph) -> list[str]:
    """The modules of the longest chain in which each imports the next as soon as it is."""

    @cache
    def below(name: str) -> tuple[str, ...]:
        chains = [below(each) for each in sorted(imports[name])]
        return (name, *max(chains, key=len, default=()))

    return list(max((below(name) for name in sorted(imports)), key=len, default=()))


def imported_once(imports: Graph, room: str = "") -> tuple[int, int]:
    """How many modules of ``room`` have exactly one importer, and how many modules it has."""
    importers = Counter(found for names in imports.values() for found in names)
    inside = [name for name in imports if name.startswith(f"{room}." if room else "")]
    return sum(importers[name] == 1 for name in inside), len(inside)


def shared_names(modules: Iterable[Module]) -> dict[str, list[str]]:
    """Names of files that stand in more than one room without a reason, and the modules.

    Reasons: a command is named after what it is about; ranges and topologies have their own kind of
    what the core has; a file with an underscore is seen in its package only, and an adapter's other
    files are what it gives to users, who name the package (``flowctl_sql.sink``).
    """
    of: dict[str, list[str]] = defaultdict(list)
    for each in modules:
        room, _, name = each.name.rpartition(".")
        is_core = room.partition(".")[0] == "flowctl"
        if each.is_package or name in NAMES_OF_EACH or not is_core or name.startswith("_"):
            continue
        if room not in ("flowctl.cli", "flowctl.core.ranges"):
            of[name].append(each.name)
    return {name: found for name, found in of.items() if len(found) > 1}


def private_access(modules: Iterable[Module], of: Iterable[Module]) -> Iterator[tuple[str, str]]:
    """Each ``other._private`` of a name of ``of``, with the module it is in.

    A class's own fields, inherited ones, and those of another object of the same class are its own
    business, as is all that stands in the same file, and a file of the same package.
    """
    ours = set[str]().union(*(_defined(each.tree) for each in of))
    for each in modules:
        own = _defined(each.tree)
        for node in nodes_of(each.tree):
            if isinstance(node, ast.Attribute) and _is_private(node.attr):
                is_own = text_of(node.value) in _OWN or node.attr in own
                if node.attr in ours and not is_own:
                    yield each.name, text_of(node)
            elif isinstance(node, ast.ImportFrom) and node.module != each.name.rpartition(".")[0]:
                named = (a.name for a in node.names)
                yield from ((each.name, n) for n in named if _is_private(n) and n in ours)


@cache
def _defined(tree: ast.Module) -> set[str]:
    """The names that a file defines: functions, classes, fields, slots."""
    found = set()
    for node in nodes_of(tree):
        if isinstance(node, ast.Constant):
            found.add(str(node.value))
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            found.add(node.attr)
        elif isinstance(node, ast.arg):
            found.add(node.arg)
    return found


def _is_private(name: str) -> bool:
    is_public = name.startswith("__") or name in _OF_OTHERS
    return name.startswith("_") and name != "_" and not is_public
