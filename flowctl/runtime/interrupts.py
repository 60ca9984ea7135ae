"""Ctrl-C, SIGTERM and SIGHUP during a run: the first one interrupts, later ones hurry."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupts:
    """Handles SIGINT, SIGTERM and SIGHUP (the terminal is gone) for a run in the main thread.

    In other threads it does nothing.

    The first signal raises KeyboardInterrupt.  After that, and after :meth:`hold`, signals only set
    ``is_hurried``: an exception inside the last save would end it.  :meth:`release` lets the next
    signal raise again.

    A process that is forked inside a run (``multiprocessing`` in ``process``) inherits the handler,
    but is not the run: there a signal does what it did before.
    """

    def __init__(self) -> None:
        self.is_hurried: bool = False
        self._is_held = False
        self._pid = os.getpid()
        self._before: dict[signal.Signals, Any] = {}

    def hold(self) -> None:
        """From here on let signals skip nothing, only hurry the end."""
        self._is_held = True

    def release(self) -> None:
        """Let the next signal raise again: all that must be done is done."""
        self._is_held = False

    def let_in(self) -> None:
        """Let signals raise again after :meth:`hold`; raise for one that came meanwhile."""
        self._is_held = False
        if self.is_hurried:
            self.is_hurried, self._is_held = False, True
            raise KeyboardInterrupt

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Handle the signals inside the block; signals that the process ignores (nohup) stay
        ignored.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        self._pid = os.getpid()
        self._before = before = {
            number: signal.signal(number, self._on_signal)
            for number in _SIGNALS
            # None: not set from Python code, so it could not be restored.
            if signal.getsignal(number) not in (signal.SIG_IGN, None)
        }
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        # Only assignments: the interrupted code may hold any lock.
        del frame
        if os.getpid() != self._pid:
            signal.signal(number, self._before.get(signal.Signals(number), signal.SIG_DFL))
            os.kill(os.getpid(), number)
            return
        if self._is_held:
            self.is_hurried = True
            return
        self._is_held = True
        raise KeyboardInterrupt
