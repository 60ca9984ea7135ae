"""A run in a process of its own, found again by its name: what a scheduler's tasks attach to.

A task that runs ``flowctl run`` as its child takes the run along when its worker dies, and a task
that is tried again would start a second one.  A :class:`DetachedRun` outlives whoever started it.
Below the directory in which the job runs there are, for each name::

    .flowctl/runs/NAME.run     for which occasion, which process, and its exit code when it has one
    .flowctl/runs/NAME.json    the report
    .flowctl/runs/NAME.log     what the run printed
    .flowctl/runs/NAME.lock    locked for as long as the run or its keeper lives

The keeper is the run's parent: somebody has to be told the exit code.  Both hold the lock, which
the kernel releases, so what says that a run is at work can't be left behind.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from flowctl import disk
from flowctl.arguments import check_arguments
from flowctl.errors import (
    EXIT_FINISHED,
    EXIT_FINISHED_WITH_LOSSES,
    EXIT_QUOTA,
    EXIT_SPENT,
    EXIT_USAGE,
    ConfigError,
    InfrastructureError,
)

POLL_S: Final = 0.5  # a run that is worth a scheduler lasts minutes
STOP_TIMEOUT_S: Final = 90.0  # the last save waits 60 s for an absent Redis
# Somebody who only looks holds the lock for microseconds; a run holds it for all its life.
_LOOK_S: Final = 0.3
# In the directory of the job nothing may stand before this flowctl.
_KEEPER: Final = (
    f"import sys; sys.path[0] = {str(Path(__file__).parents[2])!r};"
    " from flowctl.runtime.detached import keep; keep()"
)


class Ended(msgspec.Struct, frozen=True):
    """How a detached run ended.

    ``code``: its exit code, below 0 the signal that killed it, None if it ended without a word (its
    machine went down, or its keeper was killed too).  ``report``: what ``flowctl run --report``
    wrote; empty if it came to none.
    """

    code: int | None
    report: dict[str, Any] = {}

    @property
    def is_done(self) -> bool:
        """Whether the run finished, and no record was left out."""
        return self.code == EXIT_FINISHED

    @property
    def retry_helps(self) -> bool:
        """Whether the same command may end better: not after wrong usage, with losses, or where
        ``spend_max`` is spent.
        """
        return self.code not in (EXIT_FINISHED, EXIT_USAGE, EXIT_FINISHED_WITH_LOSSES, EXIT_SPENT)

    @property
    def paused_until_s(self) -> float | None:
        """When the used-up quota that ended it begins anew [Unix seconds]; None: none did."""
        until = self.report.get("paused_until")
        if self.code != EXIT_QUOTA or not until:
            return None
        return datetime.fromisoformat(until).timestamp()

    @property
    def problem(self) -> str:
        """What to tell people of a run that is not done."""
        said = "ended without a word" if self.code is None else f"exit code {self.code}"
        why = self.report.get("error") or ("" if self.retry_helps else json.dumps(self.report))
        return f"{said}{f': {why}' if why else ''}{'; a retry resumes' if self.retry_helps else ''}"


class _State(msgspec.Struct):
    occasion: str
    host: str
    pid: int = 0  # of the run; 0: it has not begun
    born: str = ""  # when, as the kernel counts: the number may be another process's by now
    code: int | None = None
    is_taken: bool = False  # somebody was told how it ended


class DetachedRun:
    """The run called ``name`` of ``command``, such as ``["flowctl", "run", "/jobs/visits.py"]``.

    ``name``: the job's.  Of the runs with one name in one directory one is at work at a time.
    ``occasion``: what the run is for, such as the scheduler's id of a day.  A later try for the
    same occasion attaches to the run that is at work, and is told of success if nobody was.
    ``directory``: where the command runs; by default the current one.  ``environment``: what the
    command gets beside this process's variables.

    Another machine does not see these processes: there give the command ``--redis URL --standby``,
    so that it waits for the one that works.  For one thread.
    """

    @check_arguments("name", "command", "occasion", "directory", "environment")
    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        occasion: str = "",
        directory: str | os.PathLike[str] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        if not name:
            raise ConfigError("name", "is empty.", remedy="Give the name of the job.")
        self.name = name
        self.occasion = occasion
        self.directory: Path = Path(directory or ".").absolute()
        self._command = list(command)
        self._environment = os.environ | dict(environment or {})
        self._told = 0  # bytes of the log
        self._keeper: subprocess.Popen[bytes] | None = None

    def start(self, *, pause: Callable[[float], object] = time.sleep) -> bool:
        """Start the run; False if one of this occasion is at work, or is done and nobody was told.

        Waits while a run of another occasion is at work.  Raises :class:`ConfigError` if there is
        no such directory or program, :class:`InfrastructureError` for a disk that takes no files
        or no locks.
        """
        self._check()
        try:
            while (found := self._found_or_started()) == "other":
                pause(POLL_S)
        except OSError as error:
            raise InfrastructureError(
                f"what runs in {self.directory} can't be noted there: {error.strerror or error}.",
                remedy="Give a directory on a local disk that has room.",
            ) from error
        return found == "started"

    def ended(self) -> Ended | None:
        """How the run ended; None while it is at work.

        Raises :class:`InfrastructureError` if none was started here.
        """
        is_free = self._is_free()  # before the state: the keeper writes it last
        state = self._read()
        if state is None:
            raise InfrastructureError(
                f"no run of {self.name!r} was started in {self.directory} on {_host()}.",
                remedy="Wait for a run on the machine on which it was started.",
            )
        return Ended(state.code, self._report()) if is_free or state.code is not None else None

    def take(self) -> None:
        """Note that somebody was told how the run ended: the next :meth:`start` begins another."""
        with self._locked():  # or what the run left behind has it: nobody starts another then
            state = self._read()
            is_ours = state is not None and state.occasion == self.occasion
            if state is not None and is_ours and state.code is not None:
                self._write(msgspec.structs.replace(state, is_taken=True))

    def wait(self, *, pause: Callable[[float], object] = time.sleep) -> Ended:
        """Start the run or attach to it, wait until it has ended, and return how."""
        self.start(pause=pause)
        while (ended := self.ended()) is None:
            pause(POLL_S)
        self.take()
        return ended

    def stop(self) -> Ended | None:
        """Tell the run to save and end, and wait for that: None if it did not within 90 s.

        A run of another occasion goes on.
        """
        deadline_s = time.monotonic() + STOP_TIMEOUT_S
        is_told = False
        while (ended := self.ended()) is None and time.monotonic() < deadline_s:
            state = self._read()
            if state is None or state.occasion != self.occasion:
                return None
            if state.pid and not is_told:
                is_told = True
                _terminate(state)
            time.sleep(_LOOK_S)
        return ended

    def printed(self) -> str:
        """The lines that the run has printed since the last call."""
        with suppress(FileNotFoundError), open(self._file("log"), "rb") as log:
            log.seek(self._told)
            said, _, _ = log.read().rpartition(b"\n")
            self._told += len(said) + 1 if said else 0
            return said.decode("utf-8", "replace")
        return ""

    # -- starting -------------------------------------------------------------------------------

    def _check(self) -> None:
        if not self.directory.is_dir():
            raise ConfigError(
                "directory", f"there is no directory {self.directory}.", remedy="Make it first."
            )
        program = self._command[0] if self._command else ""
        place = None if os.sep in program else self._environment.get("PATH")
        if shutil.which(str(self.directory / program) if place is None else program, path=place):
            return
        raise ConfigError(
            "command",
            f"there is no program {program!r}.",
            remedy="Install flowctl, or give the path: /opt/venv/bin/flowctl.",
        )

    def _found_or_started(self) -> Literal["started", "found", "other"]:
        with self._locked() as lock:
            state = self._read()
            if state is None or state.occasion != self.occasion:
                is_found = False
            elif lock is None:
                is_found = state.code is None  # else what it left behind still has the lock
            else:
                is_found = state.code == EXIT_FINISHED and not state.is_taken
            if is_found or lock is None:
                return "found" if is_found else "other"
            self._start(lock)
            return "started"

    def _start(self, lock: int) -> None:
        self._told = 0
        with suppress(FileNotFoundError):
            os.unlink(self._file("json"))
        self._write(_State(self.occasion, _host()))
        command = [*self._command, "--plain", "--report", self._file("json")]
        with open(self._file("log"), "wb") as log:
            self._keeper = subprocess.Popen(
                [sys.executable, "-c", _KEEPER, str(lock), self._file("run"), *command],
                cwd=self.directory,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[lock],
                start_new_session=True,  # what is sent to the worker's group is not for the run
            )

    # -- the files ------------------------------------------------------------------------------

    def _file(self, kind: str) -> str:
        return str(self.directory / ".flowctl" / "runs" / disk.file_name(self.name, f".{kind}"))

    @contextmanager
    def _locked(self) -> Iterator[int | None]:
        """The descriptor of the lock; None while a run holds it."""
        path = self._file("lock")
        disk.make_directory(os.path.dirname(path))
        descriptor = os.open(path, os.O_CREAT | os.O_RDWR, disk.MODE)
        try:
            yield descriptor if _lock(descriptor, path) else None
        finally:
            os.close(descriptor)  # without unlocking: the keeper may have it, too

    def _is_free(self) -> bool:
        path = self._file("lock")
        try:
            descriptor = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            return True
        try:
            return _lock(descriptor, path, shared=True, timeout_s=0.0)
        finally:
            os.close(descriptor)

    def _read(self) -> _State | None:
        try:
            state = _read(self._file("run"))
        except FileNotFoundError:
            return None
        elsewhere = state.code is None and state.host != _host()
        if elsewhere and (kind := disk.network_of(str(self.directory))):
            raise InfrastructureError(
                f"{self.name!r} was started on {state.host}, and {kind} does not say whether it is"
                " still at work.",
                remedy=f"Try again there, or, if it has ended, remove {self._file('run')}.",
            )
        return state

    def _write(self, state: _State) -> None:
        disk.replace(self._file("run"), msgspec.json.encode(state))

    def _report(self) -> dict[str, Any]:
        # None, or cut off: wrong usage, a kill, a full disk.
        with suppress(OSError, ValueError):
            told = json.loads(Path(self._file("json")).read_bytes())
            if isinstance(told, dict):
                return told
        return {}


def keep() -> None:
    """Run a command and note its exit code: what the keeper's process does."""
    lock, path, *command = sys.argv[1:]
    state = _read(path)
    run = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=[int(lock)])
    signal.signal(signal.SIGTERM, lambda *_: run.terminate())  # it saves; then its code is noted
    state.pid, state.born = run.pid, _born(run.pid)
    disk.replace(path, msgspec.json.encode(state))
    state.code = run.wait()
    disk.replace(path, msgspec.json.encode(state))


def _read(path: str) -> _State:
    return msgspec.json.decode(Path(path).read_bytes(), type=_State)


def _lock(descriptor: int, path: str, *, shared: bool = False, timeout_s: float = _LOOK_S) -> bool:
    """Whether the lock could be had."""
    try:
        if not disk.lock(descriptor, path, shared=shared, timeout_s=timeout_s):
            raise OSError(0, "its file system has no locks")
    except TimeoutError:
        return False
    return True


def _terminate(state: _State) -> None:
    if _born(state.pid) == state.born:
        with suppress(ProcessLookupError):
            os.kill(state.pid, signal.SIGTERM)


def _born(pid: int) -> str:
    """When the process began, in the kernel's ticks; "" if it is gone, or where nobody says."""
    try:
        # The name before it may hold anything but the last bracket.
        return (
            Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()[19]
        )
    except OSError:
        return ""


def _host() -> str:
    return socket.gethostname()
