"""The state of a bolt: NORMAL, SLOW, BUSY for display; alive or not for the core.  Read this first.

Everything that changes either is in the two tables of this file (S4–S6; after BUSY the next ack in
range means NORMAL again).
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from types import MappingProxyType
from typing import Any, Final

from flowctl.core.events import BoltState


class Signal(enum.Enum):
    """What was observed of a bolt."""

    # Looked up in a table for every other ack: members are single, and by name it is Python code.
    __hash__: Callable[[Any], int] = object.__hash__  # type: ignore[assignment]

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

# The state after a signal does not depend on the state before it: the last signal decides.  The
# table is written out in full so that an exception could be added.
TRANSITIONS: Final = MappingProxyType(
    {(state, signal): _AFTER[signal] for state in BoltState for signal in Signal}
)


class Liveness(enum.Enum):
    """Whether a bolt may be sent anything, and if not, why."""

    ALIVE = "alive"
    STALLED = "stalled"  # speaks, but all its slots are busy and its oldest tuple is overdue
    RESTING = "resting"  # the target refused it: nothing more for a moment
    SUSPECT = "suspect"  # silent, with a tuple overdue: it gets nothing until it speaks
    DOWN = "down"  # silent for longer: what it held is with others
    STALLED_SUSPECT = "stalled, then suspect"  # it is stalled again as soon as it speaks
    STALLED_DOWN = "stalled, then down"
    GONE = "gone"  # its connection ended


SILENT: Final = (
    Liveness.SUSPECT,
    Liveness.DOWN,
    Liveness.STALLED_SUSPECT,
    Liveness.STALLED_DOWN,
)


class Sign(enum.Enum):
    """What was observed of a bolt that affects its liveness."""

    HEARD = "said something"
    ANSWERED = "acked, failed or was refused a tuple"
    HAS_SLOT = "has a free slot"
    OVERDUE = "all slots busy, the oldest tuple overdue"
    REFUSED = "the target refused it"
    RESTED = "its rest is over"
    SILENT = "silent with a tuple overdue"
    STILL_SILENT = "silent a heartbeat later"
    LEFT = "its connection ended"


_A, _T, _R, _S, _D, _TS, _TD, _G = Liveness
_ROWS: Final = {
    #                  alive stalled resting suspect down t.susp. t.down gone
    Sign.HEARD:        (_A,  _T,     _R,     _A,     _A,  _T,     _T,    _G),
    Sign.ANSWERED:     (_A,  _A,     _R,     _A,     _A,  _A,     _A,    _G),
    Sign.HAS_SLOT:     (_A,  _A,     _R,     _A,     _A,  _A,     _A,    _G),
    Sign.OVERDUE:      (_T,  _T,     _R,     _S,     _D,  _TS,    _TD,   _G),
    Sign.REFUSED:      (_R,  _R,     _R,     _R,     _R,  _R,     _R,    _G),
    Sign.RESTED:       (_A,  _T,     _A,     _S,     _D,  _TS,    _TD,   _G),
    Sign.SILENT:       (_S,  _TS,    _S,     _S,     _D,  _TS,    _TD,   _G),
    Sign.STILL_SILENT: (_D,  _TD,    _D,     _D,     _D,  _TD,    _TD,   _G),
    Sign.LEFT:         (_G,  _G,     _G,     _G,     _G,  _G,     _G,    _G),
}  # fmt: skip
LIVENESS: Final = MappingProxyType(
    {
        (before, sign): after
        for sign, row in _ROWS.items()
        for before, after in zip(Liveness, row, strict=True)
    }
)
