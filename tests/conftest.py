"""What all tests share: which of them run, Hypothesis profiles, free ports."""

from __future__ import annotations

import gc
import itertools
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
from hypothesis import HealthCheck, settings

# No deadline: machines differ, and no test asserts on absolute seconds.
settings.register_profile("dev", deadline=None)
# The same examples on every run, so that a failure in CI is a change's own.
settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
settings.register_profile(
    "thorough", deadline=None, max_examples=5_000, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile(
    os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if "CI" in os.environ else "dev")
)


_numbers = itertools.count()  # of tests
IS_THOROUGH = os.environ.get("HYPOTHESIS_PROFILE") == "thorough"
ID_CHARS_MAX = 200  # what one still reads of a test's name


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--req",
        action="append",
        default=[],
        metavar="ID",
        help="run only the tests that show this requirement (exactly: S1 is not S11); repeatable",
    )

    parser.addoption(
        "--long",
        action="store_true",
        help="run only the tests that are marked long or on_change, for half an hour",
    )


def pytest_configure(config: pytest.Config) -> None:
    """A run of the whole suite leaves out what passed with this very code (tests/changes.py)."""
    if not hasattr(config, "workerinput") and _is_whole(config):
        from tests import changes  # a copy of this file serves tests without a copy of that one

        config.pluginmanager.register(_Passed(changes.settled(), changes.digests()), "passed")


def _is_whole(config: pytest.Config) -> bool:
    """Whether nobody named the tests to run, or those to leave out."""
    names = ("keyword", "markexpr", "req", "deselect", "ignore", "ignore_glob", "lf", "maxfail")
    chosen = any(getattr(config.option, name, None) for name in names)  # some are of plugins
    named = config.args_source is pytest.Config.ArgsSource.ARGS
    return not (chosen or named or config.option.long or config.option.collectonly)


class _Passed:
    """Keeps the digests of the files whose tests passed in a whole run, as they were at its start.

    Files with a test that was skipped are not kept: elsewhere it may fail.  Those with one that
    failed run again; the others, which another file's failure says nothing about, do not.
    """

    def __init__(self, settled: list[str], digests: dict[str, str]) -> None:
        self.settled = settled
        self._digests = digests

    @pytest.hookimpl(optionalhook=True)  # pytest-xdist's
    def pytest_configure_node(self, node: Any) -> None:
        node.workerinput["settled"] = self.settled

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.skipped or report.failed:
            self._digests.pop(report.nodeid.partition("::")[0], None)

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        if exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):  # not interrupted
            from tests import changes

            changes.write(changes.passed_besides_tests() | self._digests)


@pytest.hookimpl(tryfirst=True)  # pytest-xdist reads the groups in a hook of the same name
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    is_long = config.getoption("--long")
    wanted = set(config.getoption("--req"))
    settled = _settled(config)
    kept, left = [], []
    for item in items:
        group = _group(item)
        if group is not None:
            item.add_marker(pytest.mark.xdist_group(group))
        if IS_THOROUGH:  # stopped while it draws, Hypothesis says "flaky data generation"
            item.add_marker(pytest.mark.timeout(0))
        on_change = item.get_closest_marker("on_change") is not None
        if is_long:
            is_kept = on_change or item.get_closest_marker("long") is not None
        else:
            is_settled = on_change and item.nodeid.partition("::")[0] in settled
            is_kept = not is_settled and not item.get_closest_marker("long")
        if wanted and not wanted & _requirements(item):
            is_kept = False
        (kept if is_kept else left).append(item)
    if left:
        items[:] = kept
        config.hook.pytest_deselected(items=left)


def _settled(config: pytest.Config) -> list[str]:
    """The files whose tests ``on_change`` are left out."""
    if hasattr(config, "workerinput"):
        return config.workerinput.get("settled", [])
    passed = config.pluginmanager.get_plugin("passed")
    return passed.settled if passed is not None else []


def _group(item: pytest.Item) -> str | None:
    """Return the name of those tests that must not run beside this one, or None."""
    fixtures = getattr(item, "fixturenames", ())
    if item.get_closest_marker("spark"):
        # Two sessions at once take enough of a machine: one of tests, one of programs that they
        # start.
        return "spark" if "spark" in fixtures else "spark_programs"
    if "links" in fixtures:  # they lay cables with the same addresses
        return "links"
    return None


def pytest_collection_finish() -> None:
    """Spare the garbage collector what lives until the end: modules and thousands of tests."""
    gc.collect()
    gc.freeze()


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """A long value is not a name: each worker sends all of them, and each report its own."""
    if isinstance(val, str | bytes) and len(val) > ID_CHARS_MAX:
        return f"{argname}_of_{len(val)}"
    return None


def _requirements(item: pytest.Item) -> set[str]:
    return {name for marker in item.iter_markers("req") for name in marker.args}


@pytest.fixture(scope="session", autouse=True)
def _no_network() -> Iterator[None]:
    """Nothing beyond this machine is needed: a test that connects to elsewhere fails (S122)."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("connect", "connect_ex"):
            patch.setattr(socket.socket, name, _within_this_machine(getattr(socket.socket, name)))
        yield


def _within_this_machine(connect: Callable[..., Any]) -> Callable[..., Any]:
    def guarded(sock: socket.socket, address: Any) -> Any:
        if sock.family in (socket.AF_INET, socket.AF_INET6) and not _is_here(sock, address[0]):
            # No Exception, which the code under test might take for a fault of the network.
            pytest.fail(f"a test connects to {address[0]}, which is not this machine")
        return connect(sock, address)

    return guarded


def _is_here(sock: socket.socket, host: str) -> bool:
    with socket.socket(sock.family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((host, 0))  # nobody can have an address that is not one of this machine
        except OSError:
            return False
        return True


@pytest.fixture(autouse=True)
def _logging_left_alone() -> Iterator[None]:
    """The command line configures structlog, for the whole process: undo it after each test."""
    yield
    structlog.reset_defaults()


@pytest.fixture(scope="session")
def _checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("checkpoints")


@pytest.fixture(autouse=True)
def _checkpoints_of_its_own(_checkpoints: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job without a store keeps its checkpoint in files: no test finds those of another."""
    monkeypatch.setenv("FLOWCTL_CHECKPOINTS", str(_checkpoints / str(next(_numbers))))


@pytest.fixture
def free_port() -> int:
    """A loopback TCP port that was free a moment ago; for servers that can't take port 0."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
