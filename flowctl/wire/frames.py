"""The frames between spout and bolt: typed, in msgpack, each preceded by a four-byte length.

A frame is an array whose first element is the tag, so it is short and its bytes are the same on
every run.  Most are the core's own messages (:mod:`flowctl.core.messages`); here are those that
only the two ends of a connection need, and the version, which is in the first frame of each side: a
change that an older peer could misread raises it.
"""

from __future__ import annotations

from typing import Final, TypeAlias

from flowctl.core.messages import (
    Ack,
    DetailedAck,
    Emission,
    Fail,
    Heartbeat,
    Message,
    Order,
    Progress,
    RangeEmission,
    RangeFail,
    Revoked,
    SettledAck,
    SplitAnswer,
)

# Version 1 had no DetailedAck, and other fails and heartbeats; version 2 had no ranges; heartbeats
# of version 3 did not say which tuples were begun; messages to bolts did not name the bolt in
# version 4; tuples of version 5 did not say which records had been given up; fails of version 6 did
# not say that a target's answer is about what was sent.
PROTOCOL_VERSION: Final = 7


class Hello(Message, frozen=True, tag=1):
    """Bolt → spout, first frame."""

    version: int
    bolt: str
    slots: int
    pid: int
    host: str


class Welcome(Message, frozen=True, tag=2):
    """Spout → bolt, the answer: ``epoch`` counts the connections of this bolt.

    ``job_epoch`` is the driver's generation, for :class:`flowctl.core.records.Span`.
    """

    version: int
    epoch: int
    job_epoch: int


class Saved(Message, frozen=True, tag=18):
    """Spout → bolt: how many :class:`Progress` messages of this connection are saved.

    Sent only to bolts that ask for it.
    """

    reports: int


class Dying(Message, frozen=True, tag=19):
    """Bolt → spout, the last frame of a bolt that ``process`` ends, with the reason.

    ``is_told``: the tuple that ended it was reported as failed, so no other tuple that it holds is
    to blame.  ``is_stuck``: its threads are still in calls, and it comes back when these return.
    """

    reason: str
    is_told: bool = False
    is_stuck: bool = False


# The frames that a bolt gets after its Welcome.
ToBolt: TypeAlias = Emission | RangeEmission | Order | Saved
# The frames that a bolt sends after its Hello.
ToSpout: TypeAlias = (
    Ack
    | DetailedAck
    | SettledAck
    | Fail
    | Heartbeat
    | Revoked
    | SplitAnswer
    | Progress
    | RangeFail
    | Dying
)
