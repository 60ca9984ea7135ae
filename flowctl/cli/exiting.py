"""How a command ends its process: at once, even if threads are still running."""

from __future__ import annotations

import atexit
import gc
import io
import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final, NoReturn

# Seconds for tidying up: by now all messages are printed and all state is saved.
END_WITHIN_S: Final = 4.0


def leave(code: int, *, end: Callable[[int], object] = os._exit) -> NoReturn:
    """End this process with exit code ``code``; within 5 s if other threads are left.

    Without other threads Python ends as usual.  With other threads its shutdown may last for ever:
    a bolt's thread that is stuck in a call may hold the lock of an import, of a file or of a client
    that the shutdown waits for.  So this does the parts of the shutdown that others rely on (it
    waits for threads that are no daemons, runs what ``atexit`` has, writes out open files), and
    then ends the process by ``end``; if one of the parts lasts too long, a thread does so.

    Only the command does this.  A program that calls ``run()`` itself may have more to do.
    """
    me = threading.current_thread()
    if all(thread is me for thread in threading.enumerate()):
        sys.exit(code)
    guard = threading.Thread(target=_end_late, args=(end, code), name="flowctl-leave", daemon=True)
    guard.start()
    try:
        _write_out()  # before work that may take too long
        # As Python does it; pools of threads are told to end in the first.
        getattr(threading, "_shutdown", lambda: None)()
        atexit._run_exitfuncs()
        _write_out()
    finally:
        end(code)
    raise SystemExit(code)


def _end_late(end: Callable[[int], object], code: int) -> None:
    time.sleep(END_WITHIN_S)
    end(code)


def _write_out() -> None:
    """Write what open files still hold in memory, as Python does when it ends."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    for found in gc.get_objects():
        # By type: ``isinstance`` would ask a proxy for its class, which may run any code.
        if issubclass(type(found), io.TextIOWrapper | io.BufferedWriter | io.BufferedRandom):
            with suppress(Exception):  # closed, or its disk is full
                found.flush()
