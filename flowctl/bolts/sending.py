"""A bolt's sending: everything it was given, in order, however slowly the connection takes it."""

from __future__ import annotations

import select

from flowctl.config import WaitSettings
from flowctl.waiting.episodes import Episode
from flowctl.waiting.idling import Idling
from flowctl.waiting.strategies import WaitSituation, make_wait_strategy
from flowctl.wire.stream import Stream


class Sending:
    """Sends over ``stream``, and waits as ``wait`` says when it takes no more.  For one thread."""

    def __init__(self, stream: Stream, wait: WaitSettings, *, bolt: str) -> None:
        self._stream = stream
        self._backpressure = Idling(
            make_wait_strategy(wait, WaitSituation.BACK_PRESSURE_WAIT, park=self._await_writable),
            Episode("backpressure_began", "backpressure_ended", bolt=bolt),
        )

    def send(self, data: bytearray) -> None:
        """Send all of it; a lost connection is noticed by the link thread."""
        has_waited = False
        try:
            while data:
                del data[: self._stream.send(data)]
                if data:
                    has_waited = True
                    self._backpressure.wait()
        except (OSError, ValueError):  # ValueError: closed, so it has no descriptor
            pass
        if has_waited:
            self._backpressure.over()

    def _await_writable(self, timeout_s: float) -> None:
        """A :data:`Parking`: a stop ends it by shutting down the connection."""
        writable = select.poll()
        writable.register(self._stream.fileno(), select.POLLOUT)
        writable.poll(timeout_s * 1000)
