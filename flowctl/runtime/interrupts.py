"""Ctrl-C, SIGTERM and SIGHUP while a run is on: the first interrupts, those after it hurry."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupts:
    """Takes SIGINT, SIGTERM and SIGHUP (the terminal is gone) for a run in the main thread.

    Elsewhere it does nothing.

    The first signal raises KeyboardInterrupt.  From then on, and from :meth:`hold`, signals only
    set ``is_hurried``: raised inside the last save, they would end it.  :meth:`release` lets the
    next one raise again.
    """

    def __init__(self) -> None:
        self.is_hurried: bool = False
        self._is_held = False

    def hold(self) -> None:
        """From here on nothing may be skipped, only hurried."""
        self._is_held = True

    def release(self) -> None:
        """All that must be done is done."""
        self._is_held = False

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Handle the signals inside; those that the process ignores (nohup) stay ignored."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {
            number: signal.signal(number, self._on_signal)
            for number in _SIGNALS
            # None: set by other than Python code, so it could not be put back.
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
