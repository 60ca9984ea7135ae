"""Is docs/dev/semantics.md true?  ``python -m tests.semantics``, a part of ``make check``.

The page has one row for each requirement S1 … S125: what does it, and what shows it.  Here every
name of it is looked up: classes by import, tests by pytest's own collection, so that what counts
is what would run.  Prints what is wrong and where; exit code 1 if anything is.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
PAGE = "docs/dev/semantics.md"
NUMBERS = range(1, 126)  # S1 … S125
# In place of tests: a requirement that is not to be met.  Its row says why.
IGNORED = "ignored"
_CELLS = 5  # number, what it asks, what does it, what shows it, where we differ


class Row(NamedTuple):
    """One requirement.  ``done_by`` and ``shown_by`` are the quoted names of their cells."""

    line: int
    requirement: str
    done_by: list[str]
    shown_by: list[str]
    is_ignored: bool


class CollectedTest(NamedTuple):
    """A test that pytest would run.  ``names``: of its class, if any, and its function."""

    path: str
    names: frozenset[str]
    requirements: frozenset[str]


def main() -> int:
    """Check the page; return the exit code."""
    rows, told = read_page((ROOT / PAGE).read_text(encoding="utf-8"))
    tests, output = collect()
    if not tests:
        print(output, file=sys.stderr)  # a test file that can't be read, say
        return 1
    told += problems(rows, tests)
    for problem in told:
        print(problem, file=sys.stderr)
    marked = [test for test in tests if test.requirements]
    ignored = sum(row.is_ignored for row in rows)
    print(f"{len(rows)} requirements, {ignored} ignored; {len(marked)} of {len(tests)} tests"
          f" show one; {len(told)} problems")  # fmt: skip
    return bool(told)


def read_page(text: str) -> tuple[list[Row], list[str]]:
    """Return the rows of the page's tables, and what is wrong with their form."""
    rows, told = [], []
    for number, line in enumerate(text.splitlines(), start=1):
        if not re.match(r"\|\s*S\d", line):
            continue
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if len(cells) != _CELLS:
            told.append(f"{PAGE}:{number}: a row has {_CELLS} cells")
            continue
        requirement, asks, done_by, shown_by, remark = cells
        is_ignored = shown_by == IGNORED
        if not asks or (is_ignored and not remark):
            told.append(f"{PAGE}:{number}: {requirement} says not what it asks, or why not")
        rows.append(Row(number, requirement, _quoted(done_by), _quoted(shown_by), is_ignored))
    return rows, told


def _quoted(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def collect() -> tuple[list[CollectedTest], str]:
    """Return all tests as pytest finds them, none if that fails, and what pytest said."""
    found: list[pytest.Item] = []

    class Plugin:
        def pytest_collection_finish(self, session: pytest.Session) -> None:
            found.extend(session.items)

    said = io.StringIO()
    arguments = ["--collect-only", "-qq", "-p", "no:cacheprovider", "--rootdir", str(ROOT)]
    with contextlib.redirect_stdout(said):
        code = pytest.main([*arguments, str(ROOT / "tests")], plugins=[Plugin()])
    if code != pytest.ExitCode.OK:
        return [], said.getvalue()
    return [_collected(item) for item in found], said.getvalue()


def _collected(item: pytest.Item) -> CollectedTest:
    path, *names = re.sub(r"\[.*", "", item.nodeid, flags=re.DOTALL).split("::")
    requirements = {name for marker in item.iter_markers("req") for name in marker.args}
    return CollectedTest(path, frozenset(names), frozenset(requirements))


def problems(rows: Sequence[Row], tests: Sequence[CollectedTest]) -> list[str]:
    """Return what is wrong, each with its place."""
    return [
        *_wrong_numbers(rows),
        *_strange_markers(tests),
        *(problem for row in rows for problem in _wrong_row(row, tests)),
    ]


def _wrong_numbers(rows: Iterable[Row]) -> Iterator[str]:
    seen: dict[str, int] = {}
    for row in rows:
        if row.requirement not in _known():
            yield f"{PAGE}:{row.line}: {row.requirement} is no requirement"
        if row.requirement in seen:
            first = seen[row.requirement]
            yield f"{PAGE}:{row.line}: {row.requirement} is in line {first} already"
        seen.setdefault(row.requirement, row.line)
    for requirement in _known():
        if requirement not in seen:
            yield f"{PAGE}: {requirement} is missing"


def _known() -> list[str]:
    return [f"S{number}" for number in NUMBERS]


def _strange_markers(tests: Iterable[CollectedTest]) -> Iterator[str]:
    strange = {
        (test.path, "::".join(sorted(test.names)), name)
        for test in tests
        for name in test.requirements
        if name not in _known()
    }
    for path, names, requirement in sorted(strange):
        yield f"{path}::{names}: {requirement} is no requirement"


def _wrong_row(row: Row, tests: Sequence[CollectedTest]) -> Iterator[str]:
    place = f"{PAGE}:{row.line}: {row.requirement}:"
    for name in row.done_by:
        if not _is_there(name):
            yield f"{place} there is no {name}"
    if row.is_ignored:
        return
    showing = [test for test in tests if row.requirement in test.requirements]
    if not showing:
        yield f"{place} no test is marked with it"
    if not row.done_by:
        yield f"{place} nothing is named that does it"
    if not row.shown_by:
        yield f"{place} no test is named"
    for name in row.shown_by:
        if not any(_is_named(test, name) for test in tests):
            yield f"{place} there is no test {name}"
        elif showing and not any(_is_named(test, name) for test in showing):
            yield f"{place} {name} is not marked with it"


def _is_named(test: CollectedTest, name: str) -> bool:
    """Whether ``file.py`` or ``file.py::name`` is ``test``; names of test files are unique."""
    file, _, function = name.partition("::")
    return Path(test.path).name == file and (not function or function in test.names)


def _is_there(name: str) -> bool:
    """Whether ``core.ledger.PartitionLedger`` (of flowctl or any package) or a path exists."""
    if "/" in name or name.endswith((".toml", ".txt")):
        return (ROOT / name).exists()
    return any(_resolves(full) for full in (f"flowctl.{name}", name))


def _resolves(name: str) -> bool:
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        module_name = ".".join(parts[:count])
        try:
            found: object = importlib.import_module(module_name)
        except ModuleNotFoundError as error:
            if not module_name.startswith(error.name or "?"):
                raise  # it is there, and lacks something itself
            continue
        for part in parts[count:]:
            if not hasattr(found, part):
                return False
            found = getattr(found, part)
        return True
    return False


if __name__ == "__main__":
    sys.exit(main())
