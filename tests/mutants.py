"""Would a test notice?  ``python -m tests.mutants PART``, or ``make mutants PART=pacing``.

Changes one thing in a function of the part (a comparison, a bound, a condition, a call that is left
out, a value that is returned), runs the tests that reach the line, and says which changes no test
noticed: such a survivor needs a test, or the statement is needed by nobody, or the change changes
nothing.  The latter stand in ``mutants_equivalent.tsv``, with the reason.

One process imports the code and the tests and learns which test reaches which line.  A mutant is a
fork of it that replaces the code of the live functions, so no file is ever changed and a mutant
takes a fraction of a second.  One that takes far longer than its tests did has been noticed: it
hangs.  The well-kept tools (mutmut, cosmic-ray) run a new pytest for each mutant or write a changed
copy of the sources, which takes seconds each here.

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
import pickle
import random
import resource
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any, Final, NamedTuple

import pytest

from tests.mutations import Mutant, edits, mutants

ROOT: Final = Path(__file__).resolve().parents[1]
EQUIVALENT: Final = Path(__file__).with_name("mutants_equivalent.tsv")
PARTS: Final[dict[str, tuple[str, ...]]] = {
    "apply": ("adapters/flowctl_apply/*.py",),
    "delivery": ("flowctl/delivery/*.py",),
    "pacing": (
        "flowctl/core/pacing/*.py",
        "flowctl/pacing/*.py",
        "adapters/flowctl_redis/pacing.py",
    ),
    "ranges": ("flowctl/core/ranges/*.py", "flowctl/bolts/range_*.py"),
}
TESTS: Final = ("unit", "property", "contract")
# What a bolt does with a range is shown over a socket only.
ALSO: Final = {
    "ranges": (
        "tests/integration/test_range_bolt.py",
        "tests/integration/test_range_saves_told.py",
    ),
}

TESTS_S: Final = 45.0  # the tests of one mutant, the fastest first, take so long at most
MEMORY_BYTES: Final = 8 << 30  # a loop that no longer ends must not take the machine's
SURVIVED, KILLED, NOT_POSSIBLE = 0, 1, 3

# How a mutant is put into a process that has imported its file.


def put_in(mutant: Mutant, root: Path) -> bool:
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
    return _replace(str(path), changed)


def _codes(code: CodeType) -> Iterator[tuple[tuple[str, int], CodeType]]:
    yield (code.co_qualname, code.co_firstlineno), code
    for const in code.co_consts:
        if isinstance(const, CodeType):
            yield from _codes(const)


def _replace(path: str, changed: dict[tuple[str, int], CodeType]) -> bool:
    gc.unfreeze()  # what is frozen is not listed
    is_replaced = False
    for function in gc.get_objects():
        if type(function) is FunctionType and function.__code__.co_filename == path:
            old = function.__code__
            new = changed.get((old.co_qualname, old.co_firstlineno))
            if new is not None:
                if new.co_freevars != old.co_freevars:
                    return False
                function.__code__ = new
                is_replaced = True
    return is_replaced


# How tests run, in a fork of the process that has collected them.


class Reach(NamedTuple):
    """What the tests reach, and how long each took, by its place among the collected tests."""

    lines: dict[int, set[tuple[str, int]]]
    took_s: dict[int, float]


def _fork(work: Callable[[], int], folder: Path) -> int:
    """Run ``work`` in a process of its own, leader of its group; return its id."""
    process = os.fork()
    if process:
        return process
    code = NOT_POSSIBLE
    try:
        os.setsid()
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
        null = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(null, stream)
        folder.mkdir(parents=True, exist_ok=True)
        code = work()
    finally:
        os._exit(code)


def _passes(item: pytest.Item, folder: Path) -> bool:
    factory: Any = item.config._tmp_path_factory  # type: ignore[attr-defined]
    factory._given_basetemp = folder / "tests"
    reports: list[pytest.TestReport] = []

    class Listening:
        def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
            reports.append(report)

    listening = Listening()
    item.config.pluginmanager.register(listening)
    try:
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
    finally:
        item.config.pluginmanager.unregister(listening)
    return not any(report.failed for report in reports)


def _learn(items: list[pytest.Item], files: set[str], folder: Path) -> int:
    """Run all tests once; write what each reaches."""
    reach = Reach({}, {})
    for place, item in enumerate(items):
        seen: set[tuple[str, int]] = set()

        def local(frame: FrameType, event: str, _: Any, seen: Any = seen) -> Any:
            seen.add((frame.f_code.co_filename, frame.f_lineno))
            return local

        def tracer(frame: FrameType, event: str, _: Any, local: Any = local) -> Any:
            return local(frame, event, None) if frame.f_code.co_filename in files else None

        began_s = time.perf_counter()
        threading.settrace(tracer)
        sys.settrace(tracer)
        try:
            is_passed = _passes(item, folder)
        finally:
            sys.settrace(None)
            threading.settrace(None)  # type: ignore[arg-type]
        if is_passed:
            reach.lines[place] = seen
            reach.took_s[place] = time.perf_counter() - began_s
    (folder / "reach").write_bytes(pickle.dumps(reach))
    return SURVIVED


class Judging:
    """A pytest plugin that runs mutants in place of the tests."""

    def __init__(self, wanted: list[Mutant], options: argparse.Namespace, root: Path) -> None:
        self.survivors: list[Mutant] = []
        self.unreached: list[Mutant] = []
        self.hung: list[Mutant] = []
        self.killed = 0
        self.not_possible = 0
        self.began_s = time.monotonic()
        self._wanted = wanted
        self._root = root
        self._seconds, self._until_s = options.seconds, 0.0
        self._jobs, self._hang_s = options.jobs, options.hang
        self._out = os.fdopen(os.dup(1), "w", buffering=1)  # pytest's own output goes nowhere
        self._folder = Path(tempfile.mkdtemp(prefix="flowctl-mutants-"))
        self._killers: collections.Counter[int] = collections.Counter()

    def pytest_collection(self) -> None:
        """Examples are the same for each mutant, and a failing one is not made smaller."""
        from hypothesis import Phase, settings

        settings.register_profile(
            "mutants", deadline=None, derandomize=True, database=None,
            phases=[Phase.explicit, Phase.generate],
        )  # fmt: skip
        settings.load_profile("mutants")

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        items = session.items
        files = {str(self._root / mutant.file) for mutant in self._wanted}
        try:
            reach = self._reach(items, files)
            self.began_s = time.monotonic()
            self._until_s = self.began_s + self._seconds
            self._judge_all(items, reach)
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)
        return True

    def _reach(self, items: list[pytest.Item], files: set[str]) -> Reach:
        process = _fork(lambda: _learn(items, files, self._folder), self._folder)
        os.waitpid(process, 0)
        reach: Reach = pickle.loads((self._folder / "reach").read_bytes())
        took_s = sum(reach.took_s.values())
        print(f"{len(reach.lines)} of {len(items)} tests pass, {took_s:.0f} s", file=self._out)
        return reach

    def _judge_all(self, items: list[pytest.Item], reach: Reach) -> None:
        running: dict[int, tuple[Mutant, float, Path]] = {}
        waiting = collections.deque(self._wanted)
        while running or (waiting and time.monotonic() < self._until_s):
            while waiting and len(running) < self._jobs and time.monotonic() < self._until_s:
                self._start(waiting.popleft(), items, reach, running)
            self._collect(running)
            time.sleep(0.005)

    def _start(self, mutant: Mutant, items: Any, reach: Reach, running: Any) -> None:
        tests = self._tests_of(mutant, reach)
        if not tests:
            self.unreached.append(mutant)
            return
        folder = Path(tempfile.mkdtemp(dir=self._folder))
        took_s = sum(reach.took_s[place] for place in tests)

        def work() -> int:
            if not put_in(mutant, self._root):
                return NOT_POSSIBLE
            for place in tests:
                if not _passes(items[place], folder):
                    (folder / "killer").write_text(str(place), encoding="utf-8")
                    return KILLED
            return SURVIVED

        deadline_s = time.monotonic() + self._hang_s + 4 * took_s
        running[_fork(work, folder)] = (mutant, deadline_s, folder)

    def _tests_of(self, mutant: Mutant, reach: Reach) -> list[int]:
        """The tests that reach it: what killed others first, then the fastest."""
        path = str(self._root / mutant.file)
        lines = {(path, line) for line in range(mutant.line, mutant.end + 1)}
        found = [place for place, seen in reach.lines.items() if lines & seen]
        found.sort(
            key=lambda place: (-self._killers[place] / reach.took_s[place], reach.took_s[place])
        )
        kept, took_s = [], 0.0
        for place in found:
            took_s += reach.took_s[place]
            if kept and took_s > TESTS_S:
                break
            kept.append(place)
        return kept

    def _collect(self, running: dict[int, Any]) -> None:
        for process, (mutant, deadline_s, folder) in list(running.items()):
            ended, status = os.waitpid(process, os.WNOHANG)
            if not ended and time.monotonic() < deadline_s:
                continue
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process, signal.SIGKILL)
            if not ended:
                os.waitpid(process, 0)
                self.hung.append(mutant)
                self.killed += 1
            else:
                self._judge(mutant, os.waitstatus_to_exitcode(status), folder)
            shutil.rmtree(folder, ignore_errors=True)
            del running[process]

    def _judge(self, mutant: Mutant, code: int, folder: Path) -> None:
        if code == SURVIVED:
            self.survivors.append(mutant)
        elif code == NOT_POSSIBLE:
            self.not_possible += 1
        else:  # also one that ends the process
            self.killed += 1
            with contextlib.suppress(FileNotFoundError):
                self._killers[int((folder / "killer").read_text(encoding="utf-8"))] += 1

    @property
    def tried(self) -> int:
        return self.killed + len(self.survivors) + len(self.unreached)


# What to change and what to run.


def files_of(part: str, root: Path = ROOT) -> list[str]:
    """The files of a part, or the one that is named."""
    found = [path for pattern in PARTS.get(part, (part,)) for path in sorted(root.glob(pattern))]
    return [path.relative_to(root).as_posix() for path in found]


def tests_of(files: Iterable[str], root: Path = ROOT) -> list[str]:
    """The files of tests that import one of these modules, or a public name of it."""
    from tests.changes import imports_of

    wanted = set(files)
    parts = {part: files_of(part, root) for part in PARTS}
    whole = [part for part, its in parts.items() if wanted & set(its)]
    modules = tuple(_module(file) for file in wanted.union(*(parts[part] for part in whole)))
    found = [name for part in whole for name in ALSO.get(part, ()) if (root / name).is_file()]
    for folder in TESTS:
        for path in sorted((root / "tests" / folder).glob("test_*.py")):
            name = path.relative_to(root).as_posix()
            used = {_defined_in(module) for module in imports_of(name, root)[1]}
            if any(f"{each}.".startswith(f"{module}.") for each in used for module in modules):
                found.append(name)
    return found


def _module(file: str) -> str:
    name = file.removeprefix("adapters/").removesuffix(".py").removesuffix("/__init__")
    return name.replace("/", ".")


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
    """Judge the mutants of a part; print the rate and what survives.  Exit code 1 if any does."""
    options = _options(arguments)
    root = Path.cwd()
    files = files_of(options.part, root)
    if not files:
        sys.exit(f"{options.part} is neither a part ({', '.join(PARTS)}) nor a file below {root}")
    known = equivalents()
    all_of_it = [each for file in files for each in mutants(file, root)]
    drawn = [each for each in all_of_it if (each.file, each.change) not in known]
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
    return _tell(judging, options)


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants")
    parser.add_argument("part", help=f"{', '.join(PARTS)}, or a file")
    parser.add_argument("--seconds", type=float, default=600.0, help="begin no mutant after these")
    parser.add_argument("--seed", type=int, default=1, help="which mutants are drawn first")
    parser.add_argument("--count", type=int, default=None, help="so many at most")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="so many at a time")
    parser.add_argument(
        "--hang", type=float, default=10.0, help="after these and four times its tests' it hangs"
    )
    parser.add_argument("--only", help="the one mutant of this name: replays a survivor")
    parser.add_argument("--tests", nargs="+", help="files of tests, if not those that import it")
    parser.add_argument("--list", action="store_true", help="only print what would be tried")
    return parser.parse_args(arguments)


def _run(drawn: list[Mutant], tests: list[str], options: argparse.Namespace, root: Path) -> Judging:
    judging = Judging(drawn, options, root)
    quiet = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-m", "not slow and not spark"]
    with open(os.devnull, "w") as null, contextlib.redirect_stdout(null):
        code = pytest.main([*quiet, *tests], plugins=[judging])
    if not judging.tried:
        sys.exit(f"no mutant was tried (pytest: {code}); do these run? pytest {' '.join(tests)}")
    return judging


def _tell(judging: Judging, options: argparse.Namespace) -> int:
    for what, found in (
        ("survived", judging.survivors),
        ("no test reaches", judging.unreached),
        ("hung", judging.hung),
    ):
        for each in sorted(found):
            print(f"{what}: {each.name}  {each.kind}\n    {each.change}")
    took_s = (time.monotonic() - judging.began_s) / judging.tried
    print(
        f"{options.part}: {judging.killed} of {judging.tried} noticed, "
        f"{100 * judging.killed / judging.tried:.1f} % ({len(judging.hung)} hung, "
        f"{judging.not_possible} not possible), {took_s:.2f} s each, seed {options.seed}"
    )
    left = [*judging.survivors, *judging.unreached]
    if left:
        print(f"Again: python -m tests.mutants {options.part} --only {min(left).name}")
    return 1 if left else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
