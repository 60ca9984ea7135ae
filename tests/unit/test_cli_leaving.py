"""How the command ends its process when threads are left."""

from __future__ import annotations

import atexit
import sys
import threading

import pytest

from flowctl.cli import exiting


def test_what_runs_at_exit_has_run_before_the_process_is_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done: list[object] = []
    # A busy machine may need seconds to look for open files; who ends the process then is the
    # next test's.
    monkeypatch.setattr(exiting, "END_WITHIN_S", 3600.0)
    monkeypatch.setattr(threading, "_shutdown", lambda: done.append("threads"))
    monkeypatch.setattr(atexit, "_run_exitfuncs", lambda: done.append("atexit"))
    release = threading.Event()
    other = threading.Thread(target=release.wait, daemon=True)
    other.start()
    try:
        with pytest.raises(SystemExit) as ended:
            exiting.leave(3, end=done.append)
    finally:
        release.set()
        other.join()
    assert done == ["threads", "atexit", 3]
    assert ended.value.code == 3


def test_a_clean_up_that_never_ends_does_not_keep_the_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Kind: a shutdown that waits for a thread."""
    monkeypatch.setattr(exiting, "END_WITHIN_S", 0.0)
    monkeypatch.setattr(threading, "_shutdown", lambda: None)
    codes: list[int] = []
    ended = threading.Event()

    def end(code: int) -> None:
        codes.append(code)
        ended.set()

    # Only a thread can end the process: this waits until it has.
    monkeypatch.setattr(atexit, "_run_exitfuncs", ended.wait)
    release = threading.Event()
    other = threading.Thread(target=release.wait, daemon=True)
    other.start()
    try:
        with pytest.raises(SystemExit):
            exiting.leave(130, end=end)
    finally:
        release.set()
        other.join()
    assert codes[0] == 130


def test_without_other_threads_python_ends_as_usual(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading, "enumerate", lambda: [threading.current_thread()])
    with pytest.raises(SystemExit) as ended:
        exiting.leave(2, end=lambda code: sys.exit("not reached"))
    assert ended.value.code == 2
