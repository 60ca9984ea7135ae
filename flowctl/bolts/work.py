"""What goes in and out of a bolt's link."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from flowctl.prepared import prepare
from flowctl.wire.frames import (
    AckFrame,
    End,
    FailFrame,
    RangeFrame,
    Revoke,
    Saved,
    SplitFrame,
    TupleFrame,
    Welcome,
)

Order: TypeAlias = TupleFrame | RangeFrame | Revoke | SplitFrame | Saved | End
Outcome: TypeAlias = AckFrame | FailFrame
prepare(Welcome, Order)


class Work(msgspec.Struct, frozen=True, gc=False):
    """A tuple whose processing may begin.  ``idle_total_s`` is as in :class:`AckFrame`."""

    frame: TupleFrame | RangeFrame
    received_at_s: float
    idle_total_s: float
