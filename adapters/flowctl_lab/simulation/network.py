"""The travel of messages: one-way delay and jitter, first in first out."""

from __future__ import annotations

from random import Random
from typing import Any

from flowctl_lab.simulation.loop import EventLoop, Handler


class Sending:
    """One sending of one tuple, and its processing at the bolt."""

    __slots__ = (
        "attempt",
        "began_at_s",
        "bolt",
        "count",
        "ended_at_s",
        "entered_sink_at_s",
        "epoch",
        "first",
        "idle_total_s",
        "received_at_s",
        "sent_at_s",
        "sink_s",
        "spout",
        "tuple_id",
        "turn_at_s",
    )

    @property
    def alone_s(self) -> float:
        """The tuple's time at the bolt without any queue, there or in the sink."""
        if self.sink_s:
            return self.entered_sink_at_s - self.began_at_s + self.sink_s
        return self.ended_at_s - self.began_at_s

    def __init__(self, spout: int, tuple_id: int, attempt: int, first: int, count: int) -> None:
        self.spout: int = spout
        self.tuple_id: int = tuple_id
        self.attempt: int = attempt
        self.first: int = first  # its first record
        self.count: int = count
        self.bolt: str = ""
        self.epoch: int = 0  # epoch of the connection on which it was sent
        self.sent_at_s: float = 0.0
        self.received_at_s: float = 0.0
        self.turn_at_s: float | None = None  # when it no longer waited for others of its queue
        self.began_at_s: float = 0.0
        self.idle_total_s: float = 0.0
        self.ended_at_s: float = 0.0
        self.entered_sink_at_s: float = 0.0
        self.sink_s: float = 0.0  # the sink's time without other callers


class Outlet:
    """The link of a spout's machine, which messages pass one after the other.

    A record takes ``record_s`` to pass; 0 means no time.
    """

    __slots__ = ("_free_at_s", "_record_s")

    def __init__(self, record_s: float = 0.0) -> None:
        self._record_s = record_s
        self._free_at_s = 0.0

    def passed_at_s(self, at_s: float, records: int) -> float:
        """Return when ``records`` handed over at ``at_s`` have passed the link [s]."""
        if self._record_s:
            at_s = max(at_s, self._free_at_s) + self._record_s * records
            self._free_at_s = at_s
        return at_s


class Channel:
    """One direction of one connection.  A message never overtakes another."""

    __slots__ = ("_jitter_s", "_last_s", "_loop", "_one_way_s", "_rng")

    def __init__(self, loop: EventLoop, one_way_s: float, jitter_s: float, rng: Random) -> None:
        self._loop = loop
        self._one_way_s = one_way_s
        self._jitter_s = jitter_s
        self._rng = rng
        self._last_s = 0.0

    def send(self, at_s: float, handler: Handler, first: Any, second: Any = None) -> None:
        """Deliver ``first`` and ``second`` to ``handler``, sent at ``at_s``."""
        arrives_s = at_s + self._one_way_s
        if self._jitter_s:
            arrives_s += self._rng.random() * self._jitter_s
        arrives_s = max(arrives_s, self._last_s)
        self._last_s = arrives_s
        self._loop.at(arrives_s, handler, first, second)
