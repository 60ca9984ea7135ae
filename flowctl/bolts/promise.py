"""Whether acks may wait for each other: only while somebody has promised to flush them."""

from __future__ import annotations

from typing import Final

# The spout learns of a free place at most this much later: a tenth of the shortest round trip that
# a window can feel on a busy machine.
ACK_DELAY_S: Final = 0.001
# How often the link may find nothing to flush before it sleeps.  More than once, because a process
# thread may wait some milliseconds for the interpreter; few, because each is a wake-up.
LOOKS_IN_VAIN: Final = 4
# A heartbeat that is due within this share of their interval goes with what is reported of a range:
# the spout wakes up once for both (7 times a second and bolt for 11), which costs it more than to
# read one.  Half of .25 s: reports come each .15 s, so that none is left to go by itself.
BEAT_EARLY: Final = 0.5
# An ack is 40 bytes and a send costs some 10 us: shared by 64 acks it is 0.2 us each, and more
# would only make the spout wait.
_ACKS_PER_SEND: Final = 64


class FlushPromise:
    """Counts the acks that wait.  Not thread-safe: the caller holds the link's lock.

    ``is_given``: waiting acks will be flushed at ``look_at_s`` (monotonic).
    """

    __slots__ = ("_looks_left", "_reported", "is_given", "look_at_s", "waiting")

    def __init__(self) -> None:
        self.is_given: bool = False
        self.look_at_s: float = 0.0
        self.waiting: int = 0
        self._looks_left = 0  # how many more times there will be a look, if nothing is reported
        self._reported = False  # since the last look

    def give(self, now_s: float) -> None:
        """There are tuples, so there will be acks."""
        self._looks_left = LOOKS_IN_VAIN
        if not self.is_given:
            self.is_given = True
            self.look_at_s = now_s + ACK_DELAY_S

    def reported(self) -> bool:
        """One more ack waits; return whether it may wait for others."""
        self.waiting += 1
        self._reported = True
        return self.is_given and self.waiting < _ACKS_PER_SEND

    def keep(self, now_s: float) -> bool:
        """Return whether to flush now.  The next look is scheduled while tuples are being finished.

        If none are, acks are sent one by one until tuples come or a heartbeat is due: a slow
        ``process`` costs no wake-ups, a fast one few system calls.
        """
        self._looks_left = LOOKS_IN_VAIN if self._reported else self._looks_left - 1
        self.is_given = self._looks_left > 0
        self._reported = False
        self.look_at_s = now_s + ACK_DELAY_S
        return self.waiting > 0
