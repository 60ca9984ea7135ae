"""Would a test notice?  ``python -m tests.mutants PART``, or ``make mutants PART=pacing``.

Changes one thing in a function of the part (a comparison, a bound, a condition, a call that is left
out, a value that is returned), runs the tests that reach the line, and says which changes no test
noticed: such a survivor needs a test, or the statement is needed by nobody, or the change changes
nothing.  The latter stand in ``mutants_equivalent.tsv``, with the reason.

One process imports the code and the tests and learns which test reaches which line
(``tests/reach.py``; the next run remembers).  A mutant is a fork of it that replaces the code of
the live functions, so no file is ever changed and a mutant takes a fraction of a second.  Those
tests run first that notice most in a second.  If one takes far longer than it did, the mutant
hangs, which is noticed too.  Where a mutant has more tests than ``--tests-seconds`` hold and those
that run notice nothing, it is not known whether one would; this is counted apart.  The well-kept
tools (mutmut, cosmic-ray) run a new pytest for each mutant or write a changed copy of the sources,
which takes seconds each here.

Only what runs in functions is changed: neither constants of modules (measured, not tested) nor what
is logged nor the text of an error.  Only tests in unit, property and contract that are not marked
slow run, so a survivor may still be found by an integration test.
"""

from __future__ import annotations

import argparse
import ast
import collections
import contextlib
import gc
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import CodeType, FunctionType
from typing import Final

import pytest

from tests.mutations import Mutant, edits, mutants
from tests.reach import (
    HUNG,
    KILLED,
    NOT_POSSIBLE,
    SURVIVED,
    TIMES,
    Reach,
    ended_after,
    fork,
    passes,
)

ROOT: Final = Path(__file__).resolve().parents[1]
EQUIVALENT: Final = Path(__file__).with_name("mutants_equivalent.tsv")
PARTS: Final[dict[str, tuple[str, ...]]] = {
    "apply": ("adapters/flowctl_apply/*.py",),
    "delivery": ("flowctl/delivery/*.py",),
    "pacing": (
        "flowctl/core/pacing/*.py",
        "flowctl/pacing/*.py",
        "adapters/flowctl_redis/targets.py",
    ),
    "ranges": ("flowctl/core/ranges/*.py", "flowctl/bolts/range_*.py"),
}
TESTS: Final = ("unit", "property", "contract")
# What a bolt does with a range is shown over a socket only; what the law of a target does, by rows
# of its report.
ALSO: Final = {
    "pacing": tuple(
        f"tests/simulation/test_simulation_laws.py::test_flowctls_cell_of_a_target_is_what_the_code_gives[{row}]"
        for row in (
            "lognormal",
            "rate with short calls",
            "three times slower",
            "less then more",
            "collapse",
        )
    ),
    "ranges": (
        "tests/integration/test_range_bolt.py",
        "tests/integration/test_range_saves_told.py",
    ),
}

# How a mutant is put into a process that has imported its file.


Live = dict[str, list[FunctionType]]  # by the path of their file


def _live_functions() -> Live:
    gc.unfreeze()  # what is frozen is not listed
    found: Live = collections.defaultdict(list)
    for function in gc.get_objects():
        if type(function) is FunctionType:
            found[function.__code__.co_filename].append(function)
    gc.freeze()
    return found


def put_in(mutant: Mutant, root: Path, live: Live) -> bool:
    """Replace the code of the live functions; False if this change can't be made there."""
    path = root / mutant.file
    tree = ast.parse(path.read_text(encoding="utf-8"))
    before = dict(_codes(compile(tree, str(path), "exec", dont_inherit=True)))
    edits(tree)[mutant.number].make()
    ast.fix_missing_locations(tree)
    try:
        after = dict(_codes(compile(tree, str(path), "exec", dont_inherit=True)))
    except SyntaxError:
        return False
    changed = {key: after[key] for key, code in before.items() if after.get(key, code) != code}
    return _replace(live[str(path)], changed)


def _codes(code: CodeType) -> Iterator[tuple[tuple[str, int], CodeType]]:
    yield (code.co_qualname, code.co_firstlineno), code
    for const in code.co_consts:
        if isinstance(const, CodeType):
            yield from _codes(const)


def _replace(functions: list[FunctionType], changed: dict[tuple[str, int], CodeType]) -> bool:
    is_replaced = False
    for function in functions:
        old = function.__code__
        new = changed.get((old.co_qualname, old.co_firstlineno))
        if new is not None:
            if new.co_freevars != old.co_freevars:
                return False
            function.__code__ = new
            is_replaced = True
    return is_replaced


class Judging:
    """A pytest plugin that runs mutants in place of the tests."""

    def __init__(self, wanted: list[Mutant], reach: Reach, options: argparse.Namespace) -> None:
        self.found: collections.Counter[str] = collections.Counter()
        self.names: dict[str, list[str]] = collections.defaultdict(list)
        self.took_s = 0.0
        self._wanted = collections.deque(wanted)
        self._reach = reach
        self._options = options
        self._out = os.fdopen(os.dup(1), "w", buffering=1)  # pytest's own output goes nowhere
        self._folder = Path(tempfile.mkdtemp(prefix="flowctl-mutants-"))
        self._running: dict[int, tuple[Mutant, list[str], int]] = {}

    def pytest_collection(self) -> None:
        """Examples are the same for each mutant, and a failing one is not made smaller."""
        from hypothesis import Phase, settings

        settings.register_profile(
            "mutants", deadline=None, derandomize=True, database=None,
            phases=[Phase.explicit, Phase.generate],
        )  # fmt: skip
        settings.load_profile("mutants")

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        try:
            with contextlib.suppress(KeyboardInterrupt):  # what is known so far is told
                self._learn(session.items)
                self._judge_all({item.nodeid: item for item in session.items})
        finally:
            for process in self._running:
                _kill(process)
                os.waitpid(process, 0)
            self._reach.keep()
            shutil.rmtree(self._folder, ignore_errors=True)
        return True

    def _learn(self, items: list[pytest.Item]) -> None:
        began_s = time.monotonic()
        ran = self._reach.learn(items, self._folder / "learning", self._options.jobs)
        tests_s = sum(each.took_s for each in self._reach.tests.values())
        print(
            f"{len(self._reach.tests)} of {len(items)} tests pass, in {tests_s:.0f} s "
            f"({ran} learned in {time.monotonic() - began_s:.0f} s)",
            file=self._out,
        )

    def _judge_all(self, items: dict[str, pytest.Item]) -> None:
        live = _live_functions()
        began_s = time.monotonic()
        until_s = began_s + self._options.seconds
        while self._running or (self._wanted and time.monotonic() < until_s):
            is_late = time.monotonic() >= until_s
            while self._wanted and not is_late and len(self._running) < self._options.jobs:
                self._start(self._wanted.popleft(), items, live)
            self._collect()
            time.sleep(0.005)
            self.took_s = time.monotonic() - began_s

    def _start(self, mutant: Mutant, items: dict[str, pytest.Item], live: Live) -> None:
        found = self._reach.tests_of(mutant.file, mutant.line, mutant.end)
        if not found:
            self._say("no test reaches", mutant)
            return
        tests = self._affordable(found)
        folder = self._folder_of(mutant)

        def work() -> int:
            if not put_in(mutant, Path.cwd(), live):
                return NOT_POSSIBLE
            for count, test in enumerate(tests, 1):
                (folder / "ran").write_text(str(count), encoding="utf-8")
                with ended_after(self._options.hang + TIMES * self._reach.tests[test].took_s):
                    if not passes(items[test], folder):
                        return KILLED
            return SURVIVED

        self._running[fork(work, folder)] = (mutant, tests, len(found) - len(tests))

    def _affordable(self, tests: list[str]) -> list[str]:
        """As many of the tests as ``--tests-seconds`` hold, at least one."""
        kept, left_s = [], self._options.tests_seconds
        for test in tests:
            left_s -= self._reach.tests[test].took_s
            if left_s >= 0 or not kept:
                kept.append(test)
        return kept

    def _collect(self) -> None:
        for process in list(self._running):
            ended, status = os.waitpid(process, os.WNOHANG)
            if ended:
                _kill(process)  # what it has started
                mutant, tests, left_out = self._running.pop(process)
                self._judge(mutant, os.waitstatus_to_exitcode(status), tests, left_out)

    def _folder_of(self, mutant: Mutant) -> Path:
        return self._folder / mutant.name.replace("/", ".")

    def _judge(self, mutant: Mutant, code: int, tests: list[str], left_out: int) -> None:
        if code == NOT_POSSIBLE:
            self.found["not possible"] += 1
            return
        folder = self._folder_of(mutant)
        ran = tests[: int((folder / "ran").read_text(encoding="utf-8"))]
        shutil.rmtree(folder, ignore_errors=True)
        self._reach.notices.add(mutant.file, ran, None if code == SURVIVED else ran[-1])
        if code == HUNG:
            self._say("hung", mutant)
        elif code != SURVIVED:  # also one that ends the process
            self.found["noticed"] += 1
        elif left_out:
            self._say("not known", mutant, f", {left_out} tests left out")
        else:
            self._say("survived", mutant)

    def _say(self, what: str, mutant: Mutant, more: str = "") -> None:
        self.found[what] += 1
        self.names[what].append(mutant.name)
        text = f"{what}{more}: {mutant.name}  {mutant.kind}\n    {mutant.change}"
        print(text, file=self._out)


def _kill(process: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process, signal.SIGKILL)


# What to change and what to run.


def files_of(part: str, root: Path = ROOT) -> list[str]:
    """The files of a part, or the one that is named."""
    found = [path for pattern in PARTS.get(part, (part,)) for path in sorted(root.glob(pattern))]
    return [path.relative_to(root).as_posix() for path in found]


def tests_of(files: Iterable[str], root: Path = ROOT) -> list[str]:
    """The files of tests that import one of these modules, a public name of it, or a door to it."""
    from tests.changes import imports_of

    wanted = set(files)
    parts = {part: files_of(part, root) for part in PARTS}
    whole = [part for part, its in parts.items() if wanted & set(its)]
    modules = tuple(_module(file) for file in wanted.union(*(parts[part] for part in whole)))
    doors = _doors_to(modules, root)
    found = [
        name
        for part in whole
        for name in ALSO.get(part, ())
        if (root / name.partition("::")[0]).is_file()
    ]
    for folder in TESTS:
        # Of the doors' tests the quick ones: learning what the others reach takes minutes.
        those = modules + doors if folder == "unit" else modules
        for path in sorted((root / "tests" / folder).glob("test_*.py")):
            name = path.relative_to(root).as_posix()
            used = {_defined_in(module) for module in imports_of(name, root)[1]}
            if any(f"{each}.".startswith(f"{module}.") for each in used for module in those):
                found.append(name)
    return found


def _module(file: str) -> str:
    name = file.removeprefix("adapters/").removesuffix(".py").removesuffix("/__init__")
    return name.replace("/", ".")


def _doors_to(modules: Sequence[str], root: Path) -> tuple[str, ...]:
    """The modules of adapters that import one of these: their tests may be its only ones."""
    from tests.changes import imported_by

    return tuple(
        name
        for module in modules
        for name in imported_by(module, root)
        if "." in name and not name.startswith("flowctl.")
    )


def _defined_in(name: str) -> str:
    """The module of a public name of the package: ``flowctl.paced`` is one of flowctl.pacing."""
    package, _, public = name.partition(".")
    if package == "flowctl" and public.isidentifier():
        import flowctl

        if public in flowctl.__all__:
            return getattr(getattr(flowctl, public), "__module__", name)
    return name


def equivalents(path: Path = EQUIVALENT) -> dict[tuple[str, str], str]:
    """The changes that change nothing, by file and change, each with the reason."""
    rows = [line.split("\t") for line in path.read_text(encoding="utf-8").splitlines() if line]
    return {(file, change): reason for file, change, reason in rows}


def main(arguments: list[str]) -> int:
    """Judge the mutants of a part; print what survives, and the rate.  Exit code 1 if any does."""
    options = _options(arguments)
    root = Path.cwd()
    files = files_of(options.part, root)
    if not files:
        sys.exit(f"{options.part} is neither a part ({', '.join(PARTS)}) nor a file below {root}")
    known = equivalents()
    all_of_it = [each for file in files for each in mutants(file, root)]
    fresh = [each for each in all_of_it if (each.file, each.change) not in known]
    drawn = list(fresh)
    random.Random(options.seed).shuffle(drawn)
    if options.only:
        drawn = [each for each in all_of_it if each.name == options.only]
    drawn = drawn[: options.count]
    if options.list:
        for each in sorted(drawn):
            print(f"{each.name}  {each.kind}: {each.change}")
        return 0
    tests = options.tests or tests_of(files, root)
    print(f"{options.part}: {len(all_of_it)} mutants, {len(tests)} files of tests", flush=True)
    judging = _run(drawn, tests, options, root)
    return _tell(judging, options, len(all_of_it) - len(fresh))


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutants",
        description="Change one thing at a time in the functions of a part and say which changes "
        "no test notices. Ctrl-C prints what is known so far.",
        epilog="Each survivor needs a test, or its statement is needed by nobody, or the change "
        f"changes nothing: then it stands with its reason in tests/{EQUIVALENT.name}. "
        "Exit code 1 if there is any.",
    )
    parser.add_argument("part", help=f"{', '.join(PARTS)}, or a file such as {PARTS['ranges'][0]}")
    add = parser.add_argument
    add("--seconds", type=float, default=600.0, help="begin no mutant after these (%(default)g)")
    add("--seed", type=int, default=1, help="the order in which mutants are drawn (%(default)s)")
    add("--count", type=int, help="draw so many mutants at most (all)")
    add("--jobs", type=int, default=os.cpu_count(), help="run so many at a time (%(default)s)")
    add(
        "--tests-seconds", type=float, default=60.0, metavar="SECONDS",
        help="run so much of a mutant's tests, by what they took before (%(default)g)",
    )  # fmt: skip
    add(
        "--hang", type=float, default=10.0, metavar="SECONDS",
        help=f"a test that takes these and {TIMES} times what it took hangs (%(default)g)",
    )  # fmt: skip
    add("--only", metavar="NAME", help="try the one mutant of this name again")
    add("--tests", nargs="+", metavar="FILE", help="files of tests (those that import the part)")
    add("--list", action="store_true", help="only print what would be tried")
    return parser.parse_args(arguments)


def _run(drawn: list[Mutant], tests: list[str], options: argparse.Namespace, root: Path) -> Judging:
    judging = Judging(
        drawn, Reach(_whole_parts({each.file for each in drawn}, root), root), options
    )
    quiet = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-m", "not slow and not spark"]
    with open(os.devnull, "w") as null, contextlib.redirect_stdout(null):
        code = pytest.main([*quiet, *tests], plugins=[judging])
    if not judging.found:
        sys.exit(f"no mutant was tried (pytest: {code}); do these run? pytest {' '.join(tests)}")
    return judging


def _whole_parts(files: set[str], root: Path) -> set[str]:
    """These files and the rest of their parts: what tests reach is learned for all of it."""
    parts = [set(files_of(part, root)) for part in PARTS]
    return files.union(*(its for its in parts if its & files))


def _tell(judging: Judging, options: argparse.Namespace, equivalent: int) -> int:
    found = judging.found
    noticed, survived = (
        found["noticed"] + found["hung"],
        found["survived"] + found["no test reaches"],
    )
    tried = noticed + survived
    if tried:
        print(
            f"{options.part}: {noticed} of {tried} noticed, {100 * noticed / tried:.1f} % "
            f"({found['hung']} hung); {found['not known']} not known, {found['not possible']} not "
            f"possible, {equivalent} listed as equivalent; {judging.took_s / tried:.2f} s each, "
            f"seed {options.seed}"
        )
    left = [name for what, names in judging.names.items() if what != "hung" for name in names]
    if left:
        print(f"Again: python -m tests.mutants {options.part} --only {left[0]}")
    return 1 if left else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
