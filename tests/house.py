"""Is the house in order?  ``python -m tests.house``, a part of ``make check``.

CONTRIBUTING.md says what order is: the sizes of files, functions and constructors, who writes the
fields of a bolt and of a tuple, where a bolt's states change, where a run's numbers are defined,
and that what is decided in one place is decided nowhere else (:mod:`tests.once`).  Here it is
measured, on the syntax alone.  Prints what breaks a rule and where, then the figures; exit code
1 if anything does.
"""

from __future__ import annotations

import ast
import statistics
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

from tests import imports, once
from tests.sources import Breach, Source, text_of

ROOT = Path(__file__).parents[1]
CODE: Final = ("flowctl", "adapters")
LAB: Final = "adapters/flowctl_lab/"  # has a wheel of its own, and no job imports it
ALSO_IN_FILES: Final = (*CODE, "tests", ".ci")  # files of tests are read as much

PARAMETERS_MAX: Final = 6  # what a reader still keeps apart; then it is time for a value object
FUNCTION_LINES_MAX: Final = 50  # a screen
FILE_LINES_MAX: Final = 600  # a thing with a name may be long; two things in a file are two files
PRODUCT_FILES_MAX: Final = 388  # without the lab
# A reader follows a call through so many files at most.
CHAIN_MAX: Final = 24
# A test that needs more than the public face shows a missing getter, or tests what nobody sees.
PRIVATE_IN_TESTS_MAX: Final = 60
# A file that only one other imports is a part of that one, unless it has a name of its own; of the
# rooms in which a reader begins, more have.
ONCE_SHARE_MAX: Final = {"": 0.3, "flowctl.runtime": 0.4, "flowctl.bolts": 0.4}

# What users call by keywords, most of which they leave out: a value object would only be one more
# thing for them to import.
PUBLIC_BUILDERS: Final = {
    "AnthropicBatch": "a service: functions, headers, bounds and times",
    "BulkSink": "a sink: its cluster, index, ids and timeouts",
    "DynamoSink": "a sink: its table, document, region and times",
    "FlowControlSpout": "a job: its parts by name, all but three with defaults",
    "FlowctlOperator": "a task of Airflow: its job, options, place and environment",
    "HttpSink": "a sink: its address, body, headers and timeouts",
    "KinesisSink": "a sink: its stream, key, data, region and times",
    "KafkaSink": "a sink: its topic, servers, and what of a row goes where",
    "KafkaTopics": "a source: what its connection string, group and limits are",
    "OpenAIBatch": "a service: functions, headers, address, bounds and times",
    "SqlRanges": "a source: its table, key, columns, condition and mark",
    "SqlSink": "a sink: its table, statement and timeouts",
}


class Owner(NamedTuple):
    """A class that alone writes its fields, and by what a variable of it is known.

    ``called``: in what is printed; ``variables``: names that only it has; ``kept_in``: the
    dictionaries that hold it; ``lent``: fields that a file writes by agreement, and which.
    """

    path: str
    name: str
    called: str
    variables: frozenset[str]
    kept_in: str
    lent: Mapping[str, str]


BOLT: Final = Owner(
    "flowctl/core/consumer.py",
    "AdaptiveFlowConsumer",
    "bolt",
    frozenset({"consumer"}),
    "bolts",
    {  # to save a dictionary in the hottest loops
        "alarm_s": "flowctl/core/book.py",
        "queued_s": "flowctl/core/dispatch.py",
        "place": "flowctl/core/dispatch.py",
    },
)
TUPLE: Final = Owner(
    "flowctl/core/tuples.py",
    "FlowTuple",
    "tuple",
    frozenset({"flow_tuple", "piece", "whole"}),
    "pending",
    {},
)
OWNERS: Final = (BOLT, TUPLE)
NUMBERS_FILE: Final = "flowctl/core/counters.py"
STATE_FILE: Final = "flowctl/core/state.py"
STATES: Final = ("BoltState", "Liveness")
_CHANGES: Final = {
    "add", "append", "appendleft", "clear", "discard", "extend", "pop", "popitem", "popleft",
    "remove", "setdefault", "update",
}  # fmt: skip


Definition: TypeAlias = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
_OWN: Final = ("self", "cls", "mcs")  # need no annotation


@cache
def read(folders: tuple[str, ...] = CODE, *, root: Path = ROOT) -> list[Source]:
    """Return all Python files of ``folders``."""
    paths = [path for folder in folders for path in sorted((root / folder).rglob("*.py"))]
    return [
        Source(path.relative_to(root).as_posix(), path.read_text(encoding="utf-8"))
        for path in paths
    ]


# -- sizes -------------------------------------------------------------------------------------


def long_files(sources: Iterable[Source]) -> Iterator[Breach]:
    """Those of more than :data:`FILE_LINES_MAX` lines."""
    for source in sources:
        if source.lines > FILE_LINES_MAX:
            yield Breach(source.path, 1, f"{source.lines} lines, {FILE_LINES_MAX} at most")


def functions(source: Source) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """All functions and methods, with those inside of others."""
    for node in source.nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def length(function: ast.AST) -> int:
    """Lines from ``def`` to its end."""
    assert isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
    return (function.end_lineno or function.lineno) - function.lineno + 1


def long_functions(sources: Iterable[Source]) -> Iterator[Breach]:
    """Those of more than :data:`FUNCTION_LINES_MAX` lines."""
    for source in sources:
        for function in functions(source):
            if (lines := length(function)) > FUNCTION_LINES_MAX:
                what = f"{function.name} has {lines} lines, {FUNCTION_LINES_MAX} at most"
                yield Breach(source.path, function.lineno, what)


def constructors(sources: Iterable[Source]) -> Iterator[tuple[Source, ast.ClassDef, int]]:
    """Each class with an ``__init__`` of its own, and how many parameters that takes.

    Structs and named tuples have none: they are the value objects.
    """
    for source in sources:
        for node in source.nodes:
            if not isinstance(node, ast.ClassDef):
                continue
            for member in node.body:
                if isinstance(member, ast.FunctionDef) and member.name == "__init__":
                    given = member.args
                    named = [*given.posonlyargs, *given.args, *given.kwonlyargs]
                    yield source, node, len(named) - 1


def wide_constructors(sources: Iterable[Source]) -> Iterator[Breach]:
    """Those with more than :data:`PARAMETERS_MAX` that are not exempt."""
    for source, node, parameters in constructors(sources):
        if parameters > PARAMETERS_MAX and node.name not in PUBLIC_BUILDERS:
            what = f"{node.name} takes {parameters} parameters, {PARAMETERS_MAX} at most"
            yield Breach(source.path, node.lineno, what)


# -- who writes what ---------------------------------------------------------------------------


def fields_of(sources: Iterable[Source], owner: Owner) -> set[str]:
    """The names that the class has in its ``__slots__``, or the fields of a struct."""
    for source in sources:
        if source.path == owner.path:
            for node in source.nodes:
                if isinstance(node, ast.ClassDef) and node.name == owner.name:
                    return set(_slots(node))
    return set()


def _slots(node: ast.ClassDef) -> Iterator[str]:
    for member in node.body:
        if isinstance(member, ast.AnnAssign):
            yield text_of(member.target)
        elif isinstance(member, ast.Assign) and ast.unparse(member.targets[0]) == "__slots__":
            for element in ast.walk(member.value):
                if isinstance(element, ast.Constant) and isinstance(element.value, str):
                    yield element.value


def variables_of(owner: Owner, source: Source) -> set[str]:
    """The variables of a file that are declared as of the class, made, or taken from their dict."""
    return owner.variables.union(*(_named_in(node, owner) for node in source.nodes))


def _named_in(node: ast.AST, owner: Owner) -> Iterator[str]:
    if isinstance(node, ast.arg):
        if node.annotation is not None and owner.name in text_of(node.annotation):
            yield node.arg
    elif isinstance(node, ast.AnnAssign):
        if owner.name in text_of(node.annotation):
            yield text_of(node.target)
    elif isinstance(node, ast.For):
        if f"{owner.kept_in}.values()" in text_of(node.iter):
            yield text_of(node.target)
    elif isinstance(node, ast.Assign | ast.NamedExpr) and _is_one(node.value, owner):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        yield from (text_of(target) for target in targets)


def _is_one(value: ast.expr, owner: Owner) -> bool:
    """Whether it is ``….bolts[…]``, ``….bolts.get(…)``, ``….bolts.pop(…)``, or a new one."""
    kept_in = owner.kept_in
    if isinstance(value, ast.Subscript):
        return text_of(value.value).endswith(kept_in)
    if not isinstance(value, ast.Call):
        return False
    called = text_of(value.func)
    return called == owner.name or called.endswith((f"{kept_in}.get", f"{kept_in}.pop"))


def written(node: ast.AST) -> Iterator[ast.Attribute]:
    """The attributes that a statement writes: it sets them, or changes what is in them."""
    targets: Sequence[ast.expr] = ()
    if isinstance(node, ast.Assign | ast.Delete):
        targets = node.targets
    elif isinstance(node, ast.AugAssign | ast.AnnAssign):
        targets = [node.target]
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        targets = [node.func.value] if node.func.attr in _CHANGES else ()
    for target in targets:
        for part in target.elts if isinstance(target, ast.Tuple) else [target]:
            whole = part.value if isinstance(part, ast.Subscript) else part
            if isinstance(whole, ast.Attribute):
                yield whole


def foreign_writes(sources: Sequence[Source]) -> Iterator[Breach]:
    """Lines outside the file of a bolt's or a tuple's class that write its fields."""
    for owner in OWNERS:
        fields = fields_of(sources, owner)
        for source in sources:
            if source.path != owner.path:
                yield from _writes(source, owner, fields)


def _writes(source: Source, owner: Owner, fields: Set[str]) -> Iterator[Breach]:
    written_here = (attribute for node in source.nodes for attribute in written(node))
    ours = [attribute for attribute in written_here if attribute.attr in fields]
    names = variables_of(owner, source) if ours else ()
    for attribute in ours:
        field = attribute.attr
        if owner.lent.get(field) != source.path and text_of(attribute.value) in names:
            what = f"writes {field} of a {owner.called}, which only {owner.path} may"
            yield Breach(source.path, attribute.lineno, what)


# -- states ------------------------------------------------------------------------------------


def stray_tables(sources: Iterable[Source]) -> Iterator[Breach]:
    """Tables of what state follows from what, beside those of :data:`STATE_FILE`."""
    for source in sources:
        if source.path == STATE_FILE:
            continue
        for node in source.nodes:
            if isinstance(node, ast.Dict) and any(_is_state(value) for value in node.values):
                yield Breach(source.path, node.lineno, f"a table of states, beside {STATE_FILE}")


def _is_state(node: ast.expr) -> bool:
    return text_of(node).partition(".")[0] in STATES


# -- numbers -----------------------------------------------------------------------------------


def copied_numbers(sources: Sequence[Source]) -> Iterator[Breach]:
    """Classes that define numbers of a run again, beside those of :data:`NUMBERS_FILE`."""
    counted = {
        name
        for source in sources
        if source.path == NUMBERS_FILE
        for node in source.nodes
        if isinstance(node, ast.ClassDef)
        for name in _fields(node)
    }
    for source in sources:
        if source.path == NUMBERS_FILE:
            continue
        for node in source.nodes:
            if isinstance(node, ast.ClassDef) and len(again := counted & set(_fields(node))) > 1:
                what = f"{node.name} defines {', '.join(sorted(again))}, as {NUMBERS_FILE} does"
                yield Breach(source.path, node.lineno, what)


def _fields(node: ast.ClassDef) -> Iterator[str]:
    for member in node.body:
        if isinstance(member, ast.AnnAssign) and isinstance(member.target, ast.Name):
            yield member.target.id


# -- what is said of it ------------------------------------------------------------------------


def documented(sources: Iterable[Source]) -> tuple[int, int]:
    """How many public classes and functions have a docstring, and how many there are.

    Members count by the class they are in; overloads and one-line stubs have nothing to say.
    """
    said = of = 0
    for source in sources:
        for node in _public(source.tree.body):
            of += 1
            said += ast.get_docstring(node) is not None
    return said, of


def _public(body: Iterable[ast.stmt]) -> Iterator[Definition]:
    for node in body:
        if isinstance(node, Definition) and not node.name.startswith("_"):
            if not _is_stub(node):
                yield node
            if isinstance(node, ast.ClassDef):
                yield from _public(node.body)


def _is_stub(node: Definition) -> bool:
    """Whether it is ``def f(...) -> ...: ...``, as in a protocol whose class says what it is."""
    [*_, last] = node.body
    return (
        isinstance(last, ast.Expr)
        and isinstance(last.value, ast.Constant)
        and (last.value.value is Ellipsis)
    )


def annotated(sources: Iterable[Source]) -> tuple[int, int]:
    """How many functions say what they return and take, and how many there are."""
    said = of = 0
    for source in sources:
        for function in functions(source):
            given = function.args
            named = [*given.posonlyargs, *given.args, *given.kwonlyargs]
            bare = [arg for arg in named if arg.annotation is None and arg.arg not in _OWN]
            of += 1
            said += function.returns is not None and not bare
    return said, of


# -- how the files hang together ---------------------------------------------------------------


def modules(sources: Iterable[Source]) -> list[imports.Module]:
    """The files as modules."""
    return [imports.module(source.path, source.tree) for source in sources]


def product() -> list[Source]:
    """What jobs are made of: all of :data:`CODE` but the lab."""
    return [source for source in read() if not source.path.startswith(LAB)]


def too_many(sources: Sequence[Source]) -> Iterator[Breach]:
    """That the product has more than :data:`PRODUCT_FILES_MAX` files."""
    if len(sources) > PRODUCT_FILES_MAX:
        yield Breach("flowctl", 1, f"{len(sources)} files, {PRODUCT_FILES_MAX} at most")


def familiar(made: Sequence[imports.Module], tests: Sequence[imports.Module]) -> Iterator[Breach]:
    """Private names that others use: the product none, its tests few."""
    for room, most in ((made, 0), (tests, PRIVATE_IN_TESTS_MAX)):
        found = list(imports.private_access(room, made))
        if len(found) > most:
            shown = ", ".join(f"{module}: {name}" for module, name in found[:8])
            yield Breach(found[0][0], 1, f"{len(found)} private names of others: {shown}")


def namesakes(made: Sequence[imports.Module]) -> Iterator[Breach]:
    """Files of several rooms that have one name without a reason."""
    for name, found in imports.shared_names(made).items():
        yield Breach(found[0], 1, f"{name} is the name of {' and of '.join(found)}")


def scattered(sources: Iterable[Source]) -> Iterator[Breach]:
    """A chain of imports that is too long, and rooms with too many files that one other needs."""
    made = modules(sources)
    chain = imports.longest_chain(imports.graph(made, at_start=True))
    if len(chain) > CHAIN_MAX:
        what = f"imports go through {len(chain)} files, {CHAIN_MAX} at most: {' > '.join(chain)}"
        yield Breach(chain[0], 1, what)
    ever = imports.graph(made, at_start=False)
    for room, most in ONCE_SHARE_MAX.items():
        once, of = imports.imported_once(ever, room)
        if once > most * of:
            what = f"{once} of {of} files are imported by one other, {most:.0%} at most"
            yield Breach(room or "flowctl", 1, what)


# -- all of it ---------------------------------------------------------------------------------


def breaches() -> list[Breach]:
    """All that is out of order."""
    sources = read()
    return [
        *long_files(read(ALSO_IN_FILES)),
        *long_functions(sources),
        *wide_constructors(sources),
        *foreign_writes(sources),
        *stray_tables(sources),
        *once.stray_retries(sources),
        *once.stray_costs(sources),
        *once.stray_limits(sources),
        *copied_numbers(sources),
        *scattered(product()),
        *too_many(product()),
        *familiar(modules(product()), modules(read(("tests",)))),
        *namesakes(modules(product())),
    ]


def figures() -> list[str]:
    """What is counted, in lines of text."""
    sources = read()
    of_files = sorted(source.lines for source in sources)
    of_functions = sorted(length(f) for source in sources for f in functions(source))
    wide = [(count, node.name) for _, node, count in constructors(sources)]
    most, widest = max(each for each in wide if each[1] not in PUBLIC_BUILDERS)
    foreign = len(list(foreign_writes(sources)))
    tables = len(list(stray_tables(sources)))
    retries = len(list(once.stray_retries(sources)))
    costs = len(list(once.stray_costs(sources)))
    limits = len(list(once.stray_limits(sources)))
    return [
        f"lines a file, median / p90 / max: {_spread(of_files)}",
        f"lines a function, median / p90 / max: {_spread(of_functions)}",
        f"most parameters of a constructor: {most} ({widest}), but for",
        *(f"  {name}: {why}" for name, why in sorted(PUBLIC_BUILDERS.items())),
        f"lines outside a bolt's or a tuple's own class that write its fields: {foreign}",
        f"tables of states beside {STATE_FILE}: {tables}",
        f"pauses and blame beside {once.RETRY_FILE} and {once.BLAME_FILE}: {retries}",
        f"estimates of what a call costs beside {once.COST_FILE}: {costs}",
        f"limits learned from refusals beside {once.LIMIT_FILE}: {limits}",
        f"public docstrings / annotated: {_share(documented(sources))}"
        f" / {_share(annotated(sources))}",
    ]


def structure() -> list[str]:
    """How the files hang together, in lines of text."""
    made, tests = modules(product()), modules(read(("tests",)))
    at_start = imports.graph(made, at_start=True)
    ever = imports.graph(made, at_start=False)
    rooms = {"all": "", **{name.rpartition(".")[2]: name for name in imports.ROOMS_TOLD}}
    once = {name: _share(imports.imported_once(ever, room)) for name, room in rooms.items()}
    outside = [len(list(imports.private_access(each, made))) for each in (made, tests)]
    return [
        f"files: {len(made)}, and {len(read()) - len(made)} of the lab"
        f"; the longest chain of imports: {len(imports.longest_chain(at_start))}",
        "files that one other imports: "
        + ", ".join(f"{name} {share}" for name, share in once.items()),
        f"names of files in several rooms: {len(imports.shared_names(made))}",
        f"private names of others, in the product / in tests: {outside[0]} / {outside[1]}",
    ]


def _share(counts: tuple[int, int]) -> str:
    return f"{100 * counts[0] / counts[1]:.0f} %"


def _spread(counts: Sequence[int]) -> str:
    p90 = counts[len(counts) * 9 // 10]
    return f"{statistics.median(counts):g} / {p90} / {counts[-1]}"


def main() -> int:
    """Print what is out of order and the figures; return the exit code."""
    found = breaches()
    for breach in found:
        print(breach, file=sys.stderr)
    print("\n".join([*figures(), *structure()]))
    print(f"{len(found)} problems")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
