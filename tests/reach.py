"""Which test reaches which line, how long it takes, and what it has noticed; for ``tests.mutants``.

A file of tests is run once to learn this, and again only when it, its helpers or a source that it
reaches have changed: the rest is kept below ``.pytest_cache``, which git ignores.
"""

from __future__ import annotations

import collections
import contextlib
import faulthandler
import functools
import hashlib
import importlib
import os
import pickle
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, Final, NamedTuple

import pytest

from tests import changes

MEMORY_BYTES: Final = 8 << 30  # a loop that no longer ends must not take the machine's
TIMES: Final = 10  # a test hangs after so many times what it took: the machine is busier now
SURVIVED, HUNG, NOT_POSSIBLE, KILLED = 0, 1, 3, 4  # faulthandler ends a process with 1


class Learned(NamedTuple):
    """One test that passes: the lines that it reaches, by file, and how long it takes."""

    lines: dict[str, frozenset[int]]
    took_s: float


class Notices:
    """How often each test ran, and how often it noticed a mutant, by the file that was changed."""

    def __init__(self) -> None:
        self._ran: collections.Counter[tuple[str, str]] = collections.Counter()
        self._noticed: collections.Counter[tuple[str, str]] = collections.Counter()

    def add(self, file: str, ran: Iterable[str], noticed: str | None) -> None:
        """The tests that ran on a mutant of ``file``, and the one that noticed it."""
        for test in ran:
            self._ran[test, file] += 1
            self._ran[test, ""] += 1
        if noticed is not None:
            self._noticed[noticed, file] += 1
            self._noticed[noticed, ""] += 1

    def odds(self, test: str, file: str) -> float:
        """How likely the test notices a mutant of the file: what it did elsewhere counts less."""
        in_all = (1 + self._noticed[test, ""]) / (4 + self._ran[test, ""])
        return (4 * in_all + self._noticed[test, file]) / (4 + self._ran[test, file])


# How a test runs, in a fork of the process that has collected it.


def fork(work: Callable[[], int], folder: Path) -> int:
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


def passes(item: pytest.Item, folder: Path) -> bool:
    """Run one test."""
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


@contextlib.contextmanager
def ended_after(seconds: float) -> Iterator[None]:
    """End this process with ``HUNG`` if what is done here takes longer, whatever it waits for."""
    with open(os.devnull, "w") as null:
        faulthandler.dump_traceback_later(seconds, exit=True, file=null)
        try:
            yield
        finally:
            faulthandler.cancel_dump_traceback_later()


def _learn(item: pytest.Item, files: dict[str, str], folder: Path) -> Learned | None:
    """Run a test to see its lines, then once more as it is; None if it fails.

    In this order: what runs once in a process, and is remembered, is reached by the first.
    """
    seen: set[tuple[str, int]] = set()

    def local(frame: FrameType, event: str, _: Any) -> Any:
        seen.add((frame.f_code.co_filename, frame.f_lineno))
        return local

    def tracer(frame: FrameType, event: str, _: Any) -> Any:
        return local(frame, event, None) if frame.f_code.co_filename in files else None

    threading.settrace(tracer)
    sys.settrace(tracer)
    try:
        is_passed = passes(item, folder)
    finally:
        sys.settrace(None)
        threading.settrace(None)  # type: ignore[arg-type]
    began_s = time.perf_counter()
    if not is_passed or not passes(item, folder):
        return None
    took_s = time.perf_counter() - began_s
    lines = collections.defaultdict(set)
    for path, line in seen:
        lines[files[path]].add(line)
    return Learned({file: frozenset(its) for file, its in lines.items()}, took_s)


class Reach:
    """What is known of the tests that reach ``files``, kept from run to run."""

    def __init__(self, files: Iterable[str], root: Path) -> None:
        self.tests: dict[str, Learned] = {}  # those of this run that pass, by name
        self.notices = Notices()
        self._all: dict[str, Learned] = {}  # also of files of tests that this run has not
        self._root = root
        self._sources = {str(root / file): file for file in files}
        name = hashlib.sha256("\n".join(sorted(self._sources.values())).encode()).hexdigest()[:12]
        self._kept = root / ".pytest_cache" / "mutants" / name
        self._digests: dict[str, str] = {}  # of files of tests, when they were learned
        self._modules: set[str] = set()  # that tests import while they run

    def learn(self, items: list[pytest.Item], folder: Path, jobs: int) -> int:
        """Run what has changed since it was kept, in ``jobs`` processes; return how many tests."""
        with contextlib.suppress(OSError, EOFError, ValueError, pickle.UnpicklingError):
            kept = pickle.loads(self._kept.read_bytes())
            self._all, self._digests, self._modules, self.notices = kept
        by_file = collections.defaultdict(list)
        for item in items:
            by_file[_file_of(item.nodeid)].append(item)
        changed = {file for file in by_file if self._digests.get(file) != self._digest_of(file)}
        fresh = [item for file in sorted(changed) for item in by_file[file]]
        if fresh:
            self._all = {n: its for n, its in self._all.items() if _file_of(n) not in changed}
            self._all |= self._run(fresh, folder, jobs)
            self._digests |= {file: self._digest_of(file) for file in changed}
            self.keep()
        self.tests = {n: its for n, its in self._all.items() if _file_of(n) in by_file}
        self._import()
        return len(fresh)

    def _import(self) -> None:
        """Import what tests will: else each mutant does, and a first test would seem to hang."""
        for name in sorted(self._modules - sys.modules.keys()):
            with contextlib.suppress(Exception):
                importlib.import_module(name)

    def keep(self) -> None:
        """Write what is known for the next run."""
        self._kept.parent.mkdir(parents=True, exist_ok=True)
        self._kept.write_bytes(
            pickle.dumps((self._all, self._digests, self._modules, self.notices))
        )

    def tests_of(self, file: str, first: int, last: int) -> list[str]:
        """The names of the tests that reach a line; those that notice most in a second first."""
        lines = range(first, last + 1)
        found = [
            test
            for test, its in self.tests.items()
            if not its.lines.get(file, _NONE).isdisjoint(lines)
        ]
        return sorted(found, key=lambda test: self._cost_s(test, file))

    def _cost_s(self, test: str, file: str) -> float:
        """The seconds that this test takes for each mutant that it notices."""
        return self.tests[test].took_s / self.notices.odds(test, file)

    def _digest_of(self, file: str) -> str:
        """The digest of a file of tests, its helpers, and the sources that its tests reach."""
        helpers = changes.imports_of(file, self._root)[0]
        reached = {
            source
            for test, its in self._all.items()
            if _file_of(test) == file
            for source in its.lines
        }
        places = [file, *helpers, *reached, "tests/reach.py"]
        return changes.digest(
            [place for place in places if (self._root / place).exists()], self._root
        )

    def _run(self, items: list[pytest.Item], folder: Path, jobs: int) -> dict[str, Learned]:
        def work(mine: list[pytest.Item], place: Path) -> int:
            found = {item.nodeid: _learn(item, self._sources, place) for item in mine}
            learned = {name: its for name, its in found.items() if its is not None}
            (place / "learned").write_bytes(pickle.dumps((learned, set(sys.modules))))
            return SURVIVED

        places = [folder / str(number) for number in range(jobs)]
        running = [
            fork(functools.partial(work, items[number::jobs], place), place)
            for number, place in enumerate(places)
        ]
        learned: dict[str, Learned] = {}
        try:
            for process, place in zip(running, places, strict=True):
                os.waitpid(process, 0)
                found, modules = pickle.loads((place / "learned").read_bytes())
                learned |= found
                self._modules |= modules
        except KeyboardInterrupt:
            for process in running:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process, signal.SIGKILL)
            raise
        return learned


_NONE: Final[frozenset[int]] = frozenset()


def _file_of(test: str) -> str:
    return test.partition("::")[0]
