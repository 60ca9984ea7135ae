"""Ctrl-C, SIGTERM and SIGHUP during a run: the first one interrupts, later ones hurry."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupts:
    """Handles SIGINT, SIGTERM and SIGHUP (the terminal is gone) for a run in the main thread.

    In other threads it does nothing.

    The first signal raises KeyboardInterrupt.  After that, and after :meth:`hold`, signals only set
    ``is_hurried``: an exception inside the last save would end it.  :meth:`release` lets the next
    signal raise again.
    """

    def __init__(self) -> None:
        self.is_hurried: bool = False
        self._is_held = False

    def hold(self) -> None:
        """From here on nothing may be skipped, only hurried."""
        self._is_held = True

    def release(self) -> None:
        """Everything that must be done is done."""
        self._is_held = False

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Handle the signals inside the block; those that the process ignores (nohup) stay
        ignored."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {
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
        del number, frame
        if self._is_held:
            self.is_hurried = True
            return
        self._is_held = True
        raise KeyboardInterrupt
