"""A sink that all bolts share."""

from __future__ import annotations

from collections import deque

from flowctl_lab.simulation import scenario
from flowctl_lab.simulation.loop import EventLoop, Handler
from flowctl_lab.simulation.network import Sending
from flowctl_lab.simulation.profile import Profile


def sink_profile(sink: scenario.Sink) -> Profile:
    """Return the sink's speed over time, for one slot."""

    def speed(at_s: float) -> float:
        return sink.later_speed if at_s >= sink.later_s else 1.0

    return Profile((sink.later_s,), speed)


class SharedSink:
    """A first-come-first-served sink; it calls ``done`` of a request at its end."""

    def __init__(self, loop: EventLoop, sink: scenario.Sink) -> None:
        self._loop = loop
        self._sink = sink
        self._profile = sink_profile(sink)
        self._queue: deque[tuple[Sending, Handler]] = deque()
        self._free = sink.slots
        self._inside = 0
        self._left = self._leave  # one bound method for all

    def enter(self, at_s: float, sending: Sending, done: Handler) -> None:
        """Let a bolt write the records of ``sending``."""
        self._inside += 1
        work = sending.count * self._sink.record_s
        sending.entered_sink_at_s = at_s
        sending.sink_s = self._profile.finish(at_s, work) - at_s
        if self._free:
            self._free -= 1
            self._begin(at_s, sending, done)
        else:
            self._queue.append((sending, done))

    def _begin(self, at_s: float, sending: Sending, done: Handler) -> None:
        work = sending.count * self._sink.record_s
        if self._sink.knee is not None:
            work *= 1 + self._sink.slope * max(0, self._inside - self._sink.knee)
        self._loop.at(self._profile.finish(at_s, work), self._left, sending, done)

    def _leave(self, at_s: float, sending: Sending, done: Handler) -> None:
        self._inside -= 1
        if self._queue:
            self._begin(at_s, *self._queue.popleft())
        else:
            self._free += 1
        done(at_s, sending, None)
