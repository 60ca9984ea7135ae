"""NORMAL, SLOW, BUSY: the transition table (S4–S6, ruling 1.9-I).  Read this first."""

from __future__ import annotations

import enum
from types import MappingProxyType
from typing import Final

from flowctl.core.events import BoltState


class Signal(enum.Enum):
    """What was seen of a bolt."""

    IN_RANGE = "ack in range"  # an ack whose RTT is at or below the threshold
    OVER = "ack over threshold"
    EXPIRED = "tuple expired"  # no ack within the RTO
    REFUSED = "refused"  # the target had no room for what it sent
    SILENT = "no heartbeat"  # expired, and nothing heard: suspect


_AFTER = {
    Signal.IN_RANGE: BoltState.NORMAL,  # also from BUSY: the next in-range ack ends it
    Signal.OVER: BoltState.SLOW,
    Signal.EXPIRED: BoltState.BUSY,
    Signal.REFUSED: BoltState.SLOW,
    Signal.SILENT: BoltState.BUSY,
}

# The state after a signal does not depend on the state before it: what a bolt did last is what
# it is.  The table is written out so that an exception to that has a place to stand.
TRANSITIONS: Final = MappingProxyType(
    {(state, signal): _AFTER[signal] for state in BoltState for signal in Signal}
)
